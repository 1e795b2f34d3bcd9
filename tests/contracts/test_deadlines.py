"""Tests that both intermediaries find what is due by one look, and that no clock moves a deadline out of reach."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS, MIXING, SystemClock
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.web import waiting
from tests.support.parties import AssigningShufflerParty, Party


@contextmanager
def statements(party: Party) -> Iterator[list[str]]:
    """Yield the statements that the party's database runs."""
    seen = list[str]()

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    engine = party.app.state.database._engine
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def due(party: Party) -> list[str]:
    return sorted(address.partition("/")[2] for address in party.app.state.service.deadlines.due())


def test_a_first_deadline_a_stages_and_a_batch_that_nothing_mixes_are_due_and_nothing_else(party: Party) -> None:
    cohorts = {name: party.cohort(name=name) for name in ("unused", "begun", "full")}
    for cohort in cohorts.values():
        party.open(cohort)
    if isinstance(party, AssigningShufflerParty):
        party.ask(cohorts["begun"], [0], "begun")
    party.send(cohorts["begun"], {0: party.bodies(cohorts["begun"])[0]})
    party.clock.advance(0.9 * FIRST_SECONDS)
    assert due(party) == []
    party.clock.advance(0.2 * FIRST_SECONDS)
    assert due(party) == ["full", "unused"]
    party.clock.advance(cohorts["begun"].stage_seconds)
    assert due(party) == ["begun", "full", "unused"]
    with party.app.state.database.transaction() as tx:
        tx.exec_driver_sql("UPDATE cohorts SET stage = ? WHERE cohort = 'full'", (MIXING,))
    assert due(party) == ["begun", "full", "unused"]
    party.app.state.service.sweep()
    states = {entry["cohort"]: entry["stage"] for entry in party.get("").json()["cohorts"]}
    assert (states["unused"], states["begun"]) == ("aborted", "aborted")


def test_open_cohorts_cost_a_sweep_one_statement_together(party: Party) -> None:
    for number in range(30):
        cohort = party.cohort(name=f"c{number}")
        party.open(cohort)
        if number < 10:
            party.send(cohort, {0: party.bodies(cohort)[0]})
            vars(party).pop("_bodies", None)
            vars(party).pop("masking_clients", None)
    due(party)
    with statements(party) as seen:
        assert due(party) == []
    assert sum(one.startswith("SELECT") for one in seen) == 1


@pytest.mark.parametrize("back", [60.0, 3600.0])
@pytest.mark.parametrize("begun", [False, True])
def test_a_clock_that_was_set_back_while_no_process_ran_moves_no_deadline_out_of_reach(
    party: Party, cohort: Cohort, back: float, *, begun: bool
) -> None:
    if begun:
        party.send(cohort, {0: party.bodies(cohort)[0]})
    party.clock.advance(-back)
    party.restart()
    lasting = cohort.stage_seconds if begun else FIRST_SECONDS
    party.clock.advance(0.9 * lasting)
    assert party.batch_now().state == "waiting"
    party.clock.advance(0.2 * lasting)
    assert party.batch_now().state == "aborted"


def test_the_wall_clock_moves_no_deadline_of_a_process_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall = SystemClock(), time.time
    before = clock.now()
    assert abs(before - wall()) < 5
    for hours in (1, -1):
        monkeypatch.setattr(time, "time", lambda hours=hours: wall() + 3600 * hours)
        assert 0 <= clock.now() - before < 600


def test_a_deadline_wakes_the_request_that_waits_for_it(
    party: Party, cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No change comes with a deadline: the sweep finds it while the request waits."""
    party.send(cohort, {0: party.bodies(cohort)[0]})
    look, begun = party.app.state.service.deadlines.due, party.clock.now()

    def due_later() -> list[str]:
        found: list[str] = look()
        party.clock.advance(cohort.stage_seconds)  # behind the look, so that the next one finds the cohort
        return found

    party.app.state.service.deadlines.due = due_later
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 600.0)
    assert party.get("/c1/batch?wait=60").json()["state"] == "aborted"
    assert party.clock.now() > begun + cohort.stage_seconds  # the first look behind it was a sweep's

"""Tests of the aggregator's reports beside the sum: statements to the server, liars and disputes in the batch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, unmask_statement
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.intermediary import keeping
from distrust.common.protocol.messages.status import Settled, StageView, Statement
from tests.support.aggregator_harness import STAGES, AggregatorHarness, server
from tests.support.cohorts import address


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AggregatorHarness]:
    harness = AggregatorHarness(tmp_path, server.masked())
    yield harness
    harness.stop()


def test_false_shares_spoil_no_sum_and_the_report_names_the_liar(harness: AggregatorHarness) -> None:
    """Slot 0 returns false shares of all clients; the server reads its slot in the batch."""
    for stage in STAGES[:4]:
        harness.answer(stage, range(5))
    bodies = harness.clients.answer(harness.view(), range(5))
    bodies[0] = bytes(len(bodies[0]))
    harness.send("unmask", bodies)
    assert harness.sum() == harness.clients.total(range(5))
    batch = harness.released().batch
    assert batch is not None
    assert (batch.liars, batch.disputes) == ([0], 0)
    assert harness.service.transcript(address("c1"), 0, 100).messages[-1].view["liars"] == [0]


def test_secrets_that_cannot_be_rebuilt_end_the_cohort_with_a_reason_that_blames_no_victim(
    harness: AggregatorHarness,
) -> None:
    for stage in STAGES[:4]:
        harness.answer(stage, range(5))
    bodies = harness.clients.answer(harness.view(), range(5))
    harness.send("unmask", bodies | {slot: bytes(len(bodies[slot])) for slot in (0, 1)})
    answer = harness.released()
    assert answer.state == "aborted"
    assert "cannot be rebuilt" in (answer.reason or "")


def test_statements_are_served_as_stages_open_and_chain_what_clients_were_told(harness: AggregatorHarness) -> None:
    """The server publishes these digests; a client computes them from the view that it got."""
    cohort = harness.cohort
    assert harness.service.statements(address("c1"), 0).statements == []
    views: list[StageView] = []
    for stage in STAGES:
        harness.answer(stage, range(5))
        views.append(harness.view())
        known = harness.service.statements(address("c1"), 0)
        assert [item.stage for item in known.statements] == list(STAGES[2 : STAGES.index(stage) + 2])
        assert harness.service.statements(address("c1"), 2).statements == known.statements[2:]
    assert harness.released().state == "released"
    result = harness.service.statements(address("c1"), 0)
    roster = Roster(cohort, views[0].members, views[0].roster or b"")
    first = confirm_statement(roster.digest, roster.cohort, views[1].members, views[1].challenge or b"")
    second = masked_statement(first, cohort, views[2].members)
    third = unmask_statement(second, cohort, views[3].members)
    assert [item.digest for item in result.statements] == [first, second, third]
    assert result.over


def test_two_cohorts_never_have_one_challenge_and_a_restart_keeps_it(tmp_path: Path) -> None:
    challenges = set()
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        harness = AggregatorHarness(tmp_path / str(number), server.masked())
        harness.answer("keys", range(5))
        harness.answer("shares", range(5))
        challenge = harness.view().challenge
        harness.restart()
        assert harness.view().challenge == challenge
        challenges.add(challenge)
        harness.stop()
    assert len(challenges) == 4


def test_a_half_scrubbed_cohort_gives_no_statement_for_another_stages(
    harness: AggregatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message at a time is scrubbed. At each moment a stage has its own statement, or none."""
    for stage in STAGES:
        harness.answer(stage, range(5))
    assert harness.released().state == "released"
    whole = harness.service.statements(address("c1"), 0).statements
    harness.service.settle(harness.cohort.run_digest, Settled(cohorts=["c1"]))
    monkeypatch.setattr(keeping, "MOST_BYTES", 1)
    seen, step = list[list[Statement]](), keeping.Keeper._scrub_step

    def watched(self: keeping.Keeper, values: dict[str, Any]) -> int:
        seen.append(harness.service.statements(address("c1"), 0).statements)
        return step(self, values)

    monkeypatch.setattr(keeping.Keeper, "_scrub_step", watched)
    harness.clock.advance(harness.cohort.keep_seconds)
    harness.service.scrub()
    assert (seen[0], seen[-1], len(whole)) == (whole, [], 3)
    assert all(statements in (whole, []) for statements in seen)

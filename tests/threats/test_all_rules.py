"""Tests of all rules at once: parties lie, crash, forget, repeat and vanish in any order, and three promises hold.

After every step: no client is released twice; no sum has fewer than t honest clients; no honest party is named. Each
promise has a play of its own below, which the random steps need not find: a mutation of the code makes it fail.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings

from distrust.common.errors import NotAdmitted
from distrust.server.learner.rounds import LostCohort
from tests.support.all_rules import CENTRAL, CROWD, STAGE, TO_REST, AllRules
from tests.support.parties_that_forget import RUN, TokenState
from tests.support.picked import ALL

TestAllRules = AllRules.TestCase
TestAllRules.settings = settings(
    max_examples=150 if os.environ.get(ALL) else 20, stateful_step_count=24, deadline=None, derandomize=True
)


@contextmanager
def playing(mechanism: dict[str, Any]) -> Iterator[AllRules]:
    """Yield the machine after its beginning. Its promises must hold at the end, too."""
    machine = AllRules()
    try:
        machine.begin(mechanism)
        yield machine
        machine.promises_hold()
    finally:
        machine.teardown()


def fill(machine: AllRules, *fleets: int) -> None:
    """Let fleets request tickets in this order. Fleet 0 asks for three at a time, fleet 1 for two."""
    for fleet in fleets:
        machine.takes_part(fleet, 1, TO_REST)


def look(machine: AllRules, *, deadline: bool = False) -> None:
    """Let parties look three times, first after their deadline where it shall pass. The promises must hold."""
    for seconds in (STAGE + 1 if deadline else 1.0, 1.0, 1.0):
        machine.time_passes(seconds, TO_REST)
        machine.promises_hold()


def reasons(machine: AllRules) -> list[str]:
    """Return why cohorts were lost."""
    return [outcome.reason for outcome in machine.parties.server.store.outcomes(RUN) if isinstance(outcome, LostCohort)]


def test_clients_whose_services_forget_them_are_not_in_a_second_sum() -> None:
    """Both files go back. Only the fleets know, and other fleets than before are granted their slots."""
    with playing(CROWD) as machine:
        fill(machine, 0, 1, 0)  # slots 0 to 2, 3 to 4, 5 to 7
        look(machine)
        assert len(machine.estimates) == 1
        machine.is_restored("server", 0, crowd_forgets_too=True)
        fill(machine, 1, 0)  # slots 0 to 1, 2 to 4: slot 2 is granted to the fleet that has held it
        machine.promises_hold()
        error = machine.parties.fleets[0].task.exception()
        assert "slot 2 of cohort run.1.0.1 a second time: each client takes part once" in str(error)


def test_a_batch_that_a_restored_server_collects_again_has_the_same_noise() -> None:
    with playing(CENTRAL) as machine:
        fill(machine, 0, 1, 0)
        machine.is_copied()
        look(machine)
        machine.is_restored("server", 1, crowd_forgets_too=False)
        look(machine)
        assert machine.released == {"run.1.0.1"}
        assert len(machine.estimates) == 1


def test_a_server_that_has_forgotten_a_delivery_releases_no_other_batch() -> None:
    with playing(CENTRAL) as machine:
        fill(machine, 0, 1, 0)
        machine.is_copied()
        look(machine)
        fill(machine, 0, 1, 0)  # the other cohort of the round, which is not in the copy
        look(machine)
        assert len(machine.estimates) == 2
        machine.is_restored("server", 1, crowd_forgets_too=False)
        look(machine)
        assert machine.parties.reader.view(RUN).state == "failed"
        assert machine.released == set()


def test_clients_that_are_silent_do_not_count_as_present() -> None:
    """The shuffler replaces records of clients that vanish after their report: nobody says that they are absent."""
    with playing(CROWD) as machine:
        machine.shuffler_lies("replace", 4, 5)  # slots 5, 6, 7 and 0
        fill(machine, 0, 1, 0)
        machine.clients_vanish(0)
        look(machine)
        look(machine, deadline=True)
        assert [reason[:1] for reason in reasons(machine)] == ["2"]  # clients that found their records
        assert not machine.estimates


def test_one_client_less_than_the_minimum_is_too_few() -> None:
    with playing(CROWD) as machine:
        machine.shuffler_lies("replace", 3, 3)  # slots 3 and 4, whose clients vanish, and 5
        fill(machine, 0, 1, 0)
        machine.clients_vanish(1)
        look(machine)
        look(machine, deadline=True)
        assert [reason[:1] for reason in reasons(machine)] == ["5"]
        assert not machine.estimates


def test_no_client_answers_in_the_place_of_another() -> None:
    with playing(CROWD) as machine:
        machine.shuffler_lies("replace", 1, 0)
        fill(machine, 1, 0)
        machine.parties.fleets[0].twice = True
        fill(machine, 0)
        machine.clients_vanish(1)
        look(machine)
        for which in range(len(machine.parties.evidence.receipts)):
            machine.receipts_come_again(which, "stolen")
        assert len(machine.receipts) == 6


def test_a_client_that_lies_does_not_have_an_honest_shuffler_named() -> None:
    """It says that its record is absent: as many as ⌊cn⌋ may."""
    with playing(CROWD) as machine:
        machine.a_client_lies(0)
        fill(machine, 0, 1, 0)
        look(machine)
        assert sorted(machine.receipts.values()) == [False] + 7 * [True]
        assert len(machine.estimates) == 1


def test_clients_whose_reports_come_too_late_do_not_have_an_honest_shuffler_named() -> None:
    """Others of their fleet have found their records. They have nothing to say."""
    with playing(CROWD) as machine:
        fill(machine, 0, 0)  # slots 0 to 5
        machine.messages_are_slow(0)
        fill(machine, 0)  # slots 6 and 7, and one of the next cohort
        look(machine, deadline=True)
        look(machine, deadline=True)
        assert sorted(machine.receipts.values()) == 6 * [True]
        assert machine.released == {"run.1.0.1"}


@pytest.mark.parametrize("state", ["revoked", "expired", "exhausted"])
def test_a_token_that_is_barred_gets_no_slot_and_its_clients_finish_their_cohort(state: TokenState) -> None:
    with playing(CROWD) as machine:
        fill(machine, 0, 1, 0)
        machine.token_is_changed(0, state)
        held = dict(machine.parties.evidence.sent)
        fill(machine, 0)
        assert machine.parties.evidence.sent == held
        look(machine)
        assert sorted(machine.receipts.values()) == 8 * [True]
        assert machine.released == {"run.1.0.1"}
        assert isinstance(machine.parties.fleets[0].task.exception(), NotAdmitted)

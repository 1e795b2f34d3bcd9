"""Tests that the shuffler serves the cohort to its clients: public, and constant."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.common.protocol.messages.cohort import Cohort
from tests.support.cohorts import SECONDS, address
from tests.support.parties import ShufflerParty, server


@pytest.fixture
def party(tmp_path: Path) -> Iterator[ShufflerParty]:
    party = ShufflerParty(tmp_path)
    yield party
    party.stop()


@pytest.mark.parametrize(
    "cohort", [server.sealed(), server.bits(), server.assigned()], ids=lambda one: one.channel.kind
)
def test_it_is_what_was_opened_after_a_restart_and_after_its_end_too(party: ShufflerParty, cohort: Cohort) -> None:
    party.open(cohort)
    first = party.client.get(f"/v1/cohorts/{address('c1')}/terms")
    assert (first.status_code, Cohort.model_validate_json(first.content)) == (200, cohort)
    party.restart()
    party.clock.advance(2 * SECONDS)
    assert party.client.get(f"/v1/cohorts/{address('c1')}/terms").content == first.content
    assert party.get("/c1").json()["stage"] == "aborted"


def test_a_minimum_that_was_refused_as_a_change_is_not_served(party: ShufflerParty) -> None:
    cohort = server.sealed()
    party.open(cohort)
    assert party.open(cohort.model_copy(update={"minimum": 1})).status_code == 409
    assert party.client.get(f"/v1/cohorts/{address('c1')}/terms").json()["minimum"] == cohort.minimum


def test_what_the_shuffler_does_not_know_it_does_not_vouch_for(party: ShufflerParty) -> None:
    answer = party.client.get(f"/v1/cohorts/{address('c9')}/terms")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:distrust:problem:wrong-cohort")

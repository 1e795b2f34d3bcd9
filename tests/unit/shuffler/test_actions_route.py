"""Tests how clients ask for actions over HTTP: with a ticket, and without the operator's token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import ActionAnswer
from tests.support.cohorts import SECONDS, address
from tests.support.parties import AssigningShufflerParty, problem, server


@pytest.fixture
def party(tmp_path: Path) -> Iterator[AssigningShufflerParty]:
    party = AssigningShufflerParty(tmp_path)
    yield party
    party.stop()


@pytest.fixture
def cohort(party: AssigningShufflerParty) -> Cohort:
    cohort = party.cohort()
    assert party.open(cohort).status_code == 200
    return cohort


def test_a_ticket_is_all_it_takes_and_a_restarted_shuffler_says_the_same(
    party: AssigningShufflerParty, cohort: Cohort
) -> None:
    first = party.ask(cohort, [4, 0, 2])
    party.restart()
    assert party.ask(cohort, [4, 0, 2]).content == first.content
    answer = ActionAnswer.model_validate_json(first.content)
    assert (answer.slots, answer.digest) == ([4, 0, 2], cohort.digest())
    assert len(set(answer.plays)) == 3


def test_every_refusal_is_a_problem(party: AssigningShufflerParty, cohort: Cohort) -> None:
    assert problem(party.ask(cohort, [0], to="c9")) == (422, "bad-message")
    assert problem(party.ask(cohort.model_copy(update={"cohort": "c9"}), [0], to="c9")) == (404, "wrong-cohort")
    json = {"Content-Type": "application/json"}
    assert problem(party.client.post(f"/v1/cohorts/{address('c1')}/actions", content=b"{", headers=json)) == (
        422,
        "bad-message",
    )
    plain = server.sealed(name="c2")
    party.open(plain)
    assert problem(party.ask(plain, [0], to="c2")) == (422, "bad-message")
    party.clock.advance(2 * SECONDS)
    assert problem(party.ask(cohort, [0])) == (410, "aborted")


def test_who_asks_after_the_cohort_is_full_is_too_late(party: AssigningShufflerParty, cohort: Cohort) -> None:
    party.send(cohort, party.bodies(cohort))
    assert problem(party.ask(cohort, [0])) == (409, "wrong-stage")


@pytest.mark.parametrize("times", [[3, 3], [5], [5, 0]])
def test_a_list_that_does_not_add_up_opens_nothing(party: AssigningShufflerParty, times: list[int]) -> None:
    """One play too many; fewer times than actions; an action that no client plays."""
    body = party.cohort().model_dump(mode="json")
    body["channel"]["deal"]["times"] = times
    answer = party.client.put(f"/v1/cohorts/{address('c1')}", json=body, headers={"Authorization": "Bearer sesame"})
    assert problem(answer)[0] == 422
    assert problem(party.get("/c1/batch")) == (404, "wrong-cohort")


def test_the_openapi_document_describes_it(party: AssigningShufflerParty) -> None:
    document = party.client.get("/openapi.json").json()
    route = document["paths"]["/v1/cohorts/{run}/{cohort}/actions"]["post"]
    assert route["requestBody"]["content"]["application/json"]["schema"]["title"] == "ActionRequest"
    assert {"200", "404", "409", "410", "422"} <= route["responses"].keys()
    names = document["components"]["schemas"].keys()
    assert {"ActionAnswer", "AssignedRecords", "GroupedRecords", "AssignedAction"} <= names

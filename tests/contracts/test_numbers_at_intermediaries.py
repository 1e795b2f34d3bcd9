"""Tests that both intermediaries refuse absurd numbers with a problem before they use them."""

import httpx
import pytest

from distrust.common.messages.cohort import Cohort
from distrust.common.messages.upload import UploadAnswer
from tests.support.parties import OPERATOR, Party


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("urn:distrust:problem:")


@pytest.mark.parametrize(
    "query", ["messages?after=" + "9" * 30, "messages?limit=1001", "batch?wait=nan", "batch?wait=inf", "batch?wait=61"]
)
def test_a_number_out_of_range_is_a_problem_and_never_an_accident(party: Party, cohort: Cohort, query: str) -> None:
    assert problem(party.get(f"/c1/{query}")) == (422, "bad-message")


def test_a_round_that_no_key_can_be_bound_to_is_refused(party: Party) -> None:
    whole = party.cohort(name="c2").model_dump(mode="json") | {"round": 2**64}
    assert problem(party.client.put("/v1/cohorts/c2", json=whole, headers=OPERATOR)) == (422, "bad-message")


def test_a_slot_beyond_every_integer_is_one_refused_item(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    answer = UploadAnswer.model_validate_json(party.send(cohort, {0: bodies[0], 10**30: bodies[1]}).content)
    assert (answer.accepted, [(item.slot, item.status) for item in answer.refused]) == (1, [(10**30, 422)])

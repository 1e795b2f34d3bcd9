"""Tests that both intermediaries refuse absurd numbers before they use them, and keep no long terms while they wait."""

import time

import pytest

from distrust.common.protocol.intermediary.service import SHORT_TERMS
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import UploadAnswer
from distrust.common.wire import encode_blob
from tests.support.cohorts import address
from tests.support.parties import OPERATOR, Party, problem


@pytest.mark.parametrize(
    "query", ["messages?after=" + "9" * 30, "messages?limit=1001", "batch?wait=nan", "batch?wait=inf", "batch?wait=61"]
)
def test_a_number_out_of_range_is_a_problem_and_never_an_accident(party: Party, cohort: Cohort, query: str) -> None:
    assert problem(party.get(f"/c1/{query}")) == (422, "bad-message")


def test_a_round_that_no_key_can_be_bound_to_is_refused(party: Party) -> None:
    whole = party.cohort(name="c2").model_dump(mode="json") | {"round": 2**64}
    assert problem(party.client.put(f"/v1/cohorts/{address('c2')}", json=whole, headers=OPERATOR)) == (
        422,
        "bad-message",
    )


def test_a_slot_beyond_every_integer_is_one_refused_item(party: Party, cohort: Cohort) -> None:
    bodies = party.bodies(cohort)
    answer = UploadAnswer.model_validate_json(party.send(cohort, {0: bodies[0], 10**30: bodies[1]}).content)
    assert (answer.accepted, [(item.slot, item.status) for item in answer.refused]) == (1, [(10**30, 422)])


@pytest.mark.parametrize(("size", "seconds", "waits"), [(16, 0.5, True), (SHORT_TERMS + 1, 60.0, False)])
def test_a_call_that_opens_a_cohort_waits_for_its_batch_unless_its_long_terms_would_stay_in_memory(
    party: Party, cohort: Cohort, size: int, seconds: float, *, waits: bool
) -> None:
    body = {**cohort.model_dump(mode="json"), "cohort": "c2", "terms": encode_blob(bytes(size))}
    began = time.monotonic()
    answer = party.client.put(f"/v1/cohorts/{address('c2')}?wait={seconds}", json=body, headers=OPERATOR)
    assert (answer.json()["state"], answer.headers["retry-after"]) == ("waiting", "1")
    assert (time.monotonic() - began >= seconds) == waits

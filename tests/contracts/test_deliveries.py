"""Tests, for both intermediaries, the list of what was released of a run, and that two runs never share a cohort."""

import httpx
import pytest

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import CohortList, DeliveryList
from tests.support.cohorts import RUN_DIGEST
from tests.support.parties import OPERATOR, Party

OTHER = bytes([7]) * 32


def delivered(party: Party, run: bytes = RUN_DIGEST, query: str = "") -> tuple[int, bytes]:
    answer = party.client.get(f"/v1/runs/{run.hex()}/delivered{query}", headers=OPERATOR)
    listed = DeliveryList.model_validate_json(answer.content)
    return listed.count, listed.digests


def test_a_released_batch_is_listed_and_says_its_place_for_ever(party: Party, cohort: Cohort) -> None:
    """The server may be a copy that has forgotten it: the list is what tells."""
    assert delivered(party) == (0, b"")
    party.release(cohort)
    for _ in range(2):  # also a batch that is collected again
        assert party.batch().json()["delivery"] == 1
        assert delivered(party) == (1, cohort.digest())
        party.restart()
    assert delivered(party, query="?after=1") == (1, b"")
    assert delivered(party, OTHER) == (0, b"")


def test_an_aborted_cohort_is_no_delivery(party: Party, cohort: Cohort) -> None:
    party.clock.advance(2 * cohort.stage_seconds)
    assert party.batch().json()["state"] == "aborted"
    assert delivered(party) == (0, b"")


def test_two_runs_of_one_name_have_cohorts_of_their_own(party: Party, cohort: Cohort) -> None:
    """A server that lost its database makes the run anew. The old batch is not the new cohort's."""
    party.release(cohort)
    anew = cohort.model_copy(update={"run_digest": OTHER})
    assert party.open(anew).status_code == 200
    path = f"/v1/cohorts/{anew.address}/batch"
    assert party.client.get(path, headers=OPERATOR).json()["state"] == "waiting"
    listed = CohortList.model_validate_json(party.get("").content).cohorts
    assert [(one.cohort, one.run_digest) for one in listed] == [("c1", RUN_DIGEST), ("c1", OTHER)]
    assert (delivered(party)[0], delivered(party, OTHER)[0]) == (1, 0)


@pytest.mark.parametrize("run", ["c1", "00", "G" * 64, "A" * 64])
def test_what_is_no_digest_of_a_run_is_refused(party: Party, run: str) -> None:
    for path in (f"/v1/runs/{run}/delivered", f"/v1/cohorts/{run}/c1/batch"):
        assert party.client.get(path, headers=OPERATOR).status_code == 422


def test_only_the_operator_reads_the_list(party: Party) -> None:
    answer: httpx.Response = party.client.get(f"/v1/runs/{RUN_DIGEST.hex()}/delivered")
    assert answer.status_code == 401

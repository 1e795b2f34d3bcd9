"""Tests that a slot with an action belongs to its first client, and that a second ticket is refused."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from distrust.common.errors import BadMessage, BadTicket, Conflict
from distrust.common.protocol.crypto.context import claim
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import ActionRequest
from distrust.common.protocol.storage.database import Database
from distrust.shuffler.assignment import CLAIMED
from tests.support.assigning_shuffler import AssigningShuffler, server
from tests.support.cohorts import address, report, secret

THIEF = b"\xaa" * 32


@pytest.fixture
def shuffler(tmp_path: Path) -> Iterator[AssigningShuffler]:
    shuffler = AssigningShuffler(tmp_path)
    yield shuffler
    shuffler.service.close()
    shuffler.database.close()


@pytest.fixture
def cohort(shuffler: AssigningShuffler) -> Cohort:
    return shuffler.service.open(server.assigned(times=[3, 2]))


def stolen(cohort: Cohort, *slots: int) -> ActionRequest:
    """Ask with good tickets, which their signer makes, and with claims of the thief's own."""
    claims = b"".join(claim(cohort, slot, THIEF) for slot in slots)
    return server.asking(cohort, slots).model_copy(update={"claims": claims})


def test_who_asks_second_with_a_real_ticket_is_told_nothing(shuffler: AssigningShuffler, cohort: Cohort) -> None:
    first = shuffler.ask(cohort, 0, 1)
    answer = shuffler.service.actions(address("c1"), stolen(cohort, 0, 1, 2))
    assert answer.slots == [2]
    assert [(one.slot, one.type, one.status) for one in answer.refused] == [(s, Conflict("").urn, 409) for s in (0, 1)]
    assert answer.plays[0] not in first.values()
    assert shuffler.ask(cohort, 0, 1) == first


def test_the_client_that_comes_second_is_told_nothing_either(shuffler: AssigningShuffler, cohort: Cohort) -> None:
    shuffler.service.actions(address("c1"), stolen(cohort, 3))
    answer = shuffler.service.actions(address("c1"), server.asking(cohort, [2, 3]))
    assert (answer.slots, [one.slot for one in answer.refused]) == ([2], [3])


def test_a_killed_shuffler_remembers_who_asked_first(shuffler: AssigningShuffler, cohort: Cohort) -> None:
    first = shuffler.ask(cohort, 0, 1)
    shuffler.kill()
    assert shuffler.service.actions(address("c1"), stolen(cohort, 0)).slots == []
    assert shuffler.ask(cohort, 0, 1) == first


def test_a_database_is_of_this_version_and_holds_the_claim_and_never_the_secret_before_the_report(
    shuffler: AssigningShuffler, cohort: Cohort
) -> None:
    shuffler.ask(cohort, 4)
    shuffler.kill()
    with shuffler.database.reading() as tx:
        rows = tx.exec_driver_sql("SELECT stage, slot, body, ticket FROM messages WHERE slot >= 0").fetchall()
    assert [tuple(row) for row in rows] == [(CLAIMED, 4, claim(cohort, 4, secret(4)), None)]
    shuffler.database.close()
    Database(f"sqlite:///{shuffler.folder}/s.sqlite3", METADATA, VERSION).close()


@pytest.mark.parametrize("who", ["not-asked", "another-asked", "anothers-secret", "too-short"])
def test_only_who_asked_reports(shuffler: AssigningShuffler, cohort: Cohort, who: str) -> None:
    """The report itself is good, sealed to the slot's own action, and bears a real ticket."""
    if who != "not-asked":
        shuffler.ask(cohort, 0, 1)
    body = report(cohort, 0, place=0)[:-32]
    body += {"not-asked": secret(0), "another-asked": THIEF, "anothers-secret": secret(1), "too-short": b""}[who]
    answer = shuffler.service.receive(address("c1"), "report", server.upload(cohort, "report", {0: body}))
    error = BadMessage if who == "too-short" else BadTicket
    assert (answer.accepted, [one.type for one in answer.refused]) == (0, [error("").urn])


def test_a_report_is_taken_after_a_kill_and_its_repeat_counts(shuffler: AssigningShuffler, cohort: Cohort) -> None:
    shuffler.ask(cohort, *range(5))
    body = {0: report(cohort, 0, place=0)}
    shuffler.kill()
    for _ in range(2):
        answer = shuffler.service.receive(address("c1"), "report", server.upload(cohort, "report", body))
        assert (answer.accepted, answer.refused) == (1, [])


def test_there_is_a_claim_for_every_slot(shuffler: AssigningShuffler, cohort: Cohort) -> None:
    request = server.asking(cohort, [0, 1])
    for claims in (b"", request.claims[:-1], request.claims + request.claims):
        with pytest.raises(BadMessage, match=r"claims: .* bytes, expected 32 for each of the slots"):
            shuffler.service.actions(address("c1"), request.model_copy(update={"claims": claims}))


def test_a_claim_is_good_for_one_slot_of_one_cohort_of_one_run() -> None:
    own = server.assigned()
    others = [own.model_copy(update=change) for change in ({"cohort": "c2"}, {"run": "r2"}, {"round": 2})]
    others += [own.model_copy(update={"run_digest": bytes([1]) * 32})]
    result = {claim(cohort, slot, one) for cohort, slot, one in product([own, *others], (0, 1), (THIEF, secret(0)))}
    assert len(result) == 5 * 2 * 2
    assert {len(one) for one in result} == {32}

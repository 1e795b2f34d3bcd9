"""Tests of the server's book of receipts: whose answers count, when it waits no more, and what it forbids."""

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadMessage, BadParameter, Refused, WrongCohort, WrongStage
from distrust.common.protocol.channels.sealed import LARGEST_CROWD, REPORT_ID, Records, Sealed, checksum_of
from distrust.common.protocol.crypto.receipts import (
    RECEIPT_SECRET,
    RECORD_HASH,
    list_digest,
    read_list,
    receipt_hash,
    record_hash,
)
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.upload import Receipts
from distrust.common.protocol.run.config import RunConfig
from distrust.common.wire import encode_blob
from distrust.server.dashboard.parties import cohort_context
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.runs.receipts import most_absent
from tests.support.in_memory_intermediaries import InMemoryIntermediaries
from tests.support.server_harness import ServerHarness

CLIENTS = 32
ALLOWED = 3
"""⌊0.1 · 32⌋ clients may lie."""


def config(**changes: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "run": "crowd",
        "arms": 2,
        "horizon": 200,
        "mechanism": {"name": "shuffled-laplace", "epsilon": 1.0, "delta": 1e-3, "precision": 20},
        "policy": {"first_batch": 5},
        "intermediary": {"dropout": 0.2, "corrupt": 0.1},
    }
    return RunConfig.model_validate(whole | changes)


@dataclass
class Crowd:
    """A cohort with all its tickets granted. `own`: its clients' secrets, by slot."""

    harness: ServerHarness
    cohort: Cohort
    own: list[bytes]

    def batch(self, survivors: int = CLIENTS, first: int = 0) -> BatchAnswer:
        """Return a batch of real records, whose report ids count from `first` on."""
        cohort = self.cohort
        assert isinstance(cohort.channel, Sealed)
        ids = [(first + slot).to_bytes(REPORT_ID, "big") for slot in range(survivors)]
        payload = bytes(cohort.channel.size)
        records = [seal(cohort.channel.server_key, cohort, report, payload) for report in ids]
        content = Records(count=survivors, body=b"".join(records), checksum=checksum_of(records))
        batch = Batch(cohort=cohort.cohort, survivors=survivors, content=content)
        return BatchAnswer(cohort=cohort.cohort, state="released", batch=batch, delivery=1)

    def say(self, slots: range, answer: int = 1, own: list[bytes] | None = None) -> Receipts:
        said = b"".join((own or self.own)[slot] for slot in slots)
        return Receipts(
            cohort=self.cohort.cohort, slots=list(slots), secrets=said, answers=bytes([answer]) * len(slots)
        )

    def settled(self, answer: BatchAnswer) -> ReleasedCohort | LostCohort:
        assert self.harness.service.settle(self.cohort, answer)[0]
        outcome = self.harness.service.store.outcome(self.cohort.cohort)
        assert outcome is not None
        return outcome


@pytest.fixture
def crowd(tmp_path: Path) -> Crowd:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    harness.service.create(config())
    cohort = harness.service.active_run("crowd").pending()[0]
    own = [secrets.token_bytes(RECEIPT_SECRET) for _ in range(CLIENTS)]
    hashes = b"".join(map(receipt_hash, own))
    request = TicketRequest(request="0" * 32, round=1, want=CLIENTS, keys=hashes)
    asyncio.run(harness.coordinator.tickets("crowd", request))
    return Crowd(harness, cohort, own)


def test_the_cohorts_of_shuffle_mechanisms_with_records_give_receipts_and_no_others(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    received = {}
    for name, kind in MECHANISMS.items():
        if "shuffler" not in kind.vias or kind.takes_batches:
            continue
        spec: dict[str, Any] = {"name": name, "via": "shuffler"}
        spec |= {} if kind.model == "none" else {"epsilon": 1.0}
        spec |= {"delta": 1e-3} if kind.takes_delta == "needed" else {}
        harness.service.create(config(run=name, mechanism=spec))
        received[name] = {cohort.receipts for cohort in harness.service.active_run(name).pending()}
    crowds = {"shuffled-gaussian", "shuffled-laplace", "shuffled-sphere"}
    assert {name for name, flags in received.items() if flags == {True}} == crowds
    bits = {"shuffled-binomial", "relaxed-secagg-shuffle"}  # labelled, which the shuffler reads in any case
    assert {name for name, flags in received.items() if MECHANISMS[name].model == "shuffle"} == crowds | bits


def test_a_request_for_tickets_of_a_crowd_brings_a_hash_for_each_client(crowd: Crowd) -> None:
    for keys in (b"", bytes(32 * 3)):
        request = TicketRequest(request=secrets.token_hex(16), round=1, want=4, keys=keys)
        with pytest.raises(BadMessage, match=r"keys: .* expected 128, 32 for each client"):
            asyncio.run(crowd.harness.coordinator.tickets("crowd", request))


def config_cohort(folder: Path, run: RunConfig) -> Cohort:
    harness = ServerHarness(folder, InMemoryIntermediaries())
    harness.service.create(run)
    return harness.service.active_run("crowd").pending()[0]


def test_nothing_is_released_without_receipts_of_the_minimum(crowd: Crowd) -> None:
    answer = crowd.harness.service.collect_for_receipts(crowd.cohort, crowd.batch())
    crowd.harness.service.take_receipts("crowd", crowd.say(range(crowd.cohort.minimum - 1)))
    lost = crowd.settled(answer)
    assert isinstance(lost, LostCohort)
    minimum = crowd.cohort.minimum
    assert f"{minimum - 1} clients that found their records in the batch, at least {minimum}" in lost.reason
    assert "shuffler" not in lost.reason  # silence names no party
    ledger = crowd.harness.reader.ledger("crowd")  # it has cost its clients a contribution
    assert (ledger.lines[0].clients, ledger.total.epsilon) == (2 * CLIENTS, pytest.approx(1.0, rel=1e-6))


def test_the_minimum_is_enough(crowd: Crowd) -> None:
    answer = crowd.harness.service.collect_for_receipts(crowd.cohort, crowd.batch())
    crowd.harness.service.take_receipts("crowd", crowd.say(range(crowd.cohort.minimum)))
    assert isinstance(crowd.settled(answer), ReleasedCohort)


@pytest.mark.parametrize("absent", [ALLOWED, ALLOWED + 1, CLIENTS - 26, CLIENTS - 25])
def test_more_absent_records_than_clients_may_lie_about_name_the_shuffler(crowd: Crowd, absent: int) -> None:
    """They forbid no release: the guarantee needs the minimum of clients that found their records, and no more."""
    service, minimum = crowd.harness.service, crowd.cohort.minimum
    answer = service.collect_for_receipts(crowd.cohort, crowd.batch())
    service.take_receipts("crowd", crowd.say(range(absent, CLIENTS)))
    service.take_receipts("crowd", crowd.say(range(absent), answer=0))
    assert service.receipts_complete(crowd.cohort, CLIENTS)
    outcome = crowd.settled(answer)
    assert (minimum, isinstance(outcome, ReleasedCohort)) == (26, CLIENTS - absent >= minimum)
    told = [one.detail or "" for one in crowd.harness.reader.events("crowd", 0)[0] if one.kind.startswith("cohort-")][
        -1
    ]
    assert told.startswith(f"the shuffler did not deliver: {absent} clients") == (absent > ALLOWED)


def test_one_client_names_no_party_however_small_the_cohort(tmp_path: Path) -> None:
    """A participant gets a slot in any case, also where the configuration counts on no client that lies."""
    honest = config(intermediary={"dropout": 0.2, "corrupt": 0.0})
    cohort = config_cohort(tmp_path, honest)
    assert most_absent(honest, cohort) == 1


def test_the_cohort_is_over_once_all_have_answered_or_too_many_records_are_missing(crowd: Crowd) -> None:
    service = crowd.harness.service
    service.collect_for_receipts(crowd.cohort, crowd.batch())
    service.take_receipts("crowd", crowd.say(range(CLIENTS - 1)))
    assert not service.receipts_complete(crowd.cohort, CLIENTS)
    service.take_receipts("crowd", crowd.say(range(CLIENTS - 1, CLIENTS), answer=0))
    assert service.receipts_complete(crowd.cohort, CLIENTS)


def test_a_cohort_whose_minimum_is_out_of_reach_is_waited_for_no_more(crowd: Crowd) -> None:
    service, missing = crowd.harness.service, CLIENTS - crowd.cohort.minimum
    service.collect_for_receipts(crowd.cohort, crowd.batch())
    service.take_receipts("crowd", crowd.say(range(missing), answer=0))
    assert not service.receipts_complete(crowd.cohort, CLIENTS)
    service.take_receipts("crowd", crowd.say(range(missing, missing + 1), answer=0))
    assert service.receipts_complete(crowd.cohort, CLIENTS)


def test_clients_that_lie_without_a_record_end_no_cohort_early(crowd: Crowd) -> None:
    """Three clients that sent nothing say "absent" first. The honest ones still have their time to answer."""
    service, survivors = crowd.harness.service, crowd.cohort.minimum + 1
    answer = service.collect_for_receipts(crowd.cohort, crowd.batch(survivors))
    service.take_receipts("crowd", crowd.say(range(survivors, survivors + ALLOWED), answer=0))
    service.take_receipts("crowd", crowd.say(range(survivors - ALLOWED)))
    assert not service.receipts_complete(crowd.cohort, survivors)
    service.take_receipts("crowd", crowd.say(range(survivors - ALLOWED, survivors)))
    assert service.receipts_complete(crowd.cohort, survivors)
    assert isinstance(crowd.settled(answer), ReleasedCohort)


def test_another_batch_than_the_one_that_clients_saw_is_not_analyzed(crowd: Crowd) -> None:
    """The shuffler answers a second time, with other records."""
    service = crowd.harness.service
    first, second = crowd.batch(), crowd.batch(first=100)
    assert service.collect_for_receipts(crowd.cohort, first) == first
    assert service.collect_for_receipts(crowd.cohort, second) == first  # the first one stays
    service.take_receipts("crowd", crowd.say(range(CLIENTS)))
    lost = crowd.settled(second)
    assert isinstance(lost, LostCohort)
    assert lost.reason == "refused: the batch is not the one whose records its clients were shown"


def test_a_batch_that_was_never_listed_is_not_analyzed(crowd: Crowd) -> None:
    lost = crowd.settled(crowd.batch())
    assert isinstance(lost, LostCohort)
    assert "not the one whose records" in lost.reason


def test_a_wrong_secret_is_a_bad_ticket_and_a_changed_answer_a_conflict(crowd: Crowd) -> None:
    service = crowd.harness.service
    service.collect_for_receipts(crowd.cohort, crowd.batch())
    foreign = [bytes(RECEIPT_SECRET)] * CLIENTS
    refused = service.take_receipts("crowd", crowd.say(range(4), own=foreign))
    assert (refused.accepted, {one.type for one in refused.refused}) == (0, {"urn:distrust:problem:bad-ticket"})
    assert service.take_receipts("crowd", crowd.say(range(4))).accepted == 4
    assert service.take_receipts("crowd", crowd.say(range(4))).accepted == 4  # a repeat
    changed = service.take_receipts("crowd", crowd.say(range(4), answer=0))
    assert (changed.accepted, {one.type for one in changed.refused}) == (0, {"urn:distrust:problem:conflict"})
    assert set(service.store.receipts(crowd.cohort.cohort).values()) == {True}


def test_a_slot_counts_once_however_often_it_is_in_one_message(crowd: Crowd) -> None:
    service = crowd.harness.service
    service.collect_for_receipts(crowd.cohort, crowd.batch())
    twice = Receipts(cohort=crowd.cohort.cohort, slots=[1, 1], secrets=crowd.own[1] * 2, answers=b"\x01\x00")
    answer = service.take_receipts("crowd", twice)
    assert (answer.accepted, len(answer.refused)) == (1, 1)
    assert service.store.receipts(crowd.cohort.cohort) == {1: True}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"secrets": b""}, "secrets: 0 bytes, expected 16"),
        ({"answers": b"\x01"}, "answers: 1 bytes, expected 1"),
        ({"answers": b"\x01\x02"}, "answers: a byte must be 1, present, or 0, absent"),
    ],
)
def test_a_message_of_other_sizes_or_words_is_refused_whole(crowd: Crowd, change: dict[str, Any], why: str) -> None:
    crowd.harness.service.collect_for_receipts(crowd.cohort, crowd.batch())
    with pytest.raises(BadMessage, match=why):
        crowd.harness.service.take_receipts("crowd", crowd.say(range(2)).model_copy(update=change))


def test_receipts_come_after_the_list_and_before_the_end(crowd: Crowd) -> None:
    service = crowd.harness.service
    with pytest.raises(WrongStage, match="not listed yet"):
        service.take_receipts("crowd", crowd.say(range(2)))
    answer = service.collect_for_receipts(crowd.cohort, crowd.batch())
    crowd.settled(answer)
    with pytest.raises(WrongStage, match="has ended"):
        service.take_receipts("crowd", crowd.say(range(2)))
    assert crowd.harness.reader.records("crowd", crowd.cohort.cohort).hashes == b""  # nobody needs the list any more
    with pytest.raises(WrongCohort):
        service.take_receipts("crowd", crowd.say(range(2)).model_copy(update={"cohort": "crowd.1.0.9"}))


def test_receipts_and_list_outlive_the_server(crowd: Crowd, tmp_path: Path) -> None:
    service = crowd.harness.service
    answer = service.collect_for_receipts(crowd.cohort, crowd.batch())
    service.take_receipts("crowd", crowd.say(range(CLIENTS)))
    listed = crowd.harness.reader.records("crowd", crowd.cohort.cohort)
    asyncio.run(crowd.harness.stop())
    again = ServerHarness(tmp_path, crowd.harness.intermediaries)
    again.service.compare("crowd", "shuffler", 0, [])
    assert again.reader.records("crowd", crowd.cohort.cohort) == listed
    assert again.service.receipts_complete(crowd.cohort, CLIENTS)
    assert isinstance(Crowd(again, crowd.cohort, crowd.own).settled(answer), ReleasedCohort)


def test_the_servers_transcript_shows_the_list_and_who_said_what_and_no_secret(crowd: Crowd) -> None:
    service = crowd.harness.service
    service.collect_for_receipts(crowd.cohort, crowd.batch())
    service.take_receipts("crowd", crowd.say(range(2, CLIENTS)))
    service.take_receipts("crowd", crowd.say(range(2), answer=0))
    page = crowd.harness.reader.transcript("crowd", crowd.cohort.cohort, 0, 100)
    entries = {(message.stage, message.direction): message for message in page.messages}
    shown = entries["receipts", "out"]
    assert (shown.bytes, shown.view) == (RECORD_HASH * CLIENTS, {"records": CLIENTS})
    assert entries["receipts", "in"].view == {"present": CLIENTS - 2, "absent": [0, 1]}
    text = page.model_dump_json()
    assert not any(secret.hex() in text or encode_blob(secret) in text for secret in crowd.own)


def test_the_page_of_a_cohort_that_failed_at_its_receipts_shows_how_far_it_came(crowd: Crowd) -> None:
    service = crowd.harness.service
    answer = service.collect_for_receipts(crowd.cohort, crowd.batch())
    crowd.settled(answer)
    context = cohort_context(crowd.harness.reader, "crowd", crowd.cohort.cohort, None)
    assert [step.stage for step in context["steps"]][-3:] == ["batch", "receipts", "aborted"]
    assert [step.stage for step in context["not_reached"]] == ["estimate"]


def test_a_client_reads_a_list_in_order_of_the_stated_length_and_digest_only(crowd: Crowd) -> None:
    cohort, answer = crowd.cohort, crowd.batch(3)
    crowd.harness.service.collect_for_receipts(cohort, answer)
    whole = crowd.harness.reader.records("crowd", cohort.cohort).hashes
    stated = list_digest(cohort, whole)
    assert answer.batch is not None
    size = len(answer.batch.content.body) // 3
    records = [answer.batch.content.body[at : at + size] for at in range(0, 3 * size, size)]
    assert read_list(cohort, whole, 3, stated) == {record_hash(cohort, record) for record in records}
    one, two, three = (whole[at : at + RECORD_HASH] for at in range(0, len(whole), RECORD_HASH))
    lies = {
        "has 32 bytes": one + two,
        "not strictly ascending": two + one + three,
        "not strictly": one + one + three,
        "not the one whose digest": one + two + b"\xff" * RECORD_HASH,
    }
    for why, listed in lies.items():
        with pytest.raises(Refused, match=why):
            read_list(cohort, listed, 3, stated)
    with pytest.raises(Refused, match="not strictly"):  # also if the shuffler states its digest
        read_list(cohort, two + one + three, 3, list_digest(cohort, two + one + three))


def test_a_crowd_over_services_is_not_larger_than_a_device_can_look_through(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    longest = config().policy.longest * LARGEST_CROWD // 1_000_000
    harness.service.create(config(run="longest", horizon=longest - 1))
    with pytest.raises(BadParameter, match=f"must be below {longest}: shuffled-laplace has cohorts of at most 16384"):
        harness.service.create(config(horizon=longest))
    growing = {"name": "almost-free", "actions": {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}}
    rates = {"minimum": 1, "dropout": 0.0, "corrupt": 0.0}
    with pytest.raises(BadParameter, match="shuffled-laplace has cohorts of at most 16384"):  # its first ones have one
        harness.service.create(config(horizon=40_000, policy=growing, intermediary=rates))

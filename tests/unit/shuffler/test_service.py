"""Tests that the shuffler forwards all bodies in a random order, or nothing if too few came."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from distrust.common.errors import Gone, WrongStage
from distrust.common.protocol.channels.sealed import Records, Sealed
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.intermediary.deadlines import FIRST_SECONDS
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import Settled
from distrust.common.protocol.messages.upload import UploadAnswer
from distrust.common.protocol.storage.database import Database
from distrust.common.randomness import UnsafeSeededStream
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import SECONDS, Authority, address, report
from tests.support.manual_clock import ManualClock

server = Authority()


class ShufflerHarness:
    """A shuffler over a file, with a clock set by hand."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.database = Database(f"sqlite:///{folder}/s.sqlite3", METADATA, VERSION)
        self.service = Shuffler(self.database, self.clock)

    def send(self, cohort: Cohort, slots: Iterable[int]) -> UploadAnswer:
        return self.put(cohort, {slot: report(cohort, slot) for slot in slots})

    def put(self, cohort: Cohort, bodies: dict[int, bytes]) -> UploadAnswer:
        return self.service.receive(cohort.address, "report", server.upload(cohort, "report", bodies))

    def released(self, cohort: Cohort) -> BatchAnswer:
        self.service.settled(cohort.address)
        self.service._mixer.submit(lambda: None).result(timeout=240)
        result = self.service.batch(cohort.address)
        return BatchAnswer.model_validate_json(result) if isinstance(result, bytes) else result

    def released_at_once(self, cohort: Cohort) -> BatchAnswer:
        result = self.service.batch(cohort.address)
        assert isinstance(result, bytes)
        return BatchAnswer.model_validate_json(result)

    def close(self) -> None:
        self.service.close()
        self.database.close()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShufflerHarness]:
    harness = ShufflerHarness(tmp_path)
    yield harness
    harness.close()


def records(answer: BatchAnswer) -> list[bytes]:
    assert answer.batch is not None
    content = answer.batch.content
    assert isinstance(content, Records)
    size = len(content.body) // content.count
    return [content.body[start : start + size] for start in range(0, len(content.body), size)]


def test_every_sealed_record_arrives_once_and_opens_at_the_server(harness: ShufflerHarness) -> None:
    cohort = harness.service.open(server.sealed(clients=40))
    harness.send(cohort, range(25))
    harness.send(cohort, range(25, 40))
    answer = harness.released(cohort)
    opened = [open_record(server.seals, cohort, record) for record in records(answer)]
    assert sorted(int.from_bytes(payload, "big") for _, payload in opened) == list(range(40))
    assert answer.batch is not None
    assert isinstance(answer.batch.content, Records)
    digests = [np.frombuffer(hashlib.sha256(record).digest(), np.uint8) for record in records(answer)]
    assert np.bitwise_xor.reduce(digests).tobytes() == answer.batch.content.checksum
    assert (answer.lost, answer.batch.survivors) == (0, 40)


def test_the_order_comes_from_the_stream_alone(tmp_path: Path) -> None:
    def run(folder: str, seed: int) -> list[bytes]:
        harness = ShufflerHarness(tmp_path / folder)
        harness.service = Shuffler(harness.database, harness.clock, stream=lambda: UnsafeSeededStream(seed))
        cohort = harness.service.open(server.sealed(clients=20))
        harness.put(cohort, {slot: slot.to_bytes(16, "big") + bytes([slot]) * 72 for slot in range(20)})
        result = records(harness.released(cohort))
        harness.close()
        return result

    assert run("a", 1) == run("b", 1) != run("c", 2)


def test_the_deadline_runs_from_the_first_report(harness: ShufflerHarness) -> None:
    cohort = harness.service.open(server.sealed())
    harness.clock.advance(FIRST_SECONDS - 1)
    harness.send(cohort, range(3))
    harness.clock.advance(SECONDS - 1)
    assert harness.released(cohort).state == "waiting"
    harness.clock.advance(1)
    answer = harness.released(cohort)
    assert (answer.state, answer.lost) == ("released", 2)


def test_a_report_id_used_by_another_slot_is_a_conflict(harness: ShufflerHarness) -> None:
    cohort = harness.service.open(server.sealed())
    harness.put(cohort, {0: report(cohort, 0, mark=7)})
    answer = harness.put(
        cohort, {1: report(cohort, 1, mark=7), 2: report(cohort, 2, mark=8), 3: report(cohort, 3, mark=8)}
    )
    assert [(item.slot, item.status) for item in answer.refused] == [(1, 409), (3, 409)]
    assert answer.accepted == 1


def test_the_same_report_id_in_two_cohorts_is_no_conflict(harness: ShufflerHarness) -> None:
    for name in ("c1", "c2"):
        cohort = harness.service.open(server.sealed(name=name))
        assert harness.put(cohort, {0: report(cohort, 0, mark=7)}).refused == []


def test_who_left_may_not_report_and_who_reported_still_counts_when_it_leaves(harness: ShufflerHarness) -> None:
    cohort = harness.service.open(server.sealed())
    harness.send(cohort, {0, 1, 2})
    harness.service.leave(address("c1"), server.leaving(cohort, [0, 3]))
    answer = harness.send(cohort, {3})
    assert [item.type for item in answer.refused] == [WrongStage("").urn]
    harness.service.leave(address("c1"), server.leaving(cohort, [4]))
    released = harness.released(cohort)
    assert released.batch is not None
    assert (released.batch.survivors, released.lost) == (3, 2)


@pytest.mark.parametrize("make", [server.sealed, server.bits])
def test_the_transcript_shows_what_the_shuffler_could_read_and_no_more(harness: ShufflerHarness, make: object) -> None:
    assert callable(make)
    cohort = harness.service.open(make())
    harness.send(cohort, range(5))
    harness.released(cohort)
    page = harness.service.transcript(address("c1"), 0, 10)
    assert (page.total, page.next, [item.number for item in page.messages]) == (6, None, list(range(6)))
    first, last = page.messages[0], page.messages[-1]
    assert (first.direction, first.peer, first.stage) == ("in", "client 0", "report")
    assert (last.direction, last.peer, last.stage, last.view["survivors"]) == ("out", "server", "batch", 5)
    readable = {"report_id", "sealed_bytes"} if cohort.channel.kind == "sealed" else {"labels", "width", "ones"}
    assert first.view.keys() == readable


def test_few_reports_are_permuted_in_the_transaction_that_takes_the_last_one(harness: ShufflerHarness) -> None:
    """The mixer is never asked, and a cohort that is done has its batch."""
    cohort = server.sealed(clients=4)
    harness.service.open(cohort)
    harness.service._mixer.shutdown()
    harness.send(cohort, range(3))
    assert isinstance(harness.service.batch(cohort.address), BatchAnswer)
    harness.send(cohort, [3])
    assert harness.service.view(cohort.address).stage == "done"
    assert len(records(harness.released_at_once(cohort))) == 4


def test_a_permutation_that_fails_releases_nothing_and_ends_the_cohort(harness: ShufflerHarness) -> None:
    def broken() -> UnsafeSeededStream:
        raise RuntimeError("no randomness")

    cohort = server.sealed(clients=2, minimum=2)
    harness.service.open(cohort)
    harness.service._stream = broken
    assert harness.send(cohort, range(2)).accepted == 2
    answer = harness.released(cohort)
    assert (answer.state, answer.batch) == ("aborted", None)


def test_the_digest_of_the_list_of_records_is_stated_also_after_the_records_are_scrubbed(tmp_path: Path) -> None:
    key = server.seals.public_key().public_bytes_raw()
    harness = ShufflerHarness(tmp_path)
    cohort = harness.service.open(server.cohort(Sealed(size=8, server_key=key, receipts=True)))
    harness.send(cohort, range(5))
    assert harness.released_at_once(cohort).state == "released"
    stated = harness.service.view(cohort.address).statement
    harness.service.settle(cohort.run_digest, Settled(cohorts=[cohort.cohort]))
    harness.close()
    again = ShufflerHarness(tmp_path)
    again.clock.advance(cohort.keep_seconds)
    again.service.scrub()
    assert len(stated or b"") == 32
    assert again.service.view(cohort.address).statement == stated
    with pytest.raises(Gone):
        again.service.batch(cohort.address)
    again.close()

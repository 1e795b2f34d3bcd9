"""Tests that the waiting server learns of a small batch at once, and never before it is committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection

from distrust.common.errors import Unavailable
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Upload
from distrust.common.protocol.storage.database import Database
from distrust.shuffler.service import Shuffler
from tests.support.cohorts import Authority, address, report
from tests.support.manual_clock import ManualClock

server = Authority()


@pytest.fixture
def shuffler(tmp_path: Path) -> Iterator[Shuffler]:
    database = Database(f"sqlite:///{tmp_path}/s.sqlite3", METADATA, VERSION)
    service = Shuffler(database, ManualClock())
    yield service
    service.close()
    database.close()


def opened(shuffler: Shuffler, name: str) -> tuple[Cohort, Upload]:
    """Return an open cohort of sealed records, and one upload with all its reports."""
    cohort = shuffler.open(server.sealed(clients=3, name=name))
    return cohort, server.upload(cohort, "report", {slot: report(cohort, slot) for slot in range(3)})


def test_a_batch_is_known_as_the_bytes_that_are_stored(shuffler: Shuffler) -> None:
    _, upload = opened(shuffler, "c1")
    assert shuffler.known_batch(address("c1")) is None
    shuffler.receive(address("c1"), "report", upload)
    known = shuffler.known_batch(address("c1"))
    assert known is not None
    assert known == shuffler.batch(address("c1"))
    shuffler.receive(address("c1"), "report", upload)  # a repeat draws no other order
    assert shuffler.known_batch(address("c1")) == known


def test_a_batch_that_was_not_committed_is_not_known(shuffler: Shuffler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two orders of the same reports would tell more than one."""
    _, upload = opened(shuffler, "c1")
    transaction = Database.transaction

    @contextmanager
    def fails(database: Database) -> Iterator[Connection]:
        with transaction(database) as tx:
            yield tx
            raise Unavailable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Database, "transaction", fails)
        with pytest.raises(Unavailable):
            shuffler.receive(address("c1"), "report", upload)
    assert shuffler.known_batch(address("c1")) is None
    shuffler.receive(address("c1"), "report", upload)
    assert shuffler.known_batch(address("c1")) == shuffler.batch(address("c1"))


def test_only_the_newest_batches_stay_in_memory(shuffler: Shuffler) -> None:
    names = [f"c{number}" for number in range(20)]
    for name in names:
        shuffler.receive(address(name), "report", opened(shuffler, name)[1])
    assert [name for name in names if shuffler.known_batch(address(name)) is not None] == names[4:]
    assert all(isinstance(shuffler.batch(address(name)), bytes) for name in names)

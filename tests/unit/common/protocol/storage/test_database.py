"""Tests that a database commits before it answers, and refuses in one sentence what it cannot keep."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, make_url, select, update

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.protocol.intermediary.tables import METADATA as INTERMEDIARY
from distrust.common.protocol.storage import database_faults
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import Collision, repeated
from distrust.common.protocol.storage.schema import another_schema
from distrust.server.storage.tables import METADATA as SERVER

METADATA = MetaData()
NUMBERS = Table("numbers", METADATA, Column("number", Integer, primary_key=True), Column("value", Integer))


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/deep/down/x.sqlite3"


def insert_and_fail(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(insert(NUMBERS), [{"number": 9, "value": 0}])
        raise ZeroDivisionError


def fill_the_disk(database: Database) -> None:
    with database.transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        connection.execute(insert(NUMBERS), [{"number": n, "value": 2**40} for n in range(10_000)])


def test_a_commit_outlives_the_process_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    first = Database(url(tmp_path), METADATA, "0001")
    with first.transaction() as connection:
        connection.execute(insert(NUMBERS), [{"number": n, "value": 0} for n in range(5)])
    with pytest.raises(ZeroDivisionError):
        insert_and_fail(first)
    first.close()
    second = Database(url(tmp_path), METADATA, "0001")
    with second.reading() as connection:
        assert connection.execute(select(func.count()).select_from(NUMBERS)).scalar_one() == 5
    second.close()


def test_threads_that_read_then_write_never_lose_an_update(tmp_path: Path) -> None:
    database = Database(url(tmp_path), METADATA, "0001")
    with database.transaction() as connection:
        connection.execute(insert(NUMBERS), [{"number": 0, "value": 0}])

    def count() -> None:
        for _ in range(10):
            with database.transaction() as connection:
                value = connection.execute(select(NUMBERS.c.value)).scalar_one()
                connection.execute(update(NUMBERS).values(value=value + 1))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        assert connection.execute(select(NUMBERS.c.value)).scalar_one() == 80
    database.close()


def test_a_transaction_that_is_ended_for_anothers_sake_is_tried_eight_times_with_longer_and_longer_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[int] = []
    waits: list[float] = []

    @repeated
    def collides() -> None:
        tries.append(1)
        raise Collision("deadlock detected")

    monkeypatch.setattr(database_faults.time, "sleep", waits.append)
    monkeypatch.setattr(database_faults.secrets, "randbelow", lambda most: most - 1)
    with pytest.raises(Unavailable, match="deadlock detected") as caught:
        collides()
    assert not isinstance(caught.value, Collision)  # a method around this one does not begin eight tries more
    assert (len(tries), waits) == (8, [0.009, 0.019, 0.039, 0.079, 0.159, 0.319, 0.639])


def test_sqlite_is_durable(tmp_path: Path) -> None:
    database = Database(url(tmp_path), METADATA, "0001")
    with database.reading() as connection:
        settings = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]
    database.close()


def test_another_revision_is_refused_with_what_to_do(tmp_path: Path) -> None:
    Database(url(tmp_path), METADATA, "0001").close()
    with pytest.raises(Unavailable, match="has schema 0001, this program needs 0002: stop its service, and run"):
        Database(url(tmp_path), METADATA, "0002")
    Database(f"sqlite:///{tmp_path}/new.sqlite3", METADATA, "0003").close()
    with pytest.raises(Unavailable, match="has schema 0003, this program needs 0002: it is of a newer version"):
        Database(f"sqlite:///{tmp_path}/new.sqlite3", METADATA, "0002")


def test_a_password_is_not_in_the_command_that_a_refusal_names() -> None:
    told = another_schema(make_url("postgresql+psycopg://me:secret@db.example/server"), 2, "0001")
    assert told.endswith("run `distrust migrate --database postgresql://me:***@db.example/server`")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/sys/distrust/x.sqlite3", "its directory cannot be made"),  # not even root may make a directory there
        ("{folder}/file/x.sqlite3", "its directory cannot be made"),
        ("{folder}", "cannot be opened"),
        ("{folder}/file", "it is damaged, or no database; docs"),
    ],
)
def test_a_place_where_no_database_can_be_is_one_clear_sentence(place: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"anything but a database " * 300)
    with pytest.raises(Unavailable, match=why):
        Database(f"sqlite:///{place.format(folder=tmp_path)}", METADATA, "0001")


@pytest.mark.parametrize(
    "bad", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true", "nosuch://host/db"]
)
def test_a_url_that_forgets_or_means_nothing_is_refused(bad: str) -> None:
    with pytest.raises(BadParameter, match="database"):
        Database(bad, METADATA, "0001")


@pytest.mark.parametrize(
    "command",
    [
        "CREATE TABLE bills (id)",
        "CREATE VIEW bills AS SELECT 1",
        "CREATE TABLE numbers (number, value)",
        "CREATE TABLE schema_version (version)",
    ],
    ids=["table", "view", "table-that-is-called-like-ours", "version-of-its-own"],
)
def test_another_programs_database_is_refused_and_not_touched(command: str, tmp_path: Path) -> None:
    """A file that has no table of ours, or has one that no schema_version of ours belongs to, is another program's."""
    file = tmp_path / "x.sqlite3"
    with closing(sqlite3.connect(file)) as foreign:
        foreign.execute(command)
        foreign.execute("CREATE TABLE users (name)")
        foreign.commit()
    file.chmod(0o644)
    before = file.read_bytes()
    with pytest.raises(
        BadParameter, match=r"database = '.*x\.sqlite3': must name a file of this service's own: .*users"
    ):
        Database(f"sqlite:///{file}", METADATA, "0001")
    assert file.read_bytes() == before
    assert (sorted(path.name for path in tmp_path.iterdir()), file.stat().st_mode & 0o777) == (["x.sqlite3"], 0o644)


@pytest.mark.parametrize(("own", "others"), [(SERVER, INTERMEDIARY), (INTERMEDIARY, SERVER)])
def test_another_services_database_is_refused_and_not_touched(own: MetaData, others: MetaData, tmp_path: Path) -> None:
    """Also where both services happen to have the same number of a version."""
    Database(f"sqlite:///{tmp_path}/x.sqlite3", others, "0007").close()
    before = (tmp_path / "x.sqlite3").read_bytes()
    with pytest.raises(BadParameter, match=r"this one has the tables of another service \(.*cohorts"):
        Database(f"sqlite:///{tmp_path}/x.sqlite3", own, "0007")
    assert (tmp_path / "x.sqlite3").read_bytes() == before
    Database(f"sqlite:///{tmp_path}/x.sqlite3", others, "0007").close()


def test_an_empty_file_becomes_a_services_database(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite3").touch()
    Database(f"sqlite:///{tmp_path}/x.sqlite3", METADATA, "0001").close()
    Database(f"sqlite:///{tmp_path}/x.sqlite3", METADATA, "0001").close()


def test_a_database_is_held_by_one_at_a_time_and_let_go_when_closed(tmp_path: Path) -> None:
    first, second = Database(url(tmp_path), METADATA, "0001"), Database(url(tmp_path), METADATA, "0001")
    first.hold()
    with pytest.raises(Unavailable, match=r"is in use by another process \(\d+\)"):
        second.hold()
    first.close()
    second.hold()
    second.close()


def test_on_a_full_disk_nothing_is_kept_of_what_was_refused_and_a_service_is_not_ready(tmp_path: Path) -> None:
    database = Database(url(tmp_path), METADATA, "0001")
    with pytest.raises(Unavailable, match="the disk is full"):
        fill_the_disk(database)
    with database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(NUMBERS)).scalar_one() == 0
    database.close()
    with pytest.raises(Unavailable, match=r"\d+ bytes are free on its disk, and \d+ are needed"):
        Database(url(tmp_path), METADATA, "0001").check_writable(2**62)


def test_asking_again_and_again_whether_it_can_write_does_not_make_it_grow(tmp_path: Path) -> None:
    database = Database(url(tmp_path), METADATA, "0001")

    def pages() -> int:
        with database.reading() as connection:
            return int(connection.exec_driver_sql("PRAGMA page_count").scalar_one())

    for _ in range(3):
        database.check_writable()
    before = pages()
    for _ in range(20):
        database.check_writable()
    assert pages() == before
    database.close()

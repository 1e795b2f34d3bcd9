"""Tests that services keep their state in PostgreSQL as they do in SQLite, with equal work and promises.

The server has PostgreSQL's own defaults, 100 connections among them.
"""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, func, insert, select, text, update
from structlog.testing import capture_logs

from distrust.common.errors import Unavailable
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.storage import database as module
from distrust.common.protocol.storage.database import POOL, Database
from distrust.common.protocol.storage.database_faults import repeated
from distrust.server.storage.tables import METADATA as SERVER_METADATA
from distrust.shuffler.service import Shuffler
from tests.support.attacks import OPERATOR, attacked, refusal
from tests.support.cohorts import Authority, address
from tests.support.forked import forking
from tests.support.manual_clock import ManualClock
from tests.support.postgres import create_database, postgres

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def forked() -> Iterator[None]:
    with forking():
        yield


@pytest.fixture(scope="module")
def shuffler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the shuffler at which the server under test opens its cohorts."""
    with attacked("shuffler", tmp_path_factory.mktemp("elsewhere")) as service:
        yield service.url


TESTS = MetaData()
NUMBERS = Table("numbers", TESTS, Column("number", Integer, primary_key=True), Column("value", Integer))
COUNT = select(func.count()).select_from(NUMBERS)
STANDING = text("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')")

COLLIDE = """
    CREATE SEQUENCE turns;
    CREATE SEQUENCE ended;
    CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('turns') % {every} = 0 THEN
            IF nextval('ended') % 2 = 0 THEN RAISE SQLSTATE '40001'; ELSE RAISE SQLSTATE '40P01'; END IF;
        END IF;
        RETURN NULL;
    END $$;
"""
COLLIDE_ON = "CREATE TRIGGER collide AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION collide();"
SCHEMAS = {"shuffler": METADATA, "aggregator": METADATA, "server": SERVER_METADATA}
EVERY = {"shuffler": 41, "aggregator": 19, "server": 7}
"""More statements than one transaction of honest work has, and fewer than three pieces of it have."""

STATE = {
    "shuffler": f"/v1/cohorts/{address('target')}",
    "aggregator": f"/v1/cohorts/{address('target')}/stage",
    "server": "/v1/runs/target",
}


def collide(operator: "psycopg.Connection[tuple[Any, ...]]", party: str) -> None:
    """Let PostgreSQL end now and then a transaction of a service with the states of a deadlock, and of a conflict."""
    operator.execute(COLLIDE.format(every=EVERY[party]).encode())
    for table in SCHEMAS[party].tables:
        operator.execute(COLLIDE_ON.format(table=table).encode())


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a new database whose own default is another isolation than ours."""
    name = f"db{abs(hash(request.node.name))}"
    made = create_database(server, name)
    with psycopg.connect(made, autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode())
    return made


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """Yield a database with three numbers, all 0."""
    with closing(Database(url, TESTS, "0001")) as made:
        with made.transaction() as connection:
            connection.execute(insert(NUMBERS), [{"number": number, "value": 0} for number in range(3)])
        yield made


def add(connection: Connection, number: int, more: int) -> None:
    connection.execute(update(NUMBERS).where(NUMBERS.c.number == number).values(value=NUMBERS.c.value + more))


def values(database: Database) -> list[int]:
    with database.reading() as connection:
        return list(connection.execute(select(NUMBERS.c.value).order_by(NUMBERS.c.number)).scalars())


def test_a_reading_sees_one_snapshot_and_a_write_what_was_committed_before_each_statement(database: Database) -> None:
    counts = []
    with database.reading() as reading, database.transaction() as writing:
        standing = [connection.execute(STANDING).one() for connection in (reading, writing)]
        counts += [(reading.execute(COUNT).scalar_one(), writing.execute(COUNT).scalar_one())]
        with database.transaction() as other:
            other.execute(insert(NUMBERS), [{"number": 3, "value": 0}])
        counts += [(reading.execute(COUNT).scalar_one(), writing.execute(COUNT).scalar_one())]
    assert [tuple(row) for row in standing] == [("repeatable read", "on"), ("read committed", "off")]
    assert counts == [(3, 3), (3, 4)]


def test_a_transaction_that_a_deadlock_ends_is_made_again_from_its_start(url: str, database: Database) -> None:
    """An operator's session has locked what the service needs next, and needs what the service has locked."""
    tries = 0
    with psycopg.connect(url) as operator, ThreadPoolExecutor(1) as beside:
        operator.execute("SET deadlock_timeout = '1h'")  # the service's session looks for deadlocks, and is ended
        operator.execute("UPDATE numbers SET value = value + 100 WHERE number = 1")

        def end() -> None:
            operator.execute("UPDATE numbers SET value = value + 100 WHERE number = 0")
            operator.commit()

        @repeated
        def work() -> None:
            nonlocal tries
            tries += 1
            with database.transaction() as connection:
                add(connection, 0, 1)
                if tries == 1:
                    beside.submit(end)
                add(connection, 1, 1)

        work()
    assert tries == 2
    assert values(database) == [101, 101, 0]


def test_a_transaction_that_cannot_be_serialized_is_made_again_and_decides_anew(database: Database) -> None:
    """Our own isolation does not raise this; a server with another one does."""
    seen: list[int] = []

    @repeated
    def work() -> None:
        with database.transaction() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            seen.append(connection.execute(select(NUMBERS.c.value).where(NUMBERS.c.number == 0)).scalar_one())
            if len(seen) == 1:
                with database.transaction() as other:
                    add(other, 0, 10)
            connection.execute(update(NUMBERS).where(NUMBERS.c.number == 0).values(value=seen[-1] + 1))

    work()
    assert seen == [0, 10]
    assert values(database) == [11, 0, 0]


def test_a_cohort_that_several_callers_open_at_once_is_opened_once(url: str) -> None:
    with closing(Database(url, METADATA, VERSION)) as made:
        shuffler, authority, together = Shuffler(made, ManualClock()), Authority(), threading.Barrier(8)

        def opened(name: str) -> Cohort:
            together.wait()
            return shuffler.open(authority.sealed(name=name, clients=8))

        with ThreadPoolExecutor(8) as threads:
            for name in (f"c{number}" for number in range(10)):
                assert {one.cohort for one in threads.map(opened, [name] * 8)} == {name}
        assert len(shuffler.cohorts().cohorts) == 10
        shuffler.close()


def test_a_service_opens_no_more_connections_than_its_pool_and_all_threads_get_one(url: str) -> None:
    with closing(Database(url, TESTS, "0001", pool=3)) as made, psycopg.connect(url, autocommit=True) as operator:
        made.hold()

        def sessions(_: int) -> int:
            with made.reading() as connection:
                connection.execute(text("SELECT pg_sleep(0.01)"))
                row = operator.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                return int((row.fetchone() or (0,))[0])

        with ThreadPoolExecutor(12) as threads:
            assert max(threads.map(sessions, range(60))) == 3 + 1  # the operator's own


def test_work_that_gets_no_connection_in_time_is_told_which_setting_bounds_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    told = r"all connections of this service to it are in use; DISTRUST_POOL is 1$"
    with closing(Database(url, TESTS, "0001", pool=1)) as made, made.reading(), pytest.raises(Unavailable, match=told):
        values(made)


@pytest.mark.parametrize(("pool", "level"), [(POOL, "info"), (32, "info"), (33, "warning"), (97, "warning")])
def test_a_service_compares_its_pool_with_what_the_server_admits(url: str, pool: int, level: str) -> None:
    """PostgreSQL admits 100 by default and reserves 3. Three services may share it."""
    with closing(Database(url, TESTS, "0001", pool)) as made, capture_logs() as lines:
        made.check_pool()
    (line,) = lines
    why = line.pop("why", "")
    assert line == {
        "event": "database_connections", "log_level": level, "pool": pool, "max_connections": 100, "reserved": 3,
    }  # fmt: skip
    whole = f"3 services with this DISTRUST_POOL open {3 * pool} connections, and the server has 97: "
    assert why == ("" if level == "info" else f"{whole}lower it, or raise max_connections")


def test_a_pool_that_the_server_cannot_admit_is_refused_in_one_line(server: str, tmp_path: Path) -> None:
    where = create_database(server, "small")
    code, words = refusal("shuffler", tmp_path, DISTRUST_DATABASE=where, DISTRUST_POOL="98")
    allowed = "must be at most 97: the server admits 100 connections, and reserves 3"
    assert (code, words.splitlines()[-1]) == (2, f"distrust shuffler: DISTRUST_POOL = 98: {allowed}")
    code, words = refusal("shuffler", tmp_path, DISTRUST_DATABASE=where, DISTRUST_POOL="1")
    assert (code, words.count("\n")) == (2, 1)
    assert "DISTRUST_POOL = '1': must be at least 2" in words or "DISTRUST_POOL = 1" in words


@pytest.mark.parametrize("party", STATE)
@pytest.mark.few(1)
def test_a_service_works_on_postgresql_and_knows_all_of_it_after_a_kill(
    party: str, server: str, shuffler: str, tmp_path: Path
) -> None:
    variables = {"DISTRUST_DATABASE": create_database(server, party), "DISTRUST_SHUFFLER_URL": shuffler}
    variables["DISTRUST_KEYS"] = str(tmp_path / "keys")
    variables["DISTRUST_POOL"] = "2"  # a thread that asked for a second connection would wait in vain
    with attacked(party, tmp_path, **variables) as first:
        first.prepare()
        assert httpx.get(f"{first.url}/readyz").is_success
        before = httpx.get(first.url + STATE[party], headers=OPERATOR)
        assert before.is_success
        second = tmp_path / "second"
        second.mkdir()
        code, words = refusal(party, second, **variables)
        assert (code, words.count("\n")) == (2, 1)
        assert "is in use by another process: stop that one" in words
        first.process.kill()
        first.process.wait()
    with psycopg.connect(variables["DISTRUST_DATABASE"], autocommit=True) as operator:
        with attacked(party, tmp_path, **variables) as again:
            assert httpx.get(again.url + STATE[party], headers=OPERATOR).json() == before.json()
            again._names = itertools.count(100)  # new names for honest work
            collide(operator, party)
            again.honest_seconds(3)  # no caller sees a transaction that is ended for another's sake
        (ended,) = operator.execute("SELECT last_value FROM ended").fetchone() or (0,)
        assert ended >= 2
    assert not (tmp_path / ".distrust").exists()  # no SQLite file beside it


def test_a_postgresql_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    code, words = refusal("shuffler", tmp_path, DISTRUST_DATABASE="postgresql://nobody@127.0.0.1:9/none")
    assert (code, words.count("\n")) == (2, 1), words
    assert words.startswith("distrust shuffler: database 127.0.0.1/none: ")

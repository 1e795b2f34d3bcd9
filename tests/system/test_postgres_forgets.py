"""Tests that queries and dumps of PostgreSQL databases have nothing of messages and batches that were deleted."""

import asyncio
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, event, select

from distrust.common.protocol.intermediary.tables import COHORTS, DIGESTS, MESSAGES, METADATA, PRUNED, VERSION
from distrust.common.protocol.messages.status import Settled
from distrust.common.protocol.storage.database import Database
from distrust.server.reading.reader import Reader
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.intermediaries import Housekeeper
from distrust.server.runs.service import Service
from distrust.server.storage.store import open_database
from distrust.server.storage.tables import BATCHES, TOMBSTONES
from distrust.server.storage.tables import METADATA as SERVER_METADATA
from distrust.shuffler.service import REPORT, Shuffler
from tests.support.cohorts import Authority, report
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.manual_clock import ManualClock
from tests.support.postgres import create_database, postgres, programs
from tests.support.server_harness import REWARDS, ServerHarness, config, key_folder
from tests.threats.test_keys_of_ended_runs import forms

pytestmark = pytest.mark.slow

_WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


def dumped(url: str) -> str:
    program = (programs() / "initdb").resolve().with_name("pg_dump")  # of the same version
    return subprocess.run([program, url], capture_output=True, text=True, check=True).stdout


def test_an_intermediary_scrubs_and_prunes(server: str) -> None:
    url, clock, authority = create_database(server, "forgetful_shuffler"), ManualClock(), Authority()
    cohort = authority.sealed(clients=600, minimum=1, keep_seconds=10.0)
    bodies = {slot: report(cohort, slot) for slot in range(cohort.clients)}
    parts = [body[40:72].hex() for body in bodies.values()]
    with closing(Database(url, METADATA, VERSION)) as database, closing(Shuffler(database, clock)) as shuffler:
        shuffler.open(cohort)
        upload = authority.upload(cohort, REPORT, bodies)
        assert shuffler.receive(cohort.address, REPORT, upload).accepted == cohort.clients
        shuffler.settle(cohort.run_digest, Settled(cohorts=[cohort.cohort]))
        shuffler.close()  # the batch is released
        before = dumped(url)
        assert all(part in before for part in parts)
        clock.advance(10)
        shuffler.scrub()
        after = dumped(url)
        assert not any(part in after for part in parts)
        assert shuffler.receive(cohort.address, REPORT, upload).accepted == cohort.clients
        with database.reading() as connection:
            assert connection.execute(select(MESSAGES)).first() is None
            assert len(connection.execute(select(DIGESTS)).all()) == cohort.clients
        first = shuffler.prune(cohort.run_digest)
        assert shuffler.prune(cohort.run_digest) == first
        with database.reading() as connection:
            left = {table.name for table in METADATA.sorted_tables if connection.execute(select(table)).first()}
            assert left == {PRUNED.name}
            assert connection.execute(select(COHORTS)).first() is None


def test_a_run_that_is_pruned_beside_a_sweep_leaves_no_digest(server: str) -> None:
    """The sweep has copied the run's digests, and not committed yet, when the prune deletes them."""
    url, clock, authority = create_database(server, "pruned_beside_a_sweep"), ManualClock(), Authority()
    cohort = authority.sealed(keep_seconds=0.0)
    with (
        closing(Database(url, METADATA, VERSION)) as database,
        closing(Shuffler(database, clock)) as shuffler,
        ThreadPoolExecutor(1) as other,
    ):
        shuffler.open(cohort)
        bodies = {slot: report(cohort, slot) for slot in range(cohort.clients)}
        shuffler.receive(cohort.address, REPORT, authority.upload(cohort, REPORT, bodies))
        shuffler.settle(cohort.run_digest, Settled(cohorts=[cohort.cohort]))
        shuffler.close()  # the batch is released
        pruning = list[Future[None]]()

        def beside(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
            if not pruning and statement.startswith("DELETE FROM messages WHERE messages.number"):
                pruning.append(other.submit(shuffler.keeper._forget, cohort.run_digest, [1]))  # a prune ends so
                with closing(psycopg.connect(url)) as look:
                    while not pruning[0].done() and not look.execute(_WAITS).fetchall():
                        look.rollback()

        event.listen(Engine, "before_cursor_execute", beside)
        try:
            shuffler.scrub()
            pruning[0].result(60)
        finally:
            event.remove(Engine, "before_cursor_execute", beside)
        with database.reading() as connection:
            left = {table.name for table in METADATA.sorted_tables if connection.execute(select(table)).first()}
    assert left == set()


class OnPostgres(ServerHarness):
    """The server's logic over a database of PostgreSQL."""

    def __init__(self, url: str, folder: Path) -> None:
        self.intermediaries, self.rung = InMemoryIntermediaries(), list[str]()
        self.database = open_database(url)
        self.keys = key_folder(folder)
        self.service = Service(self.database, self.keys, self.rung.append, clock=ManualClock())
        self.reader = Reader(self.service)
        self.coordinator = RunCoordinator(self.service, self.intermediaries, retry=0.001)


def test_the_server_scrubs_and_prunes_and_no_dump_of_an_open_run_has_its_keys(server: str, tmp_path: Path) -> None:
    url = create_database(server, "forgetful_server")
    harness = OnPostgres(url, tmp_path)
    table = {"name": "central-laplace-discrete", "epsilon": 2.0, "via": "aggregator"}
    harness.service.create(config(horizon=300, mechanism=table, intermediary={"keep_seconds": 0.0}))

    async def whole() -> None:
        clients = InMemoryClients(harness.intermediaries, REWARDS)
        await harness.play("demo", clients, until=2)
        keys, dump = harness.service.active_run("demo").keys, dumped(url)
        assert keys is not None
        assert keys.public.seal.hex() in dump
        for secret in (keys.ticket.private_bytes_raw(), keys.seal.private_bytes_raw(), keys.noise):
            assert not any(form.decode("latin-1") in dump for form in forms(secret))
        await harness.play("demo", clients)
        keeper = Housekeeper(harness.service, harness.intermediaries)
        with harness.database.reading() as connection:
            bodies = list(connection.execute(select(BATCHES.c.body)).scalars())
        before = dumped(url)
        assert all(body in before for body in bodies)
        await keeper.turn()
        after = dumped(url)
        assert not any(body in after for body in bodies)
        await keeper.prune("demo")
        await harness.stop()

    asyncio.run(asyncio.wait_for(whole(), 240))
    with closing(open_database(url)) as database, database.reading() as connection:
        left = {one.name for one in SERVER_METADATA.sorted_tables if connection.execute(select(one)).first()}
    assert left == {TOMBSTONES.name}
    assert '"demo.1' not in dumped(url)

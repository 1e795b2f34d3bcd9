"""Tests of what services show of runs that were migrated to wire version 3, on SQLite and on PostgreSQL."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from sqlalchemy import Connection, text

from distrust.aggregator.service import Aggregator
from distrust.common.errors import BadParameter
from distrust.common.protocol.channels.sealed import NO_KEY
from distrust.common.protocol.crypto.context import encode, run_digest
from distrust.common.protocol.intermediary import tables as intermediary
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.migration import migrate
from distrust.common.wire import decode_blob, encode_blob
from distrust.lab.cli.migrate import HISTORIES
from distrust.lab.services.outline import Wanted
from distrust.lab.services.parties import StoredParties
from distrust.lab.stack.data_dir import DataDir
from distrust.server.reading.reader import Reader
from distrust.server.runs.service import Service
from distrust.server.storage.keys import KeyFolder, new_keys
from distrust.server.storage.store import open_database
from distrust.server.storage.tables import COHORTS
from distrust.shuffler.service import Shuffler
from tests.support.manual_clock import ManualClock
from tests.support.schemas import content, engine, first_schema

Old = Callable[[str], str]
FINISHED, OPEN = ("summed", "shuffled"), ("open-summed", "open-shuffled")
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@contextmanager
def served(url: str) -> Iterator[Service]:
    """Migrate a server's database, and yield its service, which has no run's keys."""
    migrate(url, HISTORIES, backed_up=True)
    with closing(open_database(url)) as database, TemporaryDirectory() as empty:
        yield Service(database, KeyFolder(Path(empty)))


@contextmanager
def carried(url: str, party: type[Aggregator] | type[Shuffler]) -> Iterator[Intermediary]:
    """Migrate an intermediary's database, and yield its service."""
    migrate(url, HISTORIES, backed_up=True)
    database = Database(url, intermediary.METADATA, intermediary.VERSION)
    with closing(database), closing(party(database, ManualClock())) as service:
        yield service


@contextmanager
def changing(url: str) -> Iterator[Connection]:
    """Yield a connection that changes a database before it is migrated."""
    made = engine(url)
    with made.begin() as connection:
        yield connection
    made.dispose()


def stored(service: Service) -> dict[str, Cohort]:
    """Return the server's cohorts by name. Each has in its columns what today's code computes."""
    with service.store.database.reading() as connection:
        rows = connection.execute(COHORTS.select()).all()
    cohorts = {row.cohort: Cohort.model_validate_json(row.message) for row in rows}
    assert {row.cohort: (row.digest, row.via) for row in rows} == {
        name: (cohort.digest(), cohort.via) for name, cohort in cohorts.items()
    }
    return cohorts


def test_the_server_shows_runs_that_were_finished_and_ends_those_that_were_open(old: Old) -> None:
    url = old("server")
    with changing(url) as before:
        before.execute(
            text("""INSERT INTO regrets VALUES ('summed', '{"version"\\:1,"curve"\\:[[8,1.5],[24,2.0]]}')""")
        )
        outcomes = {name: json.loads(body) for name, body in before.execute(text("SELECT cohort, body FROM outcomes"))}
    started = time.time() - 1
    with served(url) as service:
        cohorts = stored(service)
        ended = {line.run: line.ended for line in Reader(service).runs().runs}
        assert ended.keys() == {*FINISHED, *OPEN}
        assert all(at is not None and at > started for at in ended.values())
        for run in FINISHED:
            view = Reader(service).view(run)
            assert (view.state, view.snapshot.chosen, view.snapshot.pulls) == ("finished", 1, 24)
            rounds = Reader(service).rounds(run, 0, 10).rounds
            shown = {one.cohort: one.estimate for report in rounds for one in report.cohorts}
            assert shown == {name: body["sum"] for name, body in outcomes.items() if name.startswith(f"{run}.")}
            assert [line.clients for line in Reader(service).ledger(run).lines] == [8, 16]
        assert Reader(service).regret("summed").curve == [(8, 1.5), (24, 2.0)]
        for run in OPEN:
            view = Reader(service).view(run)
            assert (view.state, view.cohorts_open, view.cohorts_aborted > 0) == ("failed", 0, True)
            assert "was open when its database was migrated to wire version 3" in str(view.reason)
            events, over = Reader(service).events(run, 0)
            assert (over, events[-1].kind, events[-1].detail) == (True, "failed", view.reason)
        for name, cohort in cohorts.items():
            entries = Reader(service).transcript(cohort.run, name, 0, 100).messages
            assert ("batch" in {entry.stage for entry in entries}) == (name in outcomes)
            assert not any("refused" in entry.view for entry in entries)


@pytest.mark.parametrize("party", [Aggregator, Shuffler])
def test_an_intermediary_shows_its_cohorts_and_lists_what_it_delivered(
    party: type[Aggregator] | type[Shuffler], old: Old
) -> None:
    run = FINISHED[party is Shuffler]
    with served(old("server")) as server, carried(old(party.party), party) as service:
        ours = {name: one for name, one in stored(server).items() if one.via == party.party}
        listed = service.cohorts().cohorts
        assert {entry.cohort: entry.run_digest for entry in listed} == {n: one.run_digest for n, one in ours.items()}
        for entry in listed:
            cohort = ours[entry.cohort]
            assert service.terms(cohort.address) == cohort
            answer, batch = service.batch(cohort.address), server.store.batch(entry.cohort)
            if entry.stage == "done":
                assert isinstance(answer, bytes)
                assert BatchAnswer.model_validate_json(answer) == batch
            else:
                assert isinstance(answer, BatchAnswer)
                assert answer.reason == "the cohort was open when the database was migrated to wire version 3"
            transcript = service.transcript(cohort.address, 0, 500)
            assert transcript.total == len(transcript.messages) > 0 or entry.stage == "aborted"
            if isinstance(service, Aggregator):
                assert service.statements(cohort.address, 0).statements == server.store.statements(entry.cohort)
        known = Reader(server).view(run)
        digest = run_digest(known.digest, known.run_id)
        released = [ours[entry.cohort].digest() for entry in listed if (entry.run, entry.stage) == (run, "done")]
        assert len(released) == 4
        deliveries = service.delivered(digest, 0, 100)
        assert (deliveries.count, deliveries.digests) == (4, b"".join(released))
        server.compare(run, party.party, 0, released)
        with service._database.reading() as connection:
            rows = connection.execute(intermediary.MESSAGES.select()).all()
        assert all(row.digest == hashlib.sha256(row.body).digest() for row in rows)


def test_messages_stay_with_their_cohort_also_where_its_name_is_the_number_of_another(old: Old) -> None:
    url = old("aggregator")
    with changing(url) as before:
        for table in ("cohorts", "messages"):
            before.execute(text(f"UPDATE {table} SET cohort = '2' WHERE cohort = 'summed.1.0.1'"))
        had = before.execute(
            text("SELECT c.number, m.digest FROM messages m JOIN cohorts c ON c.cohort = m.cohort")
        ).all()
    migrate(url, HISTORIES, backed_up=True)
    with changing(url) as after:
        has = after.execute(text("SELECT cohort, digest FROM messages WHERE slot >= 0")).all()
    assert {tuple(row) for row in has} < {tuple(row) for row in had}
    assert {number for number, _ in has} >= {1, 2}


@pytest.mark.parametrize(
    ("party", "table", "column"),
    [("server", "cohorts", "message"), ("server", "batches", "body"), ("shuffler", "cohorts", "body")],
)
def test_a_message_of_another_version_is_refused_and_the_database_stays_as_it_was(
    party: str, table: str, column: str, old: Old
) -> None:
    url = old(party)
    with changing(url) as before:
        body = before.execute(text(f"SELECT {column} FROM {table}")).scalars().all()[-1]
        other = body.replace('"version":1', '"version":2') if isinstance(body, str) else b"{}"
        before.execute(
            text(f"UPDATE {table} SET {column} = :other WHERE {column} = :body"), {"other": other, "body": body}
        )
    kept = content(url, without=frozenset({"holder"}))
    with pytest.raises(BadParameter, match="must be a message of wire version 1, as a service stored it"):
        migrate(url, HISTORIES, backed_up=True)
    assert content(url, without=frozenset({"holder"})) == kept


def test_a_stopped_folder_that_was_migrated_is_inspected(tmp_path: Path) -> None:
    for party in ("server", "shuffler", "aggregator"):
        first_schema(party, f"sqlite:///{tmp_path}/{party}.sqlite3")
        migrate(f"sqlite:///{tmp_path}/{party}.sqlite3", HISTORIES)
    parties = StoredParties(DataDir(tmp_path))
    for run in (*FINISHED, *OPEN):
        wanted = Wanted(run, 1, None, 3)
        outline = asyncio.run(parties.outline(wanted))
        for cohort in outline.cohorts:
            for party in ("server", outline.intermediary):
                pages = asyncio.run(parties.pages(party, wanted, outline.address(cohort.cohort)))
                assert pages is not None
                assert len(pages.messages) > 0 or party != "server"
    assert parties.missing == {}


def test_records_that_were_sealed_before_the_migration_are_shown_as_refused(old: Old) -> None:
    url, keys, name = old("server"), new_keys(), "shuffled.1.0.1"
    with changing(url) as before:
        words = before.execute(text("SELECT message FROM cohorts WHERE cohort = :name"), {"name": name}).scalar_one()
        cohort = json.loads(words)
        cohort["channel"] = {"kind": "sealed", "size": 1, "server_key": encode_blob(keys.public.seal)}
        words = json.dumps(cohort, separators=(",", ":"), ensure_ascii=False)
        record, opened = sealed(words, keys.seal)
        assert opened == bytes(17)
        content = {"kind": "records", "count": 1, "body": encode_blob(record), "checksum": encode_blob(bytes(32))}
        batch = {"version": 1, "cohort": name, "survivors": 1, "content": content}
        answer = {"version": 1, "cohort": name, "state": "released", "batch": batch}
        values = {"name": name, "words": words, "answer": json.dumps(answer, separators=(",", ":"))}
        before.execute(text("UPDATE cohorts SET message = :words WHERE cohort = :name"), values)
        before.execute(text("UPDATE batches SET body = :answer WHERE cohort = :name"), values)
    with served(url) as service:
        (shown,) = (
            one for one in Reader(service).transcript("shuffled", name, 0, 100).messages if one.stage == "batch"
        )
        assert shown.view["refused"] == NO_KEY
        assert Reader(service).view("shuffled").state == "finished"


def sealed(words: str, key: X25519PrivateKey) -> tuple[bytes, bytes]:
    """Return a record of 17 zero bytes as 6102dc19 sealed it for a cohort, and what opens with its info."""
    cohort, digest = json.loads(words), hashlib.sha256(words.encode()).digest()
    config = decode_blob(cohort["config"])
    assert isinstance(config, bytes)
    info = encode("distrust seal v1", config, cohort["run"], cohort["round"], cohort["cohort"], digest)
    record = SUITE.encrypt(bytes(17), key.public_key(), info)
    return record, SUITE.decrypt(record, key, info)

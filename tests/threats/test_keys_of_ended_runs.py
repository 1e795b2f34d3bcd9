"""Tests that who steals the services' files opens the records of a run until it ends, and none of them after that.

The thief has every file of the data folder, and what clients sent. It tries each 32 bytes that may be a secret.
"""

import asyncio
import base64
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.errors import BadMessage
from distrust.common.protocol.channels.sealed import REPORT_ID
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.upload import Upload
from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.analyzer import analyze
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import OUTCOME_JSON, ReleasedCohort
from distrust.server.runs.settlement import analyzer_stream
from distrust.server.storage.keys import KeyFolder, Keys
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries
from tests.support.recording import RecordedRun, record_run
from tests.support.server_harness import REWARDS, ServerHarness
from tests.support.server_harness import config as played_config
from tests.support.stored_values import values_of

RECORDS, SECRET = 100, 32  # bytes of a secret
MECHANISMS: dict[str, dict[str, Any]] = {
    "sealed": {"name": "local-laplace-discrete", "epsilon": 2.0, "precision": 1000, "via": "shuffler"},
    "central": {"name": "central-laplace-discrete", "epsilon": 1.0, "precision": 10**4, "via": "aggregator"},
}
DOUBLINGS = {"sealed": 6, "central": 4}  # of the first batch: 64 and 16 clients an arm


def config(run: str) -> RunConfig:
    """Return a run of one round of two cohorts."""
    policy, horizon = {"first_batch": DOUBLINGS[run]}, 2 * 2 ** DOUBLINGS[run]
    return RunConfig.model_validate(
        {"run": run, "arms": 2, "horizon": horizon, "policy": policy, "mechanism": MECHANISMS[run]}
    )


@dataclass(frozen=True)
class Stolen:
    """The files of all services as the run's last outcome was committed, and after the services had stopped."""

    recorded: RecordedRun
    before: Path
    after: Path

    @property
    def keys(self) -> Keys:
        (keys,) = self.recorded.keys.values()
        return keys

    def cohorts(self) -> list[tuple[Cohort, BatchAnswer, ReleasedCohort]]:
        """Return each cohort with its batch and its outcome."""
        query = (
            "SELECT message, b.body, o.body FROM cohorts c JOIN batches b USING (cohort) JOIN outcomes o USING (cohort)"
        )
        return [
            (Cohort.model_validate_json(one), BatchAnswer.model_validate_json(two), OUTCOME_JSON.validate_json(three))  # type: ignore[misc]
            for one, two, three in self.recorded.rows("server", query)
        ]

    def records(self) -> list[tuple[Cohort, bytes]]:
        """Return the sealed records that clients sent, as an observer of the network records them."""
        cohorts = {cohort.cohort: cohort for cohort, _, _ in self.cohorts()}
        sent = [one for one in self.recorded.between("fleet", "shuffler") if one.url.path.endswith("/reports")]
        uploads = [Upload.model_validate_json(one.body) for one in sent]
        return [(cohorts[upload.cohort], item.body[REPORT_ID:]) for upload in uploads for item in upload.items]


def stolen(run: str, folder: Path) -> Stolen:
    (folder / "data").mkdir()
    destroy = KeyFolder.destroy

    def copied(self: KeyFolder, run_digest: bytes) -> None:
        assert not (folder / "copy").exists()
        shutil.copytree(folder / "data", folder / "copy")
        destroy(self, run_digest)

    with pytest.MonkeyPatch.context() as tap:
        tap.setattr(KeyFolder, "destroy", copied)
        recorded = record_run(folder / "data", [config(run)], 0.0, tap)
    assert recorded.views[run].state == "finished"
    return Stolen(recorded, folder / "copy", folder / "data")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Stolen:
    return stolen("sealed", tmp_path_factory.mktemp("sealed"))


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> Stolen:
    return stolen("central", tmp_path_factory.mktemp("central"))


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def candidates(folder: Path) -> set[bytes]:
    """Return each 32 bytes that may be a secret: a value of a database, or bytes at any place of another file."""
    found = set[bytes]()
    for path in files(folder):
        if path.suffix == ".sqlite3":
            found |= {value for value in values_of(path) if len(value) == SECRET}
        elif not path.name.endswith(("-wal", "-shm")):  # SQLite's own, read with the database
            raw = path.read_bytes()
            found |= {raw[at : at + SECRET] for at in range(len(raw) - SECRET + 1)}
    return found


def traces(folder: Path, secrets: Iterable[bytes]) -> set[bytes]:
    """Return the secrets that stand in any file, also where a database has deleted them, in bytes or as text."""
    whole = b"\xff".join(path.read_bytes() for path in files(folder))
    return {one for one in secrets if any(form in whole for form in forms(one))}


def forms(secret: bytes) -> Iterator[bytes]:
    yield from (secret, secret.hex().encode(), secret.hex().upper().encode())
    yield from (base64.b64encode(secret).rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"="))


def opened(tried: set[bytes], records: list[tuple[Cohort, bytes]]) -> int:
    """Return how many records one of these secrets opens."""
    (public,) = {cohort.channel.server_key for cohort, _ in records}  # type: ignore[union-attr]
    private = [X25519PrivateKey.from_private_bytes(one) for one in tried]
    fitting = [one for one in private if one.public_key().public_bytes_raw() == public]
    return sum(any(opens(one, cohort, record) for one in fitting) for cohort, record in records)


def opens(key: X25519PrivateKey, cohort: Cohort, record: bytes) -> bool:
    try:
        open_record(key, cohort, record)
    except BadMessage:
        return False
    return True


def fitting_noise(tried: set[bytes], one: Stolen) -> list[bytes]:
    """Return the secrets that give the noise of every release. Another one does by chance with less than 1e-8."""
    run, cohorts, unused = config("central"), one.cohorts(), X25519PrivateKey.generate()
    mechanism = Learner(run).rounds[0].mechanism

    def released_with(secret: bytes, cohort: Cohort, answer: BatchAnswer, outcome: ReleasedCohort) -> bool:
        assert answer.batch is not None
        noise_of = partial(analyzer_stream, run, secret, cohort)
        found = analyze(mechanism, cohort, answer.batch, noise_of, partial(open_record, unused, cohort))
        return found.sums.tolist() == outcome.sum

    return [secret for secret in tried if all(released_with(secret, *cohort) for cohort in cohorts)]


def test_stolen_files_open_every_record_before_the_runs_end_and_none_after_it(sealed: Stolen) -> None:
    records = sealed.records()[:RECORDS]
    assert len(records) == RECORDS
    assert opened(candidates(sealed.before), records) == RECORDS
    assert opened(candidates(sealed.after), records) == 0


def test_stolen_files_give_the_analyzers_noise_before_the_runs_end_and_not_after_it(central: Stolen) -> None:
    """Noise that can be computed can be subtracted: then a central release is the true sum."""
    assert len(central.cohorts()) == 2
    assert fitting_noise(candidates(central.before), central) == [central.keys.noise]
    assert fitting_noise(candidates(central.after), central) == []


def test_a_backup_of_the_database_alone_of_an_open_run_opens_no_record_and_has_no_trace_of_its_keys(
    tmp_path: Path,
) -> None:
    """The copy is made as docs/how-to/backup.md says, and beside it are all the files that the database has."""
    harness = ServerHarness(tmp_path, InMemoryIntermediaries())
    harness.service.create(played_config("demo", mechanism=MECHANISMS["sealed"]))

    async def begun() -> None:
        await harness.play("demo", InMemoryClients(harness.intermediaries, REWARDS), until=2)
        await harness.coordinator.stop()

    asyncio.run(begun())
    backup, files_ = tmp_path / "backup", list(tmp_path.glob("server.sqlite3*"))
    backup.mkdir()
    source = sqlite3.connect(f"file:{tmp_path}/server.sqlite3?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(backup / "copy.sqlite3")) as target:
        source.backup(target)
    for file in files_:
        shutil.copy(file, backup)
    keys = harness.service.active_run("demo").keys
    assert keys is not None
    secrets = {keys.ticket.private_bytes_raw(), keys.seal.private_bytes_raw(), keys.noise}
    held = harness.intermediaries.held.values()
    records = [(one.cohort, body[REPORT_ID:]) for one in held for body in one.bodies.values()]
    assert records
    assert (traces(backup, secrets), opened(candidates(backup), records)) == (set(), 0)
    assert (traces(harness.keys.path, secrets), opened(secrets, records)) == (secrets, len(records))
    harness.database.close()


@pytest.mark.parametrize("run", MECHANISMS)
def test_no_file_has_a_trace_of_a_secret_of_a_run_that_is_over(run: str, request: pytest.FixtureRequest) -> None:
    """Also deleted pages of databases, their logs and the services' other files are searched."""
    one: Stolen = request.getfixturevalue(run)
    secrets = (one.keys.ticket.private_bytes_raw(), one.keys.seal.private_bytes_raw(), one.keys.noise)
    assert traces(one.before, secrets) == set(secrets)
    assert traces(one.after, secrets) == set()
    assert [path.name for path in one.after.rglob("*.key")] == []

"""Remembers in a SQLite file which clients have taken part, so that none randomizes its reward a second time.

A fleet plays many clients, and a slot of a cohort is one client. Rounds of a run go forward only, a cohort never
changes, and a slot is held once. What a client holds is on the disk before a message of it leaves, and stays there: a
cohort that fails afterwards has cost its clients a contribution, and a fleet that starts again finds it.

Fleets of one machine may share the file. A commit is short, and the others wait for it.
"""

import os
import secrets
import sqlite3
import stat
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, NoReturn

import structlog
from pydantic import TypeAdapter, ValidationError

from distrust.common.dp.mechanisms import AnyMechanism, promise_of
from distrust.common.errors import LATER, BadParameter, ProtocolError, Refused, Unavailable
from distrust.common.protocol.crypto.context import cohort_digest
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.round import Round

log = structlog.get_logger("distrust.fleet")

MEMORY_FILE = Path(".distrust/clients.sqlite3")
"""The file of fleets that name none, below the working directory, where services keep theirs."""

BUSY_SECONDS = 30.0  # that a commit waits for those of other fleets; then it raises Unavailable
LOG_PAGES = 64  # after which SQLite begins its log anew: a commit that makes the log longer takes three times as long
FIELD = "memory_file"  # the setting that names the file
_VERSION = 1  # of the tables
_PROGRAM = 0x64697374  # SQLite's application id: "dist"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NEW_RUNS = "a fleet with another file knows nothing of them, so name one for new runs only"
_STILL = "its clients send nothing that it does not have"
_DAMAGED = f"is damaged; it alone tells which clients of its runs have taken part, and {_NEW_RUNS}"

# Rows of one cohort lie side by side, so that a block of clients changes one page of the file.
_TABLES = f"""
    CREATE TABLE runs (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, name TEXT NOT NULL);
    CREATE TABLE costs (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, mechanism TEXT NOT NULL, guarantee TEXT NOT NULL,
        UNIQUE (run, mechanism)
    );
    CREATE TABLE contributions (
        run INTEGER NOT NULL, round INTEGER NOT NULL, cohort TEXT NOT NULL, first INTEGER NOT NULL,
        last INTEGER NOT NULL, digest BLOB NOT NULL, cost INTEGER NOT NULL,
        PRIMARY KEY (run, round, cohort, first)
    ) WITHOUT ROWID;
    PRAGMA application_id = {_PROGRAM};
    PRAGMA user_version = {_VERSION};
"""

_LAST_ROUNDS = "SELECT digest, (SELECT coalesce(max(round), 0) FROM contributions WHERE run = runs.number) FROM runs"

_mechanisms: TypeAdapter[AnyMechanism] = TypeAdapter(AnyMechanism)


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """Slots of a cohort that clients hold, and the mechanism by which they randomize their rewards."""

    cohort: Cohort
    mechanism: AnyMechanism
    slots: Sequence[int]


class Memory:
    """Cohorts in which the clients of one fleet have taken part. Safe to use from several threads, one after another.

    file    made where it is not there, readable by its owner only. None: it lasts as long as this object.
    Raises  BadParameter for a file that is damaged, of another version or another program's; Unavailable for one that
            cannot be written now. Each method raises both, and then the clients must send nothing.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file, self._turn = file, threading.Lock()
        self._numbers: dict[bytes, int] = {}  # of runs that were read from the file, which forgets none
        with self._explained():
            self._connection = _forgetting() if file is None else _opened(file)
        weakref.finalize(self, self._connection.close)  # also of a memory that is dropped without `close`
        try:
            with self._transaction("IMMEDIATE") as connection:  # a file that can only be read is noticed here
                self._last = dict(connection.execute(_LAST_ROUNDS))
        except ProtocolError:
            self._connection.close()
            raise

    def close(self) -> None:
        with self._turn:
            self._connection.close()

    def check(self, run: bytes, round_: Round) -> None:
        """Note that this fleet is in a round. Raise Refused for an earlier one than its last, and for a changed cohort.

        run  R, 32 bytes, as the run's cohorts carry it.

        Last is the latest round that this object has seen, and that the file had when it was opened. A fleet beside
        this one may be ahead, by an answer of the server that was later than this fleet's.
        """
        last = self._last.get(run, 0)
        if round_.number < last:
            shown = f"round {round_.number} of run {round_.run}"
            raise Refused(f"{shown}: these clients have been in round {last}, and go forward only")
        with self._turn, self._explained():  # each statement is a transaction: a cohort's digest never changes
            number = self._numbers.get(run) or _number(self._connection, run)
            for assignment in round_.assignments if number else []:
                _check_digest(self._connection, number, assignment.cohort)
            if number:
                self._numbers[run] = number
        self._last[run] = round_.number

    def hold(self, joining: Sequence[HeldSlots]) -> None:
        """Note, in one commit, that clients hold these slots: each has spent a contribution, whatever comes of it.

        Raises Refused, and notes nothing, when a slot was held before, or its cohort has changed.
        """
        with self._transaction("IMMEDIATE") as connection:
            for held in joining:
                run = held.cohort.run_digest
                _hold(connection, held, self._numbers.get(run) or _number(connection, run))

    def mechanisms(self, run: bytes) -> list[AnyMechanism]:
        """Return the mechanisms by which clients have randomized their rewards in a run, in order of the first use."""
        query = "SELECT mechanism FROM costs WHERE run = ? ORDER BY number"
        with self._transaction() as connection:
            rows = connection.execute(query, (_number(connection, run),)).fetchall()
        with self._explained():
            return [_mechanisms.validate_json(mechanism) for (mechanism,) in rows]

    @contextmanager
    def _transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"] = "DEFERRED") -> Iterator[sqlite3.Connection]:
        """Yield the connection; IMMEDIATE: with the write lock. Commit at the end, and roll back on any error."""
        with self._turn, self._explained():
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has rolled back already
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the file into one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            _explain(self._file, error)
        except OSError as error:
            if error.errno in LATER:
                raise Unavailable(f"{FIELD} {self._file}: {error.strerror}; {_STILL}") from error
            raise BadParameter(FIELD, str(self._file), f"cannot be used: {error.strerror}") from error
        except ValidationError as error:
            raise BadParameter(FIELD, str(self._file), _DAMAGED) from error


def _forgetting() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.executescript(_TABLES)
    return connection


def _opened(file: Path) -> sqlite3.Connection:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not file.exists():
        _make(file)
    facts = file.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise BadParameter(FIELD, str(file), "must be a file")
    if facts.st_uid not in {0, os.geteuid()}:  # who could have it forget
        raise BadParameter(FIELD, str(file), f"belongs to user {facts.st_uid}, and must belong to this user")
    if not facts.st_size:  # SQLite would take it for a new one
        raise BadParameter(FIELD, str(file), _DAMAGED)
    if facts.st_mode & _OTHERS:
        file.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS)
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _check_file(connection, file)
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(file: Path) -> None:
    """Make the file whole, or not at all: a fleet that is killed meanwhile leaves none that is empty."""
    part = file.with_name(f"{file.name}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(part, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # one write to the disk a commit; the file keeps the mode
            connection.executescript(f"BEGIN; {_TABLES} COMMIT;")
        os.link(part, file)
        log.info("memory_made", file=str(file))
    except FileExistsError:  # another fleet was faster
        pass
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_file(connection: sqlite3.Connection, file: Path) -> None:
    """Raise BadParameter for another program's file, another version's, and for one that is damaged."""
    (program,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if program != _PROGRAM:
        raise BadParameter(FIELD, str(file), "is no file of a fleet; name another")
    if version != _VERSION:
        theirs = f"has version {version}, and this program needs {_VERSION}"
        raise BadParameter(FIELD, str(file), f"{theirs}; leave its runs to the version that made it: {_NEW_RUNS}")
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise BadParameter(FIELD, str(file), _DAMAGED)


def _explain(file: Path | None, error: sqlite3.Error) -> NoReturn:
    """Raise the ProtocolError of what SQLite says."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the lowest byte; the others tell more of the cause
    match code:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR:  # the last: a table is not there
            raise BadParameter(FIELD, str(file), _DAMAGED) from error
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            advice = "cannot be written; check its owner and mode, and its folder's"
            raise BadParameter(FIELD, str(file), advice) from error
    causes = {
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_IOERR: "the disk failed, or is full",
        sqlite3.SQLITE_BUSY: f"another program has held it for {BUSY_SECONDS:g} seconds",
    }
    raise Unavailable(f"{FIELD} {file}: {causes.get(code, str(error))}; {_STILL}") from error


def _number(connection: sqlite3.Connection, run: bytes) -> int:
    """Return the number of a run in the file; 0 for a run that it does not have."""
    row = connection.execute("SELECT number FROM runs WHERE digest = ?", (run,)).fetchone()
    return 0 if row is None else int(row[0])


def _check_digest(connection: sqlite3.Connection, run: int, cohort: Cohort) -> None:
    query = "SELECT digest FROM contributions WHERE (run, round, cohort) = (?, ?, ?) LIMIT 1"
    row = connection.execute(query, (run, cohort.round, cohort.cohort)).fetchone()
    if row is not None and row[0] != cohort_digest(cohort):
        raise Refused(f"cohort {cohort.cohort} is another one than that in which clients have taken part")


def _hold(connection: sqlite3.Connection, held: HeldSlots, run: int) -> None:
    """Note slots of a run with this number in the file; 0: the run is new there."""
    cohort = held.cohort
    if not run:
        new = connection.execute("INSERT INTO runs (digest, name) VALUES (?, ?)", (cohort.run_digest, cohort.run))
        run = int(new.lastrowid or 0)
    _check_digest(connection, run, cohort)
    cost = _cost(connection, run, held.mechanism)
    for first, last in _ranges(held.slots):
        # Stored ranges never overlap: if one meets this range, it is the one that begins last before its end.
        before = "SELECT first, last FROM contributions WHERE (run, round, cohort) = (?, ?, ?) AND first <= ?"
        found = (run, cohort.round, cohort.cohort, last)
        row = connection.execute(f"{before} ORDER BY first DESC LIMIT 1", found).fetchone()
        if row is not None and row[1] >= first:
            again = sorted({max(first, row[0]), min(last, row[1])})
            slots = f"slot {again[0]}" if len(again) == 1 else f"slots {again[0]} to {again[1]}"
            raise Refused(f"{slots} of cohort {cohort.cohort} a second time: each client takes part once")
        values = (run, cohort.round, cohort.cohort, first, last, cohort_digest(cohort), cost)
        connection.execute("INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _cost(connection: sqlite3.Connection, run: int, mechanism: AnyMechanism) -> int:
    """Return the number of what a cohort of this mechanism costs."""
    stored = mechanism.model_dump_json()
    row = connection.execute("SELECT number FROM costs WHERE (run, mechanism) = (?, ?)", (run, stored)).fetchone()
    if row is not None:
        return int(row[0])
    values = (run, stored, promise_of(mechanism).model_dump_json())
    new = connection.execute("INSERT INTO costs (run, mechanism, guarantee) VALUES (?, ?, ?)", values)
    return int(new.lastrowid or 0)


def _ranges(slots: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each range of consecutive slots. A slot that is there twice is in two ranges."""
    for _, group in groupby(enumerate(sorted(slots)), lambda pair: pair[1] - pair[0]):
        members = [slot for _, slot in group]
        yield members[0], members[-1]

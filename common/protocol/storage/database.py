"""Opens a service's database: commits before the answer, checks the schema's revision, lets in one process at a time.

SQLite (write-ahead log, `synchronous=FULL`) is the default; any SQLAlchemy URL works. A second process is refused:
SQLite has a lock on a file beside the database, PostgreSQL an advisory lock and a mark that every write compares. The
lock ends with the process that holds it. The files can be read by their owner only.

Log event: `database_connections`, how many connections this service opens to PostgreSQL, and how many that admits.
"""

import fcntl
import os
import secrets
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry

from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.common.inputs import without_passwords
from distrust.common.protocol.storage.database_faults import Collision, cause_of, is_collision, repeated
from distrust.common.protocol.storage.schema import another_schema, create_schema, stored_schema
from distrust.common.protocol.storage.stored_file import check_own, keep_private

_KEY = 0x64697374  # the advisory lock's number: the same in every version of this program

_HOLDER = Table(
    "holder",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("mark", LargeBinary, nullable=False),
)

BUSY_SECONDS = 30  # that a write waits for SQLite's lock, and any work for a connection; then it raises Unavailable
CONNECTIONS = 48  # to a SQLite file: the web's thread pool runs 40 routes at once, and each holds at most one
POOL = 16  # to a PostgreSQL server, which are processes there: three services take half of its default of 100
LEAST_POOL = 2  # one holds the service's lock, and one works
_SERVICES = 3  # that may share a PostgreSQL server
_PROBE_BYTES = 16 * 1024  # some pages, so that a database that may not grow is noticed

_SETTINGS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={1000 * BUSY_SECONDS}")
_ZEROED = "secure_delete=ON"  # what is deleted is overwritten with zeros
"""Of each connection to a SQLite file."""

_ISOLATION: dict[bool, dict[str, Any]] = {
    True: {"isolation_level": "READ COMMITTED"},  # a statement behind a lock sees what was committed before it
    False: {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},  # one snapshot for all statements
}
"""Of PostgreSQL's transactions, by whether they write: whatever a server's own default is."""

_ADMITTED = text("""
    SELECT current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int
    + coalesce(current_setting('reserved_connections', true)::int, 0)
""")  # the second reserve is PostgreSQL 16's

_POSTGRES_DRIVER = "psycopg"
"""Driver of the extra `postgres`, for URLs that name none: SQLAlchemy's own choice is its predecessor."""

_log = structlog.get_logger("distrust.database")


class FileHold:
    """A lock on an open file. The kernel gives it up when the process ends, by SIGKILL too."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        os.close(self._handle)


def hold_file(url: URL) -> FileHold:
    """Lock the file beside a SQLite database and return it. Raises Unavailable when another process has locked it."""
    database = Path(url.database or "").resolve()
    lock = database.with_name(f"{database.name}.lock")
    try:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"database {database}: its lock {lock.name} cannot be opened ({error.strerror})") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode("ascii", errors="replace").strip()
        os.close(handle)
        raise Unavailable(
            f"database {database} is in use by another process ({holder or 'unknown'}): "
            "stop that one, or give this one another DISTRUST_DATABASE"
        ) from error
    except OSError as error:
        os.close(handle)
        raise Unavailable(f"database {database}: its lock {lock.name} cannot be taken ({error.strerror})") from error
    return FileHold(handle)


class ServerHold:
    """An advisory lock of PostgreSQL, held by a connection of its own.

    The connection may break while the process lives on, and another process may take the lock then. So the holder
    leaves a random mark in the database, and each of its writes begins with a look at that mark.

    Raises  Unavailable when another process holds the lock; BadParameter for a database that has no such lock.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        if engine.dialect.name != "postgresql":
            allowed = "must be SQLite or PostgreSQL: on others a second server cannot be kept out"
            raise BadParameter("database", engine.dialect.name, allowed)
        self._name, self._mark = name, secrets.token_bytes(16)
        self._connection = engine.connect()
        try:
            self._lock()
            _HOLDER.create(self._connection, checkfirst=True)
            self._connection.execute(delete(_HOLDER))
            self._connection.execute(insert(_HOLDER), [{"number": 1, "mark": self._mark}])
            self._connection.commit()
        except BaseException:
            self._connection.close()
            raise

    def _lock(self) -> None:
        free = self._connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY}).scalar_one()
        if not free:
            raise Unavailable(
                f"database {self._name} is in use by another process: "
                "stop that one, or give this one another DISTRUST_DATABASE"
            )

    def check(self, connection: Connection) -> None:
        """Raise Unavailable when another process has taken the database over; keep it out while this one writes."""
        mark = connection.execute(select(_HOLDER.c.mark).with_for_update(read=True)).scalar_one_or_none()
        if mark != self._mark:
            raise Unavailable(f"database {self._name}: another process has taken it over; this one must be restarted")

    def close(self) -> None:
        self._connection.invalidate()  # ends the session and its lock, where closing would pool the connection
        self._connection.close()


class Database:
    """One service's tables. Safe to use from many threads; every transaction is one thread's.

    url       SQLAlchemy URL; a file's directory is made.
    metadata  the service's tables, created when absent.
    version   the schema's newest revision, which a new database gets; a database of another one is refused.
    pool      connections to a PostgreSQL server at most, all together. No thread may ask for a second one while it
              holds one: with all threads at that point none would get it.
    Raises    BadParameter for a URL that cannot be used, and for a SQLite file of another program or another service;
              Unavailable for a database that cannot be opened or written.
    """

    def __init__(self, url: str, metadata: MetaData, version: str, pool: int = POOL) -> None:
        self.url, self._pool = parse_url(url), pool
        self._check_own(metadata)
        self._writer = threading.Lock() if self.url.get_backend_name() == "sqlite" else None
        self._engine = _sqlite(self.url) if self._writer else _server(self.url, pool)
        self._holder: FileHold | ServerHold | None = None
        self._prepare(metadata, version)

    @property
    def name(self) -> str:
        """Return the database as messages name it: a path, or HOST/DATABASE."""
        return database_name(self.url)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection that reads and writes: it commits at the end, and rolls back on any error.

        SQLite takes its write lock at once. PostgreSQL may end a transaction for another's sake: it raises Collision,
        and the method that opened it is `repeated`.
        """
        if self._writer is None:
            with self._begin(write=True) as connection:
                yield connection
        else:  # queueing here is fair; SQLite's own busy wait is not
            with self._writer, self._begin(write=True) as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that reads one snapshot, whatever is committed meanwhile. It waits for no writer."""
        with self._begin(write=False) as connection:
            yield connection

    def hold(self) -> None:
        """Keep every other process from holding this database, until `close` or the end of this process.

        Two servers over one database would hand out tickets twice. Raises Unavailable when another process holds it.
        """
        self._holder = hold_file(self.url) if self._writer else self._hold_on_server()

    def check_pool(self) -> None:
        """Compare this service's connections with those that a PostgreSQL server admits, in one line of the log.

        It is a warning where three services like this one would not fit: they may share the server, and may not.
        Raises BadParameter for a pool that this service alone could not open.
        """
        if self._writer is not None:
            return
        with self.reading() as connection:
            admitted, reserved = connection.execute(_ADMITTED).one()
        room, facts = admitted - reserved, {"pool": self._pool, "max_connections": admitted, "reserved": reserved}
        if self._pool > room:
            allowed = f"must be at most {room}: the server admits {admitted} connections, and reserves {reserved}"
            raise BadParameter("pool", self._pool, allowed)
        if _SERVICES * self._pool <= room:
            _log.info("database_connections", **facts)
            return
        need = f"{_SERVICES} services with this DISTRUST_POOL open {_SERVICES * self._pool}"
        why = f"{need} connections, and the server has {room}: lower it, or raise max_connections"
        _log.warning("database_connections", **facts, why=why)

    @repeated
    def check_writable(self, min_free: int = 0) -> None:
        """Raise Unavailable unless a write commits, and the database's disk has `min_free` bytes left."""
        free = min_free if self._writer is None else _free(self.url)
        if free < min_free:
            room = f"{free} bytes are free on its disk, and {min_free} are needed"
            raise Unavailable(f"database {database_name(self.url)}: {room}")
        with self.transaction() as connection:
            connection.execute(delete(_PROBE))
            connection.execute(insert(_PROBE), [{"number": 1, "body": secrets.token_bytes(_PROBE_BYTES)}])

    def truncate_log(self) -> bool:
        """Empty SQLite's log, which holds what was deleted. Return False while a reader needs it."""
        if self._writer is None:
            return True
        with self._writer, closing(self._engine.raw_connection()) as connection:
            cursor = connection.cursor()
            try:
                cursor.execute("PRAGMA busy_timeout=0")  # a reader may take long, and writers wait for this lock
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                busy, *_ = cursor.fetchone() or (1,)
                return bool(busy == 0)
            except sqlite3.OperationalError:  # locked, or the disk is full: the next sweep tries again
                return False
            finally:
                cursor.execute(f"PRAGMA busy_timeout={1000 * BUSY_SECONDS}")
                cursor.close()

    def close(self) -> None:
        self._engine.dispose()
        if self._holder is not None:
            self._holder.close()

    @contextmanager
    def _begin(self, *, write: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                if write:
                    connection.execution_options(distrust_write=True)
                if self._engine.dialect.name == "postgresql":
                    connection.execution_options(**_ISOLATION[write])
                with connection.begin():
                    if write and isinstance(self._holder, ServerHold):
                        self._holder.check(connection)
                    yield connection
        except PoolTimeoutError as error:
            raise Unavailable(_sentence_of_pool(self.url, self._pool)) from error
        except OperationalError as error:
            raise self._failure(error) from error
        except DatabaseError as error:
            if type(error) is not DatabaseError:
                raise  # a bug of ours: a constraint, a wrong statement
            raise self._failure(error) from error

    def _failure(self, error: DBAPIError) -> ProtocolError:
        told = _sentence(self.url, error)
        return Collision(told) if is_collision(error) else Unavailable(told)

    def _hold_on_server(self) -> ServerHold:
        try:
            return ServerHold(self._engine, database_name(self.url))
        except DBAPIError as error:
            raise Unavailable(_sentence(self.url, error)) from error

    def _check_own(self, metadata: MetaData) -> None:
        if self.url.get_backend_name() == "sqlite":
            check_own(Path(self.url.database or ""), set(metadata.tables))

    @repeated
    def _prepare(self, metadata: MetaData, version: str) -> None:
        with self.transaction() as connection:
            stored = stored_schema(connection)
            if stored is None:
                create_schema(connection, metadata, version)
            if stored in (None, version):
                _PROBE.create(connection, checkfirst=True)
                return
        self.close()
        raise Unavailable(f"database {database_name(self.url)} {another_schema(self.url, stored, version)}")


_PROBE = Table(
    "readiness",
    MetaData(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)


def parse_url(url: str) -> URL:
    """Return a SQLAlchemy URL with the driver that is used here. Raises BadParameter."""
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        allowed = "must be a SQLAlchemy URL: sqlite:///FILE or postgresql://USER@HOST:PORT/DATABASE"
        raise BadParameter("database", without_passwords(url.rpartition("@")[2]), allowed) from error
    if parsed.drivername == "postgresql":
        return parsed.set(drivername=f"postgresql+{_POSTGRES_DRIVER}")
    if parsed.get_backend_name() == "sqlite" and (parsed.database or ":").startswith((":", "file:")):
        raise BadParameter("database", url, "must name a file by its path: a service must not forget")
    return parsed


def _sqlite(url: URL) -> Engine:
    file = Path(url.database or "")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"database {database_name(url)}: its directory cannot be made ({error.strerror})") from error
    keep_private(file)
    engine = create_engine(url, pool_size=CONNECTIONS, max_overflow=0, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", begin_now)
    return engine


def _server(url: URL, pool: int) -> Engine:
    try:
        return create_engine(url, pool_size=pool, max_overflow=0, pool_timeout=BUSY_SECONDS, pool_pre_ping=True)
    except ImportError as error:
        allowed = f"its driver {error.name} is not installed: write postgresql://… and install distrust[postgres]"
        raise BadParameter("database", url.drivername, allowed) from error


def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # SQLAlchemy's "begin" event sends BEGIN, not the driver
    cursor = connection.cursor()
    for setting in (*_SETTINGS, _ZEROED):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def begin_now(connection: Connection) -> None:
    """Take the write lock at once: a lock taken half way can only fail."""
    statement = "BEGIN IMMEDIATE" if connection.get_execution_options().get("distrust_write", False) else "BEGIN"
    driver: Any = connection.connection.driver_connection
    try:
        driver.execute(statement)  # as SQLAlchemy's own statement it would cost ten times as much
    except sqlite3.Error as error:
        raise DBAPIError.instance(statement, None, error, sqlite3.Error) from error


def _sentence(url: URL, error: DBAPIError) -> str:
    return f"database {database_name(url)}: {cause_of(error, sqlite=url.get_backend_name() == 'sqlite')}"


def _sentence_of_pool(url: URL, pool: int) -> str:
    told = f"database {database_name(url)}: all connections of this service to it are in use"
    return told if url.get_backend_name() == "sqlite" else f"{told}; DISTRUST_POOL is {pool}"


def _free(url: URL) -> int:
    try:
        return shutil.disk_usage(Path(url.database or "").parent).free
    except OSError as error:
        raise Unavailable(f"database {database_name(url)}: its directory cannot be read ({error.strerror})") from error


def database_name(url: URL) -> str:
    """Return a database as messages name it: a path, or HOST/DATABASE."""
    return url.database or "" if url.get_backend_name() == "sqlite" else f"{url.host}/{url.database}"

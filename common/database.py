"""Where a service remembers: an engine, transactions that commit before the answer, one schema version.

SQLite (write-ahead log, `synchronous=FULL`) is the embedded default; any SQLAlchemy URL works. No web here.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, create_engine, event, insert, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from common.errors import BadParameter, Unavailable

BUSY_SECONDS = 30
CONNECTIONS = 48  # the web's thread pool runs 40 routes at once, and each holds at most one connection


class Database:
    """One service's tables. Safe to use from many threads; every transaction is one thread's.

    url       SQLAlchemy URL; a file's directory is made.
    metadata  the service's tables, created when absent.
    version   the schema's version; a database of another version is refused.
    Raises    BadParameter for a URL that cannot be used, Unavailable for a database that cannot be opened or written.
    """

    def __init__(self, url: str, metadata: MetaData, version: int) -> None:
        self.url = _parse(url)
        self._writer = threading.Lock() if self.url.get_backend_name() == "sqlite" else None
        self._engine = _sqlite(self.url) if self._writer else _server(self.url)
        self._prepare(metadata, version)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Read and write: commits at the end, rolls back on any error; SQLite takes its write lock at once."""
        if self._writer is None:
            with self._begin(write=True) as connection:
                yield connection
        else:  # queueing here is fair; SQLite's own busy wait is not
            with self._writer, self._begin(write=True) as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A consistent snapshot to read from; never waits for a writer on SQLite."""
        with self._begin(write=False) as connection:
            yield connection

    def ping(self) -> None:
        """Raise Unavailable unless the database answers."""
        with self.reading() as connection:
            connection.execute(select(1)).one()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _begin(self, *, write: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                connection.execution_options(distrust_write=write)
                with connection.begin():
                    yield connection
        except OperationalError as error:
            raise Unavailable(_sentence(self.url, error)) from error

    def _prepare(self, metadata: MetaData, version: int) -> None:
        with self.transaction() as connection:
            _SCHEMA.create(connection, checkfirst=True)
            found = connection.execute(select(_SCHEMA.c.version)).scalar_one_or_none()
            if found is None:
                connection.execute(insert(_SCHEMA), [{"version": version}])
            if found in (None, version):
                metadata.create_all(connection)
                return
        self.close()
        raise Unavailable(
            f"database {_name(self.url)} has schema {found}, this program needs {version}: "
            "leave it to the version that made it, and give this one another"
        )


_SCHEMA = Table("schema_version", MetaData(), Column("version", Integer, primary_key=True, autoincrement=False))


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise BadParameter("database", url.rpartition("@")[2], "must be a SQLAlchemy URL") from error
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise BadParameter("database", url, "must name a file: a service that forgets cannot count clients once")
    return parsed


def _sqlite(url: URL) -> Engine:
    try:
        Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"database {_name(url)}: its directory cannot be made ({error.strerror})") from error
    engine = create_engine(url, pool_size=CONNECTIONS, max_overflow=0, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin_now)
    return engine


def _server(url: URL) -> Engine:
    try:
        return create_engine(url, pool_size=CONNECTIONS, max_overflow=0, pool_pre_ping=True)
    except ImportError as error:
        raise BadParameter("database", url.drivername, f"its driver is not installed ({error.name})") from error


def _configure(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # SQLAlchemy's "begin" event says BEGIN, not the driver
    cursor = connection.cursor()
    for setting in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={1000 * BUSY_SECONDS}", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_now(connection: Connection) -> None:
    """Take the write lock at once: a lock taken half way can only fail."""
    write = connection.get_execution_options().get("distrust_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


_CAUSES = {
    "full": "the disk is full; free some space, nothing that was answered is lost",
    "readonly": "it cannot be written; check the file's owner and mode",
    "unable to open": "it cannot be opened; check the path and the directory's mode",
    "disk i/o": "the disk failed, or is full",
    "locked": f"another program held it for more than {BUSY_SECONDS} s",
}


def _sentence(url: URL, error: OperationalError) -> str:
    text = str(error.orig)
    cause = next((sentence for word, sentence in _CAUSES.items() if word in text.lower()), text.splitlines()[0])
    return f"database {_name(url)}: {cause}"


def _name(url: URL) -> str:
    return url.database or "" if url.get_backend_name() == "sqlite" else f"{url.host}/{url.database}"

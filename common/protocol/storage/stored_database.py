"""Reads the database of a stopped service, by the services' own code, as it stands."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from distrust.common.errors import BadParameter, ProtocolError, Unavailable
from distrust.common.protocol.storage.database import Database, begin_now, database_name
from distrust.common.protocol.storage.database_faults import cause_of, is_lasting
from distrust.common.protocol.storage.schema import another_schema, stored_schema
from distrust.common.protocol.storage.stored_file import log_of, open_stored


class StoredDatabase(Database):
    """The SQLite database of a service that does not run, read as it stands.

    No table is made, and nothing is migrated. Where a killed service left a log, SQLite reads it through its index of
    the log, the file FILE-shm, which it may write anew. Otherwise no file is made, changed or locked. It lasts for a
    moment, between the services' runs: a read during which a service writes to the database is refused.

    Raises  Unavailable for a database that this user may not read, or of another version; for one with values that are
            computed while they are read, and one that takes long to read. BadParameter for one that no later try reads:
            it is damaged, or lacks a table or a column.
    """

    def __init__(self, path: Path, version: str) -> None:
        self.url, self._writer, self._holder = URL.create("sqlite", database=str(path)), None, None
        self._file = path.resolve()  # SQLite keeps the log beside the file that a link leads to
        self._log = log_of(path)
        self._still = not self._log.exists()
        self._engine = create_engine("sqlite://", creator=lambda: open_stored(self._file), poolclass=NullPool)
        event.listen(self._engine, "begin", begin_now)
        self._check(version)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Raise Unavailable: this database is only read."""
        raise Unavailable(f"database {database_name(self.url)}: it is only read here")
        yield

    @contextmanager
    def _begin(self, *, write: bool) -> Iterator[Connection]:
        before = self._state()
        try:
            with super()._begin(write=write) as connection:
                yield connection
        except DBAPIError as error:  # none is a bug of ours: another user may have written what is read
            raise self._failure(error) from error
        finally:
            if self._still and (self._log.exists() or self._state() != before):
                raise Unavailable(f"database {database_name(self.url)}: a service has opened it meanwhile; try again")

    def _failure(self, error: DBAPIError) -> ProtocolError:
        if is_lasting(error):
            return BadParameter("database", database_name(self.url), cause_of(error))
        return super()._failure(error)

    def _state(self) -> tuple[int, int, int] | None:
        """Return what changes when a service writes to the file: its number, size and time; None without a file."""
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _check(self, version: str) -> None:
        with self.reading() as connection:
            stored = stored_schema(connection)
        if stored is None:
            raise BadParameter("database", database_name(self.url), "it is no database of a service")
        if stored != version:
            raise Unavailable(f"database {database_name(self.url)} {another_schema(self.url, stored, version)}")

"""Migrates a stopped service's database to the newest revision of its schema, in one transaction.

A history is a folder of Alembic's revisions. Services do not import this module: Alembic takes long to import.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, inspect
from sqlalchemy.engine import URL

from distrust.common.errors import BadParameter, Unavailable
from distrust.common.inputs import open_file
from distrust.common.protocol.storage.database import Database, parse_url
from distrust.common.protocol.storage.schema import FIRST_REVISION, Stored, adopt, is_newer, stored_schema
from distrust.common.protocol.storage.stored_database import StoredDatabase

_SQLITE = b"SQLite format 3\0"  # how each of its files begins


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of one schema.

    folder  has a module for each revision.
    table   a table that this schema has in every revision, and no other schema has.
    number  in `schema_version` of a database that is adopted as the first revision.
    """

    folder: Path
    table: str
    number: int

    @property
    def newest(self) -> str:
        """Return the last revision."""
        return str(self.scripts().get_current_head())

    def scripts(self) -> ScriptDirectory:
        """Return Alembic's view of the folder."""
        return ScriptDirectory(self.folder, version_locations=[self.folder])


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of one migration.

    before  its schema before: a revision, or the number of one without a revision.
    copy    the file with the database as it was; None where nothing was to do, and on a database server.
    """

    database: str
    history: History
    before: Stored
    after: str
    copy: str | None = None

    def facts(self) -> dict[str, Stored | None]:
        """Return the result as JSON's values."""
        return {"database": self.database, "before": self.before, "after": self.after, "copy": self.copy}

    def line(self) -> str:
        """Return the result as one line."""
        if self.before == self.after:
            return f"{self.database}: schema {self.after}, nothing to do"
        kept = f"; as it was: {self.copy}" if self.copy else ""
        return f"{self.database}: schema {self.before} is now {self.after}{kept}"


def check_database(url: str, histories: Sequence[History], *, backed_up: bool = False) -> Migrated:
    """Return what `migrate` would do, but for the copy, or raise what it would raise for this database and no other.

    Nothing is made, changed or locked.
    """
    with closing(_as_it_stands(url)) as database:
        planned = _plan(database, histories)
    if planned.before != planned.after and not _is_file(database.url) and not backed_up:
        why = "back it up first, as with pg_dump, and say so with --backed-up: a migration cannot be undone"
        raise BadParameter("database", database.name, why)
    return planned


def migrate(url: str, histories: Sequence[History], *, backed_up: bool = False) -> Migrated:
    """Bring a database to the newest revision of its history. A kill leaves it as it was, or migrated.

    A SQLite file is copied before that, to a file beside it, in place of an earlier copy of that name. A database that
    has the newest revision is left alone, also where a service runs on it.

    url        SQLAlchemy URL of a database that a service has made.
    histories  those that the database may have.
    backed_up  whether the operator has a copy of the database; a database on a server is not migrated without one.
    Raises     BadParameter for what is no database of a service, for one of a newer version or of one too old, and for
               a missing copy; Unavailable for one that is in use, and for a full disk.
    """
    planned = check_database(url, histories, backed_up=backed_up)
    if planned.before == planned.after:
        return planned
    with closing(_Untouched(url)) as database:
        database.hold()
        planned = _plan(database, histories)  # another process may have migrated it meanwhile
        if planned.before == planned.after:
            return planned
        copy = _copy(Path(database.name), planned.after) if _is_file(database.url) else None
        with database.transaction() as connection:
            upgrade(connection, planned.history, planned.before)
    return replace(planned, copy=copy)


def upgrade(connection: Connection, history: History, stored: Stored | None) -> None:
    """Apply the revisions behind the stored one, in the caller's transaction; all of them where none is stored."""
    if isinstance(stored, int):
        adopt(connection)
        stored = FIRST_REVISION
    scripts = history.scripts()
    context = MigrationContext.configure(connection)
    with Operations.context(context):
        for script in reversed(list(scripts.iterate_revisions("head", stored or "base"))):
            script.module.upgrade()
            context.stamp(scripts, script.revision)


def _plan(database: Database, histories: Sequence[History]) -> Migrated:
    """Return what is to be done. Raises BadParameter."""
    with database.reading() as connection:
        stored, tables = stored_schema(connection), set(inspect(connection).get_table_names())
    name = database.name
    history = next((history for history in histories if history.table in tables), None)
    if history is None or stored is None:
        raise BadParameter("database", name, "is no database of a service")
    newest = history.newest
    if is_newer(stored, newest):
        raise BadParameter("database", name, f"has schema {stored}, of a newer version than this one's {newest}")
    if stored not in {history.number, *(script.revision for script in history.scripts().walk_revisions())}:
        raise BadParameter("database", name, f"has schema {stored!s:.40}, which this version cannot migrate")
    return Migrated(name, history, stored, newest)


class _Untouched(Database):
    """A database in which no table is made, whatever schema it has."""

    def __init__(self, url: str) -> None:
        super().__init__(url, MetaData(), "")

    def _check_own(self, metadata: MetaData) -> None:
        """Take a database of any service: the histories tell whose it is."""

    def _prepare(self, metadata: MetaData, version: str) -> None:
        """Leave the tables as they are."""


class _StoredUntouched(StoredDatabase):
    """A SQLite file that is read, whatever schema it has."""

    def _check(self, version: str) -> None:
        """Take any schema."""


def _as_it_stands(url: str) -> Database:
    """Return a database to read. Raises BadParameter for what is no SQLite file."""
    parsed = parse_url(url)
    if not _is_file(parsed):
        return _Untouched(url)
    file = Path(parsed.database or "")
    try:
        with open_file(file, None) as opened:
            begin = opened.read(len(_SQLITE))
    except OSError as error:
        raise BadParameter("database", str(file), f"cannot be read: {error.strerror}") from error
    if begin != _SQLITE:
        raise BadParameter("database", str(file), "is no SQLite database")
    return _StoredUntouched(file, "")


def _is_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _copy(file: Path, newest: str) -> str:
    """Copy a SQLite database with the commits of its log, and return the copy's path. It is whole, or not there."""
    copy = file.with_name(f"{file.name}.before-{newest}")
    part = copy.with_name(f"{copy.name}.part")
    with _written(copy):
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, whose log is not needed
        _to_disk(part)
        part.replace(copy)
        _to_disk(copy.parent)
    return str(copy)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _written(copy: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise Unavailable(f"the copy {copy} cannot be written: {error}; the database is as it was") from error

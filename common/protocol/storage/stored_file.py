"""Reads the SQLite file of a service that does not run, as it stands: another user may have made it.

`distrust list` and `distrust inspect` read such files, and a service looks at its own
before it opens it. The module imports nothing that takes long, such as SQLAlchemy.
"""

import os
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

from distrust.common.errors import BadParameter, Unavailable

DEADLINE_SECONDS = 60.0
"""Seconds after which a connection's statements are interrupted. A service's own tables take a few at most."""

LONGEST_VALUE = 512 * 2**20
"""Bytes of the longest value that is read: a batch of a million sealed records of some numbers has half as many."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_STEPS = 50_000  # instructions of SQLite between two looks at the clock, about a millisecond

# A view or a computed column has a query that runs when it is read, and may be endless. The text is compared, not only
# the type: SQLite believes the text of a schema that was written by hand.
_STRANGE = {
    "tables and indexes alone: it has views, triggers or tables of another kind": """
        SELECT 1 FROM sqlite_master WHERE type NOT IN ('table', 'index') OR (sql IS NOT NULL AND
        sql NOT LIKE 'CREATE TABLE%' AND sql NOT LIKE 'CREATE INDEX%' AND sql NOT LIKE 'CREATE UNIQUE INDEX%') LIMIT 1
    """,
    "stored columns alone: it has computed ones": """
        SELECT 1 FROM sqlite_master AS tables, pragma_table_xinfo(tables.name) AS columns
        WHERE tables.type = 'table' AND columns.hidden != 0 LIMIT 1
    """,
}
"""By what a service's database has: a query that finds something else."""


def log_of(path: Path) -> Path:
    """Return the log of commits that are not in the file yet, beside the file that a link leads to."""
    return path.resolve().with_name(f"{path.resolve().name}-wal")


def open_stored(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads. Without a log nothing is made, changed or locked beside the file.

    Each of its statements that runs after `DEADLINE_SECONDS` is interrupted.

    Raises  sqlite3.DatabaseError for what is no file, and for anything but stored tables, such as views.
    """
    connection = _opened(path)
    try:
        _check_objects(connection)
    except BaseException:
        connection.close()
        raise
    return connection


HOUSEKEEPING = {"alembic_version", "schema_version", "readiness", "holder"}
"""Tables that the database of every service has."""

_SHOWN_TABLES = 5  # of a foreign file


def check_own(path: Path, own: set[str]) -> None:
    """Raise BadParameter for a file with the tables of another program, or of another service. It is only read.

    Most tables of a file of another version are this service's, and it is told by its version. A file that cannot be
    read is left to those who open it to write.

    own  names of the service's tables.
    """
    try:
        found = _names(path) if path.is_file() else set()
    except sqlite3.Error:
        return
    tables = found - HOUSEKEEPING
    if not tables or (found & HOUSEKEEPING and len(tables & own) > len(tables - own)):
        return
    shown = ", ".join(sorted(tables)[:_SHOWN_TABLES])
    whose = "another service" if "schema_version" in found else "another program"
    allowed = f"must name a file of this service's own: this one has the tables of {whose} ({shown})"
    raise BadParameter("database", str(path), allowed)


def _names(path: Path) -> set[str]:
    """Return the names of a file's tables and views; none for an empty file."""
    with closing(_opened(path)) as connection:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        )
        return {str(name) for (name,) in rows}


def _opened(path: Path) -> sqlite3.Connection:
    file, log = path.resolve(), log_of(path)
    for place in (file, log, log.with_name(f"{file.name}-shm")):
        if place.exists() and not stat.S_ISREG(place.stat().st_mode):  # a pipe would keep SQLite waiting
            raise sqlite3.DatabaseError(f"{place.name} is no file")
    # A log that is there has commits that the file lacks, and SQLite reads both. Without one, nothing else is needed:
    # SQLite would make an empty log, and leave it there. The address is a URI, because "?" and "#" in a folder's name
    # would begin options, such as to create the file.
    address = f"{file.as_uri()}?{'mode=ro' if log.exists() else 'immutable=1'}"
    connection = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        end = time.monotonic() + DEADLINE_SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_objects(connection: sqlite3.Connection) -> None:
    for needs, query in _STRANGE.items():
        if connection.execute(query).fetchone() is not None:
            raise sqlite3.DatabaseError(f"it must have {needs}")


def keep_private(database: Path) -> None:
    """Make a SQLite database and its log files readable by their owner only, also if other users could read them.

    Raises Unavailable when others may read it, and this process cannot change that.
    """
    try:
        if not database.exists():
            os.close(os.open(database, os.O_CREAT | os.O_RDWR, 0o600))
        for file in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
            mode = file.stat().st_mode if file.is_file() else 0
            if mode & _OTHERS:
                file.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except PermissionError as error:
        raise Unavailable(f"database {database}: it cannot be opened; check its owner and mode") from error
    except OSError as error:
        raise Unavailable(f"database {database}: it cannot be opened ({error.strerror})") from error

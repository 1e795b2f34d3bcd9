"""Tells which schema a database has: a revision of its tables, written beside them.

The revisions are Alembic's, and so is the table `alembic_version`. A service reads it without Alembic, whose import
takes long; `distrust migrate` (`migration.py`) is what changes it. Programs of before the first revision compare a
number in the table `schema_version`. It is 0 since, which none of them has: they refuse the database.
"""

from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select, update
from sqlalchemy.engine import URL

FIRST_REVISION = "0001"
"""The revision of databases that have a number and no revision."""

_REVISION = Table("alembic_version", MetaData(), Column("version_num", String(32), nullable=False, primary_key=True))
_NUMBER = Table("schema_version", MetaData(), Column("version", Integer, primary_key=True, autoincrement=False))

_REVISED = 0  # the number of a database that has a revision
_LONGEST = 40  # characters shown of a revision, which anyone may have written

Stored = str | int
"""A revision, or the number of a database without one."""


def stored_schema(connection: Connection) -> Stored | None:
    """Return the schema of a database; None for one without any.

    A table with more rows than one, or with none, gives a text that is no revision.
    """
    tables = inspect(connection)
    for table in (_REVISION, _NUMBER):
        if tables.has_table(table.name):
            rows: list[Any] = list(connection.execute(select(table)).scalars())
            return rows[0] if len(rows) == 1 and isinstance(rows[0], str | int) else str(rows)
    return None


def create_schema(connection: Connection, metadata: MetaData, revision: str) -> None:
    """Make the tables of a new database, at the newest revision."""
    metadata.create_all(connection)
    for table in (_REVISION, _NUMBER):
        table.create(connection)
    connection.execute(insert(_REVISION), [{"version_num": revision}])
    connection.execute(insert(_NUMBER), [{"version": _REVISED}])


def adopt(connection: Connection) -> None:
    """Give a database without a revision the first one."""
    _REVISION.create(connection)
    connection.execute(insert(_REVISION), [{"version_num": FIRST_REVISION}])
    connection.execute(update(_NUMBER).values(version=_REVISED))


def another_schema(url: URL, stored: Stored | None, needed: str) -> str:
    """Return what is wrong with a database of another schema, after its name, and the command that mends it."""
    if stored is None:
        return "is no database of a service"
    has = f"has schema {str(stored)[:_LONGEST]}, this program needs {needed}"
    if is_newer(stored, needed):
        return f"{has}: it is of a newer version; start that one"
    shown = url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
    return f"{has}: stop its service, and run `distrust migrate --database {shown}`{_whole_folder(url)}"


def is_newer(stored: Stored, newest: str) -> bool:
    """Return whether a revision is one of a later version. Revisions have four digits, in the order of their making."""
    return isinstance(stored, str) and stored.isdecimal() and len(stored) == len(newest) and stored > newest


def _whole_folder(url: URL) -> str:
    folder = (url.database or "").rpartition("/")[0] if url.get_backend_name() == "sqlite" else ""
    return f" (`distrust migrate --data {folder}` for all services of its folder)" if folder else ""

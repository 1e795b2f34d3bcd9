"""Databases as earlier programs left them, and comparisons of schemas."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, create_engine, inspect

from distrust.common.protocol.intermediary import tables as intermediary
from distrust.common.protocol.storage.database import parse_url
from distrust.common.protocol.storage.migration import History
from distrust.lab.cli.migrate import HISTORIES
from distrust.server.storage import tables as server

PARTIES = ("server", "shuffler", "aggregator")
OURS = {"alembic_version", "schema_version", "readiness", "holder"}
"""Tables of every database, which `database.py` and `schema.py` of `common/protocol/storage/` make."""

HISTORY: dict[str, History] = dict(zip(PARTIES, (HISTORIES[0], HISTORIES[1], HISTORIES[1]), strict=True))
METADATA = {"server": server.METADATA, "shuffler": intermediary.METADATA, "aggregator": intermediary.METADATA}
VERSION = {"server": server.VERSION, "shuffler": intermediary.VERSION, "aggregator": intermediary.VERSION}


def first_schema(party: str, url: str) -> None:
    """Fill a new database with what 6102dc19 left in it (`schema_0001/make.py`)."""
    kind = url.partition(":")[0]
    words = (Path(__file__).parent / "schema_0001" / f"{party}.{kind}.sql").read_text("utf-8")
    if kind == "postgresql":
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(words.encode())
        return
    with closing(sqlite3.connect(parse_url(url).database or "")) as database:
        database.executescript(words)


def engine(url: str) -> Engine:
    return create_engine(parse_url(url))


def content(url: str, *, without: frozenset[str] = frozenset()) -> dict[str, list[Any]]:
    """Return all rows of all tables, sorted; but of these."""
    made = engine(url)
    tables = MetaData()
    with made.connect() as connection:
        tables.reflect(connection)
        rows = {
            name: sorted((tuple(row) for row in connection.execute(table.select())), key=repr)
            for name, table in tables.tables.items()
            if name not in without
        }
    made.dispose()
    return rows


def differences(connection: Connection, metadata: MetaData) -> list[Any]:
    """Return in what a database's tables differ from others, as Alembic compares them; and in their primary keys."""
    names = {"include_name": lambda name, kind, _parents: kind != "table" or name not in OURS}
    found = compare_metadata(MigrationContext.configure(connection, opts=names), metadata)
    keys = {table.name: {column.name for column in table.primary_key} for table in metadata.tables.values()}
    stored = inspect(connection)
    has = {table: set(stored.get_pk_constraint(table)["constrained_columns"]) for table in stored.get_table_names()}
    return [*found, *sorted(name for name in keys if name not in OURS and keys[name] != has.get(name))]

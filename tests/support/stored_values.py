"""All values that a SQLite database holds, as bytes."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from distrust.common.wire import decode_blob


def values_of(database: Path) -> Iterator[bytes]:
    """Yield each cell of a database and, of JSON, its strings as they are and decoded."""
    return (value for cell in _cells(database) for value in opened(cell))


def _cells(path: Path) -> Iterator[bytes]:
    connection = sqlite3.connect(path)
    try:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield from (cell if isinstance(cell, bytes) else str(cell).encode() for cell in row)
    finally:
        connection.close()


def opened(raw: bytes) -> Iterator[bytes]:
    """Yield the bytes and, where they are JSON, its strings as they are and decoded."""
    yield raw
    try:
        tree = json.loads(raw)
    except ValueError:
        return
    for text in _strings(tree):
        yield text.encode()
        try:
            decoded = decode_blob(text)
        except ValueError:
            continue
        assert isinstance(decoded, bytes)
        yield decoded


def _strings(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _strings(value)
    elif isinstance(tree, Sequence):
        for value in tree:
            yield from _strings(value)

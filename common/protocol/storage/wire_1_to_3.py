"""Rewrites stored messages of wire version 1 as version 3, for the revisions 0002 of both histories.

A message is changed as text, so that nothing else of it changes, and both histories make the same cohort of the same
text. Revisions stay as they are, and so does this module: it imports no message, and writes its digests out.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, TableClause, select

from distrust.common.errors import BadParameter

NO_RUN_ID = bytes(16)
"""The id of every run of before the runs had one."""

_COHORT = re.compile(
    r'\{"version":1,(?P<names>"run":"[^"]*","round":\d+,"cohort":"[^"]*","clients":\d+,"minimum":\d+,'
    r'"stage_seconds":[^,"]+,)"config":"(?P<config>[A-Za-z0-9_-]{43})",'
)
_ANSWER = re.compile(r'\{"version":1,(?P<names>"cohort":"[^"]*","state":"released","batch":)\{"version":1,')
_MESSAGE = re.compile(r'\{"version":1,')
_SHOWN = 80  # characters of a message that is refused


def cohort(text: str) -> tuple[str, bytes]:
    """Return a cohort's JSON, and its R: the digest of its run, which stands where the configuration's digest stood."""
    found = _found(_COHORT, text)
    digest = _run_digest(base64.urlsafe_b64decode(found["config"] + "="))
    shown = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return f'{{"version":3,{found["names"]}"run_digest":"{shown}",{text[found.end() :]}', digest


def _run_digest(config: bytes) -> bytes:
    """Return R of a run with `NO_RUN_ID`, from the digest of its configuration: each field behind its length."""
    fields = (b"distrust run", config, NO_RUN_ID)
    return hashlib.sha256(b"".join(len(field).to_bytes(4, "big") + field for field in fields)).digest()


def answer(text: str) -> str:
    """Return the JSON of an answer with a batch."""
    found = _found(_ANSWER, text)
    return f'{{"version":3,{found["names"]}{{"version":3,{text[found.end() :]}'


def message(text: str) -> str:
    """Return the JSON of another message: only its version changes."""
    return f'{{"version":3,{text[_found(_MESSAGE, text).end() :]}'


def rows(
    connection: Connection, table: TableClause, key: str, *columns: str, where: tuple[ColumnElement[bool], ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yield a table's rows in the order of their key, each read alone: a batch may have hundreds of megabytes.

    The caller may change every column of a row but its key.
    """
    query = select(*(table.c[name] for name in (key, *columns))).where(*where).order_by(table.c[key]).limit(1)
    row = connection.execute(query).one_or_none()
    while row is not None:
        yield tuple(row)
        row = connection.execute(query.where(table.c[key] > row[0])).one_or_none()


def _found(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.match(text)
    if found is None:
        raise BadParameter("message", text[:_SHOWN], "must be a message of wire version 1, as a service stored it")
    return found

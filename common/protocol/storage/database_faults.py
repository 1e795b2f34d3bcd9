"""Tells in words why a database failed, and whether a later try may succeed; makes the tries that may."""

import secrets
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError

from distrust.common.errors import Unavailable

Given = ParamSpec("Given")
T = TypeVar("T")

MOST_TRIES = 8
"""Of a method whose transaction PostgreSQL ends for another's sake. A deadlock is found after a second."""

_WAIT_MS = 10  # at most, before the second try; twice as long before each further one, 1.3 s in all

_COLLISIONS = {"40001", "40P01"}
"""PostgreSQL's serialization_failure and deadlock_detected: the transaction is rolled back, and may be repeated.

Our own write transactions are read committed and take their locks in one order, so that neither comes of them alone:
a deadlock needs an operator's session beside them, such as one that changes tables, and a serialization failure a
server that has another isolation than it is asked for.
"""

_CAUSES = {
    "not a database": "it is damaged, or no database; docs/how-to/backup.md says what a copy of it may still do",
    "malformed": "it is damaged; docs/how-to/backup.md says what a copy of it may still do",
    "full": "the disk is full; free some space, nothing that was answered is lost",
    "no such table": "it is no database of a service",
    "no such column": "it is no database of this service's version: a column is missing",
    "readonly": "it cannot be written; check the file's owner and mode",
    "unable to open": "it cannot be opened; check the path and the directory's mode",
    "disk i/o": "the disk failed, or is full",
    "interrupted": "reading it takes too long, or was interrupted",
    "too big": "it has a value that is too long",
    "locked": "another program holds it; try again when that one is done",
}


_LASTING = ("not a database", "malformed", "no such table", "no such column", "too big", "it must have", "is no file")
"""Faults of a file that stay as they are. A caller who is told to try later would try for ever."""


def cause_of(error: DBAPIError, *, sqlite: bool = True) -> str:
    """Return why a statement failed, in words. A server's messages are its own: they hold names that users chose."""
    text = str(error.orig)
    message = (text.splitlines() or [type(error).__name__])[0]
    return next((words for sign, words in _CAUSES.items() if sqlite and sign in text.lower()), message)


def is_lasting(error: DBAPIError) -> bool:
    """Return whether a SQLite file has a fault that no later try mends."""
    return any(sign in str(error.orig).lower() for sign in _LASTING)


class Collision(Unavailable):
    """A transaction that PostgreSQL ended for another's sake: nothing of it is committed."""


def is_collision(error: DBAPIError) -> bool:
    """Return whether PostgreSQL ended a transaction for another's sake."""
    return getattr(error.orig, "sqlstate", None) in _COLLISIONS


def repeated(work: Callable[Given, T]) -> Callable[Given, T]:
    """Call a method again, from its start, when it raises Collision; `MOST_TRIES` times in all, then raise Unavailable.

    The method decides anew from what is committed. It must leave behind nothing of a try that failed, as it must for a
    caller that repeats a request. So it opens one transaction, and changes what it keeps in memory once that is
    committed, or forgets it.
    """

    @wraps(work)
    def tried(*given: Given.args, **named: Given.kwargs) -> T:
        for number in range(MOST_TRIES - 1):
            try:
                return work(*given, **named)
            except Collision:
                time.sleep(secrets.randbelow(_WAIT_MS << number) / 1000)
        try:
            return work(*given, **named)
        except Collision as error:
            raise Unavailable(error.detail) from error

    return tried

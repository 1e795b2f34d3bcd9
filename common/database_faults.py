"""Tells in words why a database failed, and whether a later try may succeed."""

from sqlalchemy.exc import DBAPIError

_CAUSES = {
    "not a database": "it is damaged, or no database; docs/operations.md, Restore, says what a copy of it may still do",
    "malformed": "it is damaged; docs/operations.md, Restore, says what a copy of it may still do",
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

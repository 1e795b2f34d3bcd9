"""Statements: one digest a stage of everything that the aggregator told clients (docs/secure-aggregation.md).

The server publishes each digest once. A client sends nothing unless the digest equals what it computes from what the
aggregator told it. So all clients that answer a stage were told the same roster, members, challenge and survivors.
Each statement contains the one before it.
"""

import hashlib

from distrust.common.crypto.context import context, encode
from distrust.common.crypto.graph import Roster
from distrust.common.messages.cohort import Cohort

STATEMENT = 32
"""Bytes of a statement."""

_LABEL = "distrust statement v2"


def confirm_statement(roster: Roster, shared: bytes, challenge: bytes) -> bytes:
    """Return the statement of stage `confirm`.

    shared     bitmap of the clients that shared. challenge   the aggregator's 32 random bytes.
    The challenge must be the same for all: with two challenges the aggregator could combine answers of one holder with
    those of another, and solve for a client's secrets (see docs/secure-aggregation.md).
    """
    return _digest(roster.cohort, "confirm", roster.digest, shared, challenge)


def masked_statement(previous: bytes, cohort: Cohort, members: bytes) -> bytes:
    """Return the statement of stage `masked`: `previous` is that of `confirm`, `members` a bitmap."""
    return _digest(cohort, "masked", previous, members)


def unmask_statement(previous: bytes, cohort: Cohort, survivors: bytes) -> bytes:
    """Return the statement of stage `unmask`: `previous` is that of `masked`, `survivors` a bitmap."""
    return _digest(cohort, "unmask", previous, survivors)


def _digest(cohort: Cohort, *fields: bytes | str) -> bytes:
    return hashlib.sha256(context(_LABEL, cohort) + encode(*fields)).digest()

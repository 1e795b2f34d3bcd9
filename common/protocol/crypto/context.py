"""Bytes that bind a message to one cohort: contexts, the claims of clients, the statements of the aggregator."""

import hashlib

from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.messages.cohort import Cohort

CLAIM = 32
"""Bytes of the commitment to it."""

_KEPT = 256  # digests of cohorts in memory
_digests: dict[int, tuple[Cohort, bytes]] = {}


def encode(*fields: bytes | str | int) -> bytes:
    """Return the fields as bytes, each behind its length in four bytes: no two lists of fields look alike.

    Integers take eight bytes.
    """
    raw = [_raw(field) for field in fields]
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


RUN_ID = 16
"""Bytes of a run's id."""


def run_digest(config: bytes, run_id: bytes) -> bytes:
    """Return R, which names one run: SHA-256 of the digest of its configuration and its id, 32 bytes.

    config  `RunConfig.digest()`.
    run_id  `RUN_ID` random bytes. The server draws them as it makes the run. So a run that a server makes anew after it
            lost its database shares no cohort, ticket or key with the run of the same configuration before it.
    """
    return hashlib.sha256(encode("distrust run", config, run_id)).digest()


def context(label: str, cohort: Cohort) -> bytes:
    """Return the bytes that open every HKDF info, HPKE info, associated data and hash of one cohort.

    They name protocol version, R (the digest of the run), run, round, and the whole cohort with its terms.

    label   the purpose and its version.

    The digest of the cohort covers its terms, so two clients that were told different rounds agree on no key, and
    neither opens what the other sealed.
    """
    return encode(label, cohort.run_digest, cohort.run, cohort.round, cohort.cohort, cohort_digest(cohort))


def cohort_digest(cohort: Cohort) -> bytes:
    """Return `cohort.digest()`, 32 bytes. Computed once for each cohort object: sealing needs it at every record."""
    known = _digests.get(id(cohort))
    if known is not None and known[0] is cohort:  # the entry keeps its cohort alive, so the id is not used again
        return known[1]
    if len(_digests) >= _KEPT:
        _digests.clear()
    digest = cohort.digest()
    _digests[id(cohort)] = cohort, digest
    return digest


def masking(cohort: Cohort) -> Masking:
    """Return the cohort's parameters of secure aggregation. Raises BadParameter for another channel."""
    return Masking.needed(cohort.channel)


def claim(cohort: Cohort, slot: int, secret: bytes) -> bytes:
    """Return a client's commitment to its secret: SHA-256, bound to run, round, cohort and slot.

    The server signs tickets, and could sign the ticket of any slot again. It does not know the 32 random bytes that the
    client drew and committed to in its first message, so it cannot take over the slot.
    """
    return hashlib.sha256(context("distrust claim v3", cohort) + encode(slot, secret)).digest()


# A statement is one digest a stage of everything that the aggregator told clients (aggregator.md). The
# server publishes each digest once. A client sends nothing unless the digest equals what it computes from what the
# aggregator told it. So all clients that answer a stage were told the same roster, members, challenge and survivors:
# each statement contains the one before it, and the first one contains the digest of the roster.


def confirm_statement(roster: bytes, cohort: Cohort, shared: bytes, challenge: bytes) -> bytes:
    """Return the statement of stage `confirm`.

    roster     `Roster.digest`. shared   bitmap of the clients that shared.
    challenge  the aggregator's 32 random bytes. They must be the same for all: with two challenges the aggregator could
               combine answers of one holder with those of another, and solve for a client's secrets.
    """
    return _statement(cohort, "confirm", roster, shared, challenge)


def masked_statement(previous: bytes, cohort: Cohort, members: bytes) -> bytes:
    """Return the statement of stage `masked`: `previous` is that of `confirm`, `members` a bitmap."""
    return _statement(cohort, "masked", previous, members)


def unmask_statement(previous: bytes, cohort: Cohort, survivors: bytes) -> bytes:
    """Return the statement of stage `unmask`: `previous` is that of `masked`, `survivors` a bitmap."""
    return _statement(cohort, "unmask", previous, survivors)


def _statement(cohort: Cohort, *fields: bytes | str) -> bytes:
    return hashlib.sha256(context("distrust statement v3", cohort) + encode(*fields)).digest()


def _raw(field: bytes | str | int) -> bytes:
    if isinstance(field, int):
        return field.to_bytes(8, "big")
    return field.encode() if isinstance(field, str) else field

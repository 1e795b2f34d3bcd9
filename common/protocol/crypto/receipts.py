"""Receipts: the clients of a crowd say whether their sealed records are in the batch that the server collected.

The guarantee of a shuffle mechanism counts on the records of other clients. A shuffler that lies could seal all but one
of them itself, and read the last one off the public estimate. So the server, before it analyzes a batch, lists the
hashes of its records. The shuffler states the digest of the same list as it closes the cohort. A client takes the whole
list, compares it with that digest, looks for its own record, and tells the server whether it is there.

Each client proves who it is by a secret whose hash went to the server with its ticket request. The shuffler holds all
tickets and never sees this secret, so it cannot answer in a client's place. A list that does not fit the shuffler's
digest is answered by no client: a server that lies cannot shorten the list to learn from the word "absent" whose record
it left out.
"""

import hashlib
from itertools import pairwise

from distrust.common.errors import BadMessage, Refused
from distrust.common.protocol.crypto.context import cohort_digest, encode
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort

RECEIPT_SECRET = 16
"""Bytes of a client's secret for its receipt, from the operating system."""

RECORD_HASH = 16
"""Bytes of a record's hash in the list."""

PRESENT, ABSENT = b"\x01", b"\x00"
"""A client's answer, one byte."""


def receipt_hash(secret: bytes) -> bytes:
    """Return the hash of a client's secret, 32 bytes. It goes to the server with the client's ticket request."""
    return hashlib.sha256(encode("distrust receipt v3", secret)).digest()


def record_hash(cohort: Cohort, record: bytes, place: int | None = None) -> bytes:
    """Return the hash by which a sealed record is listed: `RECORD_HASH` bytes.

    record  as the shuffler hands it to the server: without the report id before it, and the client's secret behind it.
    place   of assigned actions, that of the action whose group the record is in. At another place it would not open, so
            a client whose record the shuffler has misplaced does not find it.
    """
    at = encode("distrust record v3", cohort_digest(cohort), *(() if place is None else (place,)))
    return hashlib.sha256(at + record).digest()[:RECORD_HASH]


def record_list(cohort: Cohort, batch: Batch) -> bytes:
    """Return the list L of a batch: the hashes of its sealed records, ascending, one after another.

    Raises BadMessage for a batch of something else, of other sizes, and for one that has a record twice.
    """
    try:
        records = cohort.channel.records(batch.content, batch.survivors)
    except BadMessage as error:
        raise BadMessage(f"cohort {cohort.cohort}: {error.detail}") from error
    hashes = sorted(record_hash(cohort, record, place) for record, place in records)
    if len(set(hashes)) < len(hashes):
        raise BadMessage(f"cohort {cohort.cohort}: a sealed record is there twice")
    return b"".join(hashes)


def list_digest(cohort: Cohort, listed: bytes) -> bytes:
    """Return what the shuffler states of the list as it closes the cohort: 32 bytes."""
    return hashlib.sha256(encode("distrust list v3", cohort_digest(cohort), listed)).digest()


def read_list(cohort: Cohort, listed: bytes, count: int, stated: bytes) -> set[bytes]:
    """Return the hashes of a list that the server shows, for a client that looks for its own.

    count   records that the shuffler says are in the batch.
    stated  the digest that the shuffler states, 32 bytes.
    Raises  Refused for a list of another count, out of order, or with another digest than the shuffler stated. Then no
            client may answer: what it says would be of another batch than the one that the shuffler released.
    """
    what = f"cohort {cohort.cohort}: the server's list of records"
    if len(listed) != count * RECORD_HASH:
        raise Refused(f"{what} has {len(listed)} bytes, and the shuffler released {count} records")
    hashes = [listed[at : at + RECORD_HASH] for at in range(0, len(listed), RECORD_HASH)]
    if any(one >= following for one, following in pairwise(hashes)):
        raise Refused(f"{what} is not strictly ascending")
    if list_digest(cohort, listed) != stated:
        raise Refused(f"{what} is not the one whose digest the shuffler states")
    return set(hashes)

"""Defines a cohort, one private sum that the server opens at an intermediary, and the tickets of its clients.

Everything public about a cohort is in `Cohort`: the server sends it to the intermediary and, in a round, to clients.
"""

import hashlib
from typing import Annotated

from pydantic import Field

from distrust.common.protocol.channels import AnyChannel
from distrust.common.wire import LARGEST_COHORT, WIRE, Blob, Identifier, Message, Version, Via

KEEP_SECONDS = 86_400.0  # from a cohort's outcome until its messages are scrubbed, unless the run says otherwise
LONGEST_KEPT = 31_536_000  # seconds, a year
SIGNATURE = 64  # bytes of a ticket's signature, one a slot
COHORT_DIGEST = 32  # bytes of a cohort's digest

KeepSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=LONGEST_KEPT,
        description="time from a cohort's outcome until its messages are scrubbed",
        exclude_if=lambda value: value == KEEP_SECONDS,
    ),
]
"""Seconds. A cohort and the configuration of its run have this field. JSON and digests leave out its default."""


class Cohort(Message):
    """One private sum: `clients` slots, opened at an intermediary by the server, closed once.

    The intermediary stores `terms` and shows them to clients, and does not read them. A client compares them with
    those that the server sent it, so a server that sends two clients two rounds is detected
    (`common.protocol.crypto.context` binds every key to them).

    round         number of the round, from 1.
    keep_seconds  after which the intermediary scrubs the messages of a cohort that has ended.
    run_digest    R, 32 bytes (`run_digest` of common.protocol.crypto.context): of the run's configuration and its
                  random id. It is bound into every ticket, seal and key derivation.
    ticket_key    the server's raw Ed25519 public key, 32 bytes.
    channel       how the messages travel, and what the intermediary must know of them.
    terms         canonical JSON of what the round asks, see `common.protocol.run.round`.
    """

    version: Version = WIRE
    run: Identifier
    round: Annotated[int, Field(ge=1, lt=2**63)]
    cohort: Identifier
    clients: Annotated[int, Field(ge=1, le=LARGEST_COHORT, description="n: slots, numbered from 0")]
    minimum: Annotated[int, Field(ge=1, description="survivors below which nothing is released")]
    stage_seconds: Annotated[float, Field(gt=0, description="deadline of a stage, from its first message")]
    keep_seconds: KeepSeconds = KEEP_SECONDS
    run_digest: Blob
    ticket_key: Blob
    channel: AnyChannel
    terms: Annotated[str, Field(max_length=8_000_000)]

    @property
    def address(self) -> str:
        """Return what a service calls this cohort: R in hexadecimal, a slash, the name.

        Two runs may have the same name and configuration, as after a server has lost its database. Their cohorts have
        the same names, and different addresses.
        """
        return cohort_address(self.run_digest, self.cohort)

    @property
    def receipts(self) -> bool:
        """Return whether its clients give receipts before the batch is analyzed."""
        return self.channel.gives_receipts

    @property
    def hashed(self) -> bool:
        """Return whether a ticket request must bring a hash for each of its clients."""
        return self.via == "aggregator" or self.receipts

    @property
    def via(self) -> Via:
        """Return which intermediary serves this cohort."""
        return self.channel.via

    def digest(self) -> bytes:
        """Return SHA-256 of the message's JSON, 32 bytes.

        Two parties compare digests to see whether they hold the same cohort.
        """
        return hashlib.sha256(self.model_dump_json().encode()).digest()


def cohort_address(run_digest: bytes, name: str) -> str:
    """Return `Cohort.address` of the cohort with this name in the run with this digest."""
    return f"{run_digest.hex()}/{name}"


def name_in(address: str) -> str:
    """Return a cohort's name, which its address contains."""
    return address.partition("/")[2]


class TicketRequest(Message):
    """A fleet asks for slots. The same `request` id always gets the same slots.

    round  number of the round, from 1; 0: of whichever round is open, and the answer shows it.
    keys   32 bytes for each client, in order of slots: for secure aggregation SHA-256 of its public keys, for a cohort
           that gives receipts the hash of its secret (`common.protocol.crypto.receipts`).
    """

    version: Version = WIRE
    request: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", description="16 random bytes, chosen by the caller")]
    round: Annotated[int, Field(ge=0)]
    want: Annotated[int, Field(ge=1, le=100_000, description="clients that wait for a slot")]
    keys: Blob = b""


class Grant(Message):
    """Consecutive slots of one cohort: `signatures` holds 64 bytes for each, from `first` on."""

    cohort: Identifier
    first: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1)]
    signatures: Blob


class KeyHashes(Message):
    """Hashes that a cohort's clients gave of their keys before the aggregator saw any; from server to clients.

    hashes  32 bytes for each slot that has a ticket, from slot 0 on.
    """

    version: Version = WIRE
    cohort: Identifier
    hashes: Blob


def ticket_text(cohort: Cohort, slot: int, keys: bytes = b"") -> bytes:
    """Return the bytes that the server signs: a ticket is good for one slot of one cohort of one run.

    keys  in secure aggregation the hash of the slot's keys, 32 bytes: the aggregator takes no other keys from it.
    """
    names = [cohort.run_digest, cohort.run.encode(), str(cohort.round).encode(), cohort.cohort.encode()]
    return b"\x1f".join([b"distrust ticket v3", *names, str(slot).encode(), keys])

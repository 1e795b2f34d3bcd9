"""Defines how a cohort stands at an intermediary and at the server, and transcripts of a party."""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from distrust.common.protocol.channels.base import View
from distrust.common.wire import WIRE, Blob, Identifier, Message, Reason, Version

Stated = Literal["confirm", "masked", "unmask"]
STATED: Final[tuple[Stated, ...]] = get_args(Stated)
"""Stages before which the aggregator makes a statement, in their order."""

MOST_SETTLED = 1000  # cohorts that one message names
PREFIX = 64  # bytes of a message that a transcript prints; the rest is counted only
STATEMENT = 32  # bytes of a digest
EVERY = 2**53  # messages: more than any transcript has

CohortStage = Literal["keys", "shares", "confirm", "masked", "unmask", "report", "done", "aborted"]
"""A cohort's stage as clients and the operator read it: an open stage of either intermediary, or an end."""


CohortState = Literal["planned", "open", "released", "aborted"]
"""A cohort's state at the server."""


class Inbox(Message):
    """The boxes for one slot: one from each neighbour that shared, in the order of the slot's neighbours."""

    slot: Annotated[int, Field(ge=0)]
    body: Blob


class StageView(Message):
    """The open stage of a cohort.

    members   bitmap of the slots that take part in the open stage (bit i of byte i // 8, low bit first):
              in `shares` those that sent keys, in `confirm` those that shared, in `masked` those whose shares were
              confirmed, in `unmask` the survivors.
    roster    only in `shares`: 64 bytes (mask key, channel key) for each member, ascending by slot.
    challenge only in `confirm`: 32 random bytes, drawn when the stage opened.
    inboxes   only in `confirm`, for the slots that were asked for.
    statement in `confirm`, `masked` and `unmask`: the digest that the server publishes of this stage (32 bytes). In
              `done`, of a cohort that gives receipts: the digest of the list of its records.
    reason    only in `aborted`.
    """

    version: Version = WIRE
    cohort: Identifier
    stage: CohortStage
    members: Blob
    roster: Blob | None = None
    challenge: Blob | None = None
    statement: Blob | None = None
    inboxes: list[Inbox] | None = None
    reason: Reason | None = None


class Statement(Message):
    """Digest of all that the aggregator sent to clients until a stage opened: 32 bytes."""

    stage: Stated
    digest: Blob


class StatementList(Message):
    """Statements of one cohort, in the order of the stages, without those that the server knows already.

    over   the cohort is done or aborted: no further statement will come.
    """

    version: Version = WIRE
    cohort: Identifier
    statements: list[Statement]
    over: bool


class CohortEntry(Message):
    """One cohort in one line. The facts of the open stage are null or absent in every end.

    run_digest    R of the cohort's run: with the name the cohort's address here.
    answered      clients whose message of the open stage is here.
    alive         slots that the open stage counts on: its members that have not left. In a first stage slots whose
                  ticket was not handed out are among them, as an intermediary knows no slot before its first message.
    seconds_left  until the open stage is closed at the latest, by this intermediary's clock; 0 when the time is over.
    """

    cohort: Identifier
    run: Identifier
    run_digest: Blob
    round: int
    clients: int
    stage: CohortStage
    answered: int | None = None
    alive: Annotated[int | None, Field(ge=0, exclude_if=lambda value: value is None)] = None
    seconds_left: Annotated[float | None, Field(ge=0, exclude_if=lambda value: value is None)] = None


class CohortList(Message):
    """Cohorts, oldest first."""

    version: Version = WIRE
    cohorts: list[CohortEntry]


class DeliveryList(Message):
    """Batches that an intermediary has released of one run, in this order, from the position asked for on.

    count    all of them.
    digests  `Cohort.digest` of their cohorts, 32 bytes each.
    """

    version: Version = WIRE
    count: Annotated[int, Field(ge=0)]
    digests: Blob


class Settled(Message):
    """Cohorts of one run that the server collects no more: it has committed how they ended, or the run is over.

    cohorts  their names.
    """

    version: Version = WIRE
    cohorts: Annotated[list[Identifier], Field(max_length=MOST_SETTLED)]


class PrunedRun(Message):
    """A run of which an intermediary has nothing left.

    run_digest  R.
    pruned      when, in seconds since the epoch.
    """

    version: Version = WIRE
    run_digest: Blob
    pruned: float


class RecordList(Message):
    """The list of the records that the server collected of a cohort, for the receipts of its clients.

    hashes  16 bytes a record, ascending (`common.protocol.crypto.receipts`); empty while there is no batch.
    over    the cohort has ended, and takes no receipt any more.
    """

    version: Version = WIRE
    cohort: Identifier
    hashes: Blob
    over: bool


class CohortView(Message):
    """One cohort. `estimate` is of the survivors' sum, one number a coordinate, in data units.

    counts    of dealt actions: survivors by action, like `estimate`, in the order of the decision's list.
    liars     slots of clients that provably dealt, confirmed or returned false shares, as the aggregator names them.
    disputes  pairs of clients of which one lied, and the aggregator cannot tell which.
    """

    cohort: Identifier
    arm: int | None
    attempt: int
    clients: int
    granted: int
    state: CohortState
    survivors: Annotated[int, Field(ge=0)] | None = None
    lost: Annotated[int, Field(ge=0)] | None = None
    estimate: list[float] | None = None
    counts: list[Annotated[int, Field(ge=0)]] | None = None
    liars: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    disputes: Annotated[int, Field(ge=0)] = 0
    reason: Reason | None = None


class TranscriptEntry(Message):
    """One message as one party saw it. `view` is what that party could read; `hex` a prefix of the body."""

    number: Annotated[int, Field(ge=0, description="position in the cohort's transcript")]
    direction: Literal["in", "out"]
    peer: Annotated[str, Field(max_length=80)]  # "client 17", "server", "aggregator", "shuffler", "everyone"
    stage: Annotated[str, Field(max_length=40)]
    bytes: Annotated[int, Field(ge=0)]
    view: View
    hex: str


def entry(
    direction: Literal["in", "out"], peer: str, stage: str, body: bytes, view: View, *, hidden: bool = False
) -> TranscriptEntry:
    """Return a message as the first of its transcript: the caller fills in its number.

    hidden  of a body that no transcript prints.
    """
    printed = "" if hidden else body[:PREFIX].hex()
    return TranscriptEntry(
        number=0, direction=direction, peer=peer, stage=stage, bytes=len(body), view=view, hex=printed
    )


class Transcript(Message):
    """A page of a cohort's messages. `next` is the `after` of the following page.

    scrubbed  when messages of the cohort were deleted, in seconds since the epoch: those that are shown are the rest.
    """

    version: Version = WIRE
    party: Literal["server", "shuffler", "aggregator", "client"]
    cohort: Identifier
    total: int
    next: int | None
    messages: list[TranscriptEntry]
    scrubbed: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None

"""Says of each stage of a cohort's life what each party holds then, and why it cannot know more.

The dashboard's page of a cohort and `distrust inspect` print these sentences.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StageHolding:
    """Two texts on a party in a stage: its data, and the reason why it cannot know more, or that there is none."""

    holds: str
    why: str

    def __str__(self) -> str:
        return f"{self.holds} {self.why}"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a cohort's life, as a client, the intermediary and the server have it.

    stage  as transcripts name it.
    """

    stage: str
    title: str
    client: StageHolding
    intermediary: StageHolding
    server: StageHolding


OWN_MESSAGE = StageHolding(
    "Its own reward and message.",
    "Other clients send theirs to the intermediary only, and the batch goes to the server only.",
)
NOT_YET = StageHolding(
    "Nothing yet.", "The shuffler hands nothing over before the stage has ended with enough answers."
)
PUBLIC = StageHolding(
    "The estimate, as every reader has it.",
    "It follows from the batch alone. The round's promise, if it has one, bounds what that tells of one client.",
)
UNKNOWN_SENDERS = "Only the shuffler knows which client sent which."

OPENED = Step(
    "cohort",
    "The server opens the cohort",
    StageHolding(
        "The run's configuration. It computes the round again, and refuses one that differs.",
        "No client has sent anything yet.",
    ),
    StageHolding(
        "The public terms: how many clients, how many must answer, how messages travel.",
        "No client has sent anything yet.",
    ),
    StageHolding("The terms, which it chose.", "No client has sent anything yet."),
)
TICKETS = Step(
    "tickets",
    "The server hands out tickets",
    StageHolding("A signed ticket for one slot.", "The server sends a ticket only to the client that asked for it."),
    StageHolding("Nothing yet.", "Tickets do not pass through it. It checks one when the slot's first message comes."),
    StageHolding(
        "How many slots each request took, and which token or device asked.",
        "It clears who has which slot as the cohort ends. A ticket names a slot, and no person.",
    ),
)
CLIENTS_LEFT = Step(
    "departed",
    "Clients that left",
    StageHolding("Its reward, if it has played. It sends nothing more.", "It gets no other client's message."),
    StageHolding("Which slots left.", "A departure holds nothing of a reward."),
    StageHolding(
        "How many clients are lost in the end.",
        "A departure holds nothing of a reward, so that their number tells nothing of one.",
    ),
)
ESTIMATE = Step(
    "estimate",
    "The server publishes its estimate",
    PUBLIC,
    PUBLIC,
    StageHolding("The estimate, which it computed.", "It follows from the batch, so it tells no more than that."),
)
ABORTED = Step(
    "aborted",
    "The cohort is aborted",
    StageHolding(
        "Its reward, if it has played. No estimate of what it sent is published.",
        "It gets no other client's message, and no estimate of this cohort.",
    ),
    StageHolding(
        "The messages that came until then.",
        "It can read no more of them than each stage above says. It hands over nothing more.",
    ),
    StageHolding("The reason.", "It gets nothing more of this cohort, and publishes no estimate of it."),
)

ARRIVED = Step(
    "receipts",
    "Clients say whether their records have arrived",
    StageHolding(
        "The hashes of all records in the batch, in the order of their values.",
        "A hash tells nothing of what is in a record, or of its sender.",
    ),
    StageHolding(
        "The digest of the same list, which it has stated.",
        "It never sees the secrets by which clients prove who they are, so it cannot answer for them.",
    ),
    StageHolding(
        "Which slots have found their records in its list, and which have not.",
        "A client names no record. It answers only if the list is the one whose digest the shuffler has stated.",
    ),
)
"""The stage of a crowd before the estimate: its guarantee counts on the records of others."""

_AT_ANY_TIME = ("cohort", "order", "tickets", "departed")
"""Stages that every cohort which was opened may have had, whatever came of it."""

_NAMED = re.compile(r"\bstage (\w+)")


class CohortLifetime(NamedTuple):
    """The stages that a cohort reached, or will if it is open, and those that it did not."""

    steps: list[Step]
    not_reached: list[Step]


def life(
    steps: tuple[Step, ...], state: str, reason: str | None = None, seen: Iterable[str] = (), *, receipts: bool = False
) -> CohortLifetime:
    """Return the stages of a cohort. An aborted one ends at the last stage that is known to have opened.

    steps     those of its channel.
    reason    why it was aborted, in the intermediary's words, which name the stage that too few clients answered.
    seen      stages that a transcript has a message of, or a statement.
    receipts  whether its clients tell the server if their records have arrived.
    """
    whole = (*steps[:-1], ARRIVED, steps[-1]) if receipts else steps
    if state != "aborted":
        return CohortLifetime(list(whole), [])
    stages = [step.stage for step in whole]
    first = next(stage for stage in stages if stage not in _AT_ANY_TIME)
    opened = {first, *seen, *_NAMED.findall(reason or "")} - {*_AT_ANY_TIME}
    last = max(stages.index(stage) for stage in opened if stage in stages)
    reached = [step for step in whole if step.stage in _AT_ANY_TIME or stages.index(step.stage) <= last]
    return CohortLifetime([*reached, ABORTED], [step for step in whole if step not in reached])

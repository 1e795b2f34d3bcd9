"""Says of each stage of a cohort's life what each party holds then, and why it cannot know more.

The dashboard's page of a cohort and `distrust inspect` print these sentences.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from distrust.common.errors import BadMessage
from distrust.common.wire import cut_reason


@dataclass(frozen=True, slots=True)
class Held:
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
    client: Held
    intermediary: Held
    server: Held


OWN = Held(
    "Its own reward and message.",
    "Other clients send theirs to the intermediary only, and the batch goes to the server only.",
)
DIGEST = Held(
    "A digest of what the aggregator told the clients, to compare.",
    "No message can be read from a digest: the server can tell only whether two are equal.",
)
NOT_YET = Held("Nothing yet.", "The shuffler hands nothing over before the stage has ended with enough answers.")
PUBLIC = Held(
    "The estimate, as every reader has it.",
    "It follows from the batch alone. The round's promise, if it has one, bounds what that tells of one client.",
)
SEALED = "Each is sealed to the server's key, which the shuffler does not have."
UNKNOWN_SENDERS = "Only the shuffler knows which client sent which."

OPENED = Step(
    "cohort",
    "The server opens the cohort",
    Held(
        "The run's configuration. It computes the round again, and refuses one that differs.",
        "No client has sent anything yet.",
    ),
    Held(
        "The public terms: how many clients, how many must answer, how messages travel.",
        "No client has sent anything yet.",
    ),
    Held("The terms, which it chose.", "No client has sent anything yet."),
)
TICKETS = Step(
    "tickets",
    "The server hands out tickets",
    Held("A signed ticket for one slot.", "The server sends a ticket only to the client that asked for it."),
    Held("Nothing yet.", "Tickets do not pass through it. It checks one when the slot's first message comes."),
    Held(
        "How many slots each request took, and which token or device asked.",
        "It clears who has which slot as the cohort ends. A ticket names a slot, and no person.",
    ),
)
LEFT = Step(
    "departed",
    "Clients that left",
    Held("Its reward, if it has played. It sends nothing more.", "It gets no other client's message."),
    Held("Which slots left.", "A departure holds nothing of a reward."),
    Held(
        "How many clients are lost in the end.",
        "A departure holds nothing of a reward, so that their number tells nothing of one.",
    ),
)
ESTIMATE = Step(
    "estimate",
    "The server publishes its estimate",
    PUBLIC,
    PUBLIC,
    Held("The estimate, which it computed.", "It follows from the batch, so it tells no more than that."),
)
ABORTED = Step(
    "aborted",
    "The cohort is aborted",
    Held(
        "Its reward, if it has played. No estimate of what it sent is published.",
        "It gets no other client's message, and no estimate of this cohort.",
    ),
    Held(
        "The messages that came until then.",
        "It can read no more of them than each stage above says. It hands over nothing more.",
    ),
    Held("The reason.", "It gets nothing more of this cohort, and publishes no estimate of it."),
)

MASKED_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "keys",
        "Clients send public keys",
        Held(
            "Two secret keys of its own, made for this cohort alone, before the client knows it.",
            "Other clients' secret keys never leave these clients.",
        ),
        Held("Two public keys of each client.", "The secret halves never leave the clients."),
        Held(
            "Hashes of the keys, which came with the ticket requests. Clients compare the aggregator's list with them.",
            "Even the keys would tell no more: they are public, and the secret halves never leave the clients.",
        ),
    ),
    Step(
        "shares",
        "Clients share their seeds among neighbours",
        Held(
            "A self seed and a key seed of its own, cut into shares: enough neighbours together can rebuild them.",
            "Of a neighbour's seeds it gets one share each. Fewer shares than the threshold tell nothing of a seed.",
        ),
        Held(
            "Sealed boxes, which it passes on.",
            "Each is sealed to the neighbour that may open it. The aggregator has no client's secret key.",
        ),
        Held("Nothing of this stage.", "The boxes go from client to client, by the aggregator."),
    ),
    Step(
        "confirm",
        "Clients confirm the shares that they hold",
        Held(
            "The shares of its neighbours, checked.",
            "It has one share of each seed. Fewer shares than the threshold tell nothing of a seed.",
        ),
        Held("Blends of shares with a random polynomial, which check them.", "The polynomial hides the seeds in them."),
        DIGEST,
    ),
    Step(
        "masked",
        "Clients send masked numbers",
        Held(
            "Its reward, its part of the noise where clients add it, and its masks.",
            "Other clients send their numbers to the aggregator only.",
        ),
        Held(
            "Of each client a number that is uniform modulo m, whatever the reward.",
            "It knows none of the masks on it.",
        ),
        DIGEST,
    ),
    Step(
        "unmask",
        "Survivors send the shares that open the sum",
        Held(
            "Of each neighbour the one share that it sends: of the self seed if that neighbour answered, of the key "
            "seed if it vanished. Never both.",
            "It sends shares in this stage, and gets none.",
        ),
        Held(
            "Seeds that take the masks off the sum.",
            "Without both seeds of one client no single number opens.",
        ),
        DIGEST,
    ),
    LEFT,
    Step(
        "batch",
        "The aggregator hands the sum over",
        OWN,
        Held(
            "The sum of the survivors' numbers modulo m.",
            "It can take the masks off the sum, and not off one client's number.",
        ),
        Held(
            "The sum, and how many clients are in it.",
            "It never gets a single masked number. Noise that clients added stays in the sum.",
        ),
    ),
    ESTIMATE,
)
SEALED_REPORT = Step(
    "report",
    "Clients send sealed records",
    Held(
        "Its reward, and the number that it sealed to the server's key, with its noise where clients add it.",
        "Other clients send their records to the shuffler only.",
    ),
    Held("Which client sent which record.", f"It cannot open a record. {SEALED}"),
    NOT_YET,
)
UNLINKED = Step(
    "batch",
    "The shuffler hands the records over in random order",
    OWN,
    Held("Which record is whose, as before.", f"It never sees what is in one. {SEALED}"),
    Held("Each client's number, in random order.", UNKNOWN_SENDERS),
)
SEALED_STEPS = (OPENED, TICKETS, SEALED_REPORT, LEFT, UNLINKED, ESTIMATE)
DEALT_STEPS = (
    OPENED,
    Step(
        "order",
        "The shuffler draws who plays what",
        Held("Nothing yet.", "The shuffler keeps the order."),
        Held("A random order of the public list of actions, which it has drawn.", "No client has played yet."),
        Held("The public list of actions.", "The shuffler does not tell it which slot plays which action."),
    ),
    TICKETS,
    Step(
        "asked",
        "Clients ask what to play",
        Held(
            "Its action, and a secret that it has drawn, so that no other party can ask in its place.",
            "The shuffler tells each client its own action only.",
        ),
        Held("Which slot plays which action.", "Clients tell it no reward: a reward comes sealed to the server's key."),
        Held("Nothing of this stage.", "Clients ask the shuffler, and it passes neither question nor answer on."),
    ),
    SEALED_REPORT,
    LEFT,
    Step(
        "batch",
        "The shuffler hands the records over, by action",
        OWN,
        Held("Which client's record is in which group.", f"It never sees what is in one. {SEALED}"),
        Held("The numbers of each action, in random order.", UNKNOWN_SENDERS),
    ),
    ESTIMATE,
)
BITS_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "report",
        "Clients send bits",
        Held(
            "Its reward, and the random bits that it put beside it.",
            "Other clients send their bits to the shuffler only.",
        ),
        Held(
            "Each client's bits.",
            "Nothing hides them from it, but the client's own random bits among them. This mechanism trusts the "
            "shuffler: it must not collude with the server.",
        ),
        NOT_YET,
    ),
    LEFT,
    Step(
        "batch",
        "The shuffler hands the bits over in random order",
        OWN,
        Held(
            "What it hands over, and which client sent which bit.",
            "Nothing hides that from it. This mechanism trusts the shuffler.",
        ),
        Held(
            "How many bits are 1 under each label, the random ones of all clients among them.",
            f"In random order bits tell nothing else. {UNKNOWN_SENDERS}",
        ),
    ),
    ESTIMATE,
)
STEPS: dict[str, tuple[Step, ...]] = {
    "masked": MASKED_STEPS,
    "sealed": SEALED_STEPS,
    "dealt": DEALT_STEPS,
    "bits": BITS_STEPS,
}
"""The stages of a cohort by the kind of its channel, in the order of its life."""

ARRIVED = Step(
    "receipts",
    "Clients say whether their records have arrived",
    Held(
        "The hashes of all records in the batch, in the order of their values.",
        "A hash tells nothing of what is in a record, or of its sender.",
    ),
    Held(
        "The digest of the same list, which it has stated.",
        "It never sees the secrets by which clients prove who they are, so it cannot answer for them.",
    ),
    Held(
        "Which slots have found their records in its list, and which have not.",
        "A client names no record. It answers only if the list is the one whose digest the shuffler has stated.",
    ),
)
"""The stage of a crowd before the estimate: its guarantee counts on the records of others."""

_AT_ANY_TIME = ("cohort", "order", "tickets", "departed")
"""Stages that every cohort which was opened may have had, whatever came of it."""

_NAMED = re.compile(r"\bstage (\w+)")


class Life(NamedTuple):
    """The stages that a cohort reached, or will if it is open, and those that it did not."""

    steps: list[Step]
    missed: list[Step]


def life(
    channel: str, state: str, reason: str | None = None, seen: Iterable[str] = (), *, receipts: bool = False
) -> Life:
    """Return the stages of a cohort. An aborted one ends at the last stage that is known to have opened.

    reason    why it was aborted, in the intermediary's words, which name the stage that too few clients answered.
    seen      stages that a transcript has a message of, or a statement.
    receipts  whether its clients tell the server if their records have arrived.

    Raises BadMessage for a channel that is none: a party's transcript may say anything.
    """
    if channel not in STEPS:
        raise BadMessage(f"a cohort that cannot be: its channel is {cut_reason(channel)!r}")
    *before, estimate = STEPS[channel]
    whole = (*before, ARRIVED, estimate) if receipts else STEPS[channel]
    if state != "aborted":
        return Life(list(whole), [])
    stages = [step.stage for step in whole]
    first = next(stage for stage in stages if stage not in _AT_ANY_TIME)
    opened = {first, *seen, *_NAMED.findall(reason or "")} - {*_AT_ANY_TIME}
    last = max(stages.index(stage) for stage in opened if stage in stages)
    reached = [step for step in whole if step.stage in _AT_ANY_TIME or stages.index(step.stage) <= last]
    return Life([*reached, ABORTED], [step for step in whole if step not in reached])

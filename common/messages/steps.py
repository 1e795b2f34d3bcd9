"""Says of each stage of a cohort's life what each party holds then, and why it cannot know more.

The dashboard's page of a cohort and `distrust inspect` print these sentences.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a cohort's life. client, intermediary, server: what the party holds then, and why no more."""

    stage: str
    title: str
    client: str
    intermediary: str
    server: str


NOTHING = "Nothing of this stage reaches the server."
DIGEST = "A digest of what the aggregator told the clients. The server compares it, and can read nothing in it."

OPENED = Step(
    "cohort",
    "The server opens the cohort",
    "The run's configuration. The client computes the round again, and refuses one that differs.",
    "The public terms: how many clients, how many must answer, how messages travel. No data exists yet.",
    "The terms, which it chose. It holds no client's data.",
)
TICKETS = Step(
    "tickets",
    "The server hands out tickets",
    "A signed ticket for one slot.",
    "Nothing yet. It checks a ticket's signature when the slot's first message comes.",
    "How many slots each request took. A ticket names a slot, and no person.",
)
LEFT = Step(
    "departed",
    "Clients that left",
    "Its reward, if it has played. It sends nothing more.",
    "Which slots left. A departure says nothing of a reward.",
    "How many clients are lost in the end.",
)
RELEASED = Step(
    "batch",
    "The intermediary hands the batch over",
    "Its own reward and message. It sees no other client's.",
    "What it hands over.",
    "What the batch holds.",
)
ESTIMATE = Step(
    "estimate",
    "The server publishes its estimate",
    "The estimate, as every reader has it.",
    "The estimate, as every reader has it.",
    "The estimate follows from the batch, so it tells no more than that. Only the policy reads it.",
)
ABORTED = Step(
    "aborted",
    "The cohort is aborted",
    "Its reward stays its own. Nothing that holds it was opened.",
    "The messages that came until then. It opens none of them, and hands over no batch.",
    "The reason. It gets no batch of this cohort, and publishes no estimate of it.",
)

MASKED_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "keys",
        "Clients send public keys",
        "Two secret keys, made for this cohort alone, before the client knows it.",
        "Two public keys of each client. The secret halves never leave the clients.",
        "Hashes of the keys, which came with the ticket request. Clients compare the aggregator's list with them.",
    ),
    Step(
        "shares",
        "Clients share their seeds among neighbours",
        "A self seed and a key seed, cut into shares: enough neighbours together can rebuild them, fewer cannot.",
        "Sealed boxes, which it passes on. Each is sealed to the neighbour that may open it.",
        NOTHING,
    ),
    Step(
        "confirm",
        "Clients confirm the shares that they hold",
        "The shares of its neighbours, checked.",
        "Blends of shares with a random polynomial, which check them and hide the seeds.",
        DIGEST,
    ),
    Step(
        "masked",
        "Clients send masked numbers",
        "Its reward, plus its part of the noise, plus masks.",
        "A number that is uniform modulo m, whatever the reward. It knows none of the masks on it.",
        DIGEST,
    ),
    Step(
        "unmask",
        "Survivors send the shares that open the sum",
        "Of each neighbour one share: of the self seed if it answered, of the key seed if it vanished. Never both.",
        "Seeds that take the masks off the sum. Without both seeds of one client no single number opens.",
        DIGEST,
    ),
    LEFT,
    Step(
        "batch",
        "The aggregator hands the sum over",
        RELEASED.client,
        "The sum of the survivors' numbers modulo m. It has no client's number bare.",
        "The sum, and how many clients are in it. It never saw a single masked number.",
    ),
    ESTIMATE,
)
SEALED_REPORT = Step(
    "report",
    "Clients send sealed records",
    "Its reward, and the noisy number that it sealed to the server's key.",
    "Which client sent which record. It cannot open a record: it has no key of the server.",
    NOTHING,
)
UNLINKED = Step(
    "batch",
    "The shuffler hands the records over in random order",
    RELEASED.client,
    "Which record is whose, as before. It never saw what is in one.",
    "Each noisy number, in random order. Which client sent which is known to the shuffler only.",
)
SEALED_STEPS = (OPENED, TICKETS, SEALED_REPORT, LEFT, UNLINKED, ESTIMATE)
DEALT_STEPS = (
    OPENED,
    Step(
        "order",
        "The shuffler draws who plays what",
        "Nothing yet.",
        "A random order of the public list of actions.",
        "The public list. It does not know which slot plays which action.",
    ),
    TICKETS,
    Step(
        "claimed",
        "Clients ask what to play",
        "Its action, and a secret that it has drawn, so that no other party can ask in its place.",
        "Which slot plays which action, and no reward.",
        NOTHING,
    ),
    SEALED_REPORT,
    LEFT,
    Step(
        "batch",
        "The shuffler hands the records over, by action",
        RELEASED.client,
        "Which client's record is in which group. It never saw what is in a record.",
        "Noisy numbers of each action, in random order. Which client sent which is known to the shuffler only.",
    ),
    ESTIMATE,
)
BITS_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "report",
        "Clients send bits",
        "Its reward, and the random bits that it put beside it.",
        "Each client's bits. This mechanism trusts the shuffler with them: it must not collude with the server.",
        NOTHING,
    ),
    LEFT,
    Step(
        "batch",
        "The shuffler hands the bits over in random order",
        RELEASED.client,
        "What it hands over, and which client sent which bit.",
        "How many bits are 1 under each label. In random order bits tell nothing else.",
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


def steps(channel: str, state: str) -> list[Step]:
    """Return the stages of a cohort; an aborted one ends without batch and estimate."""
    whole = list(STEPS[channel])
    return [*whole[:-2], ABORTED] if state == "aborted" else whole

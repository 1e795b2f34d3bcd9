"""The channel of assigned actions (FREE Algorithm 3): the shuffler draws who plays what, and groups the records."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.base import ChannelTerms, Content, Order, Seal, View
from distrust.common.protocol.channels.permutation import random_order
from distrust.common.protocol.channels.sealed import SEALED, SEALED_REPORT, SealedRecords, checksum_of
from distrust.common.protocol.channels.steps import (
    CLIENTS_LEFT,
    ESTIMATE,
    OPENED,
    OWN_MESSAGE,
    TICKETS,
    UNKNOWN_SENDERS,
    StageHolding,
    Step,
)
from distrust.common.randomness import Stream
from distrust.common.wire import Blob

SECRET = 32
"""Bytes of a client's secret, from the operating system."""

DEALT_STEPS = (
    OPENED,
    Step(
        "order",
        "The shuffler draws who plays what",
        StageHolding("Nothing yet.", "The shuffler keeps the order."),
        StageHolding("A random order of the public list of actions, which it has drawn.", "No client has played yet."),
        StageHolding("The public list of actions.", "The shuffler does not tell it which slot plays which action."),
    ),
    TICKETS,
    Step(
        "asked",
        "Clients ask what to play",
        StageHolding(
            "Its action, and a secret that it has drawn, so that no other party can ask in its place.",
            "The shuffler tells each client its own action only.",
        ),
        StageHolding(
            "Which slot plays which action.", "Clients tell it no reward: a reward comes sealed to the server's key."
        ),
        StageHolding(
            "Nothing of this stage.", "Clients ask the shuffler, and it passes neither question nor answer on."
        ),
    ),
    SEALED_REPORT,
    CLIENTS_LEFT,
    Step(
        "batch",
        "The shuffler hands the records over, by action",
        OWN_MESSAGE,
        StageHolding("Which client's record is in which group.", f"It never sees what is in one. {SEALED}"),
        StageHolding("The numbers of each action, in random order.", UNKNOWN_SENDERS),
    ),
    ESTIMATE,
)


class GroupedRecords(Content):
    """Sealed records by action, in the order of the cohort's list; within a group in random order.

    `counts`: records of each action. `checksum` is over all of them, as in `Records`.
    """

    kind: Literal["grouped"] = "grouped"
    counts: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=100_000)]
    body: Blob
    checksum: Blob


class AssignedRecords(SealedRecords):
    """Sealed records of assigned actions. The shuffler tells each slot its position, and groups records by action.

    A record is bound to its action too, which cannot be read off it. Behind the record stands the secret whose
    commitment requested the action.

    deal        the public list of actions; how many clients play each.
    noise_seed  only in runs that are named unsafe: the order can be computed, and hides no client.
    """

    CONTENT: ClassVar[type[Content]] = GroupedRecords
    STEPS: ClassVar[tuple[Step, ...]] = DEALT_STEPS
    HIDDEN: ClassVar[set[str]] = {"server_key", "deal", "noise_seed"}
    assigns: ClassVar[bool] = True

    kind: Literal["dealt"] = "dealt"
    deal: AssignedAction
    noise_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None

    @classmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        if not isinstance(terms.decision, AssignedAction):
            return None
        return cls(**cls.sealing(terms), deal=terms.decision, noise_seed=terms.noise_seed)

    @override
    def check(self, clients: int) -> None:
        super().check(clients)
        if self.deal.plays != clients:
            raise BadParameter("deal", self.deal.plays, f"its times must add up to clients = {clients}")

    @property
    @override
    def report_size(self) -> int:
        return super().report_size + SECRET

    @property
    @override
    def seeded(self) -> bool:
        return self.noise_seed is not None

    @override
    def report(self, row: NDArray[np.uint64], modulus: int, seal: Seal, secret: bytes) -> bytes:
        return super().report(row, modulus, seal, secret) + secret

    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        """Return the sealed records by action, each group in random order."""
        assert order is not None
        whole = list(reports)
        places = self.deal.places()[order[np.array([slot for slot, _ in whole], dtype=np.int64)]]
        mixed = random_order(len(whole), stream)
        sequence = mixed[np.argsort(places[mixed], kind="stable")].tolist()
        records = [self.record(report) for _, report in whole]
        return len(whole), GroupedRecords(
            counts=np.bincount(places, minlength=len(self.deal.times)).tolist(),
            body=b"".join(records[index] for index in sequence),
            checksum=checksum_of(records),
        )

    def counts(self, content: Content) -> list[int]:
        if not isinstance(content, GroupedRecords):
            raise self.misfit(content)
        if len(content.counts) != len(self.deal.times):
            raise BadMessage(f"{len(content.counts)} groups, and {len(self.deal.times)} actions were assigned")
        if any(count > times for count, times in zip(content.counts, self.deal.times, strict=True)):
            raise BadMessage("a group has more records than plays were assigned to its action")
        return content.counts

    @override
    def opening_view(self, most: int) -> View:
        return super().opening_view(most) | self.order_view(most)

    def order_view(self, most: int) -> View:
        """Return the list of actions, without who plays which."""
        return {"actions": self.deal.actions[:most], "times": self.deal.times[:most]}

    def action(self, position: int) -> int:
        """Return the action at a position of the assigned list."""
        return self.deal.actions[self.deal.place(position)]

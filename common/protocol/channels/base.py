"""Says what a channel is: how the messages of one cohort travel, and what every party must know of them.

A channel is a message: its fields travel in the cohort. Its methods are pure: bytes in, values out. A party calls them
with what only the party has, such as a key or a stream of randomness, and never asks which channel it has.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.decisions import Decision
from distrust.common.errors import BadMessage, BadParameter
from distrust.common.modular import sum_rows
from distrust.common.protocol.channels.steps import CohortLifetime, Step, life
from distrust.common.randomness import Stream
from distrust.common.wire import Message, Via

View = dict[str, str | int | float | bool | list[int] | list[str]]
"""Facts that one entry of a transcript shows, by name."""

OpenRecord = Callable[..., tuple[bytes, bytes]]
"""Opens a sealed record, for assigned actions at the place of its action. Returns its report id (16 bytes) and payload.

Raises BadMessage.
"""

Seal = Callable[[bytes, bytes], bytes]
"""Seals a report id and a payload to the server."""

Order = NDArray[np.int64]
"""Entry i is the position of slot i in the assigned list, shape (n,)."""


@dataclass(frozen=True, slots=True)
class ChannelTerms:
    """All from which a cohort's channel follows. Server and clients compute it from the same.

    via, modulus, dimension, width, receipted
                facts of its mechanism: see `distrust.common.dp.mechanisms.families.base`.
    graph       returns k and t of the run's rates; raises BadParameter for rates that no threshold serves.
    server_key  the server's raw X25519 public key, 32 bytes.
    noise_seed  of a run that is named unsafe.
    """

    via: Via
    modulus: int
    dimension: int
    width: int | None
    receipted: bool
    decision: Decision
    graph: Callable[[], tuple[int, int]]
    server_key: bytes
    noise_seed: int | None


class BatchReader(NamedTuple):
    """Holds what the server reads a batch with: vectors of `dimension` coordinates below the modulus.

    open_record  None once the run's key is destroyed: then a transcript alone is asked for.
    """

    modulus: int
    dimension: int
    open_record: OpenRecord | None


class Content(Message):
    """The mixed messages in a batch. Each channel has a kind of its own."""

    kind: str
    if TYPE_CHECKING:  # the fields of a message stand in the order of their names on the wire
        body: bytes
        checksum: bytes = b""  # of sealed records


class ReadGroup(NamedTuple):
    """Holds what the server reads of one sum: messages below the modulus, shape (messages, dimension), and its clients.

    Where the intermediary has added the messages up, their sum is the only row, and need not be below the modulus.
    """

    rows: NDArray[np.uint64]
    clients: int

    def total(self, modulus: int) -> NDArray[np.uint64]:
        """Return the sum mod m of the messages, shape (dimension,)."""
        return self.rows[0] if len(self.rows) == 1 else sum_rows(self.rows, modulus)


class Channel(Message):
    """Base of all channels. A subclass states the facts without a default, and has the abstract methods.

    CONTENT         the content of its batches.
    STEPS           the stages of its cohorts, in the order of their lives.
    via             the intermediary that serves it.
    compared_first  clients compare the cohort with the one that the intermediary serves before any message leaves them.
                    By its digest an intermediary refuses an upload of another cohort, but labelled bits can be read in
                    a refused upload, too. Clients of other channels take part in a cohort before their reports: they
                    request the actions that they play, or share secrets.
    assigns         the shuffler tells each slot its action, and the batch comes action by action.
    small_first     few reports may be mixed in the transaction that takes the last one.
    HIDDEN          fields that transcripts leave out.
    """

    CONTENT: ClassVar[type[Content]]
    STEPS: ClassVar[tuple[Step, ...]]
    via: ClassVar[Via] = "shuffler"
    compared_first: ClassVar[bool] = True
    assigns: ClassVar[bool] = False
    small_first: ClassVar[bool] = False
    HIDDEN: ClassVar[set[str]] = set()

    kind: str

    @classmethod
    @abstractmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        """Return the channel of a cohort with these terms; None where this channel does not carry its messages.

        The mechanism's messages travel via this channel's intermediary.
        """

    @classmethod
    def needed(cls, channel: "Channel") -> Self:
        """Return a channel as one of this class. Raises BadParameter for another one."""
        if not isinstance(channel, cls):
            kinds = (fitting.model_fields["kind"].default for fitting in cls.__subclasses__() or [cls])
            raise BadParameter("channel", channel.kind, f"must be {' or '.join(sorted(kinds))}")
        return channel

    def check(self, clients: int) -> None:
        """Raise BadParameter, naming a field, unless a cohort of so many clients can have this channel."""

    @property
    @abstractmethod
    def report_size(self) -> int:
        """Return the bytes of one client's report: its largest message but for small vectors."""

    @property
    def gives_receipts(self) -> bool:
        """Return whether clients give receipts before the batch is analyzed."""
        return False

    @property
    def seeded(self) -> bool:
        """Return whether a party that knows a seed knows each client's action."""
        return False

    @property
    def sealed_to(self) -> bytes:
        """Return the public key that reports are sealed to; empty where they are not sealed."""
        return b""

    @abstractmethod
    def report(self, row: NDArray[np.uint64], modulus: int, seal: Seal, secret: bytes) -> bytes:
        """Return a client's report: `report_size` bytes.

        row     its message, shape (dimension,), below the modulus.
        secret  of the client, whose commitment requested its action.
        """

    def report_id(self, report: bytes) -> bytes | None:
        """Return what must be unique among the reports of a cohort; None where reports may be equal."""
        del report
        return None

    def record(self, report: bytes) -> bytes:
        """Return the sealed record in a report, by which a receipt names it. Raises BadParameter without one."""
        del report
        raise BadParameter("channel", self.kind, "has no sealed records")

    def records(self, content: Content, survivors: int) -> list[tuple[bytes, int | None]]:
        """Return the sealed records of a batch, each with the place of its action. Raises BadMessage without any."""
        del survivors
        raise self.misfit(content)

    @abstractmethod
    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        """Return how many reports there are, and the content that the intermediary releases.

        reports  pairs of slot and report. They may be read one by one.
        stream   makes the randomness of their order.
        order    of a channel that assigns actions.
        """

    @abstractmethod
    def open(self, content: Content, survivors: int, reader: BatchReader) -> list[ReadGroup]:
        """Return what the server reads of a batch: one group, or one for each assigned action.

        Raises BadMessage for a batch that does not add up. A sealed record that does not open, or holds no vector, is
        left out.
        """

    def life(self, state: str, reason: str | None = None, seen: Iterable[str] = ()) -> CohortLifetime:
        """Return the stages of a cohort of this channel: see `steps.life`."""
        return life(self.STEPS, state, reason, seen, receipts=self.gives_receipts)

    def misfit(self, content: Content) -> BadMessage:
        """Return the refusal of a batch with another channel's content."""
        return BadMessage(f"a batch of kind {content.kind} in a {self.kind} channel")

    # What a transcript shows: the first `most` values of each list.

    def opening_view(self, most: int) -> View:
        """Return the channel's numbers as the server's transcript shows them in the cohort that it opened."""
        del most
        return self.model_dump(mode="json", exclude=self.HIDDEN, exclude_none=True)

    def report_view(self, report: bytes, most: int) -> View:
        """Return what the shuffler can read of a report: nothing of a channel that no shuffler serves."""
        del report, most
        return {}

    @abstractmethod
    def batch_view(self, content: Content, survivors: int, most: int) -> View:
        """Return what the intermediary can read of a batch."""

    @abstractmethod
    def opened_view(self, content: Content, survivors: int, reader: BatchReader, most: int) -> View:
        """Return what the server can read of a batch. Raises BadMessage for one that does not add up."""

    @property
    def quorum(self) -> str:
        """Return how many of a client's neighbours rebuild its seed; empty where none hold it."""
        return ""

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return the numbers of the channel that a reader of a cohort's page needs, with their names."""
        return []

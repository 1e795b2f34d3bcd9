"""The channel of labelled bits, the trusted-shuffler model: the shuffler reads all bits, the server counts them."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.base import (
    BatchReader,
    Channel,
    ChannelTerms,
    Content,
    Order,
    ReadGroup,
    Seal,
    View,
)
from distrust.common.protocol.channels.permutation import count_ones, scatter
from distrust.common.protocol.channels.steps import (
    CLIENTS_LEFT,
    ESTIMATE,
    NOT_YET,
    OPENED,
    OWN_MESSAGE,
    TICKETS,
    UNKNOWN_SENDERS,
    StageHolding,
    Step,
)
from distrust.common.randomness import Stream
from distrust.common.wire import Blob

BITS_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "report",
        "Clients send bits",
        StageHolding(
            "Its reward, and the random bits that it put beside it.",
            "Other clients send their bits to the shuffler only.",
        ),
        StageHolding(
            "Each client's bits.",
            "Nothing hides them from it, but the client's own random bits among them. This mechanism trusts the "
            "shuffler: it must not collude with the server.",
        ),
        NOT_YET,
    ),
    CLIENTS_LEFT,
    Step(
        "batch",
        "The shuffler hands the bits over in random order",
        OWN_MESSAGE,
        StageHolding(
            "What it hands over, and which client sent which bit.",
            "Nothing hides that from it. This mechanism trusts the shuffler.",
        ),
        StageHolding(
            "How many bits are 1 under each label, the random ones of all clients among them.",
            f"In random order bits tell nothing else. {UNKNOWN_SENDERS}",
        ),
    ),
    ESTIMATE,
)


class PermutedBits(Content):
    """All the clients' bits by label, in random order, packed: ⌈clients·width/8⌉ bytes a label."""

    kind: Literal["bits"] = "bits"
    body: Blob


class LabelledBits(Channel):
    """Bits under public labels (one label a coordinate), permuted bit by bit: the trusted-shuffler model."""

    CONTENT: ClassVar[type[Content]] = PermutedBits
    STEPS: ClassVar[tuple[Step, ...]] = BITS_STEPS

    kind: Literal["bits"] = "bits"
    labels: Annotated[int, Field(ge=1, le=1_000_000, description="coordinates")]
    width: Annotated[int, Field(ge=1, le=50_000_000, description="bits a client sends for each label")]

    @classmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        return None if terms.width is None else cls(labels=terms.dimension, width=terms.width)

    @property
    def report_size(self) -> int:
        return (self.labels * self.width + 7) // 8

    @override
    def report(self, row: NDArray[np.uint64], modulus: int, seal: Seal, secret: bytes) -> bytes:
        """Return `width` bits for each label, label after label, padded with zeros to whole bytes at the very end.

        Label d carries row[d] ones and then zeros. The shuffler permutes the bits of a label over all clients, so their
        order in one message does not matter. Bit i of the message is bit i mod 8 of byte i // 8, low bit first, as
        everywhere on our wire. Raises BadParameter when a count of ones is above `width`.
        """
        if (row > self.width).any():
            raise BadParameter("ones", int(row.max()), f"a label has {self.width} bits")
        bits = np.arange(self.width, dtype=np.uint64) < row[:, np.newaxis]
        return np.packbits(bits, bitorder="little").tobytes()

    @override
    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        """Return for each label all the clients' bits in random order."""
        clients, ones = count_ones((report for _, report in reports), self.labels, self.width)
        body = b"".join(scatter(count, clients * self.width, stream) for count in ones.tolist())
        return clients, PermutedBits(body=body)

    @override
    def open(self, content: Content, survivors: int, reader: BatchReader) -> list[ReadGroup]:
        return [ReadGroup(self._ones(content, survivors)[np.newaxis], survivors)]

    def report_view(self, report: bytes, most: int) -> View:
        _, ones = count_ones([report], self.labels, self.width)
        return {"labels": self.labels, "width": self.width, "ones": ones[:most].tolist()}

    def batch_view(self, content: Content, survivors: int, most: int) -> View:
        return {"labels": self.labels, "ones": self._ones(content, survivors)[:most].tolist()}

    @override
    def opened_view(self, content: Content, survivors: int, reader: BatchReader, most: int) -> View:
        return {"bits": survivors * self.width, "ones": self._ones(content, survivors)[:most].tolist()}

    def _ones(self, content: Content, survivors: int) -> NDArray[np.uint64]:
        """Return the count of ones under each label."""
        if not isinstance(content, PermutedBits):
            raise self.misfit(content)
        bits, body = survivors * self.width, content.body
        size = (bits + 7) // 8
        if len(body) != self.labels * size:
            received = f"labelled bits in {len(body)} bytes"
            raise BadMessage(f"{received}, and {self.labels} labels of {size} bytes must be there")
        rows = np.frombuffer(body, dtype=np.uint8).reshape(self.labels, size)
        if bits % 8 and (rows[:, -1] >> (bits % 8)).any():
            raise BadMessage("the bits of a label must end in zero bits")
        ones: NDArray[np.uint64] = np.bitwise_count(rows).sum(axis=1, dtype=np.uint64)
        return ones

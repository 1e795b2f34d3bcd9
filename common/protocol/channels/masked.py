"""The masked channel: vectors under masks that cancel. The aggregator adds them up and learns the sum alone."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.errors import BadParameter
from distrust.common.modular import pack, packed_size, sum_rows, unpack, unpack_rows
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
from distrust.common.protocol.channels.steps import (
    CLIENTS_LEFT,
    ESTIMATE,
    OPENED,
    OWN_MESSAGE,
    TICKETS,
    StageHolding,
    Step,
)
from distrust.common.randomness import Stream
from distrust.common.wire import Blob, Via

DIGEST = StageHolding(
    "A digest of what the aggregator told the clients, to compare.",
    "No message can be read from a digest: the server can tell only whether two are equal.",
)
MASKED_STEPS = (
    OPENED,
    TICKETS,
    Step(
        "keys",
        "Clients send public keys",
        StageHolding(
            "Two secret keys of its own, made for this cohort alone, before the client knows it.",
            "Other clients' secret keys never leave these clients.",
        ),
        StageHolding("Two public keys of each client.", "The secret halves never leave the clients."),
        StageHolding(
            "Hashes of the keys, which came with the ticket requests. Clients compare the aggregator's list with them.",
            "Even the keys would tell no more: they are public, and the secret halves never leave the clients.",
        ),
    ),
    Step(
        "shares",
        "Clients share their seeds among neighbours",
        StageHolding(
            "A self seed and a key seed of its own, cut into shares: enough neighbours together can rebuild them.",
            "Of a neighbour's seeds it gets one share each. Fewer shares than the threshold tell nothing of a seed.",
        ),
        StageHolding(
            "Sealed boxes, which it passes on.",
            "Each is sealed to the neighbour that may open it. The aggregator has no client's secret key.",
        ),
        StageHolding("Nothing of this stage.", "The boxes go from client to client, by the aggregator."),
    ),
    Step(
        "confirm",
        "Clients confirm the shares that they hold",
        StageHolding(
            "The shares of its neighbours, checked.",
            "It has one share of each seed. Fewer shares than the threshold tell nothing of a seed.",
        ),
        StageHolding(
            "Blends of shares with a random polynomial, which check them.", "The polynomial hides the seeds in them."
        ),
        DIGEST,
    ),
    Step(
        "masked",
        "Clients send masked numbers",
        StageHolding(
            "Its reward, its part of the noise where clients add it, and its masks.",
            "Other clients send their numbers to the aggregator only.",
        ),
        StageHolding(
            "Of each client a number that is uniform modulo m, whatever the reward.",
            "It knows none of the masks on it.",
        ),
        DIGEST,
    ),
    Step(
        "unmask",
        "Survivors send the shares that open the sum",
        StageHolding(
            "Of each neighbour the one share that it sends: of the self seed if that neighbour answered, of the key "
            "seed if it vanished. Never both.",
            "It sends shares in this stage, and gets none.",
        ),
        StageHolding(
            "Seeds that take the masks off the sum.",
            "Without both seeds of one client no single number opens.",
        ),
        DIGEST,
    ),
    CLIENTS_LEFT,
    Step(
        "batch",
        "The aggregator hands the sum over",
        OWN_MESSAGE,
        StageHolding(
            "The sum of the survivors' numbers modulo m.",
            "It can take the masks off the sum, and not off one client's number.",
        ),
        StageHolding(
            "The sum, and how many clients are in it.",
            "It never gets a single masked number. Noise that clients added stays in the sum.",
        ),
    ),
    ESTIMATE,
)


class ModularSum(Content):
    """Σ of the survivors' vectors mod m: `body` packs `dimension` values (see common.modular)."""

    kind: Literal["sum"] = "sum"
    body: Blob


class Masking(Channel):
    """Parameters of secure aggregation: vectors of `dimension` coordinates in Z_modulus, k neighbours, threshold t."""

    CONTENT: ClassVar[type[Content]] = ModularSum
    STEPS: ClassVar[tuple[Step, ...]] = MASKED_STEPS
    via: ClassVar[Via] = "aggregator"

    kind: Literal["masked"] = "masked"
    modulus: Annotated[int, Field(ge=2, lt=2**63, description="m")]
    dimension: Annotated[int, Field(ge=1, le=1_000_000, description="coordinates of a client's vector")]
    neighbours: Annotated[int, Field(ge=1, description="k: degree of the graph; n - 1 for the full graph")]
    threshold: Annotated[int, Field(ge=1, description="t: shares that rebuild a secret")]

    @classmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        k, t = terms.graph()
        return cls(modulus=terms.modulus, dimension=terms.dimension, neighbours=k, threshold=t)

    @override
    def check(self, clients: int) -> None:
        k, t = self.neighbours, self.threshold
        if not t <= k < clients:
            raise BadParameter("neighbours", k, f"must lie in [threshold, clients) = [{t}, {clients})")
        if k % 2 and k != clients - 1:
            raise BadParameter("neighbours", k, f"must be even, or clients - 1 = {clients - 1}")

    @property
    def report_size(self) -> int:
        return packed_size(self.modulus, self.dimension)

    @override
    def report(self, row: NDArray[np.uint64], modulus: int, seal: Seal, secret: bytes) -> bytes:
        """Return the vector as it is packed; a client masks it before (`client.cohort.secagg`)."""
        return pack(row, modulus)

    @override
    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        """Return what the aggregator releases in the end: the sum of the vectors without their masks."""
        rows = unpack_rows(b"".join(body for _, body in reports), self.modulus, self.dimension)
        return len(rows), ModularSum(body=pack(sum_rows(rows, self.modulus), self.modulus))

    @override
    def open(self, content: Content, survivors: int, reader: BatchReader) -> list[ReadGroup]:
        return [ReadGroup(self._sum(content)[np.newaxis], survivors)]

    @override
    def batch_view(self, content: Content, survivors: int, most: int) -> View:
        return {"modulus": self.modulus, "sum": self._sum(content)[:most].tolist()}

    @override
    def opened_view(self, content: Content, survivors: int, reader: BatchReader, most: int) -> View:
        return self.batch_view(content, survivors, most)

    @property
    @override
    def quorum(self) -> str:
        return f"{self.threshold} of {self.neighbours}"

    @property
    @override
    def facts(self) -> list[tuple[str, str]]:
        return [
            ("modulus m", f"{self.modulus:,}"),
            ("neighbours of a client", f"{self.neighbours:,}"),
            ("shares that rebuild a seed", f"{self.threshold:,}"),
        ]

    def _sum(self, content: Content) -> NDArray[np.uint64]:
        if not isinstance(content, ModularSum):
            raise self.misfit(content)
        return unpack(content.body, self.modulus, self.dimension)

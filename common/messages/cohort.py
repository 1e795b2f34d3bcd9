"""Server → S (and, inside a `Round`, server → clients): one cohort, everything public about it."""

from typing import Annotated, Literal

from pydantic import Field

from common.messages.base import Blob, Identifier, Message, Version

Via = Literal["aggregator", "shuffler"]


class Masking(Message):
    """Parameters of secure aggregation: vectors of `dimension` coordinates in Z_modulus, k neighbours, threshold t."""

    kind: Literal["masked"] = "masked"
    modulus: Annotated[int, Field(ge=2, lt=2**63)]
    dimension: Annotated[int, Field(ge=1, le=1_000_000)]
    neighbours: Annotated[int, Field(ge=1, description="k: degree of the graph; n - 1 for the full graph")]
    threshold: Annotated[int, Field(ge=1, description="t: shares that rebuild a secret")]


class Sealed(Message):
    """Records sealed to the server: after opening, 16 bytes of report id and `size` bytes of payload each."""

    kind: Literal["sealed"] = "sealed"
    size: Annotated[int, Field(ge=1, le=16_000_000, description="payload bytes, the same for every record")]
    server_key: Blob  # raw X25519 public key, 32 bytes


class LabelledBits(Message):
    """Bits under public labels (one label a coordinate), permuted bit by bit: the trusted-shuffler model."""

    kind: Literal["bits"] = "bits"
    labels: Annotated[int, Field(ge=1, le=1_000_000, description="coordinates")]
    width: Annotated[int, Field(ge=1, le=50_000_000, description="bits a client sends for each label")]


Channel = Annotated[Masking | Sealed | LabelledBits, Field(discriminator="kind")]


class Cohort(Message):
    """One private sum: `clients` slots, opened at S by the server, closed once."""

    version: Version = 1
    run: Identifier
    round: Annotated[int, Field(ge=1, lt=2**63)]
    cohort: Identifier
    clients: Annotated[int, Field(ge=1, le=1_000_000, description="n: slots, numbered from 0")]
    minimum: Annotated[int, Field(ge=1, description="survivors below which nothing is released")]
    stage_seconds: Annotated[float, Field(gt=0, description="deadline of a stage, from its first message")]
    config: Blob  # SHA-256 of the run's canonical configuration: bound into every seal and key derivation
    ticket_key: Blob  # raw Ed25519 public key of the server, 32 bytes
    channel: Channel

    @property
    def via(self) -> Via:
        """Which S serves this cohort."""
        return "aggregator" if self.channel.kind == "masked" else "shuffler"

"""The sealed channel: records sealed to the server, which the shuffler permutes and cannot read."""

import hashlib
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from secrets import token_bytes
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.modular import pack, packed_size, unpack, unpack_rows
from distrust.common.protocol.channels.base import (
    BatchReader,
    Channel,
    ChannelTerms,
    Content,
    OpenRecord,
    Order,
    ReadGroup,
    Seal,
    View,
)
from distrust.common.protocol.channels.permutation import random_order
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

REPORT_ID = 16
"""Bytes of a report id."""

LARGEST_CROWD = 16_384  # clients of a cohort that gives receipts: each takes the whole list, 16 bytes a record
NO_KEY = "no record opens without the run's key, which is destroyed when the run ends"

_OVERHEAD = 32 + 16  # encapsulated key, tag

SEALED = "Each is sealed to the server's key, which the shuffler does not have."
SEALED_REPORT = Step(
    "report",
    "Clients send sealed records",
    StageHolding(
        "Its reward, and the number that it sealed to the server's key, with its noise where clients add it.",
        "Other clients send their records to the shuffler only.",
    ),
    StageHolding("Which client sent which record.", f"It cannot open a record. {SEALED}"),
    NOT_YET,
)
UNLINKED = Step(
    "batch",
    "The shuffler hands the records over in random order",
    OWN_MESSAGE,
    StageHolding("Which record is whose, as before.", f"It never sees what is in one. {SEALED}"),
    StageHolding("Each client's number, in random order.", UNKNOWN_SENDERS),
)
SEALED_STEPS = (OPENED, TICKETS, SEALED_REPORT, CLIENTS_LEFT, UNLINKED, ESTIMATE)


def sealed_size(payload_size: int) -> int:
    """Return the bytes of the sealed record of a report id and `payload_size` bytes."""
    return _OVERHEAD + REPORT_ID + payload_size


def checksum_of(records: Iterable[bytes]) -> bytes:
    """Return the XOR of SHA-256(sealed record), 32 bytes, in any order of the records; zeros without one.

    The shuffler computes it of what arrived, the server of what it collected. Nothing that a client alone could say
    wrongly is in it.
    """
    digests = b"".join(hashlib.sha256(record).digest() for record in records)
    mixed = np.bitwise_xor.reduce(np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32), axis=0)
    return np.asarray(mixed, dtype=np.uint8).tobytes()


class Records(Content):
    """Sealed records in random order: `count` records of one size, one after another.

    `checksum` is the XOR of SHA-256(record) over the records, as the shuffler saw them arrive; the server compares.
    """

    kind: Literal["records"] = "records"
    count: Annotated[int, Field(ge=1)]
    body: Blob
    checksum: Blob


class SealedRecords(Channel):
    """Records sealed to the server: after opening, 16 bytes of report id and `size` bytes of payload each.

    Clients give receipts where the guarantee counts on the records of others (`common.protocol.crypto.receipts`).
    """

    HIDDEN: ClassVar[set[str]] = {"server_key"}

    kind: str
    size: Annotated[int, Field(ge=1, le=16_000_000, description="payload bytes, the same for every record")]
    server_key: Annotated[Blob, Field(description="the server's raw X25519 public key, 32 bytes")]
    receipts: Annotated[
        bool,
        Field(description="clients say whether their records have arrived", exclude_if=lambda value: not value),
    ] = False

    @staticmethod
    def sealing(terms: ChannelTerms) -> dict[str, Any]:
        """Return the fields that sealed records have in every channel."""
        size = packed_size(terms.modulus, terms.dimension)
        return {"size": size, "server_key": terms.server_key, "receipts": terms.receipted}

    @override
    def check(self, clients: int) -> None:
        if len(self.server_key) != 32:
            raise BadParameter("server_key", f"{len(self.server_key)} bytes", "must have 32 bytes")
        if self.receipts and clients > LARGEST_CROWD:
            raise BadParameter("clients", clients, f"must be at most {LARGEST_CROWD}: each gives a receipt")

    @property
    def report_size(self) -> int:
        return REPORT_ID + sealed_size(self.size)

    @property
    @override
    def gives_receipts(self) -> bool:
        return self.receipts

    @property
    @override
    def sealed_to(self) -> bytes:
        return self.server_key

    @override
    def report(self, row: NDArray[np.uint64], modulus: int, seal: Seal, secret: bytes) -> bytes:
        """Return report id (16 fresh random bytes) ‖ sealed (report id ‖ `row` at ⌈log₂ modulus⌉ bits a coordinate)."""
        report_id = token_bytes(REPORT_ID)
        return report_id + seal(report_id, pack(row, modulus))

    @override
    def report_id(self, report: bytes) -> bytes | None:
        return report[:REPORT_ID]

    @override
    def record(self, report: bytes) -> bytes:
        return report[REPORT_ID : REPORT_ID + sealed_size(self.size)]

    @abstractmethod
    def counts(self, content: Content) -> list[int]:
        """Return the number of records in each group. Raises BadMessage for another channel's content."""

    @override
    def records(self, content: Content, survivors: int) -> list[tuple[bytes, int | None]]:
        counts, size, body = self.counts(content), sealed_size(self.size), content.body
        if sum(counts) != survivors or len(body) != survivors * size:
            received = f"{sum(counts)} records in {len(body)} bytes"
            raise BadMessage(f"{received}, and {survivors} survivors of {size} bytes each must be there")
        places = [place if self.assigns else None for place, count in enumerate(counts) for _ in range(count)]
        return [(body[at * size : (at + 1) * size], place) for at, place in enumerate(places)]

    def open(self, content: Content, survivors: int, reader: BatchReader) -> list[ReadGroup]:
        """Return the vectors in those records that count, each record once. The checksum must be the shuffler's."""
        assert reader.open_record is not None
        records = self.records(content, survivors)
        if checksum_of(record for record, _ in records) != content.checksum:
            raise BadMessage("the checksum of the records does not match what the shuffler saw arrive")
        end, groups = 0, []
        for count in self.counts(content):
            begin, end = end, end + count
            rows = _rows(_payloads(records[begin:end], reader.open_record), reader.modulus, reader.dimension)
            groups.append(ReadGroup(rows, len(rows)))
        return groups

    @override
    def report_view(self, report: bytes, most: int) -> View:
        return {"report_id": report[:REPORT_ID].hex(), "sealed_bytes": sealed_size(self.size)}

    def batch_view(self, content: Content, survivors: int, most: int) -> View:
        sealed: View = {"record_bytes": len(content.body) // survivors, "checksum": content.checksum.hex()}
        return self._by_action(content, most) | sealed

    @override
    def opened_view(self, content: Content, survivors: int, reader: BatchReader, most: int) -> View:
        """Return the first records' values, in the shuffler's random order; of assigned actions group after group.

        A record that does not open, or holds no vector, is left out, as in the analysis. If all are, return why.
        """
        counts, size = self.counts(content), sealed_size(self.size)
        view: View = self._by_action(content, most) or {"records": sum(counts)}
        if reader.open_record is None:
            return {**view, "refused": NO_KEY}
        ends, values, faults = list(accumulate(counts)), list[int](), list[BadMessage]()
        shown = min(len(content.body), max(1, most // reader.dimension) * size)
        for number, at in enumerate(range(0, shown, size)):
            try:
                place = bisect_right(ends, number) if self.assigns else None
                _, payload = reader.open_record(content.body[at : at + size], place)
                values += unpack(payload, reader.modulus, reader.dimension)[:most].tolist()
            except BadMessage as error:
                faults.append(error)
        return {**view, "refused": faults[0].detail} if faults and not values else {**view, "values": values}

    def _by_action(self, content: Content, most: int) -> View:
        return {"by_action": self.counts(content)[:most]} if self.assigns else {}


class Sealed(SealedRecords):
    """Sealed records that the shuffler permutes all together.

    Clients need not compare the cohort first. The shuffler cannot read a record. An honest shuffler that was told
    another cohort refuses the upload by its digest, and stores and forwards nothing of it. A shuffler that lies could
    have shown clients any cohort.
    """

    CONTENT: ClassVar[type[Content]] = Records
    STEPS: ClassVar[tuple[Step, ...]] = SEALED_STEPS
    compared_first: ClassVar[bool] = False
    small_first: ClassVar[bool] = True

    kind: Literal["sealed"] = "sealed"

    @classmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        return cls(**cls.sealing(terms))

    @override
    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        """Return the records in random order, without ids."""
        records = [self.record(report) for _, report in reports]
        mixed = b"".join(records[index] for index in random_order(len(records), stream).tolist())
        return len(records), Records(count=len(records), body=mixed, checksum=checksum_of(records))

    def counts(self, content: Content) -> list[int]:
        if not isinstance(content, Records):
            raise self.misfit(content)
        return [content.count]


def _payloads(records: Iterable[tuple[bytes, int | None]], open_record: OpenRecord) -> list[bytes]:
    """Return the payloads of the records that open, each record once."""
    payloads = []
    for record, place in dict.fromkeys(records):
        try:
            payloads.append(open_record(record, place)[1])
        except BadMessage:  # a liar, or a record that was damaged
            continue
    return payloads


def _rows(payloads: list[bytes], modulus: int, dimension: int) -> NDArray[np.uint64]:
    """Return the vectors in payloads of one size, without those that are no vector below the modulus."""
    try:
        return unpack_rows(b"".join(payloads), modulus, dimension)
    except BadMessage:
        if len(payloads) == 1:
            return np.empty((0, dimension), dtype=np.uint64)
        half = len(payloads) // 2  # few clients lie: most halves are whole
        return np.concatenate([_rows(part, modulus, dimension) for part in (payloads[:half], payloads[half:])])

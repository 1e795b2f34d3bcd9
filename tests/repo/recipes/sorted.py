"""The channel of sorted records: the shuffler releases sealed numbers in the order of their records' bytes."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.protocol.channels.base import ChannelTerms, Content, Order
from distrust.common.protocol.channels.sealed import SEALED_STEPS, SealedRecords, checksum_of
from distrust.common.protocol.channels.steps import Step
from distrust.common.randomness import Stream
from distrust.common.wire import Blob


class SortedContent(Content):
    """Sealed records in the order of their bytes: `count` records of one size, one after another."""

    kind: Literal["sorted"] = "sorted"
    count: Annotated[int, Field(ge=1)]
    body: Blob
    checksum: Blob


class SortedRecords(SealedRecords):
    """Sealed records of one number each, in the order of their bytes, which any party can compute again.

    A sealed record is a fresh key and what is encrypted with it. So the records of honest clients are in random order.
    """

    CONTENT: ClassVar[type[Content]] = SortedContent
    STEPS: ClassVar[tuple[Step, ...]] = SEALED_STEPS
    compared_first: ClassVar[bool] = False
    small_first: ClassVar[bool] = True

    kind: Literal["sorted"] = "sorted"

    @classmethod
    def of(cls, terms: ChannelTerms) -> Self | None:
        carried = terms.dimension == 1 and terms.width is None and not isinstance(terms.decision, AssignedAction)
        return cls(**cls.sealing(terms)) if carried else None

    @override
    def mix(self, reports: Iterable[tuple[int, bytes]], stream: Stream, order: Order | None) -> tuple[int, Content]:
        records = sorted(self.record(report) for _, report in reports)
        return len(records), SortedContent(count=len(records), body=b"".join(records), checksum=checksum_of(records))

    def counts(self, content: Content) -> list[int]:
        if not isinstance(content, SortedContent):
            raise self.misfit(content)
        return [content.count]

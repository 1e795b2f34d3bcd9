"""Defines what a mechanism that counts a stream of batches keeps, releases, and is restored from."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.randomness import Stream

if TYPE_CHECKING:
    from distrust.common.mechanisms.families.base import Mechanism


class StreamRelease(Protocol):
    """Two estimates that a stream releases after one more batch, in data units, each of shape (dimension,).

    batch   the estimate of the batch's own sum.
    prefix  the estimate of the sum of all batches so far.
    """

    @property
    def batch(self) -> NDArray[np.float64]: ...

    @property
    def prefix(self) -> NDArray[np.float64]: ...


class StoredBatch(NamedTuple):
    """What a server stores of a batch of a stream.

    total      its sum modulo m.
    survivors  whom it is over.
    prefix     what was released with it.
    stream     the source of the noise that it had: the same bits again.
    """

    total: NDArray[np.uint64]
    survivors: int
    prefix: NDArray[np.float64]
    stream: Stream


class StreamCounter(Protocol):
    """The state of a stream after some batches. The server keeps a new state once its release is committed."""

    @property
    def mechanism(self) -> "Mechanism": ...

    def add(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> tuple[Self, StreamRelease]:
        """Return the state after one more batch, and what is released of it. Arguments and errors as of `estimate`."""
        ...

    def restored(self, batches: Sequence[StoredBatch]) -> Self:
        """Return the state after all `batches`, of the empty state. No batch has other noise than it had."""
        ...

"""Defines what a mechanism that counts a stream of batches releases, what it is restored from, and what it refuses."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

Steps: TypeAlias = NDArray[np.int64]
"""Whole numbers of grid steps, or of finer units, shape (…, dimension)."""


@dataclass(frozen=True, slots=True)
class StreamRelease:
    """Two estimates that a stream releases after one more batch, in data units, each of shape (…, dimension).

    batch   the estimate of the batch's own sum.
    prefix  the estimate of the sum of all batches so far.
    """

    batch: NDArray[np.float64]
    prefix: NDArray[np.float64]


class StoredBatch(NamedTuple):
    """The facts of a stream's batch from which the server restores its counter.

    total      its sum modulo m.
    survivors  how many clients it is over.
    prefix     what was released with it.
    stream     the source of the noise that it had: the same bits again.
    """

    total: NDArray[np.uint64]
    survivors: int
    prefix: NDArray[np.float64]
    stream: Stream


def check_turn(number: int, batches: int) -> None:
    """Refuse batch `number` of a stream that is calibrated for fewer. Raises BadParameter."""
    if number > batches:
        raise BadParameter("batches", number, f"the stream is calibrated for {batches}")


def check_drawn(drawn: Steps, shape: tuple[int, ...]) -> None:
    """Refuse noise of another shape than that of the sums: no two streams may share it. Raises BadParameter."""
    if drawn.shape != shape:
        raise BadParameter("noise", drawn.shape, f"shape must be {shape}")


def in_data_units(steps: Steps | int, step: float, low: float, survivors: int) -> NDArray[np.float64]:
    """Return a sum over so many survivors, in whole steps above the least, in data units.

    It is computed from noisy whole numbers only, so that floating-point rounding cannot tell the true ones.
    """
    return np.asarray(steps * step + survivors * low, dtype=np.float64)

"""Inverse transform sampling with 128-bit thresholds.

Weights come from their ratios in 256-bit fixed point: every step away from the mode rounds down by less than one unit
and multiplies earlier errors by at most 1, so a weight is off by at most its distance to the mode, and a cumulative
probability by 2⁻²⁵⁶ · 2²⁰ · 2²⁰ at the longest. Cutting the support where weights fall below 2⁻¹⁴⁴ of the mode's loses
less than 2⁻¹²⁸, and each of L thresholds is rounded by less than 2⁻¹²⁸: a draw is within statistical distance
(L + 1) 2⁻¹²⁸ of its law, below 2⁻¹¹⁰ for L < 2¹⁷.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
from numpy.typing import NDArray

from distrust.common.noise.law import LIMIT, check_length
from distrust.common.randomness import Stream

PRECISION = 256
CUT = 144
GUIDE = 12  # bits of the first word that look up most draws directly
CHUNK = 1 << 15  # draws at a time, so that they stay in the cache

Ratio = Callable[[int], tuple[int, int]]
"""x to numerator and denominator of weight(x + 1) / weight(x)."""


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """A law on `first`, `first` + 1, …: 128-bit cumulative thresholds in two words, and a guide by the top bits."""

    first: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    guide: NDArray[np.int64]
    doubtful: NDArray[np.bool_]

    def draw(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """`count` draws: one word each, and a second word where the first equals a threshold's."""
        draws = np.empty(count, dtype=np.int64)
        for start in range(0, count, CHUNK):
            self._fill(draws[start : start + CHUNK], stream)
        return draws

    def _fill(self, draws: NDArray[np.int64], stream: Stream) -> None:
        words = stream.words(draws.size)
        cells = (words >> np.uint64(64 - GUIDE)).view(np.int64)
        np.take(self.guide, cells, out=draws)
        asked = np.flatnonzero(self.doubtful[cells])
        draws[asked] = self._search(words[asked], stream)
        draws += self.first

    def _search(self, words: NDArray[np.uint64], stream: Stream) -> NDArray[np.int64]:
        """Thresholds at or below each 128-bit number whose first word is given."""
        found = np.searchsorted(self.high, words, side="right").astype(np.int64)
        ties = np.flatnonzero((found > 0) & (self.high[found - 1] == words))
        for i, second in zip(ties, stream.words(ties.size), strict=True):
            start = int(np.searchsorted(self.high, words[i], side="left"))
            found[i] = start + int(np.searchsorted(self.low[start : found[i]], second, side="right"))
        return found


def tabulate(mode: int, ratio: Ratio, least: int | None = 0, greatest: int | None = None) -> Table:
    """The table of a unimodal law from its mode and the ratios of neighbouring weights.

    `least` and `greatest` end the support, where it ends. Raises BadParameter above LIMIT entries.
    """
    downwards = _walk(mode, -1, lambda x: ratio(x - 1)[::-1], least)
    upwards = _walk(mode, 1, ratio, greatest)
    weights = [*reversed(downwards), 1 << PRECISION, *upwards]
    check_length(len(weights), "noise table")
    return _pack(mode - len(downwards), list(accumulate(weights)))


def _walk(mode: int, step: int, ratio: Ratio, end: int | None) -> list[int]:
    """Weights next to the mode, next but one, …, down to the cut."""

    def weights() -> Iterator[int]:
        x, weight = mode, 1 << PRECISION
        while x != end:
            numerator, denominator = ratio(x)
            weight = weight * numerator // denominator
            x += step
            if weight >> (PRECISION - CUT) == 0:
                return
            yield weight

    return list(islice(weights(), LIMIT + 1))


def _pack(first: int, sums: list[int]) -> Table:
    """Thresholds ⌊2¹²⁸ P(X ≤ k)⌋ of all entries but the last, as two sorted columns of words."""
    total = sums.pop()
    raw = b"".join(((part << 128) // total).to_bytes(16, "little") for part in sums)
    columns = np.frombuffer(raw, dtype="<u8").reshape(-1, 2)
    high = np.ascontiguousarray(columns[:, 1], dtype=np.uint64)
    starts = np.arange(1 << GUIDE, dtype=np.uint64) << np.uint64(64 - GUIDE)
    ends = starts | np.uint64((1 << (64 - GUIDE)) - 1)
    before = np.searchsorted(high, starts, side="left").astype(np.int64)
    until = np.searchsorted(high, ends, side="right").astype(np.int64)
    return Table(first, high, np.ascontiguousarray(columns[:, 0], dtype=np.uint64), before, before != until)

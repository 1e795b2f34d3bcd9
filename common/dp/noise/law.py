"""Defines laws of noise on the integers, and samples them exactly from tables."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats, How
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

LOST = 1e-22
"""Mass that a truncated support may leave out: negligible against every quantile and δ that is computed."""

LIMIT = 1 << 20
"""Longest support, and longest sampling table, that is worth its memory."""

PRECISION = 256  # bits of a weight in fixed point
CUT = 144  # bits below the mode's weight where the support is cut
GUIDE = 14  # bits of the first word that look up most draws directly
CHUNK = 1 << 15  # draws at a time, so that they stay in the cache
TIE = 1e-9  # relative error of a computed tail, also of 10¹³ bits
UNIT = 2.0**-53  # relative rounding error of a double


@dataclass(frozen=True, eq=False)
class Pmf:
    """Log-probabilities of `first`, `first` + 1, …, up to relative error 1e-11; -inf where there is no mass.

    `lost` bounds the mass outside; a δ that is computed from the law has to add it.
    """

    first: int
    logs: NDArray[np.float64]
    lost: float

    @cached_property
    def masses(self) -> NDArray[np.float64]:
        """Return the probabilities themselves; the far tails may underflow to 0."""
        masses: NDArray[np.float64] = np.exp(self.logs)
        return masses

    @property
    def support(self) -> NDArray[np.int64]:
        """Return the integers that the entries belong to."""
        return np.arange(self.first, self.first + self.logs.size, dtype=np.int64)

    @classmethod
    def mirrored(cls, half: NDArray[np.float64], lost: float) -> "Pmf":
        """Return a symmetric law from the log-probabilities of 0, 1, and so on."""
        return cls(1 - half.size, np.concatenate((half[:0:-1], half)), lost)

    @classmethod
    def normalized(cls, first: int, logs: NDArray[np.float64], lost: float) -> "Pmf":
        """Return the law with these logarithms up to a constant, scaled so that the mass inside is 1.

        lost  bounds the mass outside, and so the distance to the truth.
        """
        top = float(logs.max())
        return cls(first, logs - (top + math.log(float(np.sum(np.exp(logs - top))))), lost)


class Law(Protocol):
    """A law of noise on the integers."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float: ...

    def pmf(self) -> Pmf:
        """Return the law on a truncated support. Raises BadParameter if that is longer than LIMIT."""
        ...

    def quantile(self, p: float) -> float:
        """Return the least q with P(|X - mean| > q) ≤ p."""
        ...

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return `count` independent draws; the same stream gives the same draws."""
        ...


class OnLattice:
    """Facts of every law on the whole numbers, less its mean, that `Transformed` asks for."""

    __slots__ = ()

    lattice: ClassVar[bool] = True

    @property
    def symmetric(self) -> bool:
        return True

    @property
    def mean(self) -> float:
        return 0.0

    @property
    def reach(self) -> float:
        return math.inf

    @abstractmethod
    def log_moment(self, s: Floats, t: Floats) -> Complexes: ...

    def log_size(self, s: Floats, t: Floats) -> Floats:
        """Return ln |E e^{zX}|, which falls between t = 0 and π."""
        return np.asarray(self.log_moment(s, t).real)

    def decay(self, t: Floats) -> Floats:
        return np.zeros_like(t)


class SymmetricLaw(OnLattice):
    """A law around 0, from its log-probabilities of 0, 1, and so on.

    Where its support would pass LIMIT entries `pmf` refuses, and `quantile` is a bound.
    """

    __slots__ = ()

    @abstractmethod
    def _reach(self, lost: float) -> int:
        """Return the least k that a bound of the tail allows for P(|X| ≥ k) ≤ lost."""

    @abstractmethod
    def _logs(self, last: int) -> Floats:
        """Return the log-probabilities of 0 … last. Raises BadParameter above LIMIT entries."""

    def pmf(self, lost: float = LOST, least: int = 0) -> Pmf:
        """Return the law up to `lost`, and at least on [-least, least]."""
        return Pmf.mirrored(self._logs(max(self._reach(lost), least)), lost)

    def quantile(self, p: float) -> float:
        """Return the least q with P(|X| > q) ≤ p; the bound of the tail where the support would pass LIMIT entries."""
        check_probability(p)
        last = self._reach(LOST)
        return float(self._reach(p) - 1 if last > LIMIT else symmetric_quantile(self._logs(last), LOST, p))

    @property
    def quantile_how(self) -> How:
        """Return "exact", or "bound" where the support would pass LIMIT entries."""
        return "bound" if self._reach(LOST) > LIMIT else "exact"


def complex_log1p(x: Floats, y: Floats) -> Complexes:
    """Return ln(1 + x + iy), without complex functions, which take several times as long."""
    return np.asarray(np.log1p(2 * x + x * x + y * y) / 2 + 1j * np.arctan2(y, 1 + x))


def check_probability(p: float) -> None:
    """Refuse a quantile that double precision cannot answer."""
    if not 1e-18 <= p < 1:
        raise BadParameter("p", p, "must lie in [1e-18, 1)")


def tail_reach(log_tail: Callable[[int], float], p: float) -> int:
    """Return the least k ≥ 1 with log_tail(k) ≤ ln p, where log_tail decreases and bounds ln P(|X| ≥ k)."""
    target = math.log(p)
    high = 1
    while log_tail(high) > target:
        high *= 2
    low = high // 2  # log_tail(low) is above the target, or low is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log_tail(middle) <= target else (middle, high)
    return high


def symmetric_quantile(half: NDArray[np.float64], lost: float, p: float) -> int:
    """Return the least q with P(|X| > q) ≤ p for a symmetric law, from its log-probabilities of 0, 1, and so on."""
    check_probability(p)
    tails = 2 * np.cumsum(np.exp(half[::-1]))[::-1] + lost  # tails[k] = P(|X| ≥ k) for k ≥ 1
    beyond = np.append(tails[1:], lost)  # beyond[q] = P(|X| > q), decreasing
    return int(np.searchsorted(-beyond, -p * (1 - 1e-10), side="left"))


def check_length(length: int, what: str) -> int:
    """Return the length of a support or table. Refuse one that is too long, before any memory is taken."""
    if length > LIMIT:
        raise BadParameter(what, length, f"at most {LIMIT} entries: raise epsilon or lower the precision or dimension")
    return length


# Weights come from their ratios in 256-bit fixed point. Every step away from the mode rounds down by less than one unit
# and multiplies earlier errors by at most 1. So a weight is off by at most its distance to the mode, and a cumulative
# probability by 2⁻²⁵⁶ · 2²⁰ · 2²⁰ at the longest. Cutting the support below 2⁻¹⁴⁴ of the mode's weight loses less than
# 2⁻¹²⁸, and each of L thresholds is rounded by less than 2⁻¹²⁸: a draw is within statistical distance
# (L + 1) 2⁻¹²⁸ of its law, below 2⁻¹¹⁰ for L < 2¹⁷.

Ratio = Callable[[int], tuple[int, int]]
"""Returns from x numerator and denominator of weight(x + 1) / weight(x)."""


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """Samples a law on `first`, `first` + 1, and so on, by inverse transform.

    high, low  128-bit cumulative thresholds, in two words.
    guide      by the top GUIDE bits of a word, its place among the thresholds; `doubtful`: where that is not decided.
    """

    first: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    guide: NDArray[np.int64]
    doubtful: NDArray[np.bool_]

    def draw(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return `count` draws: one word each, and a second word where the first equals a threshold's."""
        draws = np.empty(count, dtype=np.int64)
        for start in range(0, count, CHUNK):
            self._fill(draws[start : start + CHUNK], stream)
        return draws

    def _fill(self, draws: NDArray[np.int64], stream: Stream) -> None:
        words = stream.words(draws.size)
        cells = (words >> np.uint64(64 - GUIDE)).view(np.int64)
        np.take(self.guide, cells, out=draws)
        doubtful_rows = np.flatnonzero(self.doubtful[cells])
        draws[doubtful_rows] = self._search(words[doubtful_rows], stream)
        draws += self.first

    def _search(self, words: NDArray[np.uint64], stream: Stream) -> NDArray[np.int64]:
        """Return how many thresholds are at or below each 128-bit number whose first word is given."""
        places = np.searchsorted(self.high, words, side="right").astype(np.int64)
        ties = np.flatnonzero((places > 0) & (self.high[places - 1] == words))
        for i, second in zip(ties, stream.words(ties.size), strict=True):
            start = int(np.searchsorted(self.high, words[i], side="left"))
            places[i] = start + int(np.searchsorted(self.low[start : places[i]], second, side="right"))
        return places


def tabulate(mode: int, ratio: Ratio, least: int | None = 0, greatest: int | None = None) -> Table:
    """Return the table of a unimodal law from its mode and the ratios of neighbouring weights.

    `least` and `greatest` end the support, where it ends. Raises BadParameter above LIMIT entries.
    """
    downwards = _walk(mode, -1, lambda x: ratio(x - 1)[::-1], least)
    upwards = _walk(mode, 1, ratio, greatest)
    weights = [*reversed(downwards), 1 << PRECISION, *upwards]
    check_length(len(weights), "noise table")
    return _pack(mode - len(downwards), list(accumulate(weights)))


def _walk(mode: int, step: int, ratio: Ratio, end: int | None) -> list[int]:
    """Return the weights next to the mode, next but one, …, down to the cut."""

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
    """Return the table of thresholds ⌊2¹²⁸ P(X ≤ k)⌋ of all entries but the last, as two sorted columns of words."""
    total = sums.pop()
    raw = b"".join(((part << 128) // total).to_bytes(16, "little") for part in sums)
    columns = np.frombuffer(raw, dtype="<u8").reshape(-1, 2)
    high = np.ascontiguousarray(columns[:, 1], dtype=np.uint64)
    starts = np.arange(1 << GUIDE, dtype=np.uint64) << np.uint64(64 - GUIDE)
    ends = starts | np.uint64((1 << (64 - GUIDE)) - 1)
    before = np.searchsorted(high, starts, side="left").astype(np.int64)
    until = np.searchsorted(high, ends, side="right").astype(np.int64)
    return Table(first, high, np.ascontiguousarray(columns[:, 0], dtype=np.uint64), before, before != until)

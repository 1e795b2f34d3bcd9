"""What every law of noise can say of itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

LOST = 1e-22
"""Mass that a truncated support may leave out: far below any quantile or δ that we compute."""

LIMIT = 1 << 20
"""Longest support, and longest sampling table, that is worth its memory."""


@dataclass(frozen=True, eq=False)
class Pmf:
    """Log-probabilities of `first`, `first` + 1, …, up to relative error 1e-11; -inf where there is no mass.

    `lost` bounds the mass outside. Whoever computes a δ adds it.
    """

    first: int
    logs: NDArray[np.float64]
    lost: float

    @cached_property
    def masses(self) -> NDArray[np.float64]:
        """The probabilities themselves; the far tails may underflow to 0."""
        masses: NDArray[np.float64] = np.exp(self.logs)
        return masses

    @property
    def support(self) -> NDArray[np.int64]:
        """The integers that the entries belong to."""
        return np.arange(self.first, self.first + self.logs.size, dtype=np.int64)

    def quantile(self, center: float, p: float) -> float:
        """The least q with P(|X - center| > q) ≤ p, from the far ends inwards so that small masses count."""
        gaps = np.abs(self.support - center)
        order = np.argsort(-gaps, kind="stable")
        beyond = np.cumsum(self.masses[order]) + self.lost
        farther = int(np.searchsorted(beyond, p * (1 - 1e-10), side="right"))  # so many may lie beyond q
        return float(gaps[order[farther]]) if farther < gaps.size else 0.0

    @classmethod
    def mirrored(cls, half: NDArray[np.float64], lost: float) -> "Pmf":
        """A symmetric law from the log-probabilities of 0, 1, and so on."""
        return cls(1 - half.size, np.concatenate((half[:0:-1], half)), lost)

    @classmethod
    def normalized(cls, first: int, logs: NDArray[np.float64], lost: float) -> "Pmf":
        """From logs up to a constant: scaled so that the mass inside is 1, less than `lost` away from the truth."""
        top = float(logs.max())
        return cls(first, logs - (top + math.log(float(np.sum(np.exp(logs - top))))), lost)


class Law(Protocol):
    """A law of noise on the integers."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float: ...

    def pmf(self) -> Pmf:
        """The law on a truncated support. Raises BadParameter if that is longer than LIMIT."""
        ...

    def quantile(self, p: float) -> float:
        """The least q with P(|X - mean| > q) ≤ p."""
        ...

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """`count` independent draws; the same stream gives the same draws."""
        ...


def check_probability(p: float) -> None:
    """Refuse a quantile that double precision cannot answer."""
    if not 1e-18 <= p < 1:
        raise BadParameter("p", p, "must lie in [1e-18, 1)")


def reach(log_tail: Callable[[int], float], p: float) -> int:
    """The least k ≥ 1 with log_tail(k) ≤ ln p, where log_tail decreases and bounds ln P(|X| ≥ k)."""
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
    """The least q with P(|X| > q) ≤ p for a symmetric law, from its log-probabilities of 0, 1, and so on."""
    check_probability(p)
    tails = 2 * np.cumsum(np.exp(half[::-1]))[::-1] + lost  # tails[k] = P(|X| ≥ k) for k ≥ 1
    beyond = np.append(tails[1:], lost)  # beyond[q] = P(|X| > q), decreasing
    return int(np.searchsorted(-beyond, -p * (1 - 1e-10), side="left"))


def check_length(length: int, what: str) -> int:
    """Refuse a support or table that is too long, before any memory is taken."""
    if length > LIMIT:
        raise BadParameter(what, length, f"at most {LIMIT} entries: raise epsilon or lower the precision or dimension")
    return length

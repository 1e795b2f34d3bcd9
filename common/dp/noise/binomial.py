"""Defines binomial noise, sampled as the ones among random bits."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats
from distrust.common.dp.noise.law import (
    LOST,
    TIE,
    OnLattice,
    Pmf,
    Table,
    check_length,
    check_probability,
    complex_log1p,
    tabulate,
    tail_reach,
)
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

FAIR = 0.5  # chance of a fair coin
WORDS_AT_ONCE = 1 << 20  # words of coin tosses held at once


@dataclass(frozen=True, slots=True)
class Binomial(OnLattice):
    """Bin(trials, chance); its `pmf` is cut where Chernoff's bound leaves less than `lost`, and refused above LIMIT."""

    trials: int
    chance: float = FAIR

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise BadParameter("trials", self.trials, "must be at least 1")
        if not 0 < self.chance < 1:
            raise BadParameter("chance", self.chance, "must lie in (0, 1)")

    @property
    def mean(self) -> float:
        return self.trials * self.chance

    @property
    def std(self) -> float:
        return math.sqrt(self.mean * (1 - self.chance))

    @property
    def symmetric(self) -> bool:
        return self.chance == FAIR

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        """Return n (ln(1 + p (e^z - 1)) - pz)."""
        turn = np.sin(t / 2)
        x = self.chance * (np.expm1(s) * np.cos(t) - 2 * turn * turn)
        line = self.chance * (s + 1j * t)
        return self.trials * (complex_log1p(x, self.chance * np.exp(s) * np.sin(t)) - line)

    def pmf(self, lost: float = LOST, least: int = 0) -> Pmf:
        """Return the law with at most `lost` outside; `least` steps or more on both sides of the mean."""
        return _pmf(self.trials, self.chance, lost, least)

    def quantile(self, p: float) -> float:
        """Return the least q with P(|X - mean| > q) ≤ p, by incomplete beta functions.

        The mean need not be an integer.
        """
        check_probability(p)
        mean = Fraction(self.mean)
        down, up = self.reaches(p)
        most = range(max(down, up) + 2)
        gaps = (mean - math.floor(mean), math.ceil(mean) - mean)  # of the integers next to the mean, below and above
        return float(min(gap + bisect_left(most, True, key=partial(self._rare, p, gap)) for gap in gaps))

    def _rare(self, p: float, gap: Fraction, steps: int) -> bool:
        """Return whether P(|X - mean| > gap + steps) ≤ p."""
        mean, far = Fraction(self.mean), gap + steps
        below, above = math.ceil(mean - far) - 1, math.floor(mean + far) + 1
        low = scipy.special.betaincc(below + 1, self.trials - below, self.chance) if below >= 0 else 0.0
        high = scipy.special.betainc(above, self.trials - above + 1, self.chance) if above <= self.trials else 0.0
        return float(low + high) <= p * (1 - TIE)

    def reaches(self, lost: float) -> tuple[int, int]:
        """Return the least steps below and above the mean beyond which Chernoff's bound leaves `lost` at most."""
        down = tail_reach(lambda k: binomial_log_tail(self.trials, self.chance, self.mean - k), lost / 2)
        up = tail_reach(lambda k: binomial_log_tail(self.trials, self.chance, self.mean + k), lost / 2)
        return min(down, math.ceil(self.mean)), min(up, math.ceil(self.trials - self.mean))

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return `count` exact draws: for a fair coin the ones among random bits, else from a table."""
        if self.chance == FAIR:
            return self._tosses(stream, count)
        return binomial_table(self.trials, self.chance).draw(stream, count)

    def _tosses(self, stream: Stream, count: int) -> NDArray[np.int64]:
        words = -(-self.trials // 64)
        masks = np.full(words, 2**64 - 1, dtype=np.uint64)
        masks[-1] >>= np.uint64(64 * words - self.trials)
        rows = max(1, WORDS_AT_ONCE // words)
        sizes = [min(rows, count - start) for start in range(0, count, rows)]
        tosses = (stream.words(size * words).reshape(size, words) & masks for size in sizes)
        ones = [np.bitwise_count(rows).sum(axis=1, dtype=np.int64) for rows in tosses]
        return np.concatenate([np.zeros(0, np.int64), *ones])


@lru_cache(maxsize=64)
def _pmf(trials: int, chance: float, lost: float, least: int) -> Pmf:
    """Return the log-probabilities between Chernoff's bounds, from the ratios of neighbours."""
    mean = trials * chance
    down, up = (max(reach, least) for reach in Binomial(trials, chance).reaches(lost))
    first, last = max(0, math.floor(mean) - down), min(trials, math.ceil(mean) + up)
    x = np.arange(first, first + check_length(last - first, "support of the noise"), dtype=np.float64)
    logs = np.concatenate(([0.0], np.cumsum(np.log((trials - x) / (x + 1)) + math.log(chance) - math.log1p(-chance))))
    return Pmf.normalized(first, logs, lost if last - first < trials else 0.0)


def binomial_log_tail(trials: int, chance: float, x: float) -> float:
    """Return Chernoff's bound of ln P of a tail that ends at x: -n D(x/n ‖ chance), n = trials; -inf outside [0, n]."""
    share = x / trials
    if not 0 <= share <= 1:
        return -math.inf
    ones = share * math.log(share / chance) if share > 0 else 0.0
    zeros = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return -trials * (ones + zeros)


def fair_pmf(trials: Floats, ones: Floats) -> Floats:
    """Return P(Bin(trials, 1/2) = ones) for whole numbers, element by element; 0 for ones > trials.

    trials  up to 10⁹: to 12 digits where the probability is at least 1e-100.
    ones    at least 0.
    """
    # By Stirling's formula with its rest S, P(X = k) = √(n/(2πk(n-k))) e^(S(n) - S(k) - S(n-k) - nD), and with z =
    # (2k - n)/n the divergence D is (ln(1 - z²) + 2z artanh z)/2: of these terms one is about twice the other, so that
    # next to nothing cancels.
    n, k = trials, np.clip(ones, 1, np.maximum(trials - 1, 1))
    zeros = np.maximum(n - k, 1)
    z = np.where(n > 1, (k - zeros) / np.maximum(n, 1), 0.0)
    apart = n / 2 * (np.log1p(-z * z) + 2 * z * np.arctanh(z))
    inside = np.exp(_rest(n) - _rest(k) - _rest(zeros) - apart) * np.sqrt(n / (2 * np.pi * k * zeros))
    ends = np.where(ones > trials, 0.0, np.exp2(-trials))
    return np.where((ones > 0) & (ones < trials), inside, ends)


def fair_tail(trials: Floats, ones: Floats) -> Floats:
    """Return P(Bin(trials, 1/2) > ones) for whole numbers, element by element."""
    tails: Floats = scipy.special.betainc(ones + 1, np.maximum(trials - ones, 1), 0.5)
    return np.where(ones < trials, tails, 0.0)


def _rest(n: Floats) -> Floats:
    """Return S(n) = ln n! - (n + 1/2) ln n + n - ln √(2π), for whole numbers; 0 for 0."""
    return np.where(n < RESTS.size, RESTS[np.minimum(n, RESTS.size - 1).astype(np.int64)], _series(np.maximum(n, 1)))


def _series(n: Floats) -> Floats:
    """Return S(n) by Stirling's series, to 18 decimals from n = 16 on."""
    s = 1 / (n * n)
    return np.asarray((1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / n, dtype=np.float64)


def _first_rests() -> Floats:
    """Return S(0), …, S(16), each from the next: S(n) = S(n + 1) + (n + 1/2) ln(1 + 1/n) - 1."""
    rests = [float(_series(np.array(16.0)))]
    for n in range(15, 0, -1):
        rests.append(rests[-1] + (n + 0.5) * math.log1p(1 / n) - 1)
    return np.array([0.0, *reversed(rests)])


RESTS = _first_rests()


@lru_cache(maxsize=64)
def binomial_table(trials: int, chance: float) -> Table:
    """Return the sampling table.

    weight(x + 1) / weight(x) = (b - x) p / ((x + 1)(1 - p)), with p as the exact fraction that the double is.
    """
    p, unit = Fraction(chance).as_integer_ratio()
    mode = min(trials, math.floor((trials + 1) * chance))
    return tabulate(mode, lambda x: ((trials - x) * p, (x + 1) * (unit - p)), least=0, greatest=trials)

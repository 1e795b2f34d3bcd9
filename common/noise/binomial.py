"""Defines binomial noise, sampled as the ones among random bits; and the worst tails of coins of unknown chances.

Let H be the number of heads of n coins, their chances anywhere in [a, 1 - a], and μ the sum of the chances. T(w) is the
supremum of P(|H - μ| > w) over all chances, for w ≥ 1. With f(w, k) = P(Bin(n, (k + w)/n) ≤ k) and D = ⌊2w⌋ + 1,

    T(w) = max_k f(w, k) + f(D - w, n - k - D),

or the value at equal chances a. The maximum is over some √n values of k.

Source  of the tails: Hoeffding 1956, Theorem 5, for equal chances.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.noise.law import LOST, Pmf, Table, check_length, check_probability, tabulate, tail_reach
from distrust.common.randomness import Stream

MOST = 10**7
"""Most coins for which the maximum is computed: it takes 0.1 s for p ≤ 1/2, and less than one second for LIKELY."""

LIKELY = 0.8
"""Largest probability for which a quantile is computed. Above it the tops of T's two terms lie far apart."""

Floats = NDArray[np.float64]

_nodes, _weights = np.polynomial.legendre.leggauss(16)
PLACES, WEIGHTS = (_nodes + 1) / 2, _weights / 2
"""Gauss and Legendre's nodes and weights on [0, 1]."""

CHUNK = 1 << 20  # words of coin tosses held at once
TIE = 1e-9  # relative error of a tail of 10¹³ bits


@dataclass(frozen=True, slots=True)
class Binomial:
    """Bin(trials, chance); its `pmf` is cut where Chernoff's bound leaves less than LOST, and refused above LIMIT."""

    trials: int
    chance: float = 0.5

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

    def pmf(self) -> Pmf:
        return _pmf(self.trials, self.chance)

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
        if self.chance == 0.5:
            return self._tosses(stream, count)
        return binomial_table(self.trials, self.chance).draw(stream, count)

    def _tosses(self, stream: Stream, count: int) -> NDArray[np.int64]:
        words = -(-self.trials // 64)
        masks = np.full(words, 2**64 - 1, dtype=np.uint64)
        masks[-1] >>= np.uint64(64 * words - self.trials)
        rows = max(1, CHUNK // words)
        sizes = [min(rows, count - start) for start in range(0, count, rows)]
        tosses = (stream.words(size * words).reshape(size, words) & masks for size in sizes)
        ones = [np.bitwise_count(rows).sum(axis=1, dtype=np.int64) for rows in tosses]
        return np.concatenate([np.zeros(0, np.int64), *ones])


@lru_cache(maxsize=64)
def _pmf(trials: int, chance: float) -> Pmf:
    """Return the log-probabilities between Chernoff's bounds, from the ratios of neighbours."""
    mean = trials * chance
    down, up = Binomial(trials, chance).reaches(LOST)
    first, last = max(0, math.floor(mean) - down), min(trials, math.ceil(mean) + up)
    x = np.arange(first, first + check_length(last - first, "support of the noise"), dtype=np.float64)
    logs = np.concatenate(([0.0], np.cumsum(np.log((trials - x) / (x + 1)) + math.log(chance) - math.log1p(-chance))))
    return Pmf.normalized(first, logs, LOST if last - first < trials else 0.0)


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

    trials  up to 10⁹: to 12 digits where the probability is at least 1e-100. ones: at least 0.
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


@lru_cache(maxsize=1024)
def worst_quantile(coins: int, least: float, p: float) -> float:
    """Return the least w with P(|H - μ| > w) ≤ p for all chances in [least, 1 - least].

    It is exact to 1e-10 for p < 1/4, and for one coin. For more coins T(1) ≥ 1/4. So for larger p the result is an
    upper bound: one count at least (or Hoeffding's bound, if that is less), and above LIKELY the result for LIKELY.
    """
    check_probability(p)
    if coins == 1:
        return 1 - max(least, min(p, 0.5))
    p = min(p, LIKELY)
    tails, hoeffding = WorstTails(coins, least), math.sqrt(coins * math.log(2 / p) / 2)
    halves = _halves(tails, p, max(2, math.ceil(2 * hoeffding)))
    if halves == 2:
        return min(1.0, hoeffding)
    low, high = (halves - 1) / 2, math.nextafter(halves / 2, 0)  # T falls steadily in between and jumps at the end
    if tails.beyond(high) > p:
        return halves / 2
    root = float(scipy.optimize.brentq(lambda w: tails.beyond(w) - p, low, high, xtol=1e-13 * low))
    return min(root * (1 + 1e-12), halves / 2, coins * (1 - least))


def _halves(tails: "WorstTails", p: float, most: int) -> int:
    """Return the least h ≥ 2 with T(h/2) ≤ p, at most `most`; the normal quantile of fair coins is close to it."""
    low, high, guess = 2, most, round(-float(scipy.special.ndtri(p / 2)) * math.sqrt(tails.coins))
    for near in (guess - 3, guess + 3):
        if low < near < high:
            low, high = (near + 1, high) if tails.beyond(near / 2) > p else (low, near)
    return low + bisect_left(range(low, high), True, key=lambda h: tails.beyond(h / 2) <= p)


@dataclass(frozen=True, slots=True)
class WorstTails:
    """T(w) for `coins` coins with chances in [least, 1 - least], least < 1/2."""

    coins: int
    least: float

    def beyond(self, w: float) -> float:
        """Return T(w), w ≥ 1."""
        # Equal chances are the worst. There are integers b ≤ μ ≤ c at the ends of [μ - w, μ + w], and among the chances
        # with that sum P(b ≤ H ≤ c) is least when all are equal (Hoeffding 1956, Theorem 5). So H ~ Bin(n, x), μ = nx.
        # Only finitely many x matter. While b and c stay, P(b ≤ H ≤ c) rises and then falls in x, so it is least at an
        # end of that interval: where an integer k at distance w from μ is about to count as beyond, or at x = a or 1 -
        # a. By symmetry take k below, μ = k + w: then H ≤ k or H ≥ k + D is beyond, D the next integer past μ + w.
        n, gap, lowest = self.coins, math.floor(2 * w) + 1, self.coins * self.least
        first, last = math.ceil(lowest - w), math.ceil(n - lowest - w) - 1  # k + w in [na, n(1 - a))
        at_the_end = self._below(math.ceil(lowest - w) - 1, lowest) + self._above(math.floor(lowest + w) + 1, lowest)
        if first > last:
            return at_the_end
        # Both terms rise before their tops and fall after (`_top`), so the maximum lies between the tops.
        tops = (_top(n, w), n - gap - _top(n, gap - w))
        low, high = (min(max(k, first), last) for k in (min(tops), max(tops)))
        k = np.arange(low, high + 1, dtype=np.float64)
        return max(at_the_end, float((_short(n, w, k) + _short(n, gap - w, n - k - gap)).max()))

    def _below(self, k: int, mean: float) -> float:
        return float(_short(self.coins, mean - k, np.array([float(k)]))[0])

    def _above(self, k: int, mean: float) -> float:
        return self._below(self.coins - k, self.coins - mean)


def _short(n: int, w: float, k: Floats) -> Floats:
    """Return f(w, k) = P(Bin(n, (k + w)/n) ≤ k), as an incomplete beta function; 0 for negative k."""
    tails: Floats = scipy.special.betainc(n - k, np.maximum(k, 0) + 1, np.clip((n - k - w) / n, 0, 1))
    return np.where(k < 0, 0.0, tails)


def _top(n: int, w: float) -> int:
    """Return the k in [0, n - w] where f(w, k) is largest: the last j with R < 1, or 0."""
    # f(w, k) rises and then falls in k. With M = j + w and N = n - M, it rises from k = j - 1 to k = j iff R < 1, where
    #
    #     R = (j/M) ∫₀¹ I(s) ds,    I(s) = (1 - s/M)^(j-1) (1 + s/N)^(N+w).
    #
    # R grows with j. The logarithm of the integrand has the derivative A - B + C in j, A = w/(M (M - w)) and, as
    # 2 |ln(1 ± z)| (1 ± z) ≤ z (2 ± z), B ≤ s (w + 1 - s/2)/(M (M - s)) and C ≥ s (w - s/2)/(N (N + s)) ≥ 0.
    # If N ≤ M - 1, B - C ≤ s/(M (M - s)) ≤ A. Otherwise leave C out. I grows at most like e^(hs), h = (w + 1)/M + w/N,
    # and that is below 2 and (2w + 1)/(M - 1): under I, s has a mean of at most 1/2 + h/12. Now B ≤ s (w + 1)/M² if
    # M ≥ 2(w + 1), and else B ≤ s (w + 1/2)/(M (M - 1)); either has a mean of at most A.
    #
    # R is compared with 1, and not f with its neighbours: near its top f is the same for many k in double precision.

    def falls(j: int) -> bool:
        mean, rest = j + w, n - j - w
        logs = (j - 1) * np.log1p(-PLACES / mean) + (n - j) * np.log1p(PLACES / rest)
        return math.log1p(-w / mean) + math.log1p(float(WEIGHTS @ np.expm1(logs))) >= 0

    return bisect_left(range(1, math.ceil(n - w)), True, key=falls)

"""Computes the worst tails of coins of unknown chances.

Let H be the number of heads of n coins, their chances anywhere in [a, 1 - a], and μ the sum of the chances. T(w) is the
supremum of P(|H - μ| > w) over all chances, for w ≥ 1. With f(w, k) = P(Bin(n, (k + w)/n) ≤ k) and D = ⌊2w⌋ + 1,

    T(w) = max_k f(w, k) + f(D - w, n - k - D),

or the value at equal chances a. The maximum is over some √n values of k.

Source  Hoeffding 1956, Theorem 5, for equal chances.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.noise.law import check_probability

MOST_EXACT = 10**7
"""Most coins for which the maximum is computed: it takes 0.1 s for p ≤ 1/2, and less than one second for LIKELY."""

LIKELY = 0.8
"""Largest probability for which a quantile is computed. Above it the tops of T's two terms lie far apart."""

_nodes, _weights = np.polynomial.legendre.leggauss(16)
PLACES, WEIGHTS = (_nodes + 1) / 2, _weights / 2
"""Gauss and Legendre's nodes and weights on [0, 1]."""


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

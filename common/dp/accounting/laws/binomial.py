"""Computes the exact (ε, δ) of binomial noise that is too long to be stored. Time does not grow with its length.

For X ~ Bin(N, p), moved by g, δ(ε) is the largest A - e^ε B over k, A = P(X ≤ k) and B = P(X ≤ k - g), as
ln P(X = x)/P(X = x - g) falls in x. So ε at δ is the largest ε(k) = ln((A - δ)/B). N - X has the other direction.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import scipy

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.gaussian import LARGEST_EPSILON
from distrust.common.dp.noise.binomial import FAIR

FARTHEST_SHIFT = 1e3  # standard deviations of a shift that takes far more than LARGEST_EPSILON
TAIL_SLACK = 1e-15  # relative error of a tail, and of δ, over √N


def long_epsilon(trials: int, chance: float, shift: int, delta: float) -> float:
    """Return the least ε at `delta` of Bin(trials, chance) and its shift, either way, rounded up; inf above 10⁴.

    Domain  a variance N p (1 - p) of 10⁷ at least, N up to 10¹⁴: to nine digits.
    """
    if shift > FARTHEST_SHIFT * math.sqrt(trials * chance * (1 - chance)):
        return math.inf
    ways = (False,) if chance == FAIR else (False, True)
    kept = delta * (1 - TAIL_SLACK * math.sqrt(trials))
    worst = max(_Side(trials, chance, shift, up).epsilon(kept) for up in ways)
    return worst * (1 + 1e-10) if worst <= LARGEST_EPSILON else math.inf


# A and B are nearly equal where g is far below σ, so no difference of them is taken. As incomplete beta functions both
# are integrals over u = logit(q) - logit(t) ≥ 0, q = 1 - p, with the weights w(u) = e^(-(N-k)u) (p + q e^-u)^-(N+1),
# and
#
#     B/A = Π_(j<g) (k - j) q / ((N - k + j) p) · E_w e^(-gu).
#
# Its logarithm is a sum of small terms of one sign (`log_odds`) and the logarithm of a mean that is close to 1
# (`log_mean`): both without cancellation.


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of the law: low counts, which are too likely without the shift.

    up  high counts instead, with N - X for X.
    """

    trials: int
    chance: float
    shift: int
    up: bool

    @property
    def ones(self) -> float:
        """Return the p of the law whose low counts are looked at."""
        return 1 - self.chance if self.up else self.chance

    @property
    def sigma(self) -> float:
        return math.sqrt(self.trials * self.chance * (1 - self.chance))

    def epsilon(self, delta: float) -> float:
        """Return the largest ε(k), at least 0, by bisection."""
        # ε(k) is what it takes to reach δ at k. The largest is at the last k at which it is at most the log-ratio
        # there.
        middle, sigma = round(self.trials * self.ones), self.sigma
        low, high = middle - math.ceil(40 * sigma), middle + math.ceil(10 * sigma)
        while high - low > 1:
            k = (low + high) // 2
            low, high = (k, high) if self.reached(k, delta) <= self.log_ratio(k) else (low, k)
        return max(0.0, self.reached(low, delta))

    def reached(self, k: int, delta: float) -> float:
        """Return ε(k); -inf if A ≤ δ."""
        below = self.below(k)
        if below <= delta:
            return -math.inf
        return math.log1p(-delta / below) - self.log_mean(k) + self.log_odds(k, 0.0)

    def below(self, k: int) -> float:
        """Return A = P(X ≤ k)."""
        if self.up:
            return float(scipy.special.betainc(self.trials - k, k + 1, self.chance))
        return float(scipy.special.betaincc(k + 1, self.trials - k, self.chance))

    def log_ratio(self, k: int) -> float:
        """Return ln P(X = k)/P(X = k - g): the product of B/A with p and 1 more in every numerator."""
        return self.log_odds(k, self.ones)

    def log_odds(self, k: int, more: float) -> float:
        """Return Σ_(j<g) ln(1 + (Np - k + j + more)/((k - j) q))."""
        # The sum is an integral by the midpoint rule backwards: terms differ by 1e-9.
        mean = self.trials * Fraction(self.chance)
        gap = float(mean - k) if not self.up else float(self.trials - mean - k)
        places, weights = _rule()
        j = self.shift * places - 0.5
        return self.shift * float(weights @ np.log1p((gap + j + more) / ((k - j) * (1 - self.ones))))

    def log_mean(self, k: int) -> float:
        """Return ln E_w e^(-gu)."""
        # w falls like e^(-zv - v²/2), v = σu, z the deviations of k below the mean.
        sigma, zeros = self.sigma, 1 - self.ones
        z = (self.trials * self.ones - k) / sigma
        places, weights = _rule()
        u = (math.sqrt(z * z + 90) - z) * places / sigma
        logs = -(self.trials - k) * u - (self.trials + 1) * np.log1p(zeros * np.expm1(-u))
        masses = weights * np.exp(logs - logs.max())
        less = float(masses @ np.expm1(-self.shift * u) / masses.sum())
        return math.log1p(less) if less > -FAIR else math.log(float(masses @ np.exp(-self.shift * u) / masses.sum()))


@cache
def _rule() -> tuple[Floats, Floats]:
    """Return Gauss and Legendre's nodes and weights on [0, 1].

    The integrands are analytic, and 20 deviations wide at most.
    """
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return (nodes + 1) / 2, weights / 2

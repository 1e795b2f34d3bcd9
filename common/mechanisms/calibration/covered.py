"""Whole moves under noise that is nearly Gaussian: covered by continuous Gaussian noise of a little less variance.

For a law p on the integers and a shift s, let H(γ) = Σ (p(x) - γ p(x + s))₊, and G(γ) the same of N(0, v) and a shift
s. Let H ≤ G + η for γ ≥ 1 and s = 1 … g. For γ < 1 it follows: H(γ) = 1 - γ + γ H(1/γ), and G too. δ of a product is
the mean, over the other coordinates, of one coordinate's H at some γ. So Gaussian noise can be put in for p in one
coordinate after the other, and each adds η: D coordinates with noise p promise what N(0, v) on all of them does, but
for Dη more of δ, whatever whole numbers they are moved by. That needs the squared length of the move only
(`gaussian_ball`).

With T(k) = P(X ≥ k), H(γ) is the largest T(j) - γ T(j + s) over j; for γ ≥ 1 at a j ≥ -s/2, as p is log-concave and
symmetric, unless H is at most η. Q being the normal law's tail, G(γ) ≥ Q(z - s/√v) - γ Q(z) for every z. So H ≤ G + η
if, for k = j + s, T(j) - η ≤ Q(z - s/√v) at the z with T(k) = Q(z). With a(k) the z of T(k), and b(j) that of T(j) - η
(+∞ where that is not above 0), it is a(k) - b(j) ≤ (k - j)/√v. So 1/√v need only be the largest slope from any b(j) to
any a(k) after it: one pass over the law for all shifts together.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, ndtri_exp

from distrust.common.noise.law import Pmf

Numbers = NDArray[np.float64]

ERROR = 2e-11  # relative, of a tail: its terms' logarithms, which have half of it, their sum, and its z
SPAN = 500.0  # nats that are added up in one go: doubles have 700
STEEPER = 1 + 1e-13  # of a slope, for its rounding
PASSES = 100  # of the search for the largest slope, which takes less than ten


@dataclass(frozen=True, eq=False)
class Covering:
    """A symmetric log-concave law on a support that is longer by the largest shift, and η."""

    pmf: Pmf
    told: float

    @cached_property
    def _half(self) -> Numbers:
        """The logarithms of p(0), p(1), and so on, as far as there is mass."""
        half = self.pmf.logs[self.pmf.logs.size // 2 :]
        return half[np.isfinite(half)]

    def variance(self, most: int) -> float:
        """Return the largest variance of continuous noise that covers all shifts up to `most`, rounded down.

        0 where the law is not known far enough out, and for noise so small that doubles have it as 0.
        """
        own = float(self.pmf.masses @ self.pmf.support.astype(np.float64) ** 2)
        if own == 0.0:
            return 0.0
        logs = _log_tails(self._half) + math.log1p(-ERROR)
        tails = np.exp(logs)  # from below
        above = (tails * (1 + 3 * ERROR) + self.pmf.lost - self.told)[1:]
        inner = int(np.argmax(above <= 0)) if above.min() <= 0 else above.size
        if inner + most >= logs.size:
            return 0.0
        mirrored = ndtri(np.minimum(tails[1 : most // 2 + 2] + self.told, 1.0))[::-1]  # T(j) = 1 - T(1 - j), j ≤ 0
        starts = np.concatenate((mirrored, -ndtri(above[:inner])))  # b(j) from below, j = -⌊most/2⌋ … inner
        ends = -ndtri_exp(logs[1 : inner + most + 1])  # a(k) from above, k = 1 … inner + most
        return 1 / _largest_slope(starts, -(most // 2), ends, 1 / math.sqrt(own)) ** 2


def _largest_slope(starts: Numbers, first: int, ends: Numbers, guess: float) -> float:
    """Return the largest slope from a start at j to an end at k > j; rounded upwards.

    starts  at first, first + 1, and so on; ends: at 1, 2, and so on, at least as far.

    How far the worst pair lies above a line from start to end is convex in the line's slope. So Newton's method, which
    takes the slope of that pair, is above the largest slope at most at the guess, and then rises to it.
    """
    left, right = np.arange(first, first + starts.size), np.arange(1, ends.size + 1)
    last = np.minimum(right - 1 - first, starts.size - 1)  # of the starts before each end
    slope = guess
    for _ in range(PASSES):
        lines = starts - slope * left
        end = int(np.argmax(ends - slope * right - np.minimum.accumulate(lines)[last]))
        start = int(np.argmin(lines[: last[end] + 1]))
        before, slope = slope, float((ends[end] - starts[start]) / (right[end] - left[start]))
        if before <= slope <= before * STEEPER:
            return slope * STEEPER
    raise ArithmeticError(f"no largest slope after {PASSES} passes")


def _log_tails(logs: Numbers) -> Numbers:
    """Return ln Σ_(i ≥ k) e^(logs[i]) of falling logs, from the far end in pieces that doubles can add up."""
    found = np.empty_like(logs)
    stop, beyond = logs.size, -math.inf
    while stop > 0:
        start = min(stop - 1, int(np.searchsorted(-logs[:stop], -(logs[stop - 1] + SPAN))))
        top = logs[start]
        sums = np.cumsum(np.exp(logs[start:stop] - top)[::-1])[::-1] + math.exp(beyond - top)
        found[start:stop] = top + np.log(sums)
        stop, beyond = start, float(found[start])
    return found

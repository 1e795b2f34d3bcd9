"""Computes the privacy of discrete Gaussian noise on vectors in a box and in a ball.

In a box, ε and δ are exact. In ℓ₁ and ℓ₂ balls they are bounds: discrete noise of variance v promises what continuous
noise of variance v - 3/2 does, but for factors next to 1, and the rounding of clients' vectors is averaged.
`Covering` finds continuous Gaussian noise for laws that are nearly Gaussian.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import scipy

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.gaussian import (
    gaussian_epsilon,
    largest_ratio,
    log_gaussian_delta,
    log_gaussian_slope,
    zcdp_epsilon,
    zcdp_rho,
)
from distrust.common.dp.accounting.techniques.hockey_stick import FAINT, NOT_ZERO, least_epsilon
from distrust.common.dp.accounting.techniques.searches import least_root, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.noise.discrete_gaussian import gaussian_reach
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.law import LIMIT, Pmf

LATTICE = 1.5  # v₂ of `lattice_log_delta`
BLUR = 7 * math.exp(-2 * math.pi**2 * LATTICE)  # above 3τ
NEAR = 1e-6  # of ln S*, where the bound is flat
ERROR = 2e-11  # relative, of a tail: its terms' logarithms, which have half of it, their sum, and its z
SPAN = 500.0  # nats that are added up in one go: doubles have 700
STEEPER = 1 + 1e-13  # of a slope, for its rounding
COVERED_SHARE = 1e-3  # share of δ for what continuous noise need not cover
LARGEST_RATIO = 1e30  # of a ratio that is searched through
PASSES = 100  # of the search for the largest slope, which takes less than ten


def box_fits(variance: float, grid: Grid) -> bool:
    """Return whether the support of the box's sum and its shift has at most LIMIT entries."""
    return _last(variance, grid) <= LIMIT


def log_delta(variance: float, grid: Grid, epsilon: float) -> float:
    """Return the logarithm of δ(ε) of N_Z(0, variance) on every coordinate of a box that `box_fits`."""
    return _log_delta(_pmf(variance, grid), grid.dimension * grid.precision, epsilon)


@lru_cache(maxsize=256)
def gaussian_box_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """Return the least ε at `delta`, to ten digits and rounded up; inf where it is above 10⁴. The box must fit."""
    pmf, shift = _pmf(variance, grid), grid.dimension * grid.precision
    return least_epsilon(lambda epsilon: _log_delta(pmf, shift, epsilon) - math.log(delta))


def _last(variance: float, grid: Grid) -> int:
    """Return a sum so far out that e^ε times the mass beyond it is negligible beside any δ at which ε is computed."""
    # All coordinates tell no more than their sum. The loss ln P(x)/P(x + g) of a coordinate with law N_Z(0, v) is
    # (2gx + g²)/(2v), linear in x. So the D losses add up to a function of Σ x_i: the likelihood ratio of that sum, D
    # terms of N_Z(0, v), and its shift by Dg.
    return gaussian_reach(grid.dimension * variance, FAINT) + grid.dimension * grid.precision


def _pmf(variance: float, grid: Grid) -> Pmf:
    return DiscreteGaussianSum(variance, grid.dimension).pmf(FAINT, _last(variance, grid))


def _log_delta(pmf: Pmf, shift: int, epsilon: float) -> float:
    """Return the logarithm of Σ (P(y) - e^ε P(y + shift))₊ and the mass left out."""
    # The losses grow, so that one tail is enough; the law is symmetric, so that one direction is.
    logs, common = pmf.logs, pmf.logs.size - shift
    low, high = 0, common  # where the first loss above ε is
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if logs[middle] - logs[middle + shift] > epsilon else (middle + 1, high)
    here, there = logs[low:common], logs[low + shift :]
    gained = float(np.exp(here) @ -np.expm1(there - here + epsilon)) + float(np.exp(logs[common:]).sum())
    return math.log(max(gained + pmf.lost, NOT_ZERO))


class Move(Protocol):
    """The largest move of one client, all coordinates together, in grid steps."""

    @property
    def dimension(self) -> int:
        """Return the number of coordinates that have noise."""
        ...

    @property
    def unrounded(self) -> float:
        """Return a bound on the squared ℓ₂ length before rounding."""
        ...

    @property
    def squared_l2(self) -> float:
        """Return a bound on the squared ℓ₂ length after rounding."""
        ...

    def log_moment(self, rate: float) -> float:
        """Return a bound on ln E[e^(rate · S)], S the squared ℓ₂ length after rounding, over the rounding."""
        ...


def rounded_log_delta(move: Move, variance: float, epsilon: float) -> float:
    """Return a bound on ln δ(ε) of N(0, variance) in reals on every coordinate, values rounded before."""
    most = log_gaussian_delta(math.sqrt(move.squared_l2 / variance), epsilon)
    if move.squared_l2 <= move.unrounded:
        return most

    # The squared length S of the move is random, because a client's vector is rounded at random. δ is at most the mean
    # of what S gives (joint convexity). ln δ is concave in S: with n = ε/r - r/2, r = √(S/v), and m Mills' ratio, its
    # slope is φ(n)/(2rδv) = 1/(2rv(m(n) - m(n + r))). And r (m(n) - m(n + r)), r times an integral of -m' > 0, which
    # falls, grows with r.
    # So a tangent at any S* lies above it: ln δ ≤ ln δ(S*) + ln E[e^(λ(S - S*))], λ the slope there. The S* that gives
    # the least is taken.
    def tangent(log_square: float) -> float:
        square = math.exp(log_square)
        ratio = math.sqrt(square / variance)
        rate = log_gaussian_slope(ratio, epsilon) / (2 * square)
        return log_gaussian_delta(ratio, epsilon) + move.log_moment(rate) - rate * square

    bounds = (math.log(move.unrounded), math.log(move.squared_l2))
    minimum = scipy.optimize.minimize_scalar(tangent, bounds=bounds, method="bounded", options={"xatol": NEAR})
    return min(most, float(minimum.fun))


def rounded_epsilon(move: Move, variance: float, delta: float) -> float:
    """Return the ε at δ that `rounded_log_delta` gives."""
    return least_epsilon(lambda epsilon: rounded_log_delta(move, variance, epsilon) - math.log(delta))


def rounded_variance(move: Move, epsilon: float, delta: float) -> float:
    """Return the least variance of noise in reals for ε at δ, snapped upwards."""
    most = move.squared_l2 / largest_ratio(epsilon, delta) ** 2
    if move.squared_l2 <= move.unrounded:
        return snap_up(most)
    return snap_up(least_root(lambda variance: rounded_log_delta(move, variance, epsilon) - math.log(delta), most))


def lattice_log_delta(move: Move, variance: float, epsilon: float) -> float:
    """Return a bound on ln δ(ε) of N_Z(0, variance) on every coordinate."""
    # N(0, v₁), rounded to a whole number k with odds e^(-(k-y)²/(2v₂)), is N_Z(0, v₁ + v₂) but for a factor of 1 ± τ:
    # the odds add up to √(2πv₂)(1 ± τ), τ = 2e^(-2π²v₂), wherever y lies (Poisson summation).
    # So D coordinates of discrete noise, moved by any whole numbers, promise what v₂ less of continuous noise does, but
    # for a factor of (1 + τ)^D on δ and of ((1 + τ)²/(1 - τ))^D on e^ε.
    blur = move.dimension * BLUR
    if variance <= LATTICE or epsilon < blur:
        return 0.0
    return min(0.0, rounded_log_delta(move, variance - LATTICE, epsilon - blur) + blur)


def lattice_epsilon(move: Move, variance: float, delta: float) -> float:
    """Return an ε at δ of N_Z(0, variance) on every coordinate: the lesser of `lattice_log_delta`'s and of ρ-zCDP's.

    The discrete law has ρ = S/(2 variance) too (Canonne, Kamath & Steinke 2020), which is all there is below LATTICE.
    """
    known = zcdp_epsilon(move.squared_l2 / (2 * variance), delta)[0]
    result = least_epsilon(lambda epsilon: lattice_log_delta(move, variance, epsilon) - math.log(delta))
    return min(known, result)


def lattice_variance(move: Move, epsilon: float, delta: float) -> float:
    """Return the least variance, to eleven digits and rounded up, whose `lattice_epsilon` is at most ε at δ."""
    known = move.squared_l2 / (2 * zcdp_rho(epsilon, delta))
    if lattice_log_delta(move, known, epsilon) > math.log(delta):  # so little noise that rounding it costs too much
        return known
    return least_root(lambda variance: lattice_log_delta(move, variance, epsilon) - math.log(delta), known)


def gaussian_divergence(move: Move, variance: float, order: float) -> float:
    """Return a bound on the Rényi divergence of N_Z(0, variance) on every coordinate: ρ-zCDP, rounding averaged."""
    return move.log_moment(order * (order - 1) / (2 * variance)) / (order - 1)


@dataclass(frozen=True, eq=False)
class Covering:
    """Covers noise that is nearly Gaussian by continuous Gaussian noise of a little less variance.

    D coordinates with noise p promise what N(0, v) on all of them does, but for Dη more of δ, whatever whole numbers
    they are moved by.

    pmf  p, a symmetric log-concave law on the integers, on a support that is longer by the largest shift. Its middle
         may lie halfway between two integers.
    eta  η, the δ that one coordinate may add.
    """

    # For a shift s let H(γ) = Σ (p(x) - γ p(x + s))₊, and G(γ) be the same of N(0, v). `variance` finds v with
    # H ≤ G + η for γ ≥ 1 and s = 1 … g. For γ < 1 it follows: H(γ) = 1 - γ + γ H(1/γ), and so for G.
    # δ of a product is the mean, over the other coordinates, of one coordinate's H at some γ. So Gaussian noise can be
    # put in for p in one coordinate after the other, and each adds η. Gaussian noise on all of them needs the squared
    # length of the move only (`rounded_log_delta`).

    pmf: Pmf
    eta: float

    @cached_property
    def _half(self) -> Floats:
        """Return ln p from the middle outwards, as far as there is mass."""
        half = self.pmf.logs[self.pmf.logs.size // 2 :]
        return half[np.isfinite(half)]

    def variance(self, most: int) -> float:
        """Return the largest variance of continuous noise that covers all shifts up to `most`, rounded down.

        0 where the law is not known far enough out, and for noise so small that doubles have it as 0.
        """
        # Positions are relative to the law's middle: 0, ±1 and so on, or ±1/2, ±3/2 and so on.
        # With T(k) = P(X ≥ k), H(γ) is the largest T(j) - γ T(j + s) over j; for γ ≥ 1 at a j ≥ -s/2, as p is
        # log-concave and symmetric, unless H is at most η. Q being the normal law's tail, G(γ) ≥ Q(z - s/√v) - γ Q(z)
        # for every z. So H ≤ G + η if, for k = j + s, T(j) - η ≤ Q(z - s/√v) at the z with T(k) = Q(z). With a(k) the z
        # of T(k), and b(j) that of T(j) - η (+∞ where that is not above 0), it is a(k) - b(j) ≤ (k - j)/√v. So 1/√v
        # need only be the largest slope from any b(j) to any a(k) after it: one pass for all shifts together.
        own = _second_moment(self.pmf)
        if own == 0.0:
            return 0.0
        odd = self.pmf.logs.size % 2  # there is an integer in the middle
        logs = _log_tails(self._half) + math.log1p(-ERROR)
        tails = np.exp(logs)  # from below
        above = (tails * (1 + 3 * ERROR) + self.pmf.lost - self.eta)[odd:]  # of j > 0
        inner = int(np.argmax(above <= 0)) if above.min(initial=1.0) <= 0 else above.size
        if inner + most > above.size:
            return 0.0
        ndtri = scipy.special.ndtri
        under = (most + 1 + odd) // 2  # positions from -most/2 to 0
        mirrored = ndtri(np.minimum(tails[1 : under + 1] + self.eta, 1.0))[::-1]  # T(j) = 1 - T(1 - j), j ≤ 0
        starts = np.concatenate((mirrored, -ndtri(above[:inner])))  # b(j) from below, j ≥ -most/2
        ends = -scipy.special.ndtri_exp(logs[odd : odd + inner + most])  # a(k) from above, k > 0
        return 1 / _largest_slope(starts, 1 - under, ends, 1 / math.sqrt(own)) ** 2


def covering_excess(pmf: Pmf, grid: Grid, epsilon: float, delta: float) -> float:
    """Return ln of the variance that noise in reals needs over that of the noise in reals which covers the law."""
    covered = Covering(pmf, COVERED_SHARE * delta / grid.dimension).variance(grid.precision)
    return math.log(covering_needed(grid, epsilon, delta) / max(covered, 1 / LARGEST_RATIO))


@lru_cache(maxsize=256)
def covering_needed(grid: Grid, epsilon: float, delta: float) -> float:
    """Return the variance of continuous noise for the rest of δ beside a covering's share."""
    left = math.log(delta * (1 - COVERED_SHARE))
    most = grid.squared_l2 / largest_ratio(epsilon, delta * (1 - COVERED_SHARE)) ** 2
    return least_root(lambda variance: rounded_log_delta(grid, variance, epsilon) - left, most)


def covered_epsilon(pmf: Pmf, grid: Grid, delta: float, times: int = 1) -> float:
    """Return ε at δ of `times` releases, by the largest continuous noise that covers the law.

    A client's later vectors may depend on what was released before; see `RepeatedGaussian` in gaussian_sums.py.
    """
    variance = Covering(pmf, COVERED_SHARE * delta / (times * grid.dimension)).variance(grid.precision)
    if variance == 0:
        return math.inf
    if times == 1:
        left = math.log(delta * (1 - COVERED_SHARE))
        return least_epsilon(lambda epsilon: rounded_log_delta(grid, variance, epsilon) - left)
    # The squared moves add up to at most this, but for another COVERED_SHARE of δ.
    square = grid.at_most(COVERED_SHARE * delta, times)
    return gaussian_epsilon(math.sqrt(square / variance), delta * (1 - 2 * COVERED_SHARE))


def _second_moment(pmf: Pmf) -> float:
    """Return the second moment about the middle of the stored support."""
    middle = (pmf.logs.size - 1) / 2
    return float(pmf.masses @ (np.arange(pmf.logs.size) - middle) ** 2)


def _largest_slope(starts: Floats, first: int, ends: Floats, guess: float) -> float:
    """Return the largest slope from a start at j to an end at k > j; rounded upwards.

    starts  at first, first + 1, and so on.
    ends    at 1, 2, and so on, at least as far.

    Raises  ArithmeticError if PASSES are not enough.
    """
    # The height of the worst pair above a line from start to end is convex in the line's slope. So Newton's method,
    # which takes the slope of that pair, is above the largest slope at most at the guess, and then rises to it.
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


def _log_tails(logs: Floats) -> Floats:
    """Return ln Σ_(i ≥ k) e^(logs[i]) of falling logs, from the far end in pieces that doubles can add up."""
    tails = np.empty_like(logs)
    stop, beyond = logs.size, -math.inf
    while stop > 0:
        start = min(stop - 1, int(np.searchsorted(-logs[:stop], -(logs[stop - 1] + SPAN))))
        top = logs[start]
        sums = np.cumsum(np.exp(logs[start:stop] - top)[::-1])[::-1] + math.exp(beyond - top)
        tails[start:stop] = top + np.log(sums)
        stop, beyond = start, float(tails[start])
    return tails

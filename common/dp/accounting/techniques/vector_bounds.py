"""Bounds the privacy of vectors in a norm's ball, by the worst spread of one client's move over the coordinates.

A client moves coordinate i of the grid by d_i ≤ g, Σ d_i ≤ g (l1), Σ d_i² ≤ g² (l2) or anything (linf). With M(s) the
moment E[(p(x)/p(x - s))^(α-1)] of one coordinate, f_i = d_i - ⌊d_i⌋ and φ(d_i) = ln((1 - f_i) M(⌊d_i⌋) + f_i M(⌈d_i⌉)),
the moment of the whole vector is at most e^(Σ φ(d_i)). For every λ ≥ 0 its exponent is at most

    λ g^q + D max_d (φ(d) - λ d^q),  q = 1 (l1) or 2 (l2).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    LARGEST_RATIO,
    covered_epsilon,
    covering_excess,
    covering_needed,
)
from distrust.common.dp.accounting.techniques.hockey_stick import NEGLIGIBLE, NOT_ZERO, Extensible, stretched
from distrust.common.dp.accounting.techniques.products import product_epsilon, product_log_delta
from distrust.common.dp.accounting.techniques.searches import least_root, least_satisfying, least_value
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.noise.law import Pmf
from distrust.common.wire import Norm

STEEP = 200.0  # rise of ln M in one step from which every move counts as rounded up
ERROR = 1e-11  # relative, of a stored probability

MOST_INFLATION = 0.1
"""Share that rounding may add to a ball's ℓ₂ sensitivity by `grid_by_moments`, whose noise is paid for in bits."""

SINGLE = 16
"""Shifts up to here are computed one by one, larger ones an eighth apart: their chords are less than 0.4 % too high."""

LEAST_VARIANCE = 1e-9
"""Share of g² below which noise that is nearly always 0 is taken for none: orders so near 1 have no digits left."""

SPARED = 0.01  # share of δ for what lies beside the middle of the law

FEW_STEPS, FEW_ENTRIES = 1e4, 1 << 12  # variance, and length of a law, above which moments do no better than a covering
QUICK = 1e-3  # share of a bound by which a quick search may miss the least: ten times its tolerance of λ
FEW_GRID = 2  # steps


@dataclass(frozen=True, eq=False)
class Intervals:
    """Shifts, and ln M at them, as intervals [s, s + w].

    left, width  s and w.
    low, high    ln M at both ends.
    slope, jump  κ, the rise of ln M in one step, and k = e^κ - 1.
    """

    # φ(s + f) = ln((1 - f) M(s) + f M(s + 1)), 0 ≤ f ≤ 1. Where w > 1, ln M is below its chord, and φ is below the
    # chord and what rounding adds to it. Where κ is huge, φ is below ln M at the right end.

    left: Floats
    width: Floats
    low: Floats
    high: Floats
    slope: Floats
    jump: Floats

    @classmethod
    def of(cls, shifts: NDArray[np.int64], logs: Floats) -> "Intervals":
        """Return the intervals between neighbouring shifts, which increase."""
        width = np.diff(shifts).astype(np.float64)
        slope = np.diff(logs) / width
        jump = np.maximum(np.expm1(np.minimum(slope, STEEP)), NOT_ZERO)
        return cls(shifts[:-1].astype(np.float64), width, logs[:-1], logs[1:], slope, jump)

    def highest(self, price: float, power: int) -> float:
        """Return a bound on the maximum over all d of φ(d) - λ d^q; λ > 0, q = 1 or 2."""
        top = np.where(self.width == 1, self._of_logarithms(price, power), self._of_chords(price, power))
        return float(np.where(self.slope > STEEP, self.high - price * self.left**power, top).max())

    def _of_logarithms(self, price: float, power: int) -> Floats:
        """Return the largest A + ln(1 + kt) - λ (s + t)^q.

        It is concave: its top is where the derivative is 0, or at an end.
        """
        if power == 1:
            t = 1 / price - 1 / self.jump
        else:  # k t² + (1 + ks) t + s - k/(2λ) = 0, the larger root without cancellation
            linear, constant = 1 + self.jump * self.left, self.left - self.jump / (2 * price)
            t = -2 * constant / (linear + np.sqrt(np.maximum(linear**2 - 4 * self.jump * constant, 0.0)))
        t = np.clip(t, 0.0, 1.0)
        top: Floats = self.low + np.log1p(self.jump * t) - price * (self.left + t) ** power
        return top

    def _of_chords(self, price: float, power: int) -> Floats:
        """Return the largest A + κ (d - s) - λ d^q, and what rounding adds."""
        end = self.left + self.width
        best = self.slope / (2 * price) if power == 2 else np.where(self.slope > price, end, self.left)
        d = np.clip(best, self.left, end)
        top: Floats = self.low + self.slope * (d - self.left) - price * d**power + self._bump()
        return top

    def _bump(self) -> Floats:
        """Return the largest ln(1 + fk) - κf over f in [0, 1]."""
        f = np.clip(1 / np.maximum(self.slope, NOT_ZERO) - 1 / self.jump, 0.0, 1.0)
        bump: Floats = np.maximum(0.0, np.log1p(f * self.jump) - self.slope * f)
        return bump


Weighted = tuple[Floats, Floats]


@dataclass(frozen=True, eq=False)
class MoveLosses:
    """Computes ln Σ_(x in A) p(x)^α p(x - s)^(1-α) over an interval A: all of it for Rényi divergences.

    For (ε, δ) A is shorter. p is log-concave, so that the result is convex in the shift s for α > 1.

    logs    ln p over its stored support.
    start, stop  A as positions of `logs`; where x - s is not stored, x is left out.
    both    p is not symmetric: the worse direction counts.
    tails   of a symmetric p's whole law: terms more than αs + tails below its middle, or tails above it, are too
            small to be added.
    """

    logs: NDArray[np.float64]
    start: int
    stop: int
    both: bool = False
    tails: int | None = None

    def at(self, shift: int, order: float) -> float:
        """Return the logarithm for one shift ≥ 0, upwards by the error of the stored probabilities."""
        own, moved = self._weighted(order)
        worst = _log_sum(own, moved, *self._window(shift, order), shift)
        if self.both:
            size = self.logs.size
            worst = max(worst, _log_sum(own[::-1], moved[::-1], size - self.stop, size - self.start, shift))
        return worst + (2 * order - 1) * ERROR

    def _weighted(self, order: float) -> Weighted:
        """Return α ln p and (1 - α) ln p; all shifts of one order follow each other, so that the last one is kept."""
        weighted = self._last.get(order)
        if weighted is None:
            self._last.clear()
            weighted = self._last[order] = order * self.logs, (1 - order) * self.logs
        return weighted

    @cached_property
    def _last(self) -> dict[float, Weighted]:
        return {}

    def _window(self, shift: int, order: float) -> tuple[int, int]:
        if self.tails is None:
            return self.start, self.stop
        # Above the middle ln p(x - s) rises, or falls no faster than ln p(x). So terms fall at least as fast as p(x).
        middle, reach = self.logs.size // 2, math.ceil(order * shift) + self.tails
        return max(self.start, middle - reach), min(self.stop, middle + self.tails + 1)


def central(pmf: Pmf, shift: int, lost: float, *, both: bool = False) -> tuple[MoveLosses, float]:
    """Return the losses on the middle of the law, and the mass beside it.

    Every shift up to `shift` stays on the stored support; where that allows it, at most `lost` is beside the middle.
    """
    masses = pmf.masses
    below = int(np.searchsorted(np.cumsum(masses), lost / 2, side="right"))
    above = int(np.searchsorted(np.cumsum(masses[::-1]), lost / 2, side="right"))
    start = max(below, shift)
    stop = max(start, masses.size - max(above, shift))
    beside = float(masses[:start].sum() + masses[stop:].sum()) + pmf.lost
    return MoveLosses(pmf.logs, start, stop, both), min(1.0, beside)


def whole(pmf: Pmf, tails: int) -> MoveLosses:
    """Return the losses on all of a symmetric law.

    tails  some deviations, in steps: terms farther out are too small to be added. For an order α and a shift s the
           stored support must reach αs + tails, as for `hockey_stick.rdp`.
    """
    return MoveLosses(pmf.logs, 0, pmf.logs.size, tails=tails)


def _log_sum(own: Floats, moved: Floats, start: int, stop: int, shift: int) -> float:
    start = max(start, shift)
    if start >= stop:
        return -np.inf
    exponents = own[start:stop] + moved[start - shift : stop - shift]
    top = float(exponents.max())
    telling = exponents[exponents > top - NEGLIGIBLE]
    telling -= top
    return top + float(np.log(np.sum(np.exp(telling, out=telling))))


@lru_cache(maxsize=1024)
def grid_by_moments(dimension: int, norm: Norm, moment: float) -> int:
    """Return the least g, about, for which rounding adds at most a tenth to a ball's ℓ₂ sensitivity.

    moment  ln E[e^((α-1) loss)] of Gaussian noise without rounding at the order α that will decide: about ln(1/δ) for
            (ε, δ). The larger it is, the more it is the larger of the two roundings that counts, not their mean.
    """
    if norm == "linf" or dimension == 1:
        return 1

    def little(precision: int) -> bool:
        shifts = _shifts(precision)
        most = _worst(shifts, moment * (shifts / precision) ** 2, dimension, norm, 0.0)  # closely: it decides about g
        return most <= (1 + MOST_INFLATION) ** 2 * moment

    return least_satisfying(little, 1)


def worst_log_moment(losses: MoveLosses, order: float, grid: Grid, enough: float = math.inf) -> float:
    """Return a bound on ln E[e^((α-1) loss)], α = `order` > 1, of a vector's worst move: α - 1 times its divergence.

    enough  a bound that is enough. One just above it is looked at more closely.
    """
    if grid.is_box:
        return grid.dimension * losses.at(grid.precision, order)
    shifts = _shifts(grid.precision)
    logs = np.array([losses.at(int(shift), order) for shift in shifts])
    return _worst(shifts, logs, grid.dimension, grid.norm, enough) if np.isfinite(logs).all() else math.inf


def vector_rdp(losses: MoveLosses, order: float, grid: Grid, enough: float = math.inf) -> float:
    """Return a bound on the Rényi divergence of `order` of a vector's worst move, exact for the box; see above."""
    return worst_log_moment(losses, order, grid, (order - 1) * enough) / (order - 1)


def vector_epsilon(
    pmf: Pmf,
    grid: Grid,
    delta: float,
    *,
    both: bool = False,
    gaussian: bool = False,
    times: int = 1,
    requested: float = math.inf,
) -> float:
    """Return the least ε at `delta` that is proven for noise `pmf` on every coordinate; inf where there is none.

    times      releases about one client, whose later vectors may depend on earlier releases.
    requested  an ε that is enough. One just above it is looked at more closely: the noise for it was found by a quick
               search for the best order, which ends elsewhere on another processor.

    Domain  a log-concave law; `both` if it is not symmetric. A box, the norm being linf, moves from corner to corner:
            composed exactly. The others: Rényi moments, or the box that they lie in where that is better. `gaussian`,
            for symmetric laws that are nearly so, on a support longer by g: continuous noise that covers it as well.
    """
    covered = covered_epsilon(pmf, grid, delta, times) if gaussian and not grid.is_box else math.inf
    if math.isfinite(covered) and pmf.logs.size > FEW_ENTRIES:
        return covered
    boxed = math.inf if both else product_epsilon(pmf, grid.precision, times * grid.dimension, delta)
    if grid.is_box and math.isfinite(boxed):
        return boxed
    found = min(boxed, covered, _by_moments(pmf, grid, delta, both=both, times=times))
    if just_above(found, requested):
        return min(found, _by_moments(pmf, grid, delta, both=both, times=times, closely=True))
    return found


def vector_variance(law: Callable[[float], Extensible], grid: Grid, epsilon: float, delta: float) -> float:
    """Return the least parameter v for which `law`(v) on every coordinate is (ε, δ), as `vector_epsilon` knows it.

    law  of a parameter that is about its variance, symmetric, log-concave and nearly Gaussian.
    """
    goal = math.log(delta)
    if grid.is_box:
        guess = grid.unrounded / largest_ratio(epsilon, delta) ** 2

        def composed(variance: float) -> float:
            pmf = stretched(law(variance), grid.precision)
            return product_log_delta(pmf, grid.precision, grid.dimension, epsilon) - goal

        return least_root(composed, guess)
    needed = covering_needed(grid, epsilon, delta)

    def lacking(variance: float) -> float:
        return covering_excess(stretched(law(variance), grid.precision), grid, epsilon, delta)

    least = least_root(lacking, needed)

    def spent(variance: float) -> float:
        pmf = stretched(law(variance), grid.precision)
        boxed = math.inf  # the box around a ball of few steps is hardly larger, after rounding
        if grid.precision <= FEW_GRID:
            boxed = product_epsilon(pmf, grid.precision, grid.dimension, delta)
        known = min(boxed, _by_moments(pmf, grid, delta, both=False)) / epsilon
        return math.log(min(max(known, 1 / LARGEST_RATIO), LARGEST_RATIO))

    if needed > FEW_STEPS or spent(least) > 0:
        return least
    return least_root(spent, least)  # few steps of noise have tails that tell less than a Gaussian's


def just_above(found: float, enough: float) -> bool:
    """Return whether a bound is above what is enough by no more than a quick search may have left."""
    return enough < found <= enough * (1 + QUICK)


def _by_moments(pmf: Pmf, grid: Grid, delta: float, *, both: bool, times: int = 1, closely: bool = False) -> float:
    """Return the least ε at δ that moments of some order α give.

    closely  whether to take the best order and the best λ to twelve digits, and not those of a quick search.

    δ ≤ (mass beside the middle in any coordinate) + M e^(-(α-1)ε) (1 - 1/α)^(α-1) / α, for every α. Of several releases
    the masses are added and the moments M multiplied.
    """
    # Let P' be the law P of all the releases without what lies beside the middle. ∫ P'^α Q^(1-α) is an integral over
    # the first release of that over the others, given the first. M bounds the inner one whatever the client's vectors
    # are, so that the product bounds it all, and (P - e^ε Q)₊ ≤ P - P' + (P' - e^ε Q)₊.
    places = times * grid.dimension
    losses, beside = central(pmf, grid.precision, SPARED * delta / places, both=both)
    left = delta - places * beside
    if left <= 0:
        return math.inf

    def spent(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        moment = times * worst_log_moment(losses, order, grid, 0.0 if closely else math.inf)
        return moment / (order - 1) + math.log1p(-1 / order) - math.log(left * order) / (order - 1)

    variance = float(pmf.masses @ (pmf.support - pmf.support @ pmf.masses) ** 2)
    if variance < LEAST_VARIANCE * grid.precision**2:
        return math.inf
    guess = _gaussian_order(variance / times, grid, left)
    ends = guess - 1.5, guess + 1.5
    if closely:
        return max(0.0, least_value(spent, *ends))
    best = scipy.optimize.minimize_scalar(spent, bounds=ends, method="bounded", options={"xatol": 1e-3})
    return max(0.0, float(best.fun))


def _gaussian_order(variance: float, grid: Grid, delta: float) -> float:
    """Return approximately ln(α - 1) of the best order, which is where a Gaussian of that variance has it."""
    squared = grid.precision**2 * (grid.dimension if grid.norm == "linf" else 1)
    return math.log(2 * math.log(1 / delta) * variance / squared) / 2


def _shifts(precision: int) -> NDArray[np.int64]:
    """Return the shifts 0, 1, …, above SINGLE about an eighth apart, up to g - 1 and g.

    g is the worst shift, and no chord may blur it.
    """
    shifts = list(range(min(SINGLE, precision) + 1))
    while shifts[-1] < precision - 1:
        shifts.append(min(precision - 1, shifts[-1] + shifts[-1] // 8))
    return np.array(shifts if shifts[-1] == precision else [*shifts, precision])


def _worst(
    shifts: NDArray[np.int64], logs: NDArray[np.float64], dimension: int, norm: Norm, enough: float = math.inf
) -> float:
    """Return the least of the dual, from ln M at the shifts up to g.

    enough  a bound that is enough; 0: none is. One just above it is looked at more closely.
    """
    # Both ends of a move are rounded with the same uniform numbers, one for each coordinate, so the sum moves by ⌈d_i⌉
    # with probability f_i, else by ⌊d_i⌋, independently; joint convexity gives Π e^φ(d_i). Lagrange's dual bounds the
    # maximum over the ball for every λ, and the least over λ is taken. ln M is convex in s, so that shifts between two
    # computed ones lie below their chord.
    intervals, power = Intervals.of(shifts, logs), 1 if norm == "l1" else 2
    budget = float(shifts[-1]) ** power
    unit = max(float(logs[-1]), 1e-300) / budget

    def dual(log_price: float) -> float:
        price = unit * math.exp(log_price)
        return price * budget + dimension * max(0.0, intervals.highest(price, power))

    far = 1 + math.log1p(dimension) / 2 + math.log(shifts[-1])
    minimum = scipy.optimize.minimize_scalar(dual, bounds=(-3.0, far), method="bounded", options={"xatol": 1e-4})
    found = min(float(minimum.fun), dual(0.0))
    # The dual is convex in λ. It may have its least at a kink, where a tolerance of 1e-4 shows in the fifth digit.
    if enough == 0 or just_above(found, enough):
        return min(found, least_value(dual, -3.0, far))
    return found

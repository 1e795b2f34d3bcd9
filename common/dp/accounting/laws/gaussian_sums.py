"""Computes the privacy of sums of discrete Gaussian noise on a grid, and the least noise for a target."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from distrust.common.bandit.error_law import How
from distrust.common.dp.accounting.guarantee import GUARANTEE_ORDERS, RenyiCurve
from distrust.common.dp.accounting.profile import (
    RAISED,
    Profile,
    ProfilePairs,
    Repeated,
    curve,
    exact,
    filled,
    law_curve,
    spent_as,
)
from distrust.common.dp.accounting.techniques.gaussian import gaussian_epsilon, largest_ratio, log_gaussian_slope
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    BLUR,
    LATTICE,
    Covering,
    box_fits,
    gaussian_box_epsilon,
    gaussian_divergence,
    lattice_epsilon,
    lattice_variance,
    log_delta,
    rounded_epsilon,
)
from distrust.common.dp.accounting.techniques.hockey_stick import law_delta, law_epsilon, rdp, stretched
from distrust.common.dp.accounting.techniques.searches import coarsest, least_root, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import ROUNDING, Grid, grid_for
from distrust.common.dp.accounting.techniques.vector_bounds import vector_epsilon, vector_rdp, vector_variance, whole
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum, is_gaussian
from distrust.common.dp.noise.law import LIMIT
from distrust.common.wire import Norm

LONGER_MOVES = tuple(2.0**-j for j in range(1, 13))  # shares of δ for moves that rounding makes longer than counted
MOST_COVERED = 2.0**14  # variance up to which noise in reals is sought that covers noise on the integers
UNCOVERED = 2.0**-12  # share of δ for what that leaves uncovered
DUAL = 0.5  # variance from which a theta series is added up by Poisson's formula


@dataclass(frozen=True, slots=True)
class GaussianTarget:
    """(ε, δ), or ½ε²-CDP when δ is absent, out of `terms` equal shares."""

    epsilon: float
    delta: float | None
    terms: int


def sum_divergences(variance: float, terms: int, grid: Grid, enough: float = math.inf) -> RenyiCurve:
    """Return (α, RDP(α)) of a sum of `terms` N_Z(0, variance) on every coordinate: αρ, or of the convolved law.

    enough  RDP(α)/α that is enough: a bound just above it is looked at more closely (`vector_rdp`).
    """
    if is_gaussian(variance, terms):
        return tuple((order, gaussian_divergence(grid, terms * variance, order)) for order in GUARANTEE_ORDERS)
    return _convolved(variance, terms, grid, enough)


def is_exact(variance: float, terms: int, grid: Grid) -> bool:
    """Return whether `sum_epsilon` is exact: for one coordinate, and for a box whose shares are not too small."""
    return grid.dimension == 1 or _is_one_sum(variance, terms, grid)


def sum_epsilon(variance: float, terms: int, grid: Grid, delta: float, requested: float = math.inf) -> float:
    """Return an ε at δ: for one coordinate and for the box the law's, exactly; else that of continuous noise.

    requested  an ε that is enough; see `vector_epsilon`.
    """
    law = DiscreteGaussianSum(variance, terms)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    if _is_one_sum(variance, terms, grid):
        return gaussian_box_epsilon(terms * variance, grid, delta)
    if is_gaussian(variance, terms):
        return lattice_epsilon(grid, terms * variance, delta)
    return vector_epsilon(stretched(law, grid.precision), grid, delta, gaussian=True, requested=requested)


@lru_cache(maxsize=256)
def sum_variance(target: GaussianTarget, grid: Grid) -> float:
    """Return the least total parameter, `terms` times a share's, that meets the target; snapped upwards.

    In a ball, and in a box whose sum is too long to be stored, it may be larger by LATTICE.
    """
    guess = continuous_variance(target.epsilon, target.delta, grid)
    gaussian = is_gaussian(guess / target.terms, target.terms)
    if gaussian and target.delta is None and grid.is_box:
        return math.nextafter(guess, math.inf)  # a quotient: the same on every machine
    if gaussian and target.delta is not None and not is_exact(guess / target.terms, target.terms, grid):
        return snap_up(lattice_variance(grid, target.epsilon, target.delta))
    if target.delta is None or is_exact(guess / target.terms, target.terms, grid):
        return snap_up(least_root(lambda variance: _excess(target, grid, variance), guess))

    def law(variance: float) -> DiscreteGaussianSum:
        return DiscreteGaussianSum(variance / target.terms, target.terms)

    least_variance = snap_up(vector_variance(law, grid, target.epsilon, target.delta))
    while sum_epsilon(least_variance / target.terms, target.terms, grid, target.delta) > target.epsilon:  # rough digits
        least_variance = snap_up(least_variance)
    return least_variance


@lru_cache(maxsize=256)
def sum_precision(target: GaussianTarget, dimension: int, norm: Norm, clients: int, share: float = ROUNDING) -> int:
    """Return the least g whose rounding variance, `clients`/4, is at most `share` of the least noise's.

    In a ball rounding must also add at most INFLATION to the noise. For vectors the least noise is estimated by that of
    continuous noise, where the search for it begins.
    """
    wanted = clients / (4 * share)

    def about(g: int) -> float:
        return continuous_variance(target.epsilon, target.delta, Grid(g, dimension, norm))

    def noise(g: int) -> float:
        return sum_variance(target, Grid(g, dimension, norm)) if dimension == 1 else snap_up(about(g))

    rounding = grid_for(dimension, norm, sharpness(target.epsilon, target.delta))
    return max(coarsest(noise, wanted, about(1)), rounding)


def sharpness(epsilon: float, delta: float | None) -> float:
    """Return the weight of rounding for `grid_for`: of (ε, δ), or of the largest Rényi order."""
    if delta is None:
        return GUARANTEE_ORDERS[-1] * (GUARANTEE_ORDERS[-1] - 1) * epsilon**2 / 2
    return log_gaussian_slope(largest_ratio(epsilon, delta), epsilon) / 2


def _is_one_sum(variance: float, terms: int, grid: Grid) -> bool:
    """Return whether the coordinates are discrete Gaussians of a box, whose sum can be computed with."""
    return grid.is_box and is_gaussian(variance, terms) and box_fits(terms * variance, grid)


def continuous_variance(epsilon: float, delta: float | None, grid: Grid) -> float:
    """Return the variance of continuous noise without rounding: exact for CDP in a box, else a first guess."""
    return grid.unrounded / (epsilon if delta is None else largest_ratio(epsilon, delta)) ** 2


def _excess(target: GaussianTarget, grid: Grid, variance: float) -> float:
    """Return a number above 0 where the target is missed; it falls as the variance grows."""
    share = variance / target.terms
    if target.delta is None:
        pairs = sum_divergences(share, target.terms, grid)
        return math.log(max(2 * spent / (order * target.epsilon**2) for order, spent in pairs))
    if grid.dimension == 1:
        law = DiscreteGaussianSum(share, target.terms)
        return math.log(law_delta(law, grid.precision, target.epsilon) / target.delta)
    return log_delta(variance, grid, target.epsilon) - math.log(target.delta)


@lru_cache(maxsize=64)
def _convolved(variance: float, terms: int, grid: Grid, enough: float) -> RenyiCurve:
    """Return (α, RDP(α)) of the convolved law: for the box exactly, else `vector_rdp`'s bound on the worst move."""
    margin = math.ceil(15 * math.sqrt(terms * variance)) + 30
    orders = [order for order in GUARANTEE_ORDERS if order * grid.precision + margin <= LIMIT // 2] or [
        GUARANTEE_ORDERS[0]
    ]
    pmf = DiscreteGaussianSum(variance, terms).pmf(least=math.ceil(orders[-1] * grid.precision) + margin)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid, order * enough)) for order in orders)
    spent = rdp(pmf, grid.precision, orders)
    return tuple((order, grid.dimension * one) for order, one in zip(orders, spent, strict=True))


class GaussianDraw(NamedTuple):
    """N_Z(0, variance) on every coordinate of one release, or N(0, variance) in reals where it is continuous."""

    variance: float
    grid: Grid
    continuous: bool = False

    @property
    def covered(self) -> bool:
        """Return whether noise in reals is to be found that covers the noise on the integers."""
        return not self.continuous and self.variance <= MOST_COVERED

    @property
    def blur(self) -> float:
        """Return what noise on the integers may add to ε, where it is not `covered`."""
        return 0.0 if self.continuous or self.covered else self.grid.dimension * BLUR

    def reals(self, eta: float) -> float:
        """Return the variance of noise in reals that promises no more, but for `blur`, or `eta` of δ a coordinate."""
        if self.covered:
            return _covered(self.variance, self.grid.precision, eta)
        return self.variance if self.continuous else self.variance - LATTICE

    def moves(self, eta: float) -> tuple[float, float, float]:
        """Return bounds for S, the squared ℓ₂ move over `reals`.

        These are the largest S, and m and c with ln E[e^(rate · S)] ≤ rate · m + rate² · c over the rounding.
        """
        reals = self.reals(eta)
        if reals <= 0:
            return math.inf, math.inf, 0.0
        mean, spread = self.grid.rounded_moments
        return self.grid.squared_l2 / reals, mean / reals, spread / reals**2 if spread else 0.0


@lru_cache(maxsize=256)
def _covered(variance: float, shift: int, eta: float) -> float:
    return Covering(stretched(DiscreteGaussian(variance), shift), eta).variance(shift)


@dataclass(frozen=True, slots=True)
class RepeatedGaussian:
    """Releases with Gaussian noise about one client, which together are one release.

    draws  the noise of each, which may be any of these.

    Guarantee  t of them promise what one release does that moves by √t times as much. A client's later vectors may
               depend on what was released before.
    Source     Dong, Roth & Su 2022, for noise in reals.
    """

    # The moves are fixed one after the other. Where their squared ratios add up to at most S, one more release that
    # moves by the rest makes it S for certain, and the privacy loss then has the law of one Gaussian release's that
    # moves by √S: each step multiplies its moments by constants. A client that stops moving before S is passed keeps
    # that promise, and is another than ours with the probability `chance` of `squared_ratio`, which is added to δ.
    # It is added once, and not 1 + e^ε times: in P(A) ≤ e^ε Q(A) + δ only the client of P need be replaced, which goes
    # on with the neighbour's data when it passes S. So `chance` is a probability under P, and Q stays as it is.
    # Noise on the integers, coordinate after coordinate from the last one: with V(γ) = ∫ (a - bγ)₊ dμ the δ that later
    # noise in reals leaves, `Covering` says that this coordinate's own adds at most η ∫ a dμ = η V(0) = η, whatever the
    # move. Beyond MOST_COVERED it is a factor for each coordinate (`lattice_log_delta`), whatever the others are.

    draws: frozenset[GaussianDraw]

    def epsilon(self, times: int, delta: float) -> float:
        """Return an ε of `times` releases at δ; inf where the noise is less than a step or so."""
        return _repeated_epsilon(self, times, delta)

    def joined(self, other: Repeated) -> Repeated | None:
        """Return the law of releases that may be of either, or None where `other` is not Gaussian."""
        return RepeatedGaussian(self.draws | other.draws) if isinstance(other, RepeatedGaussian) else None

    def squared_ratio(self, times: int, chance: float, eta: float) -> float:
        """Return what `times` squared moves, each over its `reals`, add up to at most, but for a probability `chance`.

        chance  in [0, 1); 0: the worst rounding counts.
        """
        moves = [draw.moves(eta) for draw in self.draws]
        worst, mean, spread = (max(move[i] for move in moves) for i in range(3))
        if chance == 0:
            return times * worst
        # Whatever was released before, the next move has these moments. So the moment of the sum is at most their
        # product. Markov's inequality, at the rate that gives the least.
        return min(times * worst, times * mean + 2 * math.sqrt(times * spread * -math.log(chance)))


def repeated_gaussian(variance: float, grid: Grid, *, continuous: bool = False) -> RepeatedGaussian:
    """Return the law of several releases with one noise."""
    return RepeatedGaussian(frozenset({GaussianDraw(variance, grid, continuous)}))


@lru_cache(maxsize=1024)
def _repeated_epsilon(law: RepeatedGaussian, times: int, delta: float) -> float:
    blur = times * max(draw.blur for draw in law.draws)
    spared = UNCOVERED * delta if any(draw.covered for draw in law.draws) else 0.0
    eta = spared / (times * max(draw.grid.dimension for draw in law.draws))
    found = math.inf
    for chance in (0.0, *(share * delta for share in LONGER_MOVES)):
        square = law.squared_ratio(times, chance, eta)
        if math.isfinite(square):
            left = (delta - chance) * math.exp(-blur) - spared
            found = min(found, blur + gaussian_epsilon(math.sqrt(square * RAISED), left))
    return found


def sum_profile(share: float, terms: int, grid: Grid, delta: float) -> Profile:
    """Return the profile of `terms` N_Z(0, share) on every coordinate.

    No ε is pure: the ratio of the law and its shift grows without end.
    """
    box = grid.norm == "linf" or grid.dimension == 1
    if not box:
        pairs = _in_a_ball(share, terms, grid)
    elif is_gaussian(share, terms):
        pairs = curve(lambda order: grid.dimension * lattice_renyi(terms * share, grid.precision, order) * RAISED)
    else:
        pairs = law_curve(DiscreteGaussianSum(share, terms), grid.precision, grid.dimension)
    epsilon = sum_epsilon(share, terms, grid, delta)
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent_as(epsilon, "exact" if is_exact(share, terms, grid) else "bound"),
        rdp=pairs,
        rdp_how="exact" if box else "bound",
    )


def real_gaussian_profile(variance: float, grid: Grid, delta: float, how: How) -> Profile:
    """Return the profile of N(0, variance) in reals on every coordinate: closed forms by the ℓ₂ sensitivity.

    how  for ℓ∞: whether the release is this noise itself.
    """
    inside: How = how if grid.norm == "linf" or grid.dimension == 1 else "bound"
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent_as(rounded_epsilon(grid, variance, delta), inside),
        rdp=curve(lambda order: gaussian_divergence(grid, variance, order) * RAISED),
        rdp_how=inside,
    )


@lru_cache(maxsize=4096)
def lattice_renyi(variance: float, shift: int, order: float) -> float:
    """Return the Rényi divergence of N_Z(0, v) and its shift s: αs²/(2v) + ln(θ((α-1)s)/θ(0))/(α-1).

    θ(f) = Σ_j e^(-(j-f)²/(2v)) has period 1, and the second part is at most 0. So orders with a whole αs have the
    continuous law's divergence.
    """
    gaussian = order * shift**2 / (2 * variance)
    off = math.fmod((order - 1) * shift, 1.0)
    if off == 0:
        return gaussian
    return gaussian + _log_theta(variance, off) / (order - 1)


def _log_theta(variance: float, off: float) -> float:
    """Return ln(θ(f)/θ(0))."""
    if variance >= DUAL:
        decay = [math.exp(-2 * (math.pi * j) ** 2 * variance) for j in range(1, 5)]
        lacks = math.fsum(2 * d * (math.cos(2 * math.pi * j * off) - 1) for j, d in enumerate(decay, 1))
        return math.log1p(lacks / (1 + 2 * math.fsum(decay)))
    sums = [math.fsum(math.exp(-((j - f) ** 2) / (2 * variance)) for j in range(-12, 13)) for f in (off, 0.0)]
    return math.log(sums[0] / sums[1])


def _in_a_ball(share: float, terms: int, grid: Grid) -> ProfilePairs:
    """Return Rényi pairs for ℓ₁ and ℓ₂.

    Αρ with rounding averaged; of small shares those of the calibration's orders.
    """
    if is_gaussian(share, terms):
        return curve(lambda order: gaussian_divergence(grid, terms * share, order) * RAISED)
    return filled((order, one * RAISED) for order, one in sum_divergences(share, terms, grid))

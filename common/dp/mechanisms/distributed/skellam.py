"""`distributed-skellam`: Skellam noise at each client, summed by secure aggregation.

On integers it has Rényi privacy close to the Gaussian's. The file begins with searches, over exactly computed privacy,
for the least noise and the coarsest grid that meet a target.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import (
    GUARANTEE_ORDERS,
    SAMPLER,
    Guarantee,
    Kind,
    Model,
    RenyiCurve,
    sum_assumptions,
)
from distrust.common.dp.accounting.laws.gaussian_sums import continuous_variance, sharpness
from distrust.common.dp.accounting.profile import (
    PROFILE_ORDERS,
    RAISED,
    SHOWN_DELTA,
    Privacy,
    Profile,
    exact,
    filled,
    no_privacy,
    spent_as,
)
from distrust.common.dp.accounting.techniques.hockey_stick import from_rdp, law_delta, law_epsilon, rdp, stretched
from distrust.common.dp.accounting.techniques.searches import coarsest, least_root, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import FULL_BALL, ROUNDING, Grid, grid_for, steps_moved
from distrust.common.dp.accounting.techniques.vector_bounds import (
    grid_by_moments,
    just_above,
    vector_epsilon,
    vector_rdp,
    vector_variance,
    whole,
)
from distrust.common.dp.mechanisms.families.base import (
    PAPER_SCALE,
    MechanismSpec,
    Need,
    needed,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.dp.noise.law import LIMIT
from distrust.common.dp.noise.skellam import Skellam
from distrust.common.errors import BadParameter
from distrust.common.wire import Norm, Via


@dataclass(frozen=True, slots=True)
class SkellamTarget:
    """The promise that calibration aims at, for one client's vector of `dimension` coordinates, bounded in `norm`.

    With δ it is (ε, δ); without, RDP(α) ≤ αε²/2 at every order of GUARANTEE_ORDERS.
    """

    epsilon: float
    delta: float | None
    dimension: int
    norm: Norm = "linf"
    squared_share: Fraction = FULL_BALL

    def grid(self, precision: int) -> Grid:
        """Return what one client can move on a grid of `precision` steps."""
        return Grid(steps_moved(precision, self.squared_share), self.dimension, self.norm)

    @property
    def about(self) -> float:
        """Return the variance that Gaussian noise would need at g = 1, without rounding."""
        return continuous_variance(self.epsilon, self.delta, Grid(1, self.dimension, self.norm))


@lru_cache(maxsize=256)
def skellam_divergences(
    variance: float, grid: Grid, orders: tuple[float, ...] = GUARANTEE_ORDERS, *, enough: float = math.inf
) -> RenyiCurve:
    """Return (α, RDP(α)) pairs of Sk(0, variance) on every coordinate.

    For the box they are computed with all coordinates moved by g, the corner of the box. For l1 and l2 they are
    the bound of `vector_rdp` on the worst move, from the same computed moments. An order is left out where the support
    that it needs would pass LIMIT entries.

    enough  RDP(α)/α that is enough: a bound just above it is looked at more closely (`vector_rdp`).
    """
    margin = math.ceil(15 * math.sqrt(variance)) + 30
    known = [order for order in orders if order * grid.precision + margin <= LIMIT]
    if not known:
        return ()
    pmf = Skellam(variance).pmf(least=math.ceil(known[-1] * grid.precision) + margin)
    if not grid.is_box:
        losses = whole(pmf, margin)
        return tuple((order, vector_rdp(losses, order, grid, order * enough)) for order in known)
    spent = rdp(pmf, grid.precision, known)
    return tuple((order, grid.dimension * one) for order, one in zip(known, spent, strict=True))


@lru_cache(maxsize=1024)
def skellam_epsilon(variance: float, grid: Grid, delta: float, requested: float = math.inf) -> float:
    """Return the least proven ε at `delta` of Sk(0, variance) on every coordinate; inf where none is proven.

    It is exact for one coordinate.

    requested  an ε that is enough; see `vector_epsilon`.
    """
    if math.isfinite(requested):
        found = skellam_epsilon(variance, grid, delta)
        if not just_above(found, requested):
            return found
    law = Skellam(variance)
    if grid.dimension == 1:
        return law_epsilon(law, grid.precision, delta)
    return vector_epsilon(stretched(law, grid.precision), grid, delta, gaussian=True, requested=requested)


@lru_cache(maxsize=256)
def skellam_variance(target: SkellamTarget, shift: int) -> float:
    """Return the least variance that meets the target on a grid of `shift` steps, snapped upwards."""
    grid = target.grid(shift)
    if target.delta is not None and target.dimension > 1:
        result = snap_up(vector_variance(Skellam, grid, target.epsilon, target.delta))
        while skellam_epsilon(result, grid, target.delta) > target.epsilon:  # a bound by moments has rough digits
            result = snap_up(result)
        return result
    guess = target.about * shift**2
    delta = target.delta
    if delta is None:
        return _of_renyi(target, grid, guess)
    return snap_up(least_root(lambda v: math.log(law_delta(Skellam(v), shift, target.epsilon) / delta), guess))


@lru_cache(maxsize=256)
def skellam_precision(target: SkellamTarget, clients: int) -> int:
    """Return the least g whose rounding variance n/4 is at most a tenth of the least noise's; at least `grid_for`."""
    wanted = clients / (4 * ROUNDING)
    if target.dimension == 1:
        return coarsest(lambda g: skellam_variance(target, g), wanted, target.about)
    # For vectors the least noise is taken to be Gaussian noise's, which grows with g² at least.
    fine = max(1, math.ceil(math.sqrt(wanted / snap_up(target.about))))
    # In a ball the better of two grids counts: one on which rounding takes no more than INFLATION, and a coarser one.
    # Noise of few steps has tails that tell less than a Gaussian's, which helps a large ε.
    sharp = sharpness(target.epsilon, target.delta)
    moment = sharp if target.delta is None else math.log(1 / target.delta)  # of the order that decides
    by_rounding = grid_for(target.dimension, target.norm, sharp)
    by_moments = grid_by_moments(target.dimension, target.norm, moment)
    grids = {max(fine, by_rounding), max(fine, by_moments)}
    return min(sorted(grids), key=lambda g: _error(target, g, clients)) if len(grids) > 1 else grids.pop()


def _error(target: SkellamTarget, precision: int, clients: int) -> float:
    """Return the variance of a sum, rounding included, in the data's units; inf where the law is too long."""
    try:
        return snap_up((skellam_variance(target, precision) + clients / 4) / precision**2)
    except BadParameter:
        return math.inf


def _of_renyi(target: SkellamTarget, grid: Grid, guess: float) -> float:
    """Return the least variance, snapped upwards, that meets the Rényi target.

    Each search is for one order: the one that binds where the last search ended. That order is not met there, so that
    every search ends farther up. The last one ends where all orders are met.
    """
    result, tried, (_, order) = 0.0, set[float](), _worst(target, grid, guess)
    while order not in tried:
        tried.add(order)
        result = max(result, snap_up(least_root(_of_order(target, grid, order), guess)))
        guess, (_, order) = result, _worst(target, grid, result)
    return result


def _of_order(target: SkellamTarget, grid: Grid, order: float) -> Callable[[float], float]:
    return lambda variance: _worst(target, grid, variance, (order,))[0]


def _worst(
    target: SkellamTarget, grid: Grid, variance: float, orders: tuple[float, ...] = GUARANTEE_ORDERS
) -> tuple[float, float]:
    """Return the logarithm of the largest RDP(α) / (αε²/2), which falls as the variance grows, and its α.

    orders  to look at; all of GUARANTEE_ORDERS where the support that these need is too long.
    Raises  BadParameter where the support of every order is too long.
    """
    pairs = skellam_divergences(variance, grid, orders) or skellam_divergences(variance, grid)
    if not pairs:
        rule = f"the law that Rényi orders need has more than {LIMIT} entries: raise epsilon or give a delta"
        raise BadParameter("mechanism.epsilon", target.epsilon, rule)
    worst, order = max((2 * spent / (order * target.epsilon**2), order) for order, spent in pairs)
    return math.log(worst), order


def skellam_profile(variance: float, grid: Grid, delta: float) -> Profile:
    """Return the profile of Sk(0, variance) on every coordinate, at `delta`."""
    known = skellam_divergences(variance, grid)
    ways = [skellam_epsilon(variance, grid, delta), *([from_rdp(known, delta)] if known else [])]
    if grid.is_box:
        # null: the support that the order needs is too long
        others = tuple(order for order in PROFILE_ORDERS if order not in dict(known))
        found = dict((*known, *skellam_divergences(variance, grid, others)))
        curve = tuple((order, found[order] * RAISED if order in found else None) for order in PROFILE_ORDERS)
    else:
        curve = filled((order, one * RAISED) for order, one in known)
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent_as(min(ways), "exact" if grid.dimension == 1 else "bound"),
        rdp=curve,
        rdp_how="exact" if grid.is_box else "bound",
    )


class DistributedSkellam(GridMechanism):
    """Each client adds Sk(0, variance/t) to its vector. The shares of t clients add up to Sk(0, variance) exactly.

    variance   in grid steps squared, per coordinate. paper: S/ε², S the squared ℓ₂ sensitivity, g = ⌈sε√t⌉. exact: the
               least whose privacy is (ε, δ), or RDP(α) ≤ αε²/2 at every order of GUARANTEE_ORDERS when δ is absent.
    Guarantee  of the modular sum over at least t honest clients, computed from the law: (ε, δ) of one coordinate, or of
               a box whose D coordinates all move by g. For ℓ₁ and ℓ₂ balls it is a bound on the worst move
               (`vector_rdp`), from the law's own Rényi moments. Vectors get RDP by order as well.
    Source     MAB Theorem 2 with t for n and σ² = g²/ε² (the statement prints σ²/(nε²)); for its bound on RDP, Agarwal,
               Kairouz & Liu 2021, the law's own divergence.
    """

    model: ClassVar[Model] = "distributed"
    vias: ClassVar[tuple[Via, ...]] = ("aggregator",)
    takes_delta: ClassVar[Need | None] = "optional"
    takes_scale: ClassVar[bool] = True
    searched: ClassVar[frozenset[str]] = frozenset({"variance"})

    name: Literal["distributed-skellam"] = "distributed-skellam"
    epsilon: float
    delta: float | None = None
    variance: Annotated[float, Field(gt=0, description="variance of the noise of t clients, grid steps squared")]

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        target = SkellamTarget(needed(spec), spec.delta, cohort.dimension, cohort.norm, cohort.squared_share)
        precision = spec.precision or cls._precision(spec, cohort, target)
        paper = spec.calibration == "paper"
        square = cohort.grid(precision).squared_l2
        variance = square / target.epsilon**2 if paper else skellam_variance(target, precision)
        variance = cohort.searched("variance", variance)
        total = Skellam(variance * cohort.clients / cohort.min_honest)
        log = cohort.log_overflow
        tau = 2 * math.sqrt(variance * log) + math.sqrt(2) * log if paper else 0.0
        return cls(
            **cohort.shared(precision, cohort.room(precision, total, least=tau)),
            epsilon=target.epsilon,
            delta=target.delta,
            variance=variance,
        )

    @staticmethod
    def _precision(spec: MechanismSpec, cohort: CohortParams, target: SkellamTarget) -> int:
        if spec.calibration == "exact" and spec.scale is None:
            return cohort.tight(skellam_precision(target, cohort.clients))
        return math.ceil((spec.scale or PAPER_SCALE) * target.epsilon * math.sqrt(cohort.min_honest))

    def client_law(self) -> Skellam:
        return Skellam(self.variance / self.floor)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_privacy(self.calibration)
        variance = self.variance * honest / self.floor
        return Privacy(
            compute_promise=lambda: self._promise(variance, (*sum_assumptions(honest), SAMPLER)),
            compute_profile=lambda delta: skellam_profile(variance, self.grid, delta),
            law=Skellam(variance),
        )

    def _promise(self, variance: float, assumptions: tuple[str, ...]) -> Guarantee:
        """Return (ε, δ) of one coordinate; else a Rényi curve, with the best ε that is proven at δ."""
        if self.delta is not None and self.dimension == 1:
            epsilon = skellam_epsilon(variance, self.grid, self.delta)
            return self.make_guarantee("approximate", epsilon, assumptions, delta=self.delta)
        exact = self.calibration == "exact"
        enough = self.epsilon**2 / 2 if exact and self.delta is None else math.inf
        requested = self.epsilon if exact and self.delta is not None else math.inf
        curve = skellam_divergences(variance, self.grid, enough=enough)
        delta = SHOWN_DELTA if self.delta is None else self.delta
        ways = [skellam_epsilon(variance, self.grid, delta, requested), *([from_rdp(curve, delta)] if curve else [])]
        kind: Kind = "renyi" if curve else "approximate"
        return self.make_guarantee(kind, min(ways), assumptions, delta=delta, rdp=curve)

    def error(self, survivors: int) -> ErrorLaw:
        law = Skellam(self.variance * survivors / self.floor)
        return ScaledErrorLaw(law, self.step, self._sub_exponential(survivors))

    def _sub_exponential(self, survivors: int) -> tuple[float, float]:
        """Return the tail (σ, h) of the error, in data units.

        exact: (2 × standard deviation, √2) in grid steps, of MAB Lemma 4. paper: (2/ε + √2/(sε), 1/(sε)), as MAB
        Theorem 2 rounds it.
        """
        more = math.sqrt(survivors / self.floor)
        if self.calibration == "exact":
            return 2 * math.sqrt(self.variance) * more * self.step, math.sqrt(2) * self.step
        scale = self.precision / (self.epsilon * math.sqrt(self.floor))
        unit = (self.high - self.low) / self.epsilon
        norm = math.sqrt(self.grid.squared_l2) / self.precision
        return (2 * norm + math.sqrt(2) / scale) * more * unit, unit / scale

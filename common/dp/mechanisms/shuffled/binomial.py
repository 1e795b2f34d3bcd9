"""`shuffled-binomial`: each client adds random bits, and a trusted shuffler permutes: the sum has binomial noise.

The file begins with the privacy of such bits, the fewest bits for a target, and the papers' constants.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.contextual_sum import PrintedNoise
from distrust.common.bandit.error_law import ErrorLaw, ScaledErrorLaw
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.accounting.composition import LONGEST_SUPPORT, compose_exactly
from distrust.common.dp.accounting.guarantee import SAMPLER, Model, bits_assumptions
from distrust.common.dp.accounting.laws.binomial import long_epsilon
from distrust.common.dp.accounting.laws.gaussian_sums import continuous_variance, sharpness
from distrust.common.dp.accounting.profile import Privacy, Profile, Repeated, spent_as, unprotected
from distrust.common.dp.accounting.techniques.gaussian_vectors import covering_excess
from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, hockey_stick, stretched
from distrust.common.dp.accounting.techniques.searches import least_integer, least_on_grid, least_satisfying
from distrust.common.dp.accounting.techniques.sensitivity import FULL_BALL, ROUNDING, Grid, grid_for, steps_moved
from distrust.common.dp.accounting.techniques.vector_bounds import FEW_STEPS, vector_epsilon
from distrust.common.dp.mechanisms.families.base import (
    MechanismSpec,
    Need,
    needed,
    needed_delta,
    require,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.dp.noise.binomial import FAIR, Binomial
from distrust.common.errors import BadParameter
from distrust.common.wire import Norm, Via

LONG = 1e7
"""Variance above which one coordinate's ε is computed from two tails and not from the whole law."""

MOST_VARIANCE = 2.5e8
"""Largest variance that a vector's bound is computed for; its support is near LIMIT. More bits only hide more."""

MOST_COINS = 1 << 24
"""The most random bits that a client may send for one coordinate."""

GAIN = 0.01
"""Share of the noise's standard deviation that biased bits must save, because fair ones are drawn 64 in a word."""

BALL_ROUNDING = 0.03
"""ROUNDING for an ℓ₁ or ℓ₂ ball, and what rounding may add to the noise by making a move longer."""

LARGEST = 1e30
"""The largest ratio that a search tells apart."""

PAPER_EPSILON = 15.0
"""The ε at which DLB Theorem 4.6 and CTX Theorem C.1, which are for vectors, end."""

Bits = tuple[int, int, float]
"""The parameters g, b and p."""


@dataclass(frozen=True, slots=True)
class BinomialTarget:
    """The (ε, δ) for one vector of `dimension` coordinates, bounded in `norm`, by the bits of `honest` clients."""

    epsilon: float
    delta: float
    honest: int
    dimension: int
    norm: Norm
    squared_share: Fraction = FULL_BALL

    def grid(self, precision: int) -> Grid:
        """Return what one client can move on a grid of `precision` steps."""
        return Grid(steps_moved(precision, self.squared_share), self.dimension, self.norm)

    def about(self, precision: int) -> float:
        """Return the variance that Gaussian noise would need at g = `precision`, without rounding."""
        return continuous_variance(self.epsilon, self.delta, self.grid(precision))


def binomial_epsilon(
    trials: int, chance: float, grid: Grid, delta: float, times: int = 1, *, requested: float = math.inf
) -> float:
    """Return the least proven ε at `delta` of Bin(trials, chance) on every coordinate; inf where δ is too small.

    It is exact for one release of one coordinate. Else it is a bound, for no more bits than have MOST_VARIANCE.

    times      releases about one client, whose later values may depend on earlier releases.
    requested  an ε that is enough; see `vector_epsilon`.
    """
    most = math.floor(MOST_VARIANCE / (chance * (1 - chance)))
    exact = grid.dimension == times == 1
    return _binomial_epsilon(trials if exact else min(trials, most), chance, grid, delta, times, requested=requested)


@lru_cache(maxsize=4096)
def _binomial_epsilon(trials: int, chance: float, grid: Grid, delta: float, times: int, *, requested: float) -> float:
    if times > 1:
        pmf = Binomial(trials, chance).pmf()
        if grid.dimension == 1 and pmf.logs.size <= LONGEST_SUPPORT:
            return compose_exactly(pmf, grid.precision, times, delta)
        if chance == FAIR and not grid.is_box:
            pmf = stretched(Binomial(trials), grid.precision)
        return vector_epsilon(pmf, grid, delta, both=chance != FAIR, gaussian=chance == FAIR, times=times)
    if grid.dimension > 1:
        law, fair = Binomial(trials, chance), chance == FAIR
        pmf = stretched(law, grid.precision) if fair and not grid.is_box else law.pmf()
        return vector_epsilon(pmf, grid, delta, both=not fair, gaussian=fair, requested=requested)
    if trials * chance * (1 - chance) > LONG:
        return long_epsilon(trials, chance, grid.precision, delta)
    return epsilon_at(Binomial(trials, chance).pmf(), grid.precision, delta)


def paper_bits(target: BinomialTarget, precision: int | None, width: float, printed: PrintedNoise | None) -> Bits:
    """Return the bits of DLB (60) for one coordinate, of DLB (22) for vectors, and of CTX Theorem C.1 for LinUCB's.

    width  high - low.
    """
    if printed is not None and printed.source == "CTX":
        return _contextual(target, precision, width, printed)
    grid, ones = _scalar(target, precision, width) if target.dimension == 1 else _vector(target, precision)
    coins = math.ceil(2 * ones)
    return grid, coins, ones / coins


def binomial_bits(target: BinomialTarget, precision: int) -> Bits:
    """Return bits with the least b at p = 1/2, and then, where b is small, the least p; `precision` is g."""
    coins = _fair_bits(target, precision)
    return precision, coins, FAIR if coins > MOST_COINS else _least_chance(target, precision, coins)


def _fair_bits(target: BinomialTarget, precision: int) -> int:
    """Return the least b at p = 1/2."""

    def spent(b: int) -> float:
        return _excess(target, precision, target.honest * b, FAIR) if b <= MOST_COINS else -1.0

    guess = min(MOST_COINS, max(1, math.ceil(4 * target.about(precision) / target.honest)))
    grid = target.grid(precision)
    if grid.is_box:
        return least_integer(spent, guess)

    def lacking(b: int) -> float:
        pmf = stretched(Binomial(min(target.honest * b, math.floor(4 * MOST_VARIANCE))), grid.precision)
        return covering_excess(pmf, grid, target.epsilon, target.delta) if b <= MOST_COINS else -1.0

    coins = least_integer(lacking, guess)
    few = coins > 1 and target.honest * coins <= 4 * FEW_STEPS  # so few that moments may do better than a covering
    return least_integer(spent, coins - 1) if few and spent(coins - 1) <= 0 else coins


@lru_cache(maxsize=256)
def _least_chance(target: BinomialTarget, precision: int, coins: int) -> float:
    """Return the least p, as a snapped number, with which `coins` bits suffice; 1/2 where it saves less than GAIN."""

    def excess(chance: float) -> float:
        return _excess(target, precision, target.honest * coins, min(chance, FAIR))

    # One bit less is not enough, so that the variance has no 1/coins to spare. A vector's privacy at another p is known
    # by moments only, whose search ends elsewhere on another processor: it is for grids that a run file makes coarse.
    if coins * (GAIN if target.dimension == 1 else ROUNDING) > 1:
        return FAIR
    least_gain = (1 - math.sqrt(1 - (1 - GAIN) ** 2)) / 2  # p (1 - p) = (1 - GAIN)²/4
    if excess(least_gain) > 0:
        return FAIR
    share = min(FAIR**2, target.about(precision) / (target.honest * coins))
    return least_on_grid(excess, 2 * share / (1 + math.sqrt(1 - 4 * share)))


def _excess(target: BinomialTarget, precision: int, trials: int, chance: float) -> float:
    """Return a number above 0 where Bin(trials, chance) misses the target, else at most 0.

    It is the logarithm of δ(ε)/δ, or of the ε at δ over the target's.
    """
    if target.dimension == 1 and trials * chance * (1 - chance) <= LONG:
        result = hockey_stick(Binomial(trials, chance).pmf(), precision, target.epsilon) / target.delta
    else:
        result = binomial_epsilon(trials, chance, target.grid(precision), target.delta) / target.epsilon
    return math.log(min(max(result, 1 / LARGEST), LARGEST))


@lru_cache(maxsize=1024)
def coarsest_bits(target: BinomialTarget) -> int:
    """Return the least g on which the noise takes so many bits that rounding adds little to its variance.

    In an ℓ₁ or ℓ₂ ball rounding must also add little to the move of one client.
    """
    few = math.ceil(1 / (ROUNDING if target.grid(1).is_box else BALL_ROUNDING))
    if target.dimension == 1:
        return least_satisfying(lambda g: _excess(target, g, target.honest * (few - 1), FAIR) > 0, 1)
    balanced = math.ceil(math.sqrt(few * target.honest / (4 * target.about(1) * target.squared_share)))
    sharp = sharpness(target.epsilon, target.delta)
    return max(1, balanced, grid_for(target.dimension, target.norm, sharp, BALL_ROUNDING))


def _scalar(target: BinomialTarget, precision: int | None, width: float) -> tuple[int, float]:
    """Return the steps g and the ones bp of DLB (60), with the corrections of its Lemma C.5: range 2B = high - low."""
    g = _at_least(max(2, math.ceil(width * math.sqrt(target.honest))), precision)
    return g, 90 * g * g * math.log(2 / target.delta) / ((target.epsilon / 2) ** 2 * target.honest)


def _vector(target: BinomialTarget, precision: int | None) -> tuple[int, float]:
    """Return the steps g and the ones bp of DLB (22).

    Its ball in ℓ₂ is ours for l1 and l2, and √D times as wide as our box.
    """
    log = math.log(4 * target.dimension / target.delta)
    hat = target.epsilon / (18 * math.sqrt(math.log(2 / target.delta)))
    steps = max(hat * math.sqrt(target.honest) / (6 * math.sqrt(5 * log)), math.sqrt(target.dimension), 10)
    across = math.sqrt(target.dimension) if target.norm == "linf" else 1.0
    g = _at_least(math.ceil(steps / across), precision)
    return g, 90 * (g * across) ** 2 * log / (hat**2 * target.honest)


def _contextual(target: BinomialTarget, precision: int | None, width: float, printed: PrintedNoise) -> Bits:
    """Return the bits of CTX Theorem C.1, p = 1/4: g steps a unit, as its Algorithms 5 and 7 take [-1, 1] for 2g steps.

    Our grid spans the ball's diameter: its steps are the least whole number that makes none longer than 1/g, and b
    follows from the g of these steps. So the noise of a sum is the printed one, and b is a little larger.
    """
    across = width / max(1.0, printed.factor)  # in the theorem's units
    steps = _at_least(math.ceil(math.ceil(max(2 * math.sqrt(target.honest), printed.features, 4)) * across), precision)
    log = math.log(4 * (printed.features**2 + 1) / target.delta)
    return steps, math.ceil(24e4 * (steps / across) ** 2 * log**2 / (target.epsilon**2 * target.honest)), 0.25


def _at_least(fewest: int, precision: int | None) -> int:
    """Return the precision, by default the fewest steps. Raises BadParameter below these."""
    if precision is not None and precision < fewest:
        raise BadParameter("mechanism.precision", precision, f"the theorem needs at least {fewest}")
    return precision or fewest


@dataclass(frozen=True, slots=True)
class RepeatedBits:
    """Bits of Bin(trials, chance) in all, whose releases about one client compose by that law."""

    trials: int
    chance: float
    grid: Grid

    def epsilon(self, times: int, delta: float) -> float:
        """Return an ε of `times` releases at δ: exact but for a grid of losses, or a bound for vectors."""
        return binomial_epsilon(self.trials, self.chance, self.grid, delta, times)

    def joined(self, other: Repeated) -> Repeated | None:
        """Return this law if `other` is equal. Different bits may cost more together than as many of either."""
        return self if self == other else None


class ShuffledBinomial(GridMechanism):
    """Each client sends g + b bits under each of D labels, x̂ + Bin(b, p) of them ones; permuted, they tell sums only.

    coins, chance  b and p. paper: for one coordinate DLB (60) with ln(2/δ), t for n, g = max(2, ⌈(high - low)√t⌉); for
                   vectors DLB (22), which takes a box for the ℓ₂ ball around it; for LinUCB's CTX Theorem C.1. exact:
                   b is the least for which the (ε, δ) of Bin(tb, 1/2) holds. For one coordinate p is then the least, a
                   fraction of 22 bits, for which that of Bin(tb, p) holds, if it saves a hundredth of the deviation. g
                   is the least that needs b ≥ 10, so that the rounding variance n/4 is about a tenth of the noise's;
                   in ℓ₁ and ℓ₂ balls about BALL_ROUNDING, which is also what rounding may add to the noise there.
    Guarantee      (ε, δ) over at least t honest clients, for the whole vector. One coordinate: hockey-stick divergence
                   of the binomial and its shift by g, both ways. The box: that of D coordinates, all shifted by g,
                   composed. ℓ₁ and ℓ₂ balls: fair bits are covered by Gaussian noise in reals (`Covering`), or Rényi
                   moments of the worst spread of the shift (`vector_rdp`). The support is bounded, so that δ is at
                   least P(Bin < g).
    Source         DLB (Li, Zhou & Ji) Algorithm 4, Lemma C.5, and Algorithm 2, after Cheu et al. 2021; CTX P_Vec.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    takes_delta: ClassVar[Need | None] = "needed"
    searched: ClassVar[frozenset[str]] = frozenset({"coins", "chance"})
    letters: ClassVar[Mapping[str, str]] = {"coins": "b", "chance": "p"}
    has_room: ClassVar[bool] = False

    name: Literal["shuffled-binomial"] = "shuffled-binomial"
    epsilon: float
    delta: float
    coins: Annotated[int, Field(ge=1, le=MOST_COINS, description="b: random bits a client")]
    chance: Annotated[float, Field(gt=0, lt=1, description="p: probability that a random bit is 1")] = 0.5

    @model_validator(mode="after")
    def _has_room_for_all_bits(self) -> Self:
        most = self.clients * self.width
        require(self.modulus > most, "modulus", self.modulus, f"must be above clients * width = {most}")
        return self

    @classmethod
    def check(cls, spec: MechanismSpec, statistic: Statistic) -> None:
        vectors = spec.calibration == "paper" and statistic.dimension > 1
        if vectors and (spec.epsilon or 0.0) >= PAPER_EPSILON:
            allowed = f"must be below {PAPER_EPSILON:g} for vectors (DLB Theorem 4.6, CTX Theorem C.1)"
            raise BadParameter("mechanism.epsilon", spec.epsilon, allowed)

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        target = BinomialTarget(
            epsilon=needed(spec),
            delta=needed_delta(spec),
            honest=cohort.min_honest,
            dimension=cohort.dimension,
            norm=cohort.norm,
            squared_share=cohort.squared_share,
        )
        if spec.calibration == "paper":
            g, b, p = paper_bits(target, spec.precision, cohort.high - cohort.low, cohort.printed)
        else:
            g, b, p = binomial_bits(target, spec.precision or cohort.tight(coarsest_bits(target)))
        b, p = cohort.searched("coins", b), cohort.searched("chance", p)
        if b > MOST_COINS:
            limit = f"would take {b} bits a client and coordinate, at most {MOST_COINS}"
            raise BadParameter("mechanism.epsilon", spec.epsilon, limit)
        return cls(
            **cohort.shared(g, cohort.clients * (g + b) + 1),
            epsilon=target.epsilon,
            delta=target.delta,
            coins=b,
            chance=p,
        )

    @property
    def bits(self) -> int:
        return self.dimension * self.width

    @property
    def width(self) -> int:
        """Return g + b, the bits under each label."""
        return self.precision + self.coins

    def client_law(self) -> Binomial:
        return Binomial(self.coins, self.chance)

    @override
    def estimate_with(
        self, totals: NDArray[np.uint64], survivors: int, noise: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        del noise  # there is none: the clients' bits are all of it
        ones = totals.astype(np.float64) - survivors * self.coins * self.chance
        return ones * self.step + survivors * self.low

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = self.honest(survivors, colluders)

        requested = self.epsilon if self.calibration == "exact" else math.inf

        def epsilon(delta: float) -> float:
            if honest < 1:
                return math.inf
            return binomial_epsilon(honest * self.coins, self.chance, self.grid, delta, requested=requested)

        def profile(delta: float) -> Profile:
            # A count that only one neighbour can give makes pure ε and all Rényi divergences infinite.
            ends = "the number of ones is bounded: some counts are possible for one neighbour only, whatever epsilon"
            at_delta = spent_as(epsilon(delta), "exact" if self.dimension == 1 else "bound")
            return unprotected(delta, ends).model_copy(update={"approximate": at_delta})

        assumptions = (*bits_assumptions(honest), SAMPLER)
        return Privacy(
            compute_promise=lambda: self.make_guarantee(
                "approximate", epsilon(self.delta), assumptions, delta=self.delta
            ),
            compute_profile=profile,
            law=Binomial(honest * self.coins, self.chance) if honest > 0 else None,
            repeated=RepeatedBits(honest * self.coins, self.chance, self.grid) if honest > 0 else None,
        )

    def error(self, survivors: int) -> ErrorLaw:
        # Hoeffding gives the tail: |X - mean| ≤ √(n'b ln(2/p) / 2) but for a probability of p.
        law = Binomial(survivors * self.coins, self.chance)
        return ScaledErrorLaw(law, self.step, (math.sqrt(survivors * self.coins / 2) * self.step, 0.0))

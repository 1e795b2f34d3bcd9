"""`shuffled-gaussian`: discrete Gaussian noise at each client, permuted by a shuffler.

The file begins with the privacy that shuffling gives such noise, and the least noise for a target.
"""

import math
from functools import lru_cache, partial
from typing import ClassVar, Literal, Self

import scipy
from pydantic import model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.dp.accounting.guarantee import SAMPLER, Guarantee, Model, records_assumptions
from distrust.common.dp.accounting.laws.gaussian_sums import GaussianTarget, sum_epsilon, sum_profile, sum_variance
from distrust.common.dp.accounting.profile import LOCAL_NOTE, PROFILE_ORDERS, Privacy, Profile, bound, tightened
from distrust.common.dp.accounting.techniques.amplification.blanket import (
    FINEST,
    LOST_SHARE,
    blanket_epsilon,
    hides_pairs,
    over_pairs,
    pair_delta,
)
from distrust.common.dp.accounting.techniques.amplification.clones import gaussian_noise
from distrust.common.dp.accounting.techniques.amplification.randomizers import (
    LARGEST_LOCAL_EPSILON,
    LocalRandomizer,
    added_noise,
)
from distrust.common.dp.accounting.techniques.amplification.renyi import blanket_renyi, crowd_renyi
from distrust.common.dp.accounting.techniques.amplification.vectors import (
    LOST_TO_EACH,
    Crowd,
    FromMiddle,
    crowd_delta,
    crowd_variance,
    rough_variance,
)
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio
from distrust.common.dp.accounting.techniques.gaussian_vectors import LATTICE, lattice_epsilon, lattice_variance
from distrust.common.dp.accounting.techniques.hockey_stick import NOT_ZERO
from distrust.common.dp.accounting.techniques.searches import least_on_grid, least_satisfying, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import PAPER_INFLATION, ROUNDING, Grid, grid_for
from distrust.common.dp.mechanisms.families.base import MechanismSpec, Need, needed, needed_delta, require
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.errors import BadParameter
from distrust.common.wire import Via

GUESS = 1.03  # relative accuracy of the search for where to begin
FINEST_EPSILON = 1e-9  # nats: no smaller ε is searched for
EPSILON_DIGITS = 1e-4  # relative, of a vector's ε, towards more privacy
DIAMETER_STEPS = 1000  # steps of a diameter on which noise without rounding is searched for
NEXT_TO_NOTHING = 0.01  # share of a vector's noise, and of its way from the middle, that the grid may add
COARSE = 6  # steps of the grid on which it is done, where the noise is less than that wide
LEAST_SIZE = 0.1  # of Gaussian noise, in units of the range
LOST_MASS = 1e-280  # mass of a message's law that Rényi divergences may leave out


@lru_cache(maxsize=256)
def shuffled_gaussian_epsilon(variance: float, crowd: Crowd, delta: float, requested: float) -> float:
    """Return ε at δ of a crowd's shuffled messages with N_Z(0, variance), at most one message's own.

    It is by the blanket bound for every pair of inputs in one coordinate, and by `crowd_delta` for a vector.

    requested  the ε to return where it is met, without a search for less; 0: search.
    """
    grid = crowd.grid
    local = _local_epsilon(variance, grid, delta)
    if local == 0 or local <= requested:
        return local
    if grid.dimension > 1:
        if requested > 0 and crowd_delta(variance, crowd, requested, delta) <= delta:
            return requested
        return min(local, _vector_epsilon(variance, crowd, delta, local))
    if requested > 0 and hides_pairs(_on_grid, grid.precision, (requested, delta, crowd.users), variance):
        return requested
    try:
        return min(local, blanket_epsilon(_on_grid(variance, grid.precision), delta, crowd.users))
    except BadParameter:
        return local


@lru_cache(maxsize=256)
def shuffled_gaussian_renyi(variance: float, crowd: Crowd) -> tuple[float, ...]:
    """Return Rényi divergences of shuffled messages with N_Z(0, variance) at the orders of a profile; inf is unknown.

    They are by the blanket in one coordinate, and by `crowd_delta` and the clones for a vector. One message of one
    coordinate has none of its own here: its law gives them exactly.
    """
    grid, honest = crowd.grid, crowd.users
    rho = grid.squared_l2 / (2 * variance)
    if grid.dimension > 1:
        return tuple(crowd_renyi(variance, crowd, PROFILE_ORDERS, partial(_local_epsilon, variance, grid)))
    if honest == 1:
        return (math.inf,) * len(PROFILE_ORDERS)
    randomizer = added_noise(DiscreteGaussian(variance).pmf(LOST_MASS), grid.precision)
    return tuple(blanket_renyi(randomizer, honest, rho, PROFILE_ORDERS))


@lru_cache(maxsize=256)
def shuffled_gaussian_size(epsilon: float, delta: float, honest: int) -> float:
    """Return about the least σ on any grid, by the blanket bound, in units of the range."""
    low, high = LEAST_SIZE, 1 / largest_ratio(epsilon, delta)  # at most the σ that needs no shuffler
    while high > low * GUESS:
        middle = math.sqrt(low * high)
        steps = COARSE if middle < COARSE else 1
        randomizer = _on_grid((middle * steps) ** 2, steps)
        met = pair_delta(randomizer, (0, steps), epsilon, honest, LOST_SHARE * delta) <= delta
        low, high = (low, middle) if met else (middle, high)
    return high


@lru_cache(maxsize=256)
def shuffled_gaussian_variance(epsilon: float, delta: float, crowd: Crowd) -> float:
    """Return the least variance on the grid, in steps squared, as a snapped number. It checks every pair of inputs.

    It is at most what one message needs by itself.
    """
    if crowd.grid.dimension > 1:
        alone = snap_up(lattice_variance(crowd.grid, epsilon, delta))
        return min(alone, crowd_variance(crowd, epsilon, delta, alone))
    alone = sum_variance(GaussianTarget(epsilon, delta, 1), crowd.grid)
    guess = (shuffled_gaussian_size(epsilon, delta, crowd.users) * crowd.grid.precision) ** 2
    target = epsilon, delta, crowd.users
    return min(alone, over_pairs(_on_grid, crowd.grid.precision, target, least_on_grid, guess))


@lru_cache(maxsize=4)
def _on_grid(variance: float, precision: int) -> LocalRandomizer:
    return added_noise(DiscreteGaussian(variance).pmf(), precision)


def _local_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """Return ε at δ of one message."""
    if grid.dimension > 1:
        return lattice_epsilon(grid, variance, delta)
    return sum_epsilon(variance, 1, grid, delta)


def _vector_epsilon(variance: float, crowd: Crowd, delta: float, local: float) -> float:
    """Return the least ε up to the local one with `crowd_delta` ≤ δ, to EPSILON_DIGITS; inf where none has."""

    def excess(epsilon: float) -> float:
        return math.log(max(crowd_delta(variance, crowd, epsilon, delta), NOT_ZERO) / delta)

    high = min(local, LARGEST_LOCAL_EPSILON)
    if excess(high) > 0:
        return math.inf
    low = high / 2
    while excess(low) <= 0:
        low, high = low / 4, low
        if low < FINEST_EPSILON:
            return high
    root = float(scipy.optimize.brentq(excess, low, high, rtol=EPSILON_DIGITS))
    while excess(root) > 0:
        root *= 1 + EPSILON_DIGITS
    return min(root, high)


class ShuffledGaussian(GaussianLike):
    """Each client adds N_Z(0, variance) to every coordinate of its vector; messages are sealed and permuted.

    variance   paper: by σ of CTX Theorem B.1, which is made for ε/2 and Δ₂ = 2 for each of two vectors: σ² as printed
               for a contextual statistic, (Δ₂σ/4)² for one vector alone. Inside its range only (ε₀ ≤ 1, B ≥ 16 e^ε₀
               ln(4/δ)). exact: the least for t messages; one coordinate by the privacy blanket of the grid's own law,
               a vector by the law that all messages nearly contain (`amplification/vectors.py`). Never more than one
               message needs.
    Guarantee  (ε, δ) for the permuted messages of t honest clients, never worse than one message's own.
    Source     CTX P_Amp, Algorithms 2 to 4; Balle et al. 2019.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    takes_delta: ClassVar[Need | None] = "needed"
    why_undivided: ClassVar[str] = "its blanket bound is for one randomizer, and each action is another one"

    name: Literal["shuffled-gaussian"] = "shuffled-gaussian"

    @model_validator(mode="after")
    def _has_a_blanket(self) -> Self:
        fits = self.dimension > 1 or self.precision <= FINEST
        require(fits, "precision", self.precision, f"at most {FINEST} for one coordinate")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, delta = needed(spec), needed_delta(spec)
        paper = spec.calibration == "paper"
        share = 4 if cohort.apart is None else 2 / cohort.apart
        size = printed_noise(epsilon, delta, cohort.min_honest) / share if paper else 0.0
        precision = spec.precision or _precision(epsilon, delta, cohort, size)
        if cohort.dimension == 1 and precision > FINEST:
            raise BadParameter("mechanism.precision", precision, f"at most {FINEST} for one coordinate")
        crowd = Crowd(cohort.grid(precision), precision, cohort.min_honest)
        exact = None if paper else shuffled_gaussian_variance(epsilon, delta, crowd)
        variance = cohort.searched("variance", crowd.grid.squared_l2 * size**2 if exact is None else exact)
        total = DiscreteGaussianSum(variance, cohort.clients)
        return cls(
            **cohort.shared(precision, cohort.room(precision, total)), epsilon=epsilon, delta=delta, variance=variance
        )

    def client_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.variance)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = max(1, self.honest(survivors, colluders))
        requested = self.epsilon if self.calibration == "exact" else 0.0

        crowd = Crowd(self.grid, self.precision, honest)

        def epsilon(delta: float) -> float:
            return shuffled_gaussian_epsilon(self.variance, crowd, delta, requested)

        def promise() -> Guarantee:
            assert self.delta is not None
            assumptions = (*records_assumptions(honest), SAMPLER)
            return self.make_guarantee("approximate", epsilon(self.delta), assumptions, delta=self.delta)

        def profile(delta: float) -> Profile:
            alone = sum_profile(self.variance, 1, self.grid, delta)  # one message bounds them all
            together = shuffled_gaussian_renyi(self.variance, crowd)
            change = {"approximate": bound(epsilon(delta)), "rdp": tightened(alone.rdp, together)}
            return alone.model_copy(update={**change, "rdp_how": "bound", "notes": (LOCAL_NOTE,)})

        return Privacy(compute_promise=promise, compute_profile=profile)

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(DiscreteGaussianSum(self.variance, survivors), survivors * self.variance)


def printed_noise(epsilon: float, delta: float, honest: int) -> float:
    """Return σ of CTX Theorem B.1 for a batch of so many honest clients.

    Raises BadParameter outside of its range, with the key of the run file that is to change.
    """
    try:
        return gaussian_noise(epsilon, delta, honest)
    except BadParameter as error:
        rule = "for the constants of CTX Theorem B.1; calibration exact has no such limit"
        if error.field == "batch":  # no key has this number: it follows from the cohort and from both rates
            words = f"B = {honest} honest clients {error.allowed} {rule}"
            raise BadParameter("mechanism.calibration", "paper", words) from error
        words = f"{error.allowed} at B = {honest} honest clients {rule}"
        raise BadParameter(f"mechanism.{error.field}", error.value, words) from error


def _precision(epsilon: float, delta: float, cohort: CohortParams, size: float) -> int:
    """Return about the least g whose rounding variance is a tenth of the noise's, which itself depends on g.

    For the vectors of `exact` it is finer: see NEXT_TO_NOTHING.

    size  the paper's σ in units of the sensitivity; 0: the noise is searched for.
    """
    wanted = 1 / (4 * ROUNDING)
    if cohort.dimension == 1:
        size = size or shuffled_gaussian_size(epsilon, delta, cohort.min_honest)
        return min(FINEST, max(1, math.ceil(math.sqrt(wanted) / size)))
    if size:
        g = grid_for(cohort.dimension, cohort.norm, inflation=PAPER_INFLATION)
        return max(g, least_satisfying(lambda g: cohort.grid(g).squared_l2 * size**2 >= wanted, 1))
    reals = cohort.grid(DIAMETER_STEPS, rounded=False)
    alone = reals.squared_l2 / largest_ratio(epsilon, delta) ** 2
    least = min(alone, rough_variance(Crowd(reals, DIAMETER_STEPS, cohort.min_honest), epsilon, delta, alone))
    finest = math.ceil(DIAMETER_STEPS * math.sqrt(LATTICE / (NEXT_TO_NOTHING * least)))
    return cohort.tight(max(finest, least_satisfying(lambda g: _rounds_little(cohort.grid(g), g, delta), 1)))


def _rounds_little(grid: Grid, across: int, delta: float) -> bool:
    """Return whether rounding makes the way from the middle of the ball little longer than the radius."""
    way = FromMiddle(grid, across)
    return way.at_most(LOST_TO_EACH * delta) <= (1 + NEXT_TO_NOTHING) ** 2 * way.unrounded

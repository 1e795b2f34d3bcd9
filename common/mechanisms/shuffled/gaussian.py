"""`shuffled-gaussian`: discrete Gaussian noise at each client, permuted by a shuffler.

The file begins with the privacy that shuffling gives such noise, and the least noise for a target.
"""

import math
from functools import lru_cache, partial
from typing import ClassVar, Literal, Self

from pydantic import model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.families.base import DELTA_RULE, MechanismSpec, Need, needed, needed_delta, require
from distrust.common.mechanisms.families.cohort import CohortParams
from distrust.common.mechanisms.families.gaussian import GaussianLike
from distrust.common.mechanisms.families.grid import INFLATED
from distrust.common.noise.discrete_gaussian import DiscreteGaussian, DiscreteGaussianSum
from distrust.common.privacy.amplification.blanket import (
    FINEST,
    LOST_SHARE,
    blanket_epsilon,
    hides_pairs,
    over_pairs,
    pair_delta,
)
from distrust.common.privacy.amplification.clones import clones_delta, clones_local_epsilon, gaussian_noise
from distrust.common.privacy.amplification.randomizers import LocalRandomizer, added_noise
from distrust.common.privacy.amplification.renyi import blanket_renyi, concentrated_renyi
from distrust.common.privacy.gaussian import largest_ratio
from distrust.common.privacy.gaussian_sums import sum_profile
from distrust.common.privacy.gaussian_vectors import lattice_epsilon, lattice_variance
from distrust.common.privacy.guarantee import LEAST_DELTA, SAMPLER, Guarantee, Model, records_assumptions
from distrust.common.privacy.hockey_stick import epsilon_at
from distrust.common.privacy.profile import LOCAL_NOTE, PROFILE_ORDERS, Privacy, Profile, bound, tightened
from distrust.common.privacy.searches import least_on_grid, snap_up
from distrust.common.privacy.sensitivity import PAPER_INFLATION, ROUNDING, Grid, grid_for
from distrust.common.wire import Via

GUESS = 1.03  # relative accuracy of the search for where to begin
FINEST_EPSILON = 1e-9  # nats: no smaller ε is searched for
COARSE = 6  # steps of the grid on which it is done, where the noise is less than that wide
LEAST_SIZE = 0.1  # of Gaussian noise, in units of the range
DELTA_SHARES = (0.15, 0.3, 0.5)
"""Parts of δ that a vector's messages may spend on δ₀, but for a factor up to 3/2. The best differs with ε, n and δ."""

LOST_MASS = 1e-280  # mass of a message's law that Rényi divergences may leave out


@lru_cache(maxsize=256)
def shuffled_gaussian_epsilon(variance: float, grid: Grid, delta: float, honest: int, requested: float) -> float:
    """Return ε at δ of `honest` shuffled messages with N_Z(0, variance), at most one message's own.

    It is by the blanket bound for every pair of inputs in one coordinate, and by `_vector_delta` for a vector.

    requested  the ε to return where it is met, without a search for less; 0: search.
    """
    local = _local_epsilon(variance, grid, delta)
    if local == 0:
        return 0.0
    if grid.dimension > 1:
        if 0 < requested <= local and _vector_delta(variance, grid, delta, honest, requested) <= delta:
            return requested
        return min(local, _vector_epsilon(variance, grid, delta, honest, local))
    if requested > 0 and hides_pairs(_on_grid, grid.precision, (requested, delta, honest), variance):
        return min(local, requested)
    try:
        return min(local, blanket_epsilon(_on_grid(variance, grid.precision), delta, honest))
    except BadParameter:
        return local


@lru_cache(maxsize=256)
def shuffled_gaussian_renyi(variance: float, grid: Grid, honest: int) -> tuple[float, ...]:
    """Return Rényi divergences of shuffled messages with N_Z(0, variance) at the orders of a profile; inf is unknown.

    They are by the blanket in one coordinate, and by the clones for a vector.
    """
    rho = grid.squared_l2 / (2 * variance)
    if grid.dimension > 1:
        return tuple(concentrated_renyi(honest, rho, PROFILE_ORDERS, partial(_local_epsilon, variance, grid)))
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
def shuffled_gaussian_variance(epsilon: float, delta: float, honest: int, grid: Grid) -> float:
    """Return the least variance on the grid, in steps squared, as a snapped number. It checks every pair of inputs."""
    if grid.dimension > 1:
        return _vector_variance(epsilon, delta, honest, grid)
    guess = (shuffled_gaussian_size(epsilon, delta, honest) * grid.precision) ** 2
    return over_pairs(_on_grid, grid.precision, (epsilon, delta, honest), least_on_grid, guess)


@lru_cache(maxsize=4)
def _on_grid(variance: float, precision: int) -> LocalRandomizer:
    return added_noise(DiscreteGaussian(variance).pmf(), precision)


def _local_epsilon(variance: float, grid: Grid, delta: float) -> float:
    """Return ε at δ of one message."""
    if grid.dimension > 1:
        return lattice_epsilon(grid, variance, delta)
    return epsilon_at(DiscreteGaussian(variance).pmf(), grid.precision, delta)


def _vector_epsilon(variance: float, grid: Grid, delta: float, honest: int, local: float) -> float:
    """Return the least ε up to the local one with `_vector_delta` ≤ δ, by halving, rounded up; inf where none has."""
    low, high = 0.0, min(local, 50.0)
    if _vector_delta(variance, grid, delta, honest, high) > delta:
        return math.inf
    while high - low > max(1e-6 * high, FINEST_EPSILON):
        middle = (low + high) / 2
        low, high = (low, middle) if _vector_delta(variance, grid, delta, honest, middle) <= delta else (middle, high)
    return high


def _vector_delta(variance: float, grid: Grid, delta: float, honest: int, epsilon: float) -> float:
    """Return a bound on δ(ε) of shuffled (ε₀, δ₀)-private messages, the least over the δ₀ of `DELTA_SHARES`.

    It is the clones bound at ε₀, and (e^ε + 1)(1 + e^(-ε₀)/2) n δ₀.

    Source  Feldman, McMillan & Talwar 2021, Theorem 3.8: such a randomizer is within δ₀ of an ε₀-private one.
    """
    bounds = []
    for share in DELTA_SHARES:
        local = _local_epsilon(variance, grid, _local_delta(epsilon, share * delta, honest))
        if local <= 50:
            amplified = clones_delta(epsilon, local, honest) if local > 0 else 0.0
            bounds.append(amplified + share * delta * _replaced(local))
    return min(bounds, default=math.inf)


def _vector_variance(epsilon: float, delta: float, honest: int, grid: Grid) -> float:
    """Return the least variance for a vector, snapped upwards: by the clones bound, or that needs no shuffler."""
    variances = [lattice_variance(grid, epsilon, delta)]
    for share in DELTA_SHARES:
        left = delta * (1 - 1.5 * share)
        if left >= LEAST_DELTA:
            local = clones_local_epsilon(epsilon, left, honest)
            # ε₀ is known now, so that less is left out for δ₀. The larger ε₀ that follows needs no more than that.
            local = clones_local_epsilon(epsilon, delta * (1 - share * _replaced(local)), honest)
            variances.append(lattice_variance(grid, local, _local_delta(epsilon, share * delta, honest)))
    return snap_up(min(variances))


def _local_delta(epsilon: float, share: float, honest: int) -> float:
    """Return the δ₀ with (e^ε + 1) n δ₀ = `share`."""
    return share / ((math.exp(epsilon) + 1) * honest)


def _replaced(local: float) -> float:
    """Return 1 + e^(-ε₀)/2, at most 3/2."""
    return 1 + math.exp(-max(local, 0.0)) / 2


class ShuffledGaussian(GaussianLike):
    """Each client adds N_Z(0, variance) to every coordinate of its vector; messages are sealed and permuted.

    variance   paper: by σ of CTX Theorem B.1, which is made for ε/2 and Δ₂ = 2 for each of two vectors: σ² as printed
               for a contextual statistic, (Δ₂σ/4)² for one vector alone. Inside its range only (ε₀ ≤ 1, B ≥ 16 e^ε₀
               ln(4/δ)). exact: the least for t messages; one coordinate by the privacy blanket of the grid's own law,
               a vector by the clones bound of its (ε₀, δ₀).
    Guarantee  (ε, δ) for the permuted messages of t honest clients, never worse than one message's own.
    Source     CTX P_Amp, Algorithms 2 to 4; Balle et al. 2019; Feldman, McMillan & Talwar 2021.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    takes_delta: ClassVar[Need | None] = "needed"
    whole_because: ClassVar[str] = "its blanket bound is for one randomizer, and each action is another one"

    name: Literal["shuffled-gaussian"] = "shuffled-gaussian"

    @model_validator(mode="after")
    def _has_delta(self) -> Self:
        require(self.delta is not None, "delta", self.delta, DELTA_RULE)
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
        grid = cohort.grid(precision)
        exact = None if paper else shuffled_gaussian_variance(epsilon, delta, cohort.min_honest, grid)
        variance = cohort.searched("variance", grid.squared_l2 * size**2 if exact is None else exact)
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

        def epsilon(delta: float) -> float:
            return shuffled_gaussian_epsilon(self.variance, self.grid, delta, honest, requested)

        def promise() -> Guarantee:
            assert self.delta is not None
            assumptions = (*records_assumptions(honest), SAMPLER)
            return self.make_guarantee("approximate", epsilon(self.delta), assumptions, delta=self.delta)

        def profile(delta: float) -> Profile:
            alone = sum_profile(self.variance, 1, self.grid, delta)  # one message bounds them all
            together = shuffled_gaussian_renyi(self.variance, self.grid, honest)
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

    size  the paper's σ in units of the sensitivity; 0: the noise is searched for.
    """
    wanted = 1 / (4 * ROUNDING)
    if cohort.dimension == 1:
        size = size or shuffled_gaussian_size(epsilon, delta, cohort.min_honest)
        return min(FINEST, max(1, math.ceil(math.sqrt(wanted) / size)))

    def variance(g: int) -> float:
        grid = cohort.grid(g)
        return (
            grid.squared_l2 * size**2 if size else shuffled_gaussian_variance(epsilon, delta, cohort.min_honest, grid)
        )

    sharp = math.inf if size else -math.log(_local_delta(epsilon, DELTA_SHARES[0] * delta, cohort.min_honest))
    little = grid_for(cohort.dimension, cohort.norm, sharp, PAPER_INFLATION if size else INFLATED)
    g = max(little, math.ceil(math.sqrt(wanted / variance(1))))
    while variance(g) < wanted:
        g += 1
    return g if size else cohort.tight(g)

"""Privacy of binomial bits, scalar or vector, from their law; the fewest bits for a target; the papers' constants."""

import math
from dataclasses import dataclass
from functools import lru_cache

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.base import Norm
from distrust.common.mechanisms.calibration.roots import least_integer, least_on_grid
from distrust.common.mechanisms.calibration.sensitivity import Grid
from distrust.common.mechanisms.calibration.vector_bounds import about_variance, grid_for, vector_epsilon
from distrust.common.mechanisms.cohort_params import ROUNDING, CohortParams, least
from distrust.common.noise.binomial import Binomial
from distrust.common.privacy.binomial import long_epsilon
from distrust.common.privacy.hockey_stick import epsilon_at, hockey_stick

FAIR = 0.5
LONG = 1e7
"""Variance above which one coordinate's ε takes two tails and not the law itself."""

MOST_VARIANCE = 2.5e8
"""Of the noise that a vector's bound is computed with; its support is near LIMIT. More bits only add to privacy."""

MOST_COINS = 1 << 24
"""Random bits a client and coordinate."""

GAIN = 0.01
"""Share of the noise's standard deviation that a biased bit has to save: fair ones are drawn 64 in a word."""

LARGEST = 1e30
"""Of a ratio that is searched through."""

PAPER_EPSILON = 15.0
"""DLB Theorem 4.6 ends there, for vectors."""

Bits = tuple[int, int, float]
"""g, b and p."""


@dataclass(frozen=True, slots=True)
class Target:
    """(ε, δ) over `floor` clients, for one client's vector of `dimension` coordinates, bounded in `norm`."""

    epsilon: float
    delta: float
    floor: int
    dimension: int
    norm: Norm

    @property
    def about(self) -> float:
        """The variance that Gaussian noise would need at g = 1."""
        return about_variance(self.epsilon, self.delta, self.dimension, self.norm)


def released_epsilon(trials: int, chance: float, grid: Grid, delta: float) -> float:
    """The least proven ε at `delta` of Bin(trials, chance) on every coordinate; exact for one. inf: δ is too small.

    For vectors a bound: of no more bits than have MOST_VARIANCE.
    """
    most = math.floor(MOST_VARIANCE / (chance * (1 - chance)))
    return _released_epsilon(trials if grid.dimension == 1 else min(trials, most), chance, grid, delta)


@lru_cache(maxsize=4096)
def _released_epsilon(trials: int, chance: float, grid: Grid, delta: float) -> float:
    if grid.dimension > 1:
        return vector_epsilon(Binomial(trials, chance).pmf(), grid, delta, both=chance != FAIR)
    if trials * chance * (1 - chance) > LONG:
        return long_epsilon(trials, chance, grid.precision, delta)
    return epsilon_at(Binomial(trials, chance).pmf(), grid.precision, delta)


def paper_bits(target: Target, precision: int | None, frame: CohortParams) -> Bits:
    """DLB (60) for one coordinate, (22) for vectors."""
    grid, ones = _scalar(target, precision, frame) if target.dimension == 1 else _vector(target, precision)
    coins = math.ceil(2 * ones)
    return grid, coins, ones / coins


def fewest_bits(target: Target, precision: int | None) -> Bits:
    """The least b at p = 1/2, then the least p; our own g is the least with b ≥ 10, and `grid_for`."""
    g = precision or _coarsest(target)

    def excess(b: int) -> float:
        return _excess(target, g, target.floor * b, FAIR) if b <= MOST_COINS else -1.0

    coins = least_integer(excess, _guess(target, g))
    return g, coins, FAIR if coins > MOST_COINS else _least_chance(target, g, coins)


@lru_cache(maxsize=256)
def _least_chance(target: Target, precision: int, coins: int) -> float:
    """The least p, as a snapped number, with which `coins` bits are enough; 1/2 where it takes off less than GAIN."""

    def excess(chance: float) -> float:
        return _excess(target, precision, target.floor * coins, min(chance, FAIR))

    if coins * GAIN > 1:  # one bit less is not enough, so that the variance has no 1/coins to spare
        return FAIR
    least_gain = (1 - math.sqrt(1 - (1 - GAIN) ** 2)) / 2  # p (1 - p) = (1 - GAIN)²/4
    if excess(least_gain) > 0:
        return FAIR
    share = min(FAIR**2, target.about * precision**2 / (target.floor * coins))
    return least_on_grid(excess, 2 * share / (1 + math.sqrt(1 - 4 * share)))


def _hides(target: Target, precision: int, trials: int) -> bool:
    return _excess(target, precision, trials, FAIR) <= 0


def _excess(target: Target, precision: int, trials: int, chance: float) -> float:
    """Above 0 where Bin(trials, chance) misses the target: the logarithm of δ(ε)/δ, or of ε at δ over ε."""
    if target.dimension == 1 and trials * chance * (1 - chance) <= LONG:
        found = hockey_stick(Binomial(trials, chance).pmf(), precision, target.epsilon) / target.delta
    else:
        grid = Grid(precision, target.dimension, target.norm)
        found = released_epsilon(trials, chance, grid, target.delta) / target.epsilon
    return math.log(min(max(found, 1 / LARGEST), LARGEST))


@lru_cache(maxsize=1024)
def _coarsest(target: Target) -> int:
    few = math.ceil(1 / ROUNDING)
    if target.dimension == 1:
        return least(lambda g: not _hides(target, g, target.floor * (few - 1)), 1)
    balanced = math.sqrt(few * target.floor / (4 * target.about))
    return max(1, math.ceil(balanced), grid_for(target.dimension, target.norm, math.log(1 / target.delta)))


def _guess(target: Target, precision: int) -> int:
    variance = target.about * precision**2
    return min(MOST_COINS, max(1, math.ceil(4 * variance / target.floor)))


def _scalar(target: Target, precision: int | None, frame: CohortParams) -> tuple[int, float]:
    """Steps g and ones bp of DLB (60), with the corrections of its Lemma C.5: range 2B = high - low."""
    fewest = max(2, math.ceil((frame.high - frame.low) * math.sqrt(target.floor)))
    g = _at_least(fewest, precision)
    return g, 90 * g * g * math.log(2 / target.delta) / ((target.epsilon / 2) ** 2 * target.floor)


def _vector(target: Target, precision: int | None) -> tuple[int, float]:
    """Steps g and ones bp of DLB (22): its ball in ℓ₂ is ours for l1 and l2, and √D times as wide as our box."""
    log = math.log(4 * target.dimension / target.delta)
    hat = target.epsilon / (18 * math.sqrt(math.log(2 / target.delta)))
    steps = max(hat * math.sqrt(target.floor) / (6 * math.sqrt(5 * log)), math.sqrt(target.dimension), 10)
    across = math.sqrt(target.dimension) if target.norm == "linf" else 1.0
    g = _at_least(math.ceil(steps / across), precision)
    return g, 90 * (g * across) ** 2 * log / (hat**2 * target.floor)


def _at_least(fewest: int, precision: int | None) -> int:
    if precision is not None and precision < fewest:
        raise BadParameter("mechanism.precision", precision, f"the theorem needs at least {fewest}")
    return precision or fewest

"""Privacy of binomial bits, scalar or vector, from their law; the fewest bits for a target; the papers' constants."""

import math
from dataclasses import dataclass
from functools import lru_cache

from common.accounting import epsilon_at, hockey_stick
from common.binomial_accounting import long_epsilon
from common.errors import BadParameter
from common.mechanisms.base import Norm
from common.mechanisms.frame import ROUNDING, Frame, least
from common.mechanisms.sensitivity import Grid
from common.mechanisms.spread import about_variance, grid_for, vector_epsilon
from common.noise import Binomial

FAIR = 0.5
LONG = 1e7
"""Variance above which one coordinate's ε takes two tails and not the law itself."""

MOST_VARIANCE = 2.5e8
"""Of the noise that a vector's bound is computed with; its support is near LIMIT. More bits only add to privacy."""

MOST_COINS = 1 << 24
"""Random bits a client and coordinate."""

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


@lru_cache(maxsize=4096)
def released_epsilon(trials: int, chance: float, grid: Grid, delta: float) -> float:
    """The least proven ε at `delta` of Bin(trials, chance) on every coordinate; exact for one. inf: δ is too small.

    For vectors a bound: of no more bits than have MOST_VARIANCE.
    """
    one = chance * (1 - chance)
    if grid.dimension > 1:
        counted = Binomial(min(trials, math.floor(MOST_VARIANCE / one)), chance)
        return vector_epsilon(counted.pmf(), grid, delta, both=chance != FAIR)
    if trials * one > LONG:
        return long_epsilon(trials, chance, grid.precision, delta)
    return epsilon_at(Binomial(trials, chance).pmf(), grid.precision, delta)


def paper_bits(target: Target, precision: int | None, frame: Frame) -> Bits:
    """DLB (60) for one coordinate, (22) for vectors."""
    grid, ones = _scalar(target, precision, frame) if target.dimension == 1 else _vector(target, precision)
    coins = math.ceil(2 * ones)
    return grid, coins, ones / coins


def fewest_bits(target: Target, precision: int | None) -> Bits:
    """The least b at p = 1/2. g, when it is ours, is the least that needs b ≥ 10, and `grid_for`."""
    g = precision or _coarsest(target)
    return g, least(lambda b: b > MOST_COINS or _hides(target, g, target.floor * b), _guess(target, g)), FAIR


def _hides(target: Target, precision: int, trials: int) -> bool:
    if target.dimension == 1 and trials * FAIR**2 <= LONG:
        return hockey_stick(Binomial(trials).pmf(), precision, target.epsilon) <= target.delta
    grid = Grid(precision, target.dimension, target.norm)
    return released_epsilon(trials, FAIR, grid, target.delta) <= target.epsilon


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


def _scalar(target: Target, precision: int | None, frame: Frame) -> tuple[int, float]:
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

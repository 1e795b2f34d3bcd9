"""Privacy of sealed messages that a shuffler permutes: what amplification makes of a client's own noise."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.calibration.gaussian import Grid
from distrust.common.mechanisms.calibration.gaussian_vectors import lattice_epsilon, lattice_variance
from distrust.common.mechanisms.calibration.roots import greatest_on_grid, least_on_grid, snap_down, snap_up
from distrust.common.mechanisms.calibration.sensitivity import laplace_scale
from distrust.common.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.privacy.amplification import (
    Randomizer,
    added_noise,
    blanket_epsilon,
    blanket_renyi,
    clones_delta,
    clones_epsilon,
    clones_local_epsilon,
    clones_renyi,
    concentrated_renyi,
    laplace_on_grid,
)
from distrust.common.privacy.amplification.blanket import SHARE, pair_delta
from distrust.common.privacy.amplification.randomizers import LEAST_DELTA
from distrust.common.privacy.gaussian import largest_ratio
from distrust.common.privacy.hockey_stick import epsilon_at
from distrust.common.privacy.profile import ORDERS

GUESS = 1.03  # relative accuracy of the search for where to begin
COARSE = 6  # steps of the grid on which it is done, where the noise is less than that wide
FINEST = 32  # steps of one coordinate's range, all pairs of which the blanket bound compares
MOST_ALIKE = 100_000  # messages of Laplace noise that the blanket is computed for, which takes long; more hide more
GAIN = 1.4  # of ε₀ by the blanket over the clones', about
LARGEST_LOCAL = 50.0
LEAST_SIZE = 0.1  # of Gaussian noise, in units of the range
NOT_ZERO = 1e-300  # of a δ whose logarithm is taken

LOCAL = (
    "pure epsilon is that of one message alone, and so are Rényi divergences of orders where shuffling shows no less"
)
FARTHEST = 1e-280  # mass of a message's law that Rényi divergences may leave out

Kind: TypeAlias = Callable[[float, int], Randomizer]
"""The size of the noise, σ² or ε₀, and the precision to a randomizer."""

Target: TypeAlias = tuple[float, float, int]
"""ε, δ and honest clients."""

Search: TypeAlias = Callable[[Callable[[float], float], float], float]
"""An excess and a guess to the snapped number at which the excess ends."""


def of_the_records(honest: int) -> tuple[str, ...]:
    """Assumptions of sealed records."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server; if it does, each client's own noise is all there is",
    )


@lru_cache(maxsize=256)
def laplace_epsilon(local_epsilon: float, delta: float, honest: int, asked: float = 0.0) -> float:
    """ε at δ of ε₀-private messages by the clones bound, at most ε₀; `asked` where that is met and the search's is not.

    The search rounds up in the ninth digit.
    """
    found = min(local_epsilon, clones_epsilon(delta, local_epsilon, honest))
    met = 0 < asked < found and clones_delta(asked, local_epsilon, honest) <= delta
    return asked if met else found


@lru_cache(maxsize=256)
def laplace_local_epsilon(epsilon: float, delta: float, honest: int) -> float:
    """The largest ε₀ by the clones bound, snapped down; ε itself if that is larger."""
    found = clones_local_epsilon(epsilon, delta, honest)
    return max(epsilon, snap_down(found))


@lru_cache(maxsize=256)
def alike_epsilon(local_epsilon: float, precision: int, delta: float, honest: int, asked: float) -> float:
    """ε at δ where all draw Lap_Z(g/ε₀) in one coordinate: by the blanket too; `asked`, not 0, where that is met.

    The blanket is computed for every pair of inputs on the grid.
    """
    clones = laplace_epsilon(local_epsilon, delta, honest, asked)
    if clones <= asked or not _has_blanket(precision, honest):
        return clones
    counted = min(honest, MOST_ALIKE)
    if asked > 0 and _hides(_laplace_on_grid, precision, (asked, delta, counted), local_epsilon):
        return asked
    try:
        return min(clones, blanket_epsilon(_laplace_on_grid(local_epsilon, precision), delta, counted))
    except BadParameter:
        return clones


@lru_cache(maxsize=256)
def alike_local_epsilon(epsilon: float, delta: float, honest: int, precision: int) -> float:
    """The largest ε₀ on the grid of snapped numbers with `alike_epsilon` ≤ ε: never below the clones'."""
    clones = laplace_local_epsilon(epsilon, delta, honest)
    if not _has_blanket(precision, honest) or honest > MOST_ALIKE:
        return clones

    target = (epsilon, delta, honest)
    if _hides(_laplace_on_grid, precision, target, LARGEST_LOCAL):
        return LARGEST_LOCAL
    guess = min(GAIN * clones, LARGEST_LOCAL)
    return max(clones, _over_pairs(_laplace_on_grid, precision, target, greatest_on_grid, guess))


@lru_cache(maxsize=256)
def gaussian_epsilon(variance: float, grid: Grid, delta: float, honest: int, asked: float) -> float:
    """ε at δ of messages with N_Z(0, variance): `asked` where that is met, if it is above 0, without a search for less.

    One coordinate: the blanket bound for every pair of inputs. A vector: `_vector_delta`. Never above the local ε.
    """
    local = _local_epsilon(variance, grid, delta)
    if grid.dimension > 1:
        if 0 < asked <= local and _vector_delta(variance, grid, delta, honest, asked) <= delta:
            return asked
        return min(local, _vector_epsilon(variance, grid, delta, honest, local))
    if asked > 0 and _hides(_on_grid, grid.precision, (asked, delta, honest), variance):
        return min(local, asked)
    try:
        return min(local, blanket_epsilon(_on_grid(variance, grid.precision), delta, honest))
    except BadParameter:
        return local


@lru_cache(maxsize=256)
def laplace_renyi(local_epsilon: float, honest: int) -> tuple[float, ...]:
    """Rényi divergences of ε₀-private messages at the orders of a profile, by the clones."""
    return tuple(clones_renyi(local_epsilon, honest, ORDERS))


@lru_cache(maxsize=256)
def alike_renyi(local_epsilon: float, precision: int, honest: int) -> tuple[float, ...]:
    """The same where all draw Lap_Z(g/ε₀) in one coordinate: the lesser of clones and blanket at every order."""
    clones = laplace_renyi(local_epsilon, honest)
    if not _has_blanket(precision, honest):
        return clones
    rho = local_epsilon**2 / 2  # of any ε₀-private message (Bun & Steinke 2016)
    randomizer = laplace_on_grid(laplace_scale(local_epsilon, precision, 1), precision)
    found = blanket_renyi(randomizer, min(honest, MOST_ALIKE), rho, ORDERS, local_epsilon)
    return tuple(min(pair) for pair in zip(clones, found, strict=True))


@lru_cache(maxsize=256)
def gaussian_renyi(variance: float, grid: Grid, honest: int) -> tuple[float, ...]:
    """Of messages with N_Z(0, variance): one coordinate by the blanket, a vector by the clones; inf: unknown."""
    rho = grid.squared_l2 / (2 * variance)
    if grid.dimension > 1:
        return tuple(concentrated_renyi(honest, rho, ORDERS, partial(_local_epsilon, variance, grid)))
    randomizer = added_noise(DiscreteGaussian(variance).pmf(FARTHEST), grid.precision)
    return tuple(blanket_renyi(randomizer, honest, rho, ORDERS))


@lru_cache(maxsize=256)
def gaussian_size(epsilon: float, delta: float, honest: int) -> float:
    """About the least σ on any grid, in units of the range, by the blanket bound: where the search begins."""
    low, high = LEAST_SIZE, 1 / largest_ratio(epsilon, delta)  # the local mechanism's
    while high > low * GUESS:
        middle = math.sqrt(low * high)
        steps = COARSE if middle < COARSE else 1
        randomizer = _on_grid((middle * steps) ** 2, steps)
        met = pair_delta(randomizer, (0, steps), epsilon, honest, SHARE * delta) <= delta
        low, high = (low, middle) if met else (middle, high)
    return high


@lru_cache(maxsize=256)
def gaussian_variance(epsilon: float, delta: float, honest: int, grid: Grid) -> float:
    """The least variance on the grid, in steps squared, as a snapped number; every pair of inputs is checked."""
    if grid.dimension > 1:
        return _vector_variance(epsilon, delta, honest, grid)
    guess = (gaussian_size(epsilon, delta, honest) * grid.precision) ** 2
    return _over_pairs(_on_grid, grid.precision, (epsilon, delta, honest), least_on_grid, guess)


def _over_pairs(kind: Kind, precision: int, target: Target, search: Search, guess: float) -> float:
    """The search's number at which the blanket hides every pair of inputs: at first that of the farthest pair.

    Where another pair is not hidden there, the search goes on from there, away from the guess, with the worst of them.
    """
    pairs = kind(guess, precision).pairs()
    found, pair = guess, pairs[0]
    while True:
        found = search(partial(_excess, kind, precision, target, pair), found)
        worst, pair = max((_excess(kind, precision, target, other, found), other) for other in pairs)
        if worst <= 0:
            return found


def _hides(kind: Kind, precision: int, target: Target, size: float) -> bool:
    """Whether the blanket hides every pair of inputs; what a search ended with is not computed again."""
    pairs = kind(size, precision).pairs()
    return all(_excess(kind, precision, target, pair, size) <= 0 for pair in pairs)


@lru_cache(maxsize=4096)
def _excess(kind: Kind, precision: int, target: Target, pair: tuple[int, int], size: float) -> float:
    """The logarithm of a pair's δ(ε) over δ, for noise of that size."""
    epsilon, delta, honest = target
    found = pair_delta(kind(size, precision), pair, epsilon, honest, SHARE * delta)
    return math.log(max(found, NOT_ZERO) / delta)


@lru_cache(maxsize=4)
def _on_grid(variance: float, precision: int) -> Randomizer:
    return added_noise(DiscreteGaussian(variance).pmf(), precision)


@lru_cache(maxsize=4)
def _laplace_on_grid(local_epsilon: float, precision: int) -> Randomizer:
    return laplace_on_grid(laplace_scale(min(local_epsilon, LARGEST_LOCAL), precision, 1), precision)


def _has_blanket(precision: int, honest: int) -> bool:
    return precision <= FINEST and honest > 1


def _local_epsilon(variance: float, grid: Grid, delta: float) -> float:
    if grid.dimension > 1:
        return lattice_epsilon(grid, variance, delta)
    return epsilon_at(DiscreteGaussian(variance).pmf(), grid.precision, delta)


def _vector_epsilon(variance: float, grid: Grid, delta: float, honest: int, local: float) -> float:
    """The least ε up to the local one with `_vector_delta` ≤ δ, by halving, rounded up."""
    low, high = 0.0, min(local, 50.0)
    if _vector_delta(variance, grid, delta, honest, high) > delta:
        return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _vector_delta(variance, grid, delta, honest, middle) <= delta else (middle, high)
    return high


def _vector_delta(variance: float, grid: Grid, delta: float, honest: int, epsilon: float) -> float:
    """δ(ε) of (ε₀, δ₀)-private messages: the clones bound at ε₀, and (e^ε + 1)(1 + e^(-ε₀)/2) n δ₀, half of δ at most.

    Feldman, McMillan & Talwar 2021, Theorem 3.8: such a randomizer is within δ₀ of an ε₀-private one.
    """
    local = _local_epsilon(variance, grid, _share(epsilon, delta, honest))
    if not 0 < local <= 50:
        return delta / 2 if local <= 0 else math.inf
    return clones_delta(epsilon, local, honest) + delta / 2


def _vector_variance(epsilon: float, delta: float, honest: int, grid: Grid) -> float:
    alone = lattice_variance(grid, epsilon, delta)
    if delta / 2 < LEAST_DELTA:
        return snap_up(alone)
    local = clones_local_epsilon(epsilon, delta / 2, honest)
    amplified = lattice_variance(grid, local, _share(epsilon, delta, honest))
    return snap_up(min(alone, amplified))


def _share(epsilon: float, delta: float, honest: int) -> float:
    """δ₀ for which its term is half of δ, whatever ε₀ is."""
    return delta / (2 * (math.exp(epsilon) + 1) * 1.5 * honest)

"""Privacy of sealed messages that a shuffler permutes: what amplification makes of a client's own noise."""

import math
from functools import lru_cache, partial

from scipy.optimize import brentq

from common.accounting import epsilon_at
from common.amplification import (
    Randomizer,
    added_noise,
    blanket_epsilon,
    blanket_meets,
    blanket_renyi,
    clones_delta,
    clones_epsilon,
    clones_local_epsilon,
    clones_renyi,
    concentrated_renyi,
    laplace_on_grid,
)
from common.amplification.blanket import pair_delta
from common.errors import BadParameter
from common.gaussian_accounting import largest_ratio, lattice_epsilon, lattice_variance
from common.mechanisms.gaussian_search import Grid
from common.mechanisms.sensitivity import laplace_scale
from common.noise import DiscreteGaussian, DiscreteLaplace
from common.profile import ORDERS

SEARCH = 1e-4  # relative accuracy of the last search, upwards
GUESS = 1.03  # and of the first one
COARSE = 6  # steps of the grid on which the first one is done
FINEST = 32  # steps of one coordinate's range, all pairs of which the blanket bound compares
MOST_ALIKE = 100_000  # messages of Laplace noise that the blanket is computed for, which takes long; more hide more
GAIN = 1.4  # of ε₀ by the blanket over the clones', about
LARGEST_LOCAL = 50.0
SPARED = 0.03  # of δ: mass of extreme values to leave out
LEAST_SIZE = 0.1  # of Gaussian noise, in units of the range

LOCAL = (
    "pure epsilon is that of one message alone, and so are Rényi divergences of orders where shuffling shows no less"
)
FARTHEST = 1e-280  # mass of a message's law that Rényi divergences may leave out


def of_the_records(honest: int) -> tuple[str, ...]:
    """Assumptions of sealed records."""
    return (
        f"at least {honest} honest clients answer and tell nobody their noise",
        "the shuffler does not collude with the server; if it does, each client's own noise is all there is",
    )


@lru_cache(maxsize=256)
def laplace_epsilon(local_epsilon: float, delta: float, honest: int) -> float:
    """ε at δ of ε₀-private messages: the clones bound, at most ε₀."""
    return min(local_epsilon, clones_epsilon(delta, local_epsilon, honest))


@lru_cache(maxsize=256)
def alike_epsilon(local_epsilon: float, precision: int, delta: float, honest: int, asked: float) -> float:
    """The same where all draw Lap_Z(g/ε₀) in one coordinate: by the blanket too; `asked`, not 0, where that is met.

    The blanket is computed for every pair of inputs on the grid.
    """
    clones = laplace_epsilon(local_epsilon, delta, honest)
    if clones <= asked or not _has_blanket(precision, honest):
        return clones
    randomizer, counted = _laplace_on_grid(local_epsilon, precision), min(honest, MOST_ALIKE)
    if asked > 0 and blanket_meets(randomizer, asked, delta, counted):
        return asked
    try:
        return min(clones, blanket_epsilon(randomizer, delta, counted))
    except BadParameter:
        return clones


@lru_cache(maxsize=256)
def alike_local_epsilon(epsilon: float, delta: float, honest: int, precision: int) -> float:
    """The largest ε₀ with `alike_epsilon` ≤ ε, to a ten-thousandth: never below the clones'; all pairs are checked."""
    clones = clones_local_epsilon(epsilon, delta, honest)
    if not _has_blanket(precision, honest) or honest > MOST_ALIKE:
        return clones

    def excess(local: float) -> float:
        found = pair_delta(_ends(_laplace_on_grid(local, precision)), (0, 1), epsilon, honest, SPARED * delta)
        return math.log(min(max(found, 1e-300), 1.0) / delta)

    low, high = clones, GAIN * clones
    while high < LARGEST_LOCAL and excess(high) <= 0:
        low, high = high, GAIN * high
    root = float(brentq(excess, low, high, xtol=SEARCH * clones)) if excess(low) < 0 < excess(high) else low
    found = root * (1 - 2 * SEARCH)
    while found > clones and alike_epsilon(found, precision, delta, honest, epsilon) > epsilon:
        found *= 1 - SEARCH
    return max(found, clones)


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
    randomizer = _on_grid(variance, grid.precision)
    if asked > 0 and blanket_meets(randomizer, asked, delta, honest):
        return min(local, asked)
    try:
        return min(local, blanket_epsilon(randomizer, delta, honest))
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
        met = blanket_meets(_farthest((middle * COARSE) ** 2, COARSE), epsilon, delta, honest)
        low, high = (low, middle) if met else (middle, high)
    return high


@lru_cache(maxsize=256)
def gaussian_variance(epsilon: float, delta: float, honest: int, grid: Grid) -> float:
    """The least variance on the grid, in steps squared, to a ten-thousandth; every pair of inputs is checked."""
    if grid.dimension > 1:
        return _vector_variance(epsilon, delta, honest, grid)
    size = _farthest_size(epsilon, delta, honest, grid.precision)
    while gaussian_epsilon(size**2, grid, delta, honest, epsilon) > epsilon:
        size *= 1 + SEARCH
    return size**2


def _farthest_size(epsilon: float, delta: float, honest: int, precision: int) -> float:
    """The least σ, in steps, that hides one end of the range behind the other, to a ten-thousandth and rounded up."""

    def met(size: float) -> bool:
        return blanket_meets(_farthest(size**2, precision), epsilon, delta, honest)

    high = gaussian_size(epsilon, delta, honest) * precision
    low = high / GUESS
    while not met(high):
        low, high = high, high * GUESS
    while high - low > SEARCH * high:
        middle = (low + high) / 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def _on_grid(variance: float, precision: int) -> Randomizer:
    return added_noise(DiscreteGaussian(variance).pmf(), precision)


def _farthest(variance: float, precision: int) -> Randomizer:
    return _ends(_on_grid(variance, precision))


def _laplace_on_grid(local_epsilon: float, precision: int) -> Randomizer:
    return added_noise(DiscreteLaplace(laplace_scale(local_epsilon, precision, 1)).pmf(), precision)


def _has_blanket(precision: int, honest: int) -> bool:
    return precision <= FINEST and honest > 1


def _ends(whole: Randomizer) -> Randomizer:
    """The same randomizer and blanket, with the two ends of the range as its only inputs."""
    ends = [0, -1]
    return Randomizer(
        whole.masses[ends], whole.blanket, whole.low[ends], whole.high[ends], whole.lost, mirrored=whole.mirrored
    )


def _local_epsilon(variance: float, grid: Grid, delta: float) -> float:
    if grid.dimension > 1:
        return lattice_epsilon(grid.squared_l2, variance, grid.dimension, delta)
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
    alone = lattice_variance(grid.squared_l2, grid.dimension, epsilon, delta)
    local = clones_local_epsilon(epsilon, delta / 2, honest)
    amplified = lattice_variance(grid.squared_l2, grid.dimension, local, _share(epsilon, delta, honest))
    return math.nextafter(min(alone, amplified), math.inf)


def _share(epsilon: float, delta: float, honest: int) -> float:
    """δ₀ for which its term is half of δ, whatever ε₀ is."""
    return delta / (2 * (math.exp(epsilon) + 1) * 1.5 * honest)

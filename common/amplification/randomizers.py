"""The randomizers whose blanket is known: finite tables, noise on a grid, Gaussian and Laplace noise on [0, 1]."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from common.amplification.randomizer import Array, Randomizer
from common.errors import BadParameter
from common.noise import Pmf

FINE = 256  # cells in one unit of noise, or of what changes the density by e
FARTHEST = 9.0  # standard deviations beyond [0, 1] that are cut into cells; less than 1e-18 is beyond them
MOST_INPUTS = 33
WIDER = 1e-12  # relative, for the rounding of densities


def table(masses: Array) -> Randomizer:
    """Any finite randomizer: row x holds the probabilities of the outputs for input x."""
    return _of_atoms(np.atleast_2d(masses), 0.0, mirrored=False)


def added_noise(pmf: Pmf, precision: int) -> Randomizer:
    """x̂ + noise for x̂ in {0..precision}: discrete Laplace, discrete Gaussian, any law on the integers."""
    _check_inputs(precision)
    masses = np.zeros((precision + 1, pmf.masses.size + precision))
    for x, row in enumerate(masses):
        row[x : x + pmf.masses.size] = pmf.masses
    symmetric = bool(np.array_equal(pmf.logs, pmf.logs[::-1]))
    return _of_atoms(masses, pmf.lost, mirrored=symmetric)


def laplace_on_grid(scale: float, precision: int) -> Randomizer:
    """x̂ + Lap_Z(scale) for x̂ in {0..precision}, put between 0 and `precision`.

    Beyond them all laws are proportional, so that it tells as much, and nothing is left out as in `added_noise`.
    """
    _check_inputs(precision)
    x = np.arange(precision + 1)
    masses = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(x[:, None] - x) / scale)
    masses[:, 0] = np.exp(-x / scale) / (1 + math.exp(-1 / scale))
    masses[:, -1] = masses[::-1, 0]
    return _of_atoms(masses, 0.0, mirrored=True)


def gaussian(sigma: float, precision: int = 1) -> Randomizer:
    """Values x + N(0, σ²) for x in {0, 1/precision, …, 1}. There is no ε₀. γ = 2Φ(-1/(2σ)), whatever the grid."""
    _check_scale("sigma", sigma)
    _check_inputs(precision)
    step = min(sigma, sigma**2) / FINE
    half = math.ceil((0.5 + FARTHEST * sigma) / step)
    edges = 0.5 + step * np.arange(-half, half + 1)
    x = np.arange(precision + 1)[:, None] / precision
    ratios = np.where(edges <= 0.5, (1 - x) * (1 + x - 2 * edges), x * (2 * edges - x)) / (2 * sigma**2)
    lost = 2 * float(special.ndtr(-FARTHEST))
    return _of_cells(_between((edges - x) / sigma, special.ndtr), half, np.exp(ratios), lost)


def laplace(scale: float, precision: int = 1) -> Randomizer:
    """Values x + Lap(scale) for x in {0, 1/precision, …, 1}: ε₀ = 1/scale, γ = e^(-1/(2 scale))."""
    _check_scale("scale", scale)
    _check_inputs(precision)
    # left of 0, and right of 1, all densities are proportional: one cell each
    half = precision * math.ceil(FINE / (2 * precision * min(scale, 1.0)))
    edges = np.concatenate(([-np.inf], np.linspace(0, 1, 2 * half + 1), [np.inf]))
    x = np.arange(precision + 1)[:, None] / precision
    inside = np.clip(edges, 0, 1)
    ratios = np.where(inside <= 0.5, 1 - inside, inside) - np.abs(inside - x)
    return _of_cells(_between((edges - x) / scale, _laplace_below), half + 1, np.exp(ratios / scale), 0.0)


def _laplace_below(z: Array) -> Array:
    """P(Lap(1) ≤ z)."""
    tail = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, tail, 1 - tail)


def _between(edges: Array, below: Callable[[Array], Array]) -> Array:
    """Masses between neighbouring edges of a law that is symmetric about 0, each from its own smaller tail."""
    left, right = edges[:, :-1], edges[:, 1:]
    upper = left > 0
    masses: Array = below(np.where(upper, -left, right)) - below(np.where(upper, -right, left))
    return masses


def _of_atoms(masses: Array, lost: float, *, mirrored: bool) -> Randomizer:
    """Outputs one by one; those that some input never gives have no blanket and count as lost."""
    blanket = masses.min(axis=0)
    kept = blanket > 0
    if not kept.any():
        raise BadParameter("masses", "disjoint", "some output must be possible for every input")
    beyond = float(masses[:, ~kept].sum(axis=1).max(initial=0.0))
    masses, blanket = masses[:, kept], blanket[kept]
    return Randomizer(masses, blanket, masses / blanket, masses / blanket, lost + beyond, mirrored=mirrored)


def _of_cells(masses: Array, half: int, ratios: Array, lost: float) -> Randomizer:
    """Intervals: `half` of them left of 1/2, where the last input's law is the least; right of it the first input's.

    Densities relative to the least law are monotone between edges; `ratios` holds them there.
    """
    blanket = np.concatenate((masses[-1, :half], masses[0, half:]))
    low = np.minimum(ratios[:, :-1], ratios[:, 1:]) * (1 - WIDER)
    high = np.maximum(ratios[:, :-1], ratios[:, 1:]) * (1 + WIDER)
    return Randomizer(masses, blanket, low, high, lost, mirrored=True)


def _check_scale(field: str, value: float) -> None:
    if not 0.1 <= value <= 1000:
        raise BadParameter(field, value, "must lie in [0.1, 1000], in units of the range of the values")


def _check_inputs(precision: int) -> None:
    if not 1 <= precision < MOST_INPUTS:
        raise BadParameter(
            "precision", precision, f"must lie in [1, {MOST_INPUTS - 1}]: every pair of inputs is compared"
        )

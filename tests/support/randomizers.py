"""Randomizers, and bounds for shuffled messages, for checks against other computations. No mechanism uses them."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.amplification import clones
from distrust.common.dp.accounting.techniques.amplification.blanket import pair_delta
from distrust.common.dp.accounting.techniques.amplification.randomizers import LocalRandomizer

FINE = 256  # cells in one unit of noise, or in a distance over which the density changes by a factor e
FARTHEST = 9.0  # standard deviations beyond [0, 1] that are cut into cells; less than 1e-18 of mass is beyond them
LEFT_OUTS = (1e-16, 1e-13, 1e-10, 1e-7, 1e-5)  # masses of extreme values to leave out; each gives a bound
WIDER = 1e-12  # relative, for the rounding of densities


def blanket_delta(randomizer: LocalRandomizer, epsilon: float, users: int) -> float:
    """Return an upper bound of δ(ε) for the shuffled messages of `users`: the worst pair of inputs."""
    return max(
        min(pair_delta(randomizer, pair, epsilon, users, left_out) for left_out in LEFT_OUTS)
        for pair in randomizer.pairs()
    )


def paper_epsilon(local_epsilon: float, delta: float, users: int) -> float:
    """Return the closed form that FREE prints as equation (10), for ε₀ in the range where it is proven."""
    assert local_epsilon <= clones.largest_local_epsilon(delta, users)
    return clones._form(local_epsilon, delta, users)


def tabulated(masses: Floats) -> LocalRandomizer:
    """Return a finite randomizer: row x holds the probabilities of the outputs for input x."""
    blanket = masses.min(axis=0)
    kept = blanket > 0  # other outputs have no blanket, and count as lost
    lost = float(masses[:, ~kept].sum(axis=1).max(initial=0.0))
    ratios = masses[:, kept] / blanket[kept]
    return LocalRandomizer(masses[:, kept], blanket[kept], ratios, ratios, lost)


def gaussian(sigma: float, precision: int = 1) -> LocalRandomizer:
    """Return messages x + N(0, σ²) for x in {0, 1/precision, …, 1}. γ = 2Φ(-1/(2σ)) for every grid."""
    step = min(sigma, sigma**2) / FINE
    half = math.ceil((0.5 + FARTHEST * sigma) / step)
    edges = 0.5 + step * np.arange(-half, half + 1)
    x = np.arange(precision + 1)[:, None] / precision
    ratios = np.where(edges <= 0.5, (1 - x) * (1 + x - 2 * edges), x * (2 * edges - x)) / (2 * sigma**2)
    lost = 2 * float(special.ndtr(-FARTHEST))
    return _of_cells(_between((edges - x) / sigma, special.ndtr), half, np.exp(ratios), lost)


def laplace(scale: float, precision: int = 1) -> LocalRandomizer:
    """Return messages x + Lap(scale) for x in {0, 1/precision, …, 1}: ε₀ = 1/scale, γ = e^(-1/(2 scale))."""
    # Left of 0, and right of 1, all densities are proportional: one cell each.
    half = precision * math.ceil(FINE / (2 * precision * min(scale, 1.0)))
    edges = np.concatenate(([-np.inf], np.linspace(0, 1, 2 * half + 1), [np.inf]))
    x = np.arange(precision + 1)[:, None] / precision
    inside = np.clip(edges, 0, 1)
    ratios = np.where(inside <= 0.5, 1 - inside, inside) - np.abs(inside - x)
    return _of_cells(_between((edges - x) / scale, _laplace_below), half + 1, np.exp(ratios / scale), 0.0)


def _laplace_below(z: Floats) -> Floats:
    """Return P(Lap(1) ≤ z)."""
    tail = np.exp(-np.abs(z)) / 2
    return np.where(z < 0, tail, 1 - tail)


def _between(edges: Floats, below: Callable[[Floats], Floats]) -> Floats:
    """Return masses between neighbouring edges of a law that is symmetric about 0, each from its own smaller tail."""
    left, right = edges[:, :-1], edges[:, 1:]
    upper = left > 0
    masses: Floats = below(np.where(upper, -left, right)) - below(np.where(upper, -right, left))
    return masses


def _of_cells(masses: Floats, half: int, ratios: Floats, lost: float) -> LocalRandomizer:
    """Return a randomizer whose outputs are intervals, `half` of them left of 1/2.

    Left of 1/2 the last input's law is the least, right of it the first input's. `ratios` holds the densities relative
    to the least law at the edges; between edges they are monotone.
    """
    blanket = np.concatenate((masses[-1, :half], masses[0, half:]))
    low = np.minimum(ratios[:, :-1], ratios[:, 1:]) * (1 - WIDER)
    high = np.maximum(ratios[:, :-1], ratios[:, 1:]) * (1 + WIDER)
    return LocalRandomizer(masses, blanket, low, high, lost, mirrored=True)

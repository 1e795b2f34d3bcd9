"""Defines local randomizers for the blanket bound: cells of outputs, and each input's mass on each cell.

They are noise on a grid: any law on the integers, and Laplace noise of the two inputs that tell the most.
"""

import math
from dataclasses import dataclass

import numpy as np

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.noise.law import Pmf
from distrust.common.errors import BadParameter

LARGEST_LOCAL_EPSILON = 50.0  # nats

MOST_INPUTS = 33  # values of a grid; every pair of them is compared
MOST_CELLS = 5000  # of a law's outputs, about; longer laws are joined into cells of neighbours
FINEST_LAPLACE = 4096  # steps between the ends of Laplace noise; each is a cell


@dataclass(frozen=True, eq=False)
class LocalRandomizer:
    """Laws μ_x of one message for finitely many inputs x, cut into cells of outputs.

    masses    shape (inputs, cells): μ_x of each cell.
    blanket   shape (cells,), above 0: mass of a measure below every input's law, all inputs of all users; its sum is γ.
    low, high shape (inputs, cells): bounds of μ_x's density relative to the blanket within a cell; equal for atoms.
    lost      bound on any input's mass outside the cells.
    mirrored  whether x ↔ inputs - 1 - x mirrors the laws.
    Inputs in between are served by randomized rounding to these: mixtures of inputs are never worse (joint convexity).
    """

    masses: Floats
    blanket: Floats
    low: Floats
    high: Floats
    lost: float
    mirrored: bool = False

    @property
    def gamma(self) -> float:
        """Return γ, the probability that a message says nothing of its input."""
        return float(self.blanket.sum())

    def pairs(self) -> list[tuple[int, int]]:
        """Return pairs of inputs to compare, the farthest apart first; mirror images once."""
        last = len(self.masses) - 1
        every = [(x, y) for x in range(last + 1) for y in range(last + 1) if x != y]
        once = [pair for pair in every if not self.mirrored or pair <= (last - pair[0], last - pair[1])]
        return sorted(once, key=lambda pair: -abs(pair[0] - pair[1]))


def added_noise(pmf: Pmf, precision: int) -> LocalRandomizer:
    """Return messages x̂ + noise for x̂ in {0..precision}, with any law on the integers.

    A law of more than MOST_CELLS outputs is cut into that many cells of neighbours, at least: the log-ratio of two
    inputs changes by a 250th of its standard deviation in a cell of Gaussian noise.
    """
    if not 1 <= precision < MOST_INPUTS:
        allowed = f"must lie in [1, {MOST_INPUTS - 1}]: every pair of inputs is compared"
        raise BadParameter("precision", precision, allowed)
    row = np.zeros(pmf.masses.size + precision)
    blanket = np.full(row.size, np.inf)
    for x in range(precision + 1):
        np.minimum(blanket, _moved(pmf, x, row), out=blanket)
    kept = blanket > 0
    if not kept.any():
        raise BadParameter("masses", "disjoint", "some output must be possible for every input")
    blanket, beyond = blanket[kept], 0.0
    starts = np.arange(0, blanket.size, max(1, pmf.masses.size // MOST_CELLS))
    masses, low, high = [], [], []
    for x in range(precision + 1):
        law = _moved(pmf, x, row)[kept]
        masses.append(np.add.reduceat(law, starts))
        low.append(np.minimum.reduceat(law / blanket, starts))
        high.append(np.maximum.reduceat(law / blanket, starts))
        beyond = max(beyond, float(row[~kept].sum()))
    return LocalRandomizer(
        np.array(masses),
        np.add.reduceat(blanket, starts),
        np.array(low),
        np.array(high),
        pmf.lost + beyond,
        mirrored=bool(np.array_equal(pmf.logs, pmf.logs[::-1])),
    )


def _moved(pmf: Pmf, shift: int, row: Floats) -> Floats:
    """Return the law moved by `shift`, written into `row`."""
    row[:] = 0.0
    row[shift : shift + pmf.masses.size] = pmf.masses
    return row


def laplace_on_grid(scale: float, precision: int) -> LocalRandomizer:
    """Return messages x̂ + Lap_Z(scale) for x̂ = 0 and x̂ = `precision`, put between these two ends.

    The blanket bound of the ends holds for all inputs in between, also where each message is about a pair of its own.
    Beyond the ends all laws are proportional, so that the cut messages tell as much, and no mass is left out as in
    `added_noise`.
    Source  ours, docs/concepts/privacy/shuffling.md.
    """
    # Proof. Let g be the precision, ω the least law at every output w, which is that of the farther end, and
    # r_x = μ_x/ω, under draws from ω/γ. All r_x have the mean γ⁻¹.
    # For x ≤ g/2 r_x(w) never rises with w. So r_x > t holds for the outputs up to some w, which have the most mass
    # under μ_0: E(r_x - t)₊ ≤ E(r_0 - t)₊ for every t. For x ≥ g/2 it is the mirror image, with r_g, and r_0 and r_g
    # have one law. As the means are equal, E(t - r_x)₊ ≤ E(t - r_g)₊ as well.
    # With L = r_x - e^ε r_y and t = u - e^ε v, E(L - t)₊ ≤ E(r_x - u)₊ + e^ε E(v - r_y)₊, and that is at most
    # E(r_0 - u)₊ + e^ε E(v - r_g)₊. r_0 falls and r_g rises. So for every t some u and v cut both at one w, and then
    # this sum is E(r_0 - e^ε r_g - t)₊: L of the ends is the largest in convex order. An input off the grid is a
    # mixture of two on it, and so is its r_x.
    if not 1 <= precision <= FINEST_LAPLACE:
        raise BadParameter("precision", precision, f"must lie in [1, {FINEST_LAPLACE}]")
    steps = np.arange(precision + 1)
    first = math.tanh(1 / (2 * scale)) * np.exp(-steps / scale)
    first[[0, -1]] = np.exp(-steps[[0, -1]] / scale) / (1 + math.exp(-1 / scale))
    masses = np.array([first, first[::-1]])
    blanket = masses.min(axis=0)
    return LocalRandomizer(masses, blanket, masses / blanket, masses / blanket, 0.0, mirrored=True)

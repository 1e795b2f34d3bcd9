"""Privacy of many coordinates with noise of their own, each moved by the same shift: composed losses, from above.

The loss of one coordinate is ln P(x)/P(x - s). Its atom of mass P(x) is split between the two neighbouring points of a
grid so that the masses under both laws are kept. Merging the two gives the atom back, so that the pair of laws that is
composed has the true pair as a function of its outcome: its δ is never smaller, and larger by O(cell²) only.
"""

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from numpy.typing import NDArray

from common.noise.law import Pmf

CELLS = 64
"""Cells of the grid for each standard deviation of one coordinate's loss: ε is less than 1e-4 too large by them."""

FAR = 1e-18  # mass of one coordinate's rarest losses that may count as infinite
NOISE = 1e-13  # of the Fourier transform that composes, in absolute terms
MOST = 1 << 22  # cells of one coordinate


def product_epsilon(pmf: Pmf, shift: int, count: int, delta: float) -> float:
    """The ε at `delta` of `count` independent sums with noise `pmf`, all of which one client moves by `shift`.

    Domain   symmetric log-concave noise, so that no smaller shift of a coordinate, in either direction, is worse.
    Returns  inf where δ does not suffice, or is too small (1e-13) for the composition's rounding.
    """
    losses, masses, infinite = _losses(pmf, shift)
    left = delta - NOISE
    if left <= 0 or losses.size == 0 or infinite * count >= left:
        return math.inf
    mean = float(losses @ masses)
    cell = math.sqrt(float((losses - mean) ** 2 @ masses)) / CELLS
    if cell <= 0 or (losses.max() - losses.min()) / cell > MOST:
        return math.inf
    one = pld_pmf.create_pmf(_split(losses, masses, cell), cell, infinite, pessimistic_estimate=True)
    return float(one.self_compose(count, tail_mass_truncation=NOISE).get_epsilon_for_delta(left))


def _losses(pmf: Pmf, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Finite losses, their masses, and the mass that counts as infinite: what the neighbour cannot give, or far out."""
    logs, size = pmf.logs, pmf.logs.size
    masses = pmf.masses
    if shift >= size:
        return np.empty(0), np.empty(0), 1.0
    losses, kept = logs[shift:] - logs[: size - shift], masses[shift:]  # log-concave: the largest loss comes first
    rare = np.cumsum(kept) <= FAR
    least = losses[np.flatnonzero(np.cumsum(kept[::-1])[::-1] > FAR)[-1]]  # smaller ones are raised to it
    infinite = float(masses[:shift].sum() + kept[rare].sum()) + pmf.lost
    return np.maximum(losses, least)[~rare], kept[~rare], infinite


def _split(losses: NDArray[np.float64], masses: NDArray[np.float64], cell: float) -> dict[int, float]:
    """Each atom onto the grid points k and k + 1 around it: a + b = m and a + b e^-cell = m e^(k cell - loss)."""
    below = np.floor(losses / cell).astype(np.int64)
    beyond = -np.expm1(below * cell - losses) / -math.expm1(-cell)
    up = masses * np.clip(beyond, 0.0, 1.0)
    first = int(below.min())
    grid = np.bincount(below - first, weights=masses - up, minlength=int(below.max()) - first + 2)
    grid += np.bincount(below - first + 1, weights=up, minlength=grid.size)
    return {first + i: float(mass) for i, mass in enumerate(grid) if mass > 0}

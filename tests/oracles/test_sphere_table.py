"""Tests the table of noise.md: the bound on `local-sphere`'s error over the error of particular data."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.fft import irfft, rfft
from scipy.optimize import brentq
from scipy.special import betainc

from distrust.common.dp.mechanisms.families.sphere import SphereSum, radius

LINES = (Path(__file__).parents[2] / "docs/concepts/privacy/noise.md").read_text("utf-8").splitlines()
HEAD = next(number for number, line in enumerate(LINES) if line.startswith("| n | D | ε | p = 10⁻³ |"))
ROWS = [line for line in LINES[HEAD + 2 :][:20] if line.count("|") == LINES[HEAD].count("|")]
LEVELS = (1e-3, 1e-6, 1e-12)
LENGTHS = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Lengths of equal vectors along the coordinate, in units of R."""

CELLS = 25
"""Cells in one deviation of an answer's coordinate. Rounding answers to cells' middles adds 2e-4 of the variance."""


def answer(dimension: int, share: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return middles and masses of cells for a coordinate of a uniform direction, weighted 1 ± `share` by sign."""
    cell = 1 / (CELLS * math.sqrt(dimension))
    k = np.arange(-math.ceil(1 / cell) - 1, math.ceil(1 / cell) + 2)
    edges = np.clip(np.append(k - 0.5, k[-1] + 0.5) * cell, -1, 1)
    below = 0.5 + np.sign(edges) * betainc(0.5, (dimension - 1) / 2, edges**2) / 2
    return k * cell, np.diff(below) * (1 + share * np.sign(k))


def beyond(middles: NDArray[np.float64], masses: NDArray[np.float64], terms: int, q: float) -> float:
    """Return P(sum - its mean > q), by FFT of the law tilted to q, so that the tail keeps its digits."""
    cell, mean = middles[1] - middles[0], float(middles @ masses)
    half = middles.size // 2

    def tilted(tilt: float) -> NDArray[np.float64]:
        return masses * np.exp(tilt * (middles - mean))

    def excess(tilt: float) -> float:
        weights = tilted(tilt)
        return float(weights @ (middles - mean) / weights.sum()) - q / terms

    if q / terms >= middles[masses > 0].max() - mean:
        return 0.0
    tilt = float(brentq(excess, 0.0, 300.0))
    weights = tilted(tilt)
    length = 1 << math.ceil(math.log2(40 * CELLS * math.sqrt(terms) + 4 * half))
    center = round((terms * mean + q) / cell)
    shifted = np.roll(np.pad(weights / weights.sum(), (0, length - weights.size)), -half)
    angles = np.arange(length // 2 + 1) * (2 * math.pi * center / length)
    law = irfft(np.exp(terms * np.log(rfft(shifted) + 1e-300) + 1j * angles), length)
    at = (np.fft.fftfreq(length, 1 / length) + center) * cell - terms * mean
    logs = terms * math.log(weights.sum()) - tilt * np.maximum(at, q - cell)
    return float((np.clip((at - q) / cell + 0.5, 0, 1) * law * np.exp(logs)).sum())  # a cell's mass is spread over it


def reached(terms: int, dimension: int, ratio: float, p: float) -> float:
    """Return the largest quantile of |error| over LENGTHS, for answers of length 1."""
    result = []
    for length in LENGTHS:
        middles, masses = answer(dimension, length * ratio * radius(1.0, dimension, 60.0))

        def both(q: float, middles: NDArray[np.float64] = middles, masses: NDArray[np.float64] = masses) -> float:
            tails = beyond(middles, masses, terms, q) + beyond(middles, masses[::-1], terms, q)
            return math.log(max(tails, 1e-300) / p)

        std = math.sqrt(terms / dimension)
        result.append(float(brentq(both, std, 9 * std, xtol=1e-4 * std)))
    return max(result)


def cells(row: str) -> list[str]:
    return [cell.strip().replace(",", "") for cell in row.strip("|").split("|")]


def compared(terms: int, dimension: int, epsilon: float) -> list[float]:
    """Return the bound divided by the reached quantile, at each of LEVELS."""
    ratio = 1 / radius(1.0, dimension, epsilon)
    law = SphereSum(terms, dimension, 1.0, ratio)
    return [law.quantile(p) / reached(terms, dimension, ratio, p) for p in LEVELS]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.few(2)
def test_a_row_of_the_document_says_how_far_the_bound_is_from_what_data_reach(row: str) -> None:
    terms, dimension, epsilon, *ratios = cells(row)
    result = compared(int(terms), int(dimension), float(epsilon))
    assert all(ratio >= 1 for ratio in result)
    assert result == pytest.approx([float(ratio) for ratio in ratios], abs=6e-3)


def test_the_document_has_the_table() -> None:
    assert len(ROWS) >= 5


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_the_tail_of_two_answers_is_that_of_their_density(share: float) -> None:
    """In three dimensions a coordinate is uniform (Archimedes), so that P(U + V - E > q) is a weighted area."""
    middles, masses = answer(3, share)
    corner = (2 - 1.5) ** 2 / 2  # both in the positive half, where the density is (1 + share)/2
    result = beyond(middles, masses, 2, 1.5 - 2 * float(middles @ masses))
    assert result == pytest.approx(corner * ((1 + share) / 2) ** 2, rel=2e-3)

"""Widths of weighted noise: never too small, and close to the exact quantile where that is known."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom, norm

from server.policies.noise_width import noise_width


@dataclass(frozen=True)
class Normal:
    std: float

    def quantile(self, p: float) -> float:
        return float(self.std * norm.isf(p / 2))

    @property
    def sub_exponential(self) -> tuple[float, float]:
        return math.sqrt(2) * self.std, 0.0


@dataclass(frozen=True)
class Laplace:
    scale: float

    @property
    def std(self) -> float:
        return math.sqrt(2) * self.scale

    def quantile(self, p: float) -> float:
        return self.scale * math.log(1 / p)

    @property
    def sub_exponential(self) -> tuple[float, float]:
        return math.sqrt(2) * self.scale, self.scale


@pytest.mark.parametrize("allowed", [1e-4, 1e-8])
def test_gaussian_noise_costs_little_more_than_its_exact_quantile(allowed: float) -> None:
    weights = np.random.default_rng(1).normal(size=(20, 30))
    width = noise_width([Normal(2.0)] * 30, weights, allowed)
    exact = 2.0 * np.linalg.norm(weights, axis=1) * norm.isf(allowed / 2)
    assert (width >= exact).all()
    assert (width <= 1.4 * exact).all()


def test_one_noisy_coordinate_is_answered_exactly() -> None:
    width = noise_width([Laplace(3.0)], np.array([[2.0], [-1.0]]), 1e-3)
    assert width == pytest.approx([6 * math.log(1000), 3 * math.log(1000)])


def test_no_noise_has_no_width() -> None:
    assert (noise_width([Normal(0.0)] * 3, np.ones((2, 3)), 1e-3) == 0).all()


def test_widths_of_laplace_sums_hold_at_their_level() -> None:
    """40,000 sums at level 0.05; more failures than the bound come once in 10⁶ times, were the level just kept."""
    runs, allowed, weights = 40_000, 0.05, np.array([[1.0, 0.5, -2.0, 0.1]])
    width = noise_width([Laplace(1.0)] * 4, weights, allowed)[0]
    sums = np.random.default_rng(3).laplace(size=(runs, 4)) @ weights[0]
    assert np.count_nonzero(np.abs(sums) > width) <= binom.isf(1e-6, runs, allowed)
    assert width < 5 * float(np.linalg.norm(weights)) * math.sqrt(2)


def test_tiny_levels_fall_back_to_the_union_bound() -> None:
    width = noise_width([Laplace(1.0)] * 2, np.ones((1, 2)), 1e-14)
    assert width[0] == pytest.approx(2 * math.log(2e14))

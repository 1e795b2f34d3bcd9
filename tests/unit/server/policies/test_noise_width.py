"""Tests that widths of weighted noise are never too small, and close to exact quantiles."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from distrust.server.policies.noise_width import moments, noise_width
from tests.support.laws import Laplace, Normal


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
    width = noise_width([Laplace(1.0)] * 2, np.ones((1, 2)), 4e-18)
    assert width[0] == pytest.approx(2 * math.log(2 / 4e-18))


@pytest.mark.parametrize("allowed", [1e-8, 1e-10, 1e-13])
def test_many_noises_cost_no_union_bound_however_small_the_level(allowed: float) -> None:
    """The sum of a thousand Laplace draws is nearly Gaussian; a union bound would be above 20 times as much."""
    width = noise_width([Laplace(1.0)] * 1000, np.ones((1, 1000)), allowed)[0]
    gaussian = math.sqrt(2000) * norm.isf(allowed / 2)
    assert gaussian < width < 1.6 * gaussian


def test_noise_that_is_one_draw_for_all_coordinates_is_measured_along_the_weights() -> None:
    """‖c‖₂ times one coordinate's quantile: 5 and 13."""
    width = noise_width([Normal(2.0)] * 2, np.array([[3.0, 4.0], [5.0, -12.0]]), 1e-3, joint=True)
    assert width == pytest.approx([5 * Normal(2.0).quantile(1e-3), 13 * Normal(2.0).quantile(1e-3)])


@pytest.mark.parametrize("law", [Normal(1.0), Laplace(1.0)])
def test_the_golden_section_finds_what_a_fine_search_finds(law: Normal | Laplace) -> None:
    """Chernoff's bound over 4,000 values of t, against the width."""
    weights, allowed = np.random.default_rng(2).normal(size=(5, 12)), 1e-5
    one = moments(law)
    total = np.linalg.norm(weights, axis=1)
    tried = np.geomspace(0.05, 60, 4000)[:, np.newaxis] / total
    logs = one.log_generating(tried[:, :, np.newaxis] * np.abs(weights)).sum(axis=2)
    fine = ((logs + math.log(2 / (allowed - 12e-12))) / tried).min(axis=0)
    assert noise_width([law] * 12, weights, allowed) == pytest.approx(fine, rel=2e-3)

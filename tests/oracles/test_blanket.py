"""Tests the blanket bound for given randomizers against enumeration, integrals, and the clones bound."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from distrust.common.dp.accounting.techniques.amplification.blanket import (
    _not_extreme,
    blanket_epsilon,
    hides_pairs,
    over_pairs,
    pair_delta,
)
from distrust.common.dp.accounting.techniques.amplification.clones import clones_epsilon
from distrust.common.dp.accounting.techniques.amplification.randomizers import LocalRandomizer, added_noise
from distrust.common.dp.accounting.techniques.amplification.sums import _geometric
from distrust.common.dp.accounting.techniques.searches import least_on_grid
from distrust.common.dp.noise.law import Pmf
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.errors import BadParameter
from tests.support.randomizers import blanket_delta, gaussian, laplace, tabulated
from tests.support.shuffled_laws import DELTA, Array, random_table, response_epsilon, responses


@pytest.mark.parametrize("local_epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("users", [20, 1000, 10**4])
def test_blanket_and_clones_agree_for_randomized_response(local_epsilon: float, users: int) -> None:
    """The two computations share no code: the clones bound sums binomials, the blanket bound uses a tilted FFT."""
    clones = response_epsilon(DELTA, local_epsilon, users)
    assert blanket_epsilon(tabulated(responses(local_epsilon)), DELTA, users) == pytest.approx(clones, rel=2e-3)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_a_blanket_knows_more_than_clones_do(scale: float) -> None:
    grid = added_noise(DiscreteLaplace(4 * scale).pmf(), 4)
    for users in (100, 3000):
        smooth, coarse = (blanket_epsilon(randomizer, DELTA, users) for randomizer in (laplace(scale), grid))
        clones = clones_epsilon(DELTA, 1 / scale, users)
        assert 0.5 * clones < smooth < clones
        assert smooth < coarse * 1.001
        assert coarse <= clones * 1.001


def blanket_oracle(masses: Array, users: int, epsilon: float) -> float:
    """Return E[(V₁ + … + V_n)₊]/n by enumeration of the counts of each output among the blanket's draws."""
    blanket = masses.min(axis=0)
    chances = np.append(blanket, 1 - blanket.sum())
    outputs = range(chances.size)
    worst = 0.0
    for one, other in itertools.permutations(masses, 2):
        values = np.append((one - math.exp(epsilon) * other) / blanket, 0.0)
        terms = []
        for draws in itertools.combinations_with_replacement(outputs, users):
            counts = np.bincount(draws, minlength=chances.size)
            terms.append(max(0.0, float(counts @ values)) * float(stats.multinomial.pmf(counts, users, chances)))
        worst = max(worst, math.fsum(terms) / users)
    return worst


@pytest.mark.parametrize(("seed", "inputs", "outputs", "users"), [(5, 2, 3, 8), (6, 3, 4, 6), (7, 2, 2, 30)])
@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_the_tilted_transform_is_the_blanket_bound_from_above(
    seed: int, inputs: int, outputs: int, users: int, epsilon: float
) -> None:
    masses = random_table(seed, inputs, outputs)
    exact = blanket_oracle(masses, users, epsilon)
    assert 1 - 1e-12 <= blanket_delta(tabulated(masses), epsilon, users) / exact <= 1.01


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_message_alone_is_the_analytic_gaussian(sigma: float, epsilon: float) -> None:
    upper, lower = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    exact = float(stats.norm.cdf(upper) - math.exp(epsilon) * stats.norm.cdf(lower))
    assert 0 <= blanket_delta(gaussian(sigma), epsilon, 1) - exact <= 1e-5 * exact + 1e-15


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 4.0])
def test_the_weights_of_the_blankets_are_those_in_closed_form(sigma: float) -> None:
    assert gaussian(sigma, 4).gamma == pytest.approx(2 * stats.norm.cdf(-1 / (2 * sigma)), rel=1e-9)
    assert laplace(sigma, 4).gamma == pytest.approx(math.exp(-1 / (2 * sigma)), rel=1e-12)


def test_inputs_between_the_ends_are_compared_too_and_add_nothing_for_gaussians() -> None:
    ends, grid = (blanket_epsilon(gaussian(1.0, precision), DELTA, 300) for precision in (1, 4))
    assert grid == pytest.approx(ends, rel=1e-4)


def test_a_middle_input_that_is_the_worst_is_found() -> None:
    masses = np.array([[0.4, 0.4, 0.2], [0.05, 0.15, 0.8], [0.4, 0.4, 0.2]])
    with_middle, ends = tabulated(masses), tabulated(masses[[0, 2]])
    assert blanket_epsilon(with_middle, DELTA, 200) > 0.2
    assert blanket_epsilon(ends, DELTA, 200) == pytest.approx(1e-6)


def test_tiny_deltas_are_computed_and_not_lost_in_rounding() -> None:
    """At δ = 1e-15 the bound has the same relative accuracy as at 1e-6."""
    clones = response_epsilon(1e-15, 1.0, 3000)
    assert blanket_epsilon(tabulated(responses(1.0)), 1e-15, 3000) == pytest.approx(clones, rel=2e-3)


def test_a_grid_with_too_many_inputs_is_refused() -> None:
    for precision in (0, 100):
        with pytest.raises(BadParameter, match="precision"):
            added_noise(DiscreteLaplace(4.0).pmf(), precision)


def test_outputs_without_a_blanket_count_against_delta() -> None:
    masses = np.array([[0.5, 0.4, 0.1], [0.5, 0.5, 0.0]])
    assert blanket_delta(tabulated(masses), 3.0, 50) >= 0.1
    with pytest.raises(BadParameter, match="delta"):
        blanket_epsilon(tabulated(masses), DELTA, 50)


def test_any_noise_on_the_integers_has_a_blanket() -> None:
    law = PolyaDifference(Fraction(2), 3.0)
    assert 0 < blanket_epsilon(added_noise(law.pmf(), 3), DELTA, 300) < 1


@pytest.mark.parametrize("left_out", [1e-7, 3e-6, 1e-4])
def test_rounding_does_not_choose_which_of_equal_losses_are_left_out(left_out: float) -> None:
    """The many outputs beyond the ends of a Laplace law lose the same. Last bits put them in any order."""
    masses = np.concatenate((0.4 * 0.2 ** np.arange(20), [0.5]))
    losses = np.concatenate((np.full(20, 2.5), [-1.0]))
    shaken = [losses * (1 + 4e-16 * np.random.default_rng(seed).integers(-2, 3, losses.size)) for seed in range(20)]
    assert {tuple(_not_extreme(one, masses, left_out).tolist()) for one in shaken} == {(True,) * 21}
    assert _not_extreme(losses, masses, 0.51).tolist() == [False] * 20 + [True]
    assert not _not_extreme(losses, masses, 1.0).any()


@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_a_law_whose_last_bits_differ_has_the_same_epsilon(scale: float) -> None:
    """What another processor computes for one law moves a printed ε by less than a search's own digits."""
    pmf = DiscreteLaplace(scale).pmf()
    plain = blanket_epsilon(added_noise(pmf, 1), 1e-4, 100)
    for seed in range(5):
        shaken = pmf.logs + 4e-16 * np.random.default_rng(seed).integers(-2, 3, pmf.logs.size)
        assert blanket_epsilon(added_noise(Pmf(pmf.first, shaken, pmf.lost), 1), 1e-4, 100) == plain


@pytest.mark.parametrize(("size", "decay"), [(64, 1e-9), (64, 0.01), (64, 3.0), (4096, 1e-3), (4096, 0.03)])
def test_the_sum_over_one_side_is_that_of_its_terms_at_every_frequency(size: int, decay: float) -> None:
    """Next to nothing is lost where the first frequency's parts cancel, and where the last terms vanish."""
    frequencies = np.array([0, 1, 2, 3, size // 4, size // 2 - 1, size // 2])
    real, imaginary = _geometric(frequencies, size, decay)
    with mpmath.workdps(30):
        for k, result in zip(frequencies.tolist(), real + 1j * imaginary, strict=True):
            q = mpmath.exp(-mpmath.mpf(decay)) * mpmath.expjpi(mpmath.mpf(2 * k) / size)
            exact = complex(mpmath.fsum(s * q**s for s in range(1, size // 2)))
            assert abs(result - exact) <= 1e-14 * abs(exact)


NEARLY_ALIKE = np.array([[0.4, 0.4, 0.2], [0.05, 0.15, 0.8], [0.38, 0.4, 0.22]])


def flattened(size: float, _precision: int) -> LocalRandomizer:
    """Return messages that are uniform with probability 1/(1 + 1/size)."""
    return tabulated((NEARLY_ALIKE + size / 3) / (1 + size))


@pytest.mark.parametrize("users", [1, 5])
def test_a_search_over_pairs_ends_where_the_worst_of_them_is_hidden_and_not_the_farthest(users: int) -> None:
    size = over_pairs(flattened, 2, (0.02, 1e-3, users), least_on_grid, 1.0)
    excesses = {
        (pair, scale): pair_delta(flattened(scale * size, 2), pair, 0.02, users, 3e-5) / 1e-3
        for pair in itertools.permutations(range(3), 2)
        for scale in (1, 1 - 2**-21)
    }
    assert max(excess for (_, scale), excess in excesses.items() if scale == 1) <= 1
    assert max(excesses, key=lambda key: excesses[key])[0] in {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert max(excesses.values()) > 1
    assert hides_pairs(flattened, 2, (0.02, 1e-3, users), size)
    assert not hides_pairs(flattened, 2, (0.02, 1e-3, users), size * (1 - 2**-21))

"""Tests the samplers against exact laws. The seeds are fixed; a true law is rejected once in 10⁷ runs."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.dp.noise.binomial import Binomial, binomial_table
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian, gaussian_table
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.law import Law, Table, tabulate
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference, polya_table
from distrust.common.dp.noise.skellam import Skellam, poisson_table
from distrust.common.errors import BadParameter
from distrust.common.randomness import SystemStream, UnsafeSeededStream
from tests.support.laws import chi_square

FALSE_ALARM = 1e-7
DRAWS = 400_000
GOLDEN_LAPLACE = [-25, -1, -7, 0, 6, 25, 5, -26]
GOLDEN_SKELLAM = [1, -8, -10, -7, 0, 2, 6, 14]

LAWS = [
    pytest.param(PolyaDifference(Fraction(1, 1000), 32.0), id="polya-of-a-thousand"),
    pytest.param(PolyaDifference(Fraction(7, 2), 3.0), id="polya-mode-inside"),
    pytest.param(PolyaDifference(Fraction(1, 20), 8.0), id="polya-difference"),
    pytest.param(DiscreteLaplace(5.0), id="discrete-laplace"),
    pytest.param(DiscreteLaplace(300.0), id="wide-discrete-laplace"),
    pytest.param(Skellam(0.8), id="rare-poisson"),
    pytest.param(Skellam(1600.0), id="wide-skellam"),
    pytest.param(Skellam(2.5), id="skellam"),
    pytest.param(DiscreteGaussian(0.11), id="narrow-gaussian"),
    pytest.param(DiscreteGaussian(30.0), id="gaussian"),
    pytest.param(DiscreteGaussian(1e5), id="wide-gaussian"),
    pytest.param(DiscreteGaussianSum(0.11, 40), id="narrow-gaussian-shares"),
    pytest.param(Binomial(11, 0.5), id="eleven-coins"),
    pytest.param(Binomial(64, 0.5), id="one-word-of-coins"),
    pytest.param(Binomial(150, 0.5), id="three-words-of-coins"),
    pytest.param(Binomial(40, 0.03), id="biased-bits"),
]


@pytest.mark.parametrize("law", LAWS)
def test_draws_follow_the_exact_law(law: Law) -> None:
    assert chi_square(law, law.sample(UnsafeSeededStream(7, "chi"), DRAWS)) > FALSE_ALARM


def test_the_test_would_notice_a_wrong_law() -> None:
    draws = DiscreteLaplace(5.0).sample(UnsafeSeededStream(7, "chi"), DRAWS)
    assert chi_square(DiscreteLaplace(5.1), draws) < FALSE_ALARM


def test_shares_of_many_clients_add_up_to_discrete_laplace() -> None:
    shares = PolyaDifference(Fraction(1, 40), 6.0).sample(UnsafeSeededStream(3, "sum"), 40 * 50_000)
    assert chi_square(DiscreteLaplace(6.0), shares.reshape(-1, 40).sum(axis=1)) > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS)
def test_one_stream_key_gives_one_sequence_of_draws(law: Law) -> None:
    first, again = (law.sample(UnsafeSeededStream(1, "a"), 70_000) for _ in range(2))
    other = law.sample(UnsafeSeededStream(1, "b"), 70_000)
    assert first.dtype == np.int64
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_system_stream_serves_too_and_nothing_is_drawn_for_no_clients() -> None:
    assert Skellam(4.0).sample(SystemStream(), 10).shape == (10,)
    assert Binomial(9).sample(SystemStream(), 0).shape == (0,)
    assert DiscreteLaplace(2.0).sample(SystemStream(), 0).shape == (0,)


def test_golden_draws_hold_on_every_machine() -> None:
    stream = UnsafeSeededStream(2024, "golden")
    assert DiscreteLaplace(10.0).sample(stream, 8).tolist() == GOLDEN_LAPLACE
    assert Skellam(50.0).sample(stream, 8).tolist() == GOLDEN_SKELLAM


def test_thresholds_are_the_cumulative_law_to_128_bits() -> None:
    law = polya_table(Fraction(1, 3), 2.0)
    with mpmath.workprec(400):
        beta, mass, total = mpmath.exp(-mpmath.mpf(1) / 2), mpmath.mpf(1), mpmath.mpf(0)
        mass = (1 - beta) ** (mpmath.mpf(1) / 3)
        for x, (high, low) in enumerate(zip(law.high, law.low, strict=True)):
            total += mass
            assert abs((int(high) << 64 | int(low)) - total * 2**128) < 2
            mass *= beta * (x + mpmath.mpf(1) / 3) / (x + 1)


def gaussian_masses(first: int, count: int) -> list[Any]:
    """Return the masses of variance 20, from the theta function."""
    whole = mpmath.jtheta(3, 0, mpmath.exp(-mpmath.mpf(1) / 40))
    return [mpmath.exp(-mpmath.mpf(x * x) / 40) / whole for x in range(first, first + count)]


def poisson_masses(first: int, count: int) -> list[Any]:
    return [mpmath.exp(-9) * mpmath.mpf(9) ** x / mpmath.factorial(x) for x in range(first, first + count)]


def binomial_masses(first: int, count: int) -> list[Any]:
    """Return the masses of 40 bits. Each is 1 with the probability that is the double next to 0.03."""
    p = mpmath.mpf(0.03)
    return [mpmath.binomial(40, x) * p**x * (1 - p) ** (40 - x) for x in range(first, first + count)]


@pytest.mark.parametrize(
    ("law", "masses"),
    [
        pytest.param(gaussian_table(20.0), gaussian_masses, id="discrete-gaussian"),
        pytest.param(poisson_table(9.0), poisson_masses, id="poisson"),
        pytest.param(binomial_table(40, 0.03), binomial_masses, id="biased-bits"),
    ],
)
def test_thresholds_of_other_laws_are_cumulative_too(law: Table, masses: Callable[[int, int], list[Any]]) -> None:
    with mpmath.workprec(400):
        total = mpmath.mpf(0)
        for mass, high, low in zip(masses(law.first, law.high.size), law.high, law.low, strict=True):
            total += mass
            assert abs((int(high) << 64 | int(low)) - total * 2**128) < 2


class Words:
    """A stream that says what it is told."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def bytes(self, count: int) -> bytes:
        return bytes(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        taken, self._words = self._words[:count], self._words[count:]
        return np.array(taken, dtype=np.uint64)


@pytest.mark.parametrize(
    ("second", "value"),
    [
        pytest.param(lambda low: low - 1, 0, id="below-the-threshold"),
        pytest.param(lambda low: low, 1, id="at-the-threshold"),
        pytest.param(lambda low: 2**64 - 1, 1, id="above-the-threshold"),
    ],
)
def test_the_second_word_decides_a_tie(second: Callable[[int], int], value: int) -> None:
    law = polya_table(Fraction(1, 3), 2.0)
    high, low = int(law.high[0]), int(law.low[0])
    assert law.draw(Words(high, second(low)), 1).tolist() == [value]
    assert law.draw(Words(high - 1), 1).tolist() == [0]
    assert law.draw(Words(high + 1), 1).tolist() == [1]


def test_extreme_words_reach_both_ends_of_the_table() -> None:
    law = polya_table(Fraction(1, 3), 2.0)
    assert law.draw(Words(0), 1).tolist() == [0]
    assert law.draw(Words(2**64 - 1, 2**64 - 1), 1).tolist() == [law.high.size]


def test_a_table_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(BadParameter, match="scale"):
        DiscreteLaplace(1e5).sample(SystemStream(), 1)
    with pytest.raises(BadParameter, match="variance"):
        DiscreteGaussian(1e10).sample(SystemStream(), 1)
    with pytest.raises(BadParameter, match="noise table"):
        tabulate(0, lambda _: (1, 1))

"""Tests probabilities against 50-digit arithmetic, and quantiles against their definition."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from distrust.common.dp.noise.binomial import Binomial, fair_pmf, fair_tail
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.law import Law
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference, polya_difference_log_tail
from distrust.common.dp.noise.skellam import Skellam
from distrust.common.errors import BadParameter
from distrust.common.randomness import SystemStream

Oracle = Callable[[int], mpmath.mpf]


def polya_difference(shape: Fraction, scale: float) -> Oracle:
    def mass(x: int) -> mpmath.mpf:
        k, r = abs(x), mpmath.mpf(shape.numerator) / shape.denominator
        beta = mpmath.exp(-1 / mpmath.mpf(scale))
        series = mpmath.hyp2f1(r, r + k, k + 1, beta**2)
        return (1 - beta) ** (2 * r) * beta**k * mpmath.rf(r, k) / mpmath.factorial(k) * series

    return mass


def skellam(variance: float) -> Oracle:
    return lambda x: mpmath.exp(-variance) * mpmath.besseli(abs(x), variance)


def binomial(trials: int, chance: float) -> Oracle:
    p = mpmath.mpf(chance)
    return lambda x: mpmath.binomial(trials, x) * p**x * (1 - p) ** (trials - x)


def laplace(scale: float) -> Oracle:
    return lambda x: mpmath.tanh(1 / mpmath.mpf(2 * scale)) * mpmath.exp(-abs(x) / mpmath.mpf(scale))


def gaussian(variance: float) -> Oracle:
    def mass(x: int) -> mpmath.mpf:
        v = mpmath.mpf(variance)
        return mpmath.exp(-(x**2) / (2 * v)) / mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * v)))

    return mass


def gaussian_sum(variance: float, terms: int) -> Oracle:
    """Return the masses by hand: the power of one term's generating polynomial, product by product."""
    reach = math.ceil(14 * math.sqrt(variance)) + 6

    def times(a: list[mpmath.mpf], b: list[mpmath.mpf]) -> list[mpmath.mpf]:
        out = [mpmath.mpf(0)] * (len(a) + len(b) - 1)
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                out[i + j] += x * y
        return out

    @cache
    def total() -> list[mpmath.mpf]:
        one = gaussian(variance)
        single = [one(x) for x in range(-reach, reach + 1)]
        power = [mpmath.mpf(1)]
        for _ in range(terms):
            power = times(power, single)
        return power

    return lambda x: total()[reach * terms + x]


LAWS = [
    pytest.param(PolyaDifference(Fraction(1, 50), 5.0), polya_difference(Fraction(1, 50), 5.0), id="one-share"),
    pytest.param(PolyaDifference(Fraction(3, 4), 32.0), polya_difference(Fraction(3, 4), 32.0), id="short-cohort"),
    pytest.param(PolyaDifference(Fraction(1), 32.0), laplace(32.0), id="whole-cohort-is-discrete-laplace"),
    pytest.param(PolyaDifference(Fraction(5, 4), 200.0), polya_difference(Fraction(5, 4), 200.0), id="long-cohort"),
    pytest.param(PolyaDifference(Fraction(1000), 1.2), polya_difference(Fraction(1000), 1.2), id="thousand-terms"),
    pytest.param(DiscreteLaplace(12.0), laplace(12.0), id="discrete-laplace"),
    pytest.param(DiscreteLaplace(0.1), laplace(0.1), id="hardly-any-noise"),
    pytest.param(Skellam(0.3), skellam(0.3), id="skellam-small"),
    pytest.param(Skellam(2500.0), skellam(2500.0), id="skellam-large"),
    pytest.param(DiscreteGaussian(0.06), gaussian(0.06), id="gaussian-below-one-step"),
    pytest.param(DiscreteGaussian(1.7), gaussian(1.7), id="gaussian-small"),
    pytest.param(DiscreteGaussian(4000.0), gaussian(4000.0), id="gaussian-large"),
    pytest.param(DiscreteGaussianSum(0.1, 24), gaussian_sum(0.1, 24), id="shares-far-below-one-step"),
    pytest.param(DiscreteGaussianSum(0.3, 9), gaussian_sum(0.3, 9), id="shares-below-one-step"),
    pytest.param(DiscreteGaussianSum(0.7, 5), gaussian_sum(0.7, 5), id="shares-below-one-step-dual-side"),
    pytest.param(DiscreteGaussianSum(1.6, 3), gaussian_sum(1.6, 3), id="shares-above-one-step"),
    pytest.param(DiscreteGaussianSum(5.0, 2), gaussian_sum(5.0, 2), id="two-wide-shares"),
    pytest.param(Binomial(11, 0.5), binomial(11, 0.5), id="coins"),
    pytest.param(Binomial(5000, 0.49), binomial(5000, 0.49), id="biased-bits"),
]


@pytest.mark.parametrize(("law", "oracle"), LAWS)
def test_log_probabilities_agree_with_fifty_digits(law: Law, oracle: Oracle) -> None:
    pmf = law.pmf()
    last = pmf.logs.size - 1
    with mpmath.workdps(50):
        for i in sorted({0, 1, last // 4, last // 3, last // 2, last // 2 + 1, last - 1, last} & set(range(last + 1))):
            exact = mpmath.log(oracle(pmf.first + i))
            assert float(mpmath.mpf(pmf.logs[i]) - exact) == pytest.approx(0, abs=1e-11)


@pytest.mark.parametrize("variance", [0.01, 3.0, 700.0])
def test_skellam_tails_that_large_orders_need_agree_with_fifty_digits(variance: float) -> None:
    pmf = Skellam(variance).pmf(least=40_000)
    with mpmath.workdps(50):
        for x in sorted({1, math.ceil(2 * variance), math.ceil(2 * variance) + 1, math.ceil(4 * variance) + 1, 39_999}):
            exact = mpmath.log(skellam(variance)(x))
            assert float(mpmath.mpf(pmf.logs[x - pmf.first]) / exact) == pytest.approx(1, abs=1e-13)


@pytest.mark.parametrize(("law", "oracle"), LAWS)
def test_mass_mean_and_deviation_agree_with_the_probabilities(law: Law, oracle: Oracle) -> None:
    pmf = law.pmf()
    assert math.fsum(pmf.masses) == pytest.approx(1, abs=1e-13)
    mean = float(pmf.masses @ pmf.support)
    assert mean == pytest.approx(law.mean, rel=1e-10, abs=1e-10)
    assert math.sqrt(float(pmf.masses @ (pmf.support - mean) ** 2)) == pytest.approx(law.std, rel=1e-9)


@pytest.mark.parametrize(("law", "oracle"), LAWS)
def test_a_quantile_is_the_least_that_keeps_its_promise(law: Law, oracle: Oracle) -> None:
    pmf = law.pmf()
    gaps = np.abs(pmf.support - law.mean)
    for p in (0.9, 0.3, 1e-3, 1e-8, 1e-12):
        q = law.quantile(p)
        assert math.fsum(pmf.masses[gaps > q + 1e-9]) <= p, p
        smaller = gaps[gaps < q - 1e-9]
        if smaller.size:
            assert math.fsum(pmf.masses[gaps > smaller.max() + 1e-9]) > p * (1 - 1e-6), p


def test_a_quantile_of_a_support_that_is_too_long_is_conservative() -> None:
    law = PolyaDifference(Fraction(10**6), 1000.0)  # standard deviation 1.4 million
    assert law.std * 3.29 < law.quantile(1e-3) < law.std * 4
    with pytest.raises(BadParameter, match="support"):
        law.pmf()


@pytest.mark.parametrize(("shape", "scale"), [(Fraction(1, 3), 2.0), (Fraction(2), 9.0), (Fraction(40), 1.0)])
def test_chernoff_is_above_the_tail(shape: Fraction, scale: float) -> None:
    law = PolyaDifference(shape, scale)
    pmf = law.pmf()
    for k in range(1, -pmf.first, 3):
        tail = math.fsum(pmf.masses[pmf.support >= k])
        assert math.log(tail) <= polya_difference_log_tail(float(shape), 1 / scale, k) + 1e-12


def test_the_sum_of_shares_is_discrete_laplace() -> None:
    """Fifty clients' Pólya differences, convolved exactly; every probability to nine digits where it matters."""
    share, total = PolyaDifference(Fraction(1, 50), 4.0).pmf(), DiscreteLaplace(4.0)
    size = 1 << 13
    line = np.zeros(size)
    line[share.support % size] = share.masses
    summed = np.fft.irfft(np.fft.rfft(line) ** 50, size)
    want = total.pmf()
    assert np.abs(summed[want.support % size] - want.masses).max() < 1e-14


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: PolyaDifference(Fraction(0), 1.0), id="no-shape"),
        pytest.param(lambda: DiscreteLaplace(math.inf), id="infinite-scale"),
        pytest.param(lambda: Skellam(0.0), id="no-variance"),
        pytest.param(lambda: Skellam(2.1e8).sample(SystemStream(), 1), id="rate-too-large"),
        pytest.param(lambda: DiscreteGaussian(math.nan), id="variance-nan"),
        pytest.param(lambda: DiscreteGaussian(1e12).pmf(), id="support-too-long"),
        pytest.param(lambda: DiscreteGaussianSum(1e11, 10).pmf(), id="support-of-shares-too-long"),
        pytest.param(lambda: Skellam(1e12).pmf(), id="support-of-skellam-too-long"),
        pytest.param(lambda: DiscreteGaussianSum(1.0, 0), id="no-terms"),
        pytest.param(lambda: Binomial(0), id="no-bits"),
        pytest.param(lambda: Binomial(3, 1.0), id="certain-bits"),
        pytest.param(lambda: Skellam(1.0).quantile(0.0), id="no-probability"),
    ],
)
def test_what_is_no_law_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadParameter):
        make()


def test_many_fair_coins_have_the_exact_probabilities_up_to_a_billion() -> None:
    few = [(n, k) for n in range(40) for k in range(n + 1)]
    many = [(n, round(n / 2 + far * n**0.5)) for n in (101, 10**4, 10**6 + 1, 10**9) for far in (-10, -1, 0, 0.3, 3, 9)]
    many = [(n, k) for n, k in many if 0 <= k <= n]
    trials, ones = (np.array(column, dtype=np.float64) for column in zip(*few, *many, strict=True))
    with mpmath.workdps(50):
        log = lambda n, k: mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)  # noqa: E731
        exact = [float(mpmath.exp(log(n, k) - n * mpmath.log(2))) for n, k in few + many]
    np.testing.assert_allclose(fair_pmf(trials, ones), exact, rtol=1e-12)
    tails = [float(sum(mpmath.binomial(n, j) for j in range(k + 1, n + 1)) / mpmath.mpf(2) ** n) for n, k in few]
    np.testing.assert_allclose(fair_tail(trials, ones)[: len(few)], tails, rtol=1e-13)
    beyond = np.array([1.0, 17.0])
    assert fair_pmf(beyond, beyond + 1).tolist() == fair_tail(beyond, beyond).tolist() == [0.0, 0.0]

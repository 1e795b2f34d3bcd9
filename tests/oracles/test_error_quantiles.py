"""Tests the error quantiles of every mechanism against laws that this file computes with scipy or by convolution."""

import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.integrate import quad

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.mechanisms import MECHANISMS, MechanismSpec, plan
from distrust.common.dp.mechanisms.families.base import MechanismName
from distrust.common.dp.mechanisms.families.cohort import Noise
from distrust.common.dp.mechanisms.families.sphere import SphereLike
from distrust.common.dp.noise.continuous import Rounded

REAL = tuple(name for name, kind in MECHANISMS.items() if kind.takes_noise)

CLIENTS, FLOOR = 60, 50
LEVELS = (1e-2, 1e-6, 1e-12)
WIDE = 20.0

Tail = Callable[[float], float]
"""P(|noise| > q), q in grid steps."""


def integers(masses: NDArray[np.float64]) -> Tail:
    """Return the tail of the law with these masses on a support around 0."""
    far = np.abs(np.arange(masses.size) - masses.size // 2)
    return lambda q: float(masses[far > q].sum())


def sum_of(masses: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """Return the law of a sum. All terms are positive, so that small masses keep their digits."""
    total = np.ones(1)
    for _ in range(terms):
        total = np.convolve(total, masses)
    return total


def difference(one: Any) -> Tail:
    """Return the tail of X - Y, where both have one law of scipy on 0, 1, …"""
    y = np.arange(2 * int(one.isf(1e-14)) + 50)
    return lambda q: 2 * float(one.pmf(y) @ one.sf(y + math.floor(q)))


def laplace(mechanism: Any, terms: float) -> Tail:
    """Return the tail of a sum of discrete Laplace variables: the difference of two negative binomial ones."""
    return difference(stats.nbinom(terms, -math.expm1(-1 / mechanism.scale)))


def gaussian(variance: float, terms: int) -> Tail:
    """Return the tail of a sum of discrete Gaussian variables.

    Sums of wide ones are discrete Gaussian themselves, to e^(-π² variance) by Poisson's formula.
    """
    if variance > WIDE:
        variance, terms = terms * variance, 1
    reach = math.ceil(12 * math.sqrt(variance)) + 3
    masses = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    return integers(sum_of(masses / masses.sum(), terms))


def real_laplace(mechanism: Any, terms: int) -> Tail:
    """Return the tail of a sum of Laplace variables: X - Y, both gamma variables."""
    one = stats.gamma(terms, scale=mechanism.scale)

    def tail(q: float) -> float:
        ends = (float(one.ppf(1e-15)) if terms > 1 else 0.0, float(one.isf(1e-18)))
        return 2 * float(quad(lambda y: one.pdf(y) * one.sf(y + q), *ends, epsabs=0, epsrel=1e-11, limit=400)[0])

    return tail


def real_gaussian(mechanism: Any, terms: int) -> Tail:
    return lambda q: 2 * float(stats.norm.sf(q / math.sqrt(terms * mechanism.variance)))


def coins(mechanism: Any, survivors: int) -> Tail:
    law = stats.binom(survivors * mechanism.coins, mechanism.chance)
    mean = survivors * mechanism.coins * mechanism.chance
    return lambda q: float(law.cdf(math.ceil(mean - q) - 1) + law.sf(math.floor(mean + q)))


def sphere(mechanism: Any, survivors: int) -> Tail:
    """Return the largest tail of sums of ±r for equal values in one coordinate, over all chances of +r."""
    least = 1 / (1 + math.exp(mechanism.answer_epsilon))
    k = np.arange(-survivors, 2 * survivors + 1)

    def tail(q: float) -> float:
        w = q / mechanism.precision
        means = np.append(np.concatenate([k + w + 1e-10, k - w - 1e-10]), least * survivors)
        means = np.clip(means, least * survivors, (1 - least) * survivors)
        below = stats.binom.cdf(np.ceil(means - w) - 1, survivors, means / survivors)
        above = stats.binom.sf(np.floor(means + w), survivors, means / survivors)
        return float((below + above).max())

    return tail


def cut_shares(mechanism: Any, survivors: int) -> Tail:
    """Return the tail of shares in `relaxed-secagg-shuffle`: discrete Laplace, each of their two parts at most W."""
    half = stats.nbinom(1 / mechanism.share, -math.expm1(-1 / mechanism.scale)).pmf(np.arange(mechanism.reach + 1))
    half /= half.sum()
    return integers(sum_of(np.convolve(half, half[::-1]), survivors))


def one_laplace(mechanism: Any, _: int) -> Tail:
    return laplace(mechanism, 1)


def one_gaussian(mechanism: Any, _: int) -> Tail:
    return gaussian(mechanism.variance, 1)


def rounded_gaussian(mechanism: Any, _: int) -> Tail:
    """Return the tail of a normal variable that is rounded to whole steps."""
    return lambda q: float(2 * stats.norm.sf(math.floor(q) + 0.5, scale=math.sqrt(mechanism.variance)))


def every_gaussian(mechanism: Any, survivors: int) -> Tail:
    return gaussian(mechanism.variance, survivors)


GRID: dict[MechanismName, Callable[[Any, int], Tail]] = {
    "identity": lambda *_: lambda q: float(q < 0),
    "central-laplace-discrete": one_laplace,
    "central-laplace": one_laplace,
    "central-gaussian": one_gaussian,
    "local-laplace-discrete": laplace,
    "local-laplace": laplace,
    "local-gaussian": every_gaussian,
    "local-sphere": sphere,
    "distributed-polya": lambda mechanism, survivors: laplace(mechanism, survivors / mechanism.floor),
    "distributed-skellam": lambda mechanism, survivors: difference(
        stats.poisson(mechanism.variance * survivors / mechanism.floor / 2)
    ),
    "distributed-discrete-gaussian": lambda mechanism, survivors: gaussian(mechanism.share, survivors),
    "shuffled-binomial": coins,
    "shuffled-gaussian": every_gaussian,
    "shuffled-laplace": laplace,
    "shuffled-sphere": sphere,
    "relaxed-secagg-shuffle": cut_shares,
    "tree": one_gaussian,
    "prefix-factorization": rounded_gaussian,
}
CONTINUOUS: dict[MechanismName, Callable[[Any, int], Tail]] = {
    "central-laplace": lambda mechanism, _: real_laplace(mechanism, 1),
    "central-gaussian": lambda mechanism, _: real_gaussian(mechanism, 1),
    "local-laplace": real_laplace,
    "local-gaussian": real_gaussian,
}
SPHERES = {("local-sphere", 3), ("shuffled-sphere", 3)}
BOUNDS = SPHERES | {("relaxed-secagg-shuffle", 1), ("relaxed-secagg-shuffle", 3)}
"""Mechanisms and dimensions whose quantiles are marked as bounds."""

UNPRINTED: tuple[MechanismName, ...] = (
    "shuffled-gaussian",
    "shuffled-sphere",
    "relaxed-secagg-shuffle",
    "prefix-factorization",
)
REFUSED = {(name, "paper") for name in UNPRINTED}
"""Calibrations that do not exist at this size (tests/unit/common/dp/accounting/test_vector_table.py)."""

CASES = [
    pytest.param(name, calibration, dimension, id=f"{name}-{calibration}-{dimension}")
    for name, calibration, dimension in itertools.product(MECHANISMS, ("exact", "paper"), (1, 3))
    if (name, calibration) not in REFUSED
]
survived = pytest.mark.parametrize("survivors", [CLIENTS, 53])


@cache
def planned_mechanism(name: MechanismName, calibration: str, dimension: int, noise: Noise = "grid") -> Any:
    fields: dict[str, object] = {"name": name, "calibration": calibration, "noise": noise}
    fields |= {} if name == "identity" else {"epsilon": 2.7 if name == "relaxed-secagg-shuffle" else 0.9}
    fields |= {"delta": 1e-4} if MECHANISMS[name].takes_delta else {}
    fields |= {"batches": 6} if MECHANISMS[name].takes_batches else {}
    statistic = BoundedVector(dimension=dimension, norm="l2", bound=2.0)
    spec = MechanismSpec.model_validate(fields)
    return plan(
        spec, clients=CLIENTS, min_survivors=FLOOR, min_honest=FLOOR, overflow_probability=1e-9, statistic=statistic
    )


def step(mechanism: Any) -> float:
    """Return a step of the sum, in data units."""
    width = 2 * mechanism.radius if isinstance(mechanism, SphereLike) else mechanism.high - mechanism.low
    return float(width / mechanism.precision)


def check_least(tail: Tail, q: float, p: float) -> None:
    """Assert that q is the least number that noise passes with probability p at most."""
    assert tail(q * (1 + 1e-9)) <= p * (1 + 1e-8)
    assert q == 0 or tail(q * (1 - 1e-9)) >= p * (1 - 1e-8)


def test_the_table_has_every_mechanism() -> None:
    assert set(GRID) == set(MECHANISMS)
    assert set(CONTINUOUS) == set(REAL)


@survived
@pytest.mark.parametrize(("name", "calibration", "dimension"), CASES)
@pytest.mark.few(40)
def test_quantiles_are_those_of_the_law_of_the_sum(
    name: MechanismName, calibration: str, dimension: int, survivors: int
) -> None:
    """A quantile is the least number that one coordinate's noise passes with probability p, also for shuffled bits.

    In data units a quantile is a rounded product with the step, so that 121 steps may come back as 120.99999999999999.
    """
    mechanism = planned_mechanism(name, calibration, dimension)
    law = mechanism.error(survivors)
    assert law.quantile_how == ("bound" if (name, dimension) in BOUNDS else "exact")
    if (name, dimension) in SPHERES:
        return  # no law is known: tests/oracles/test_sphere.py, test_sphere_table.py
    tail = GRID[name](mechanism, survivors)
    for p in LEVELS:
        check_least(tail, law.quantile(p) / step(mechanism), p)


@survived
@pytest.mark.parametrize("name", sorted(REAL))
@pytest.mark.parametrize("dimension", [1, 3])
def test_quantiles_of_continuous_noise_are_passed_with_just_that_probability(
    name: MechanismName, dimension: int, survivors: int
) -> None:
    """Clients of local mechanisms also round, by their data. Their quantile is a bound, not below that of the draws."""
    mechanism = planned_mechanism(name, "exact", dimension, "continuous")
    law, tail = mechanism.error(survivors), CONTINUOUS[name](mechanism, survivors)
    rounds = isinstance(law.law, Rounded)
    assert (law.quantile_how, rounds) == (("bound", True) if name.startswith("local") else ("exact", False))
    drawn = law.law.law if rounds else law.law
    for p in LEVELS:
        q = drawn.quantile(p)
        assert tail(q) == pytest.approx(p, rel=1e-7)
        assert law.quantile(p) / step(mechanism) >= q * (1 - 1e-12)


@pytest.mark.parametrize("p", LEVELS)
def test_the_tails_here_are_those_of_laws_in_closed_form(p: float) -> None:
    """The oracles themselves are tested: one Laplace term, and two Gaussian terms far wider than a step."""
    mechanism = planned_mechanism("central-laplace", "exact", 1)
    beta = math.exp(-1 / mechanism.scale)
    q = math.ceil(-mechanism.scale * math.log(p))
    assert one_laplace(mechanism, 1)(q) == pytest.approx(2 * beta ** (q + 1) / (1 + beta), rel=1e-10)
    normal = partial(stats.norm.sf, scale=math.sqrt(2 * 400.0))
    at = float(stats.norm.isf(p / 2)) * math.sqrt(800)
    assert gaussian(400.0, 2)(at) == pytest.approx(2 * normal(math.floor(at) + 0.5), rel=0.01)

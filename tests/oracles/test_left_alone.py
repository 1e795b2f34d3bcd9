"""Tests what is left of a guarantee if all other clients collude, against the law of one client's own noise.

The laws are written down here again, with 60 digits: the message of one client, whose noise is all that hides it.
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
import pytest

from distrust.common.dp.accounting.guarantee import ALONE
from distrust.common.dp.calculator.compare import suited
from distrust.common.dp.calculator.promise import promised
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, promise_of

PAGE = (Path(__file__).parents[2] / "docs/concepts/privacy/survivors.md").read_text("utf-8")
DELTA = 1e-6
CROWD = [name for name, kind in MECHANISMS.items() if kind.model in {"distributed", "shuffle"}]
OTHERS = [name for name in MECHANISMS if name not in CROWD]
PAIRS = [(name, "exact") for name in CROWD] + [
    (name, "paper") for name in CROWD if name != "shuffled-gaussian" and "paper" in MECHANISMS[name].calibrations
]

Real = Any
"""A number of mpmath, which has no types."""


@lru_cache(maxsize=64)
def cohort(name: str, calibration: str, n: int) -> Mechanism:
    query = PrivacyQuery(clients=n, epsilon=1.0, delta=DELTA, dropout=0.1, corrupt=0.1, batches=16)
    return suited(query, name).planned(name, calibration)


def polya_difference(shape: Real, scale: Real, last: int) -> list[Real]:
    """Return p(0) … p(last) of X - Y, both Pólya(shape, e^(-1/scale)), by the sum over Y."""
    beta, far = mpmath.exp(-1 / scale), last + math.ceil(60 * scale)
    one = [(1 - beta) ** shape]
    for x in range(far + last):
        one.append(one[-1] * beta * (x + shape) / (x + 1))
    return [mpmath.fsum(one[k + y] * one[y] for y in range(far - last)) for k in range(last + 1)]


def masses(mechanism: Any, reach: int) -> Mapping[int, Real]:
    """Return the probabilities of one client's noise on -reach … reach, or on its whole support if that is finite."""
    both = range(-reach, reach + 1)
    match mechanism.name:
        case "distributed-polya":
            shape, scale = mpmath.mpf(1) / mechanism.floor, mpmath.mpf(mechanism.scale)
            law = polya_difference(shape, scale, reach)
            return {k: law[abs(k)] for k in both}
        case "distributed-skellam":
            mean = mpmath.mpf(mechanism.variance) / mechanism.floor
            return {k: mpmath.exp(-mean) * mpmath.besseli(abs(k), mean) for k in both}
        case "distributed-discrete-gaussian":
            return gaussian(mpmath.mpf(mechanism.variance) / mechanism.floor, both)
        case "shuffled-gaussian":
            return gaussian(mpmath.mpf(mechanism.variance), both)
        case "shuffled-laplace":
            weights = {k: mpmath.exp(-abs(k) / mpmath.mpf(mechanism.scale)) for k in both}
            whole = mpmath.coth(1 / (2 * mpmath.mpf(mechanism.scale)))
            return {k: weight / whole for k, weight in weights.items()}
        case "shuffled-binomial":
            b, p = mechanism.coins, mpmath.mpf(mechanism.chance)
            return {k: mpmath.binomial(b, k) * p**k * (1 - p) ** (b - k) for k in range(b + 1)}
    raise AssertionError(mechanism.name)


def gaussian(variance: Real, support: range) -> Mapping[int, Real]:
    weights = {k: mpmath.exp(-(k**2) / (2 * variance)) for k in support}
    whole = mpmath.fsum(weights.values())
    return {k: weight / whole for k, weight in weights.items()}


def answers(mechanism: Any) -> tuple[Mapping[int, Real], Mapping[int, Real]]:
    """Return the laws of one client's answer for the smallest and for the largest value."""
    g = mechanism.precision
    if mechanism.name == "relaxed-secagg-shuffle":
        laws = [mechanism.message_law(high=high) for high in (False, True)]
        low, high = ({x: mpmath.exp(float(log)) for x, log in enumerate(law.logs, law.first)} for law in laws)
        return low, high
    if mechanism.name == "shuffled-sphere":
        lie = 1 / (1 + mpmath.exp(mpmath.mpf(mechanism.local)))
        return {0: 1 - lie, g: lie}, {0: lie, g: 1 - lie}
    noise = masses(mechanism, g + math.ceil(12 * mechanism.client_law().std) + 40)
    return noise, {k + g: mass for k, mass in noise.items()}


def told(one: Mapping[int, Real], other: Mapping[int, Real], epsilon: Real) -> Real:
    """Return δ(ε) of two laws, over the points that both of them have here or that are no cut of ours."""
    return mpmath.fsum(max(mpmath.mpf(0), mass - mpmath.exp(epsilon) * other.get(x, 0)) for x, mass in one.items())


def largest_loss(one: Mapping[int, Real], other: Mapping[int, Real]) -> Real:
    return max(abs(mpmath.log(one[x] / other[x])) for x in one.keys() & other.keys())


@pytest.mark.parametrize("n", [64, 1024])
@pytest.mark.parametrize(("name", "calibration"), PAIRS)
@pytest.mark.few(8)
def test_what_is_left_holds_for_the_law_of_one_clients_message_and_is_no_looser_than_a_thousandth(
    name: str, calibration: str, n: int
) -> None:
    mechanism = cohort(name, calibration, n)
    left = promise_of(mechanism, alone=True)
    with mpmath.workdps(60):
        low, high = answers(mechanism)
        if left.epsilon is None:  # a count that only one of the two values can give is likelier than δ
            assert told(low, high, 10**6) > DELTA
        elif left.delta:
            assert max(told(low, high, left.epsilon), told(high, low, left.epsilon)) <= left.delta * (1 + 1e-9)
            assert told(low, high, left.epsilon * 0.999) > left.delta
        else:
            least = largest_loss(low, high)
            assert least <= left.epsilon * (1 + 1e-12)
            assert least >= left.epsilon * (0.99 if name == "relaxed-secagg-shuffle" else 0.999)


@pytest.mark.parametrize("name", CROWD)
def test_more_colluders_leave_less_and_all_others_leave_what_is_printed(name: str) -> None:
    mechanism = cohort(name, "exact", 64)
    few, all_others = (mechanism.privacy(64, count).promise.epsilon or math.inf for count in (6, 63))
    left = promise_of(mechanism, alone=True)
    assert few <= all_others == (left.epsilon or math.inf)
    assert left.assumptions[0] == ALONE or left.kind == "none"


@pytest.mark.parametrize("name", OTHERS)
def test_a_promise_that_counts_on_no_other_client_is_left_as_it_is(name: str) -> None:
    mechanism = cohort(name, "exact", 64)
    for composable in (False, True):
        left = promise_of(mechanism, composable=composable, alone=True)
        assert left is promise_of(mechanism, composable=composable)


@pytest.mark.parametrize("name", CROWD)
def test_a_cohort_of_one_client_has_no_others(name: str) -> None:
    kind = MECHANISMS[name]
    mechanism = PrivacyQuery(clients=1, epsilon=2.0, delta=1e-3 if kind.takes_delta else None).planned(name, "exact")
    assert promise_of(mechanism, alone=True) is promise_of(mechanism)


ROWS: dict[str, tuple[str, ...]] = {
    name.partition("`")[0]: tuple(cell.strip() for cell in rest)
    for name, *rest in (
        line.lstrip("| `").rstrip("|").split("|")
        for line in PAGE.partition("| mechanism | n = 64 | n = 1024 |\n|---|---|---|\n")[2]
        .split("\n\n")[0]
        .splitlines()
    )
}


@pytest.mark.parametrize("name", CROWD)
def test_the_table_of_the_page_is_what_the_mechanisms_leave(name: str) -> None:
    left = [promise_of(cohort(name, "exact", n), alone=True).epsilon for n in (64, 1024)]
    assert tuple("no guarantee" if one is None else f"{one:#.4g}" for one in left) == ROWS[name]
    assert set(ROWS) == set(CROWD)


@pytest.mark.parametrize("name", ["distributed-discrete-gaussian", "shuffled-binomial"])
@pytest.mark.few(1)
def test_several_contributions_of_a_client_alone_add_up_or_leave_nothing(name: str) -> None:
    """Noise whose stored law is shorter than what a client moves tells it at once: no ε is made up for it."""
    query = PrivacyQuery(clients=1000, epsilon=1.0, delta=DELTA, dropout=0.1, corrupt=0.05, contributions=20)
    once = PrivacyQuery(clients=1000, epsilon=1.0, delta=DELTA, dropout=0.1, corrupt=0.05)
    one = promised(once.planned(name, "exact"), once).alone.epsilon
    promise = promised(query.planned(name, "exact"), query)
    several = promise.alone.epsilon
    if one is None:
        assert several is None
    else:
        assert several is not None
        assert one < several <= 20 * one
    assert several != promise.guarantee.epsilon

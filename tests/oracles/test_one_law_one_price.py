"""Tests that mechanisms with noise of one law cost the same ε when they are repeated."""

from functools import cache
from typing import Any

import pytest
from dp_accounting import dp_event
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from distrust.common.dp.calculator.promise import guaranteed, released
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism

LAPLACE = ("central-laplace-discrete", "central-laplace", "local-laplace-discrete", "local-laplace")
GAUSSIAN = ("central-gaussian", "local-gaussian", "distributed-discrete-gaussian", "distributed-skellam")
CARRIED = ("distributed-polya", "distributed-skellam", "distributed-discrete-gaussian", "shuffled-binomial")


def question(name: str, **fields: Any) -> PrivacyQuery:
    given = None if name == "identity" else 0.1
    return PrivacyQuery(clients=100, epsilon=given, delta=1e-6 if MECHANISMS[name].takes_delta else None, **fields)


def planned(name: str, **fields: Any) -> Mechanism:
    return question(name, **fields).planned(name, "exact")


@cache
def price(name: str, **fields: int) -> float:
    result = guaranteed(planned(name, **fields), question(name, contributions=20, target_delta=1e-6, **fields)).epsilon
    assert result is not None
    return result


@pytest.mark.parametrize("name", LAPLACE)
def test_a_laplace_law_has_one_price(name: str) -> None:
    assert price(name, precision=40) == pytest.approx(price("distributed-polya", precision=40), rel=1e-9)


def test_it_is_that_of_the_continuous_law_on_a_fine_grid_and_below_a_coarse_one_s() -> None:
    """A grid of one step is randomized response, the worst pure law. dp-accounting composes the continuous noise."""
    oracle = PLDAccountant(value_discretization_interval=1e-4)
    oracle.compose(dp_event.LaplaceDpEvent(10.0), 20)
    fine, coarse = (price("central-laplace-discrete", precision=g) for g in (100, 1))
    assert fine == pytest.approx(oracle.get_epsilon(1e-6), rel=1e-3)
    assert coarse > 1.005 * fine


@pytest.mark.parametrize("name", GAUSSIAN)
@pytest.mark.few(2)
def test_a_gaussian_law_has_one_price(name: str) -> None:
    """Each is calibrated to (0.1, 1e-6). Twenty releases equal one whose noise has a twentieth of the variance."""
    assert price(name) == pytest.approx(0.496, rel=0.01)


def test_who_has_one_law_and_who_has_none() -> None:
    fields: dict[str, dict[str, int]] = {"tree": {"batches": 4}, "prefix-factorization": {"batches": 4}}
    having = {name for name in MECHANISMS if released(planned(name, **fields.get(name, {})), 100) is not None}
    assert having == {*LAPLACE, *GAUSSIAN, *CARRIED}


@pytest.mark.parametrize("name", [*LAPLACE, *CARRIED])
def test_vectors_have_no_single_law(name: str) -> None:
    assert released(planned(name, dimension=3), 100) is None


@pytest.mark.parametrize("name", CARRIED)
def test_without_honest_clients_there_is_none(name: str) -> None:
    assert released(planned(name), 0) is None


def test_too_few_shares_of_a_polya_law_are_not_log_concave() -> None:
    assert released(planned("distributed-polya"), 99) is None

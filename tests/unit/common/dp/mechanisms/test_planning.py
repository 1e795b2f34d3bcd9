"""Tests that bad run files are refused by field and value, and that plans fit their vectors and grids."""

import math
from typing import Any

import numpy as np
import pytest

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, check_spec, plan
from distrust.common.errors import BadParameter
from tests.support.planned import planned


class Wide(Reward):
    """Seven coordinates in [-1, 1]."""

    @property
    def dimension(self) -> int:
        return 7

    @property
    def low(self) -> float:
        return -1.0


@pytest.mark.parametrize(
    ("words", "field"),
    [
        pytest.param({"name": "distributed-polya"}, "mechanism.epsilon", id="epsilon-missing"),
        pytest.param({"name": "distributed-polya", "epsilon": 0.0}, "mechanism.epsilon", id="epsilon-zero"),
        pytest.param({"name": "local-laplace-discrete", "epsilon": -1.0}, "mechanism.epsilon", id="epsilon-negative"),
        pytest.param({"name": "distributed-skellam", "epsilon": 1e6}, "mechanism.epsilon", id="epsilon-huge"),
        pytest.param({"name": "identity", "epsilon": 1.0}, "mechanism.epsilon", id="epsilon-for-nothing"),
        pytest.param({"name": "distributed-polya", "epsilon": 1.0, "delta": 1e-6}, "mechanism.delta", id="delta-extra"),
        pytest.param({"name": "shuffled-binomial", "epsilon": 1.0}, "mechanism.delta", id="delta-missing"),
        pytest.param({"name": "shuffled-binomial", "epsilon": 1.0, "delta": 0.5}, "mechanism.delta", id="delta-half"),
        pytest.param({"name": "shuffled-binomial", "epsilon": 1.0, "delta": 0.0}, "mechanism.delta", id="delta-zero"),
        pytest.param(
            {"name": "distributed-skellam", "epsilon": 1.0, "delta": 0.7}, "mechanism.delta", id="delta-large"
        ),
        pytest.param({"name": "distributed-polya", "epsilon": 1.0, "scale": 3.0}, "mechanism.scale", id="scale-extra"),
        pytest.param({"name": "distributed-skellam", "epsilon": 1.0, "scale": 0.5}, "mechanism.scale", id="scale-low"),
        pytest.param({"name": "distributed-polya", "epsilon": 1.0, "via": "shuffler"}, "mechanism.via", id="via-polya"),
        pytest.param(
            {"name": "distributed-skellam", "epsilon": 1.0, "via": "shuffler"}, "mechanism.via", id="via-skellam"
        ),
        pytest.param(
            {"name": "shuffled-binomial", "epsilon": 1.0, "delta": 0.1, "via": "aggregator"},
            "mechanism.via",
            id="via-bits",
        ),
        *(
            pytest.param({"name": name, "epsilon": 1.0, **words}, field, id=f"{field}-of-{name}")
            for name in ("tree", "prefix-factorization")
            for words, field in (({"delta": 1e-6}, "mechanism.batches"), ({"batches": 4}, "mechanism.delta"))
        ),
        pytest.param({"name": "central-laplace", "epsilon": 1.0, "batches": 4}, "mechanism.batches", id="no-stream"),
    ],
)
def test_a_spec_that_no_cohort_can_repair_is_refused(words: dict[str, Any], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        check_spec(MechanismSpec.model_validate(words), Reward())
    assert caught.value.field == field
    assert str(caught.value).startswith((f"{field} = ", f"{field} is missing"))
    assert "\n" not in str(caught.value)


def test_a_statistic_that_the_mechanism_cannot_use_is_refused() -> None:
    fields = {"name": "shuffled-binomial", "epsilon": 15.0, "delta": 1e-6, "calibration": "paper"}
    check_spec(MechanismSpec.model_validate(fields), Reward())
    with pytest.raises(BadParameter, match="below 15 for vectors"):
        check_spec(MechanismSpec.model_validate(fields), Wide())


@pytest.mark.parametrize(
    ("cohort", "field"),
    [
        ({"clients": 0}, "clients"),
        ({"min_survivors": 101}, "min_survivors"),
        ({"min_survivors": 79}, "min_honest"),
        ({"min_honest": 0}, "min_honest"),
        ({"overflow_probability": 0.0}, "overflow_probability"),
        ({"overflow_probability": math.nan}, "overflow_probability"),
    ],
)
def test_a_cohort_that_cannot_be_is_refused(cohort: dict[str, Any], field: str) -> None:
    shape = {"clients": 100, "min_survivors": 90, "min_honest": 80, "overflow_probability": 1e-6, **cohort}
    with pytest.raises(BadParameter) as caught:
        plan(MechanismSpec(name="distributed-polya", epsilon=1.0), statistic=Reward(), **shape)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({"name": "distributed-polya", "epsilon": 1e-4, "precision": 2**20}, id="table-too-long"),
        pytest.param({"name": "identity", "precision": 2**31}, id="sum-beyond-63-bits"),
        pytest.param({"name": "shuffled-binomial", "epsilon": 0.001, "delta": 1e-6, "precision": 900}, id="bits"),
    ],
)
def test_what_would_not_fit_is_refused(words: dict[str, Any]) -> None:
    clients = {"shuffled-binomial": 4, "identity": 10**10}.get(words["name"], 100)
    with pytest.raises(BadParameter):
        planned(MechanismSpec.model_validate(words), clients, 4)


def wide(name: str, **fields: Any) -> Mechanism:
    spec = MechanismSpec(name=name, epsilon=2.0, **fields)
    return plan(spec, clients=400, min_survivors=350, min_honest=320, overflow_probability=1e-6, statistic=Wide())


@pytest.mark.parametrize("clients", [64, 1000, 32768])
def test_the_exact_polya_grid_is_the_coarsest_with_little_rounding(clients: int) -> None:
    spec = MechanismSpec(name="distributed-polya", epsilon=1.0)
    mechanism = planned(spec, clients)
    g = mechanism.precision
    noise = [1 / (2 * math.sinh(1 / (2 * g)) ** 2) for g in (g - 1, g)]
    assert noise[0] < clients / 4 / 0.1 <= noise[1]


@pytest.mark.parametrize("survivors", [320, 360, 400])
def test_a_sum_wraps_no_more_often_than_promised(survivors: int) -> None:
    """The room on each side of 0 … n'g holds the exact quantile of the survivors' own noise."""
    mechanism = wide("distributed-polya")
    spread = survivors * mechanism.precision
    room = (mechanism.modulus - spread - 1) // 2
    law = mechanism.error(survivors)
    assert room * 2 / mechanism.precision >= law.quantile(1e-6 / 7)


@pytest.mark.parametrize("survivors", [50, 99, 100, 130, 199, 200, 201, 400])
@pytest.mark.parametrize("precision", [1, 4, 60])
def test_the_assumed_tail_covers_the_exact_quantiles(survivors: int, precision: int) -> None:
    """At floor 100 these are 1/2 to 4 Laplace terms; σ√ln(2/p) + h ln(2/p) at fifty probabilities."""
    spec = MechanismSpec(name="distributed-polya", epsilon=1.0, precision=precision)
    law = planned(spec, 400, 100).error(survivors)
    sigma, h = law.sub_exponential
    for p in np.logspace(-12, math.log10(0.9)):
        assert law.quantile(float(p)) <= sigma * math.sqrt(math.log(2 / p)) + h * math.log(2 / p)

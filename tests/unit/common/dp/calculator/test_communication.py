"""Tests that the bits beside those that are sent are the papers' own numbers, and that each gap has its reason."""

import math
from decimal import Decimal, getcontext
from typing import Any

import pytest

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import ActionMeans, Reward, Statistic
from distrust.common.dp.calculator.communication import UNSTATED, StatedBits, stated_bits
from distrust.common.dp.mechanisms import CLASSES, MechanismSpec
from tests.support.planned import planned

getcontext().prec = 60

HORIZON = 20_000
VECTORS = ActionMeans(actions=4, bound=1.0)


def stated(statistic: Statistic | None = None, **fields: Any) -> StatedBits:
    """Return what is stated for 1000 clients, of which 900 are honest survivors."""
    spec = MechanismSpec.model_validate(fields)
    asked = Reward() if statistic is None else statistic
    return stated_bits(planned(spec, 1000, 900, asked), spec, asked, HORIZON)


def modulus_bits(clients: int, g: int, tau: int) -> int:
    """Return ⌈log₂(ng + 2τ + 1)⌉, in 60 digits."""
    return math.ceil(Decimal(clients * g + 2 * tau + 1).ln() / Decimal(2).ln())


@pytest.mark.parametrize("calibration", ["exact", "paper"])
def test_the_bits_of_a_sum_modulo_m_are_mabs(calibration: str) -> None:
    log = math.log(2 * HORIZON)
    for epsilon, theorem in ((0.5, 1), (4.0, 1), (0.5, 5)):
        name = {1: "distributed-polya", 5: "central-laplace-discrete"}[theorem]
        g = math.ceil(epsilon * 30)
        bits = modulus_bits(1000, g, math.ceil(g / epsilon * log))
        fields = {"name": name, "epsilon": epsilon, "via": "aggregator", "calibration": calibration}
        assert stated(**fields) == StatedBits(bits, f"MAB Theorem {theorem}")
    for scale in (None, 2.0):
        g = math.ceil((scale or 10) * 0.5 * 30)
        taus = {
            "distributed-skellam": (2, math.ceil(2 * g / 0.5 * math.sqrt(log) + math.sqrt(2) * log)),
            "distributed-discrete-gaussian": (4, math.ceil(g / 0.5 * math.sqrt(2 * log))),
        }
        for name, (theorem, tau) in taus.items():
            fields = {"name": name, "epsilon": 0.5, "scale": scale, "calibration": calibration}
            assert stated(**fields) == StatedBits(modulus_bits(1000, g, tau), f"MAB Theorem {theorem}")


def test_the_bits_of_shuffled_bits_are_dlbs_and_ctxs() -> None:
    fields = {"name": "shuffled-binomial", "epsilon": 1.0, "delta": 1e-3}
    b = math.ceil(180 * 30**2 * math.log(2e3) / (0.25 * 900))
    assert stated(**fields) == StatedBits(30 + b, "DLB Algorithm 4")
    hat = 1 / (18 * math.sqrt(math.log(2e3)))
    b = math.ceil(180 * 10**2 * math.log(16e3) / (hat**2 * 900))
    assert stated(VECTORS, **fields) == StatedBits(4 * (10 + b), "DLB Algorithm 2")
    linucb = ContextualSum(features=3)
    ctx = stated(linucb, **fields)
    g = 60  # steps of a unit: 2√t
    b = 24e4 * g**2 * math.log(4 * 10 / 1e-3) ** 2 / 900
    assert ctx.source == "CTX Theorem C.1"
    assert ctx.bits == pytest.approx(9 * b, rel=0.02)  # our grid has whole steps on the ball's diameter
    assert stated(VECTORS, **{**fields, "epsilon": 16.0}).source == "for vectors the theorem ends at ε = 15"


def test_every_other_mechanism_says_why_no_paper_states_its_bits() -> None:
    with_numbers = {"CentralLaplaceDiscrete", "DistributedPolya", "DistributedSkellam"}
    with_numbers |= {"DistributedDiscreteGaussian", "ShuffledBinomial"}
    assert {one.__name__ for one in CLASSES} == with_numbers | {one.__name__ for one in UNSTATED}
    assert stated(name="local-laplace-discrete", epsilon=1.0) == StatedBits(
        None, "MAB Theorem 6 leaves a constant of τ open"
    )
    assert stated(VECTORS, name="distributed-polya", epsilon=1.0).source == "MAB states them for one reward a client"
    sealed = stated(name="central-laplace-discrete", epsilon=1.0, via="shuffler")
    assert sealed == StatedBits(None, "MAB states them for sums modulo m")

"""Tests the promise of each mechanism against published numbers and computations that share no code with it."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest

from distrust.common.dp.accounting.guarantee import GUARANTEE_ORDERS
from distrust.common.dp.accounting.techniques.hockey_stick import hockey_stick
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.distributed.skellam import (
    DistributedSkellam,
    SkellamTarget,
    skellam_precision,
    skellam_variance,
)
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.dp.noise.binomial import Binomial
from tests.support.planned import planned


def planned_mechanism(name: str, clients: int = 1000, min_honest: int | None = None, **spec: Any) -> Mechanism:
    min_honest = clients if min_honest is None else min_honest
    words = MechanismSpec(name=name, **spec)
    return planned(words, clients, min_honest)


@pytest.mark.parametrize(
    ("honest", "epsilon"),
    [
        pytest.param(100, 1.0, id="all"),
        pytest.param(150, 1.0, id="more-hide-no-less"),
        pytest.param(90, 1.18, id="nine-tenths"),
        pytest.param(75, 1.55, id="three-quarters"),
        pytest.param(50, 2.58, id="half"),
    ],
)
def test_a_short_polya_cohort_leaks_what_its_law_says(honest: int, epsilon: float) -> None:
    mechanism = planned_mechanism("distributed-polya", clients=200, min_honest=100, epsilon=1.0, precision=32)
    assert mechanism.privacy(honest).promise.epsilon == pytest.approx(epsilon, abs=0.005)
    assert mechanism.privacy(honest + 7, colluders=7).promise.epsilon == mechanism.privacy(honest).promise.epsilon


def test_one_polya_share_of_a_thousand_protects_no_client() -> None:
    mechanism = planned_mechanism("distributed-polya", clients=1000, epsilon=1.0, precision=32)
    assert mechanism.privacy(1).promise.epsilon == pytest.approx(11.4, abs=0.1)
    assert mechanism.privacy(3, colluders=3).promise.kind == "none"


def test_below_the_floor_the_polya_epsilon_is_the_log_ratio_at_zero() -> None:
    mechanism = planned_mechanism("distributed-polya", clients=60, epsilon=0.7, precision=9)
    with mpmath.workdps(50):
        r, beta = mpmath.mpf(40) / 60, mpmath.exp(-mpmath.mpf(0.7) / 9)
        at = [beta**k * mpmath.rf(r, k) / mpmath.factorial(k) * mpmath.hyp2f1(r, r + k, k + 1, beta**2) for k in (0, 9)]
        want = float(mpmath.log(at[0] / at[1]))
    assert mechanism.privacy(40).promise.epsilon == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("name", ["central-laplace-discrete", "local-laplace-discrete", "distributed-polya"])
@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_laplace_like_noise_keeps_the_claim(name: str, calibration: str, epsilon: float) -> None:
    promise = planned_mechanism(name, epsilon=epsilon, calibration=calibration).privacy().promise
    assert promise.kind == "pure"
    assert promise.delta == 0
    assert promise.epsilon == pytest.approx(epsilon, rel=1e-12)
    assert promise.claimed == epsilon


@pytest.mark.parametrize(
    ("calibration", "precision", "width"),
    [
        pytest.param("paper", None, 10_729, id="paper"),
        pytest.param("exact", 32, 106, id="the-paper-s-grid"),
        pytest.param("exact", None, 23, id="rounding-below-a-tenth"),
        pytest.param("exact", 1, 2, id="zero-one-rewards"),
    ],
)
def test_bits_of_the_shuffled_binomial(calibration: str, precision: int | None, width: int) -> None:
    mechanism = planned_mechanism(
        "shuffled-binomial", epsilon=1.0, delta=1e-6, calibration=calibration, precision=precision
    )
    assert mechanism.width == mechanism.bits == width


@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-8), (1.0, 1e-6), (4.0, 0.01)])
def test_the_shuffled_binomial_keeps_the_claim(calibration: str, epsilon: float, delta: float) -> None:
    mechanism = planned_mechanism("shuffled-binomial", 500, 400, epsilon=epsilon, delta=delta, calibration=calibration)
    assert isinstance(mechanism, ShuffledBinomial)
    law = Binomial(400 * mechanism.coins, mechanism.chance)
    assert hockey_stick(law.pmf(), mechanism.precision, epsilon) <= delta
    promise = mechanism.privacy().promise
    assert promise.epsilon is not None
    assert promise.epsilon <= epsilon
    assert hockey_stick(law.pmf(), mechanism.precision, promise.epsilon) <= delta


def test_too_few_honest_bits_give_no_guarantee_at_all() -> None:
    mechanism = planned_mechanism("shuffled-binomial", epsilon=1.0, delta=1e-6)
    assert mechanism.privacy(1000, colluders=1000).promise.kind == "none"
    assert mechanism.privacy(1).promise.kind == "none"
    few = mechanism.privacy(400).promise
    assert few.epsilon is not None
    assert few.epsilon > 1


def test_exact_skellam_meets_renyi_at_every_order_and_no_less_noise_does() -> None:
    variance = skellam_variance(SkellamTarget(1.0, None, 1), 20)
    mechanism = planned_mechanism("distributed-skellam", epsilon=1.0, precision=20)
    assert isinstance(mechanism, DistributedSkellam)
    assert mechanism.variance == variance
    spent = [2 * epsilon / order for order, epsilon in mechanism.privacy().promise.rdp]
    assert max(spent) <= 1 < max(spent) * (1 + 1e-6)
    assert [order for order, _ in mechanism.privacy().promise.rdp] == list(GUARANTEE_ORDERS)


def test_paper_skellam_stays_below_its_theorem() -> None:
    mechanism = planned_mechanism("distributed-skellam", epsilon=0.5, calibration="paper", scale=4.0)
    assert mechanism.precision == math.ceil(4 * 0.5 * math.sqrt(1000))
    shift, variance = mechanism.precision, (mechanism.precision / 0.5) ** 2
    for order, epsilon in mechanism.privacy().promise.rdp:
        extra = min(((2 * order - 1) * shift**2 + 6 * shift) / (4 * variance**2), 3 * shift / (2 * variance))
        assert 0.9 * order * 0.125 <= epsilon <= order * shift**2 / (2 * variance) + extra


@pytest.mark.parametrize(
    "target", [SkellamTarget(1.0, None, 1), SkellamTarget(0.5, 1e-6, 1), SkellamTarget(2.0, None, 30)]
)
def test_the_skellam_grid_is_the_coarsest_with_little_rounding(target: SkellamTarget) -> None:
    g = skellam_precision(target, 3000)
    assert 0.1 * skellam_variance(target, g) >= 3000 / 4
    assert g == 1 or 0.1 * skellam_variance(target, g - 1) < 3000 / 4


def test_every_promise_says_what_it_rests_on() -> None:
    promise = planned_mechanism("distributed-polya", 60, 52, epsilon=1.0).privacy().promise
    assert promise.assumptions[0].startswith("at least 52 honest clients answer")
    assert promise.assumptions[1:3] == (
        "server and aggregator do not lie together",
        (
            "the aggregator lies and no client colludes with it, or it is curious and at most ⌊cn⌋ clients do, "
            "c the corruption rate: not both"
        ),
    )
    bits = planned_mechanism("shuffled-binomial", epsilon=1.0, delta=1e-6).privacy().promise
    assert "trusted with labelled bits" in bits.assumptions[2]
    assert planned_mechanism("identity").privacy().promise.kind == "none"


def test_the_paper_polya_has_the_paper_s_parameters() -> None:
    mechanism = planned_mechanism("distributed-polya", clients=1024, epsilon=0.5, calibration="paper")
    assert mechanism.precision == 16
    tau = math.ceil(32 * math.log(2 / 1e-6))
    assert mechanism.modulus == 1024 * 16 + 2 * tau + 1
    assert mechanism.client_law().shape == Fraction(1, 1024)

"""Tests that audits find mechanisms that are broken on purpose. Seeds are fixed; the false-alarm rate is 1e-9."""

from fractions import Fraction

import numpy as np
import pytest

from distrust.common.dp.accounting.techniques.hockey_stick import pure_epsilon
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.distributed.additive import DistributedPolya
from distrust.common.dp.noise.polya import PolyaDifference
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.audit.broken import BROKEN, broken
from distrust.lab.audit.in_process import audit_mechanism as audit
from tests.support.planned import planned

ALARM = 1e-9


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("clients", [10, 40])
@pytest.mark.few(5)
def test_the_lower_bound_exceeds_the_claim(name: str, clients: int) -> None:
    stream, secret = UnsafeSeededStream(21), BROKEN[name].secret
    result = audit(broken(name, clients), stream=stream, trials=100_000, secret=secret, alarm=ALARM)
    assert result.claim is not None
    assert result.lower > 1.2 * result.claim
    assert result.violated


@pytest.mark.parametrize("name", [name for name, one in BROKEN.items() if one.secret is None])
def test_the_honest_mechanism_with_the_same_fields_is_not_found_out(name: str) -> None:
    """The audit detects the broken line alone, and not the cohort, the range or the modulus around it."""
    made = broken(name, 10)
    kind = type(made).__bases__[0]
    assert issubclass(kind, Mechanism)
    honest = kind.model_validate(made.model_dump())
    result = audit(honest, stream=UnsafeSeededStream(27), trials=30_000, alarm=ALARM)
    assert result.claim == pytest.approx(made.privacy(made.floor).promise.epsilon)
    assert 0.5 < result.lower <= (result.claim or 0)


def test_half_the_survivors_leak_what_the_exact_law_says() -> None:
    """Half the noise has ε = 2.58. The audit's lower bound is at least three quarters of it, and not above it."""
    result = audit(broken("noise-for-everybody", 10), stream=UnsafeSeededStream(22), trials=400_000, alarm=ALARM)
    exact = pure_epsilon(PolyaDifference(Fraction(1, 2), 32.0).pmf(), 32)
    assert exact == pytest.approx(2.58, abs=0.01)
    assert 0.75 * exact < result.lower <= exact


def test_lap_one_over_epsilon_on_a_range_of_two_costs_twice_epsilon() -> None:
    result = audit(broken("laplace-for-half-the-range", 10), stream=UnsafeSeededStream(23), trials=400_000, alarm=ALARM)
    assert 1.9 < result.lower <= 2.0


def narrow() -> DistributedPolya:
    spec = MechanismSpec(name="distributed-polya", epsilon=1.0, precision=4)
    honest = planned(spec, 10)
    return DistributedPolya.model_validate({**honest.model_dump(), "modulus": 41})


def test_a_modulus_that_only_wraps_costs_accuracy_and_no_privacy() -> None:
    """Reduction modulo m is post-processing: without room for noise sums are wrong by m/g, and equally private."""
    result = audit(narrow(), stream=UnsafeSeededStream(24), trials=200_000, alarm=ALARM)
    assert not result.violated
    messages = narrow().randomize(np.zeros((1000, 1)), UnsafeSeededStream(25))
    assert int(messages.max()) > 20  # a negative noise, seen from the other end


def test_a_modulus_without_room_gives_wrong_sums_far_more_often_than_stated() -> None:
    """P(wrong) is at most `wrap` = 1e-6 for an honest modulus; here it is above 1 %."""
    mechanism = narrow()
    wrong = 0
    for seed in range(2000):
        rows = mechanism.randomize(np.zeros((10, 1)), UnsafeSeededStream(26, seed))
        total = rows.sum(axis=0) % np.uint64(mechanism.modulus)
        wrong += abs(mechanism.estimate(total, 10, UnsafeSeededStream(0))[0]) > 5
    assert wrong > 20 * 5


def test_unknown_counter_examples_are_refused() -> None:
    with pytest.raises(BadParameter, match="noise-for-everybody"):
        broken("nonsense", 10)

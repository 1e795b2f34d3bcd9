"""Tests the privacy of shuffled answers on a sphere, by 60 digits, by all outcomes of small cohorts and by an attack.

The attack: all other clients hold one vector, and the server counts the answers in one half of the sphere.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.dp.accounting.profile import response_renyi
from distrust.common.dp.accounting.techniques.amplification.clones import (
    antipodal_delta,
    antipodal_epsilon,
    antipodal_local_epsilon,
    clones_local_epsilon,
)
from distrust.common.dp.accounting.techniques.amplification.renyi import antipodal_renyi
from distrust.common.dp.accounting.techniques.searches import greatest_met
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.local.sphere import LocalSphere
from distrust.common.dp.mechanisms.shuffled.sphere import ShuffledSphere
from distrust.common.randomness import UnsafeSeededStream
from tests.support.planned import planned
from tests.support.shuffled_laws import DELTA, Array, responses, true_delta

BALL = BoundedVector(dimension=20, norm="l2", bound=1.0)


def planned_mechanism(clients: int, epsilon: float, statistic: Statistic, **fields: Any) -> ShuffledSphere:
    spec = MechanismSpec.model_validate({"name": "shuffled-sphere", "epsilon": epsilon, "delta": DELTA, **fields})
    mechanism = planned(spec, clients, statistic=statistic)
    assert isinstance(mechanism, ShuffledSphere)
    return mechanism


def by_definition(epsilon: float, local_epsilon: float, users: int) -> mpmath.mpf:
    """Return E (L_0 + … + L_C)₊ / (C + 1), L_j = 1 - e^ε ± τ (1 + e^ε) with fair signs, term by term."""
    p, e = mpmath.exp(mpmath.mpf(local_epsilon)), mpmath.exp(mpmath.mpf(epsilon))
    tau, chance, total = (p - 1) / (p + 1), 2 / (p + 1), mpmath.mpf(0)
    for c in range(users):
        weight = mpmath.binomial(users - 1, c) * chance**c * (1 - chance) ** (users - 1 - c)
        means = ((1 - e) + tau * (1 + e) * mpmath.mpf(2 * k - c - 1) / (c + 1) for k in range(c + 2))
        coins = (mpmath.binomial(c + 1, k) / mpmath.mpf(2) ** (c + 1) for k in range(c + 2))
        total += weight * mpmath.fsum(max(mean, 0) * coin for mean, coin in zip(means, coins, strict=True))
    return total


@pytest.mark.parametrize(
    ("epsilon", "local_epsilon", "users"),
    [
        *((0.5, 1.0, 1), (0.5, 1.0, 5), (0.2, 3.0, 40), (1.0, 4.0, 80), (0.05, 1.0, 60), (2.9, 3.0, 30)),
        *((0.01, 0.02, 20), (24.99, 24.9901, 3), (49.0, 49.5, 1), (30.0, 30.001, 5), (0.99999e-4, 1e-4, 7)),
    ],
)
def test_the_bound_agrees_with_sixty_digits_of_its_definition_from_above(
    epsilon: float, local_epsilon: float, users: int
) -> None:
    with mpmath.workdps(60):
        exact = by_definition(epsilon, local_epsilon, users)
    assert 0 <= float(antipodal_delta(epsilon, local_epsilon, users) / exact - 1) <= 1e-9


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("users", [1, 2, 5, 9])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_one_coordinate_is_within_the_bound_whatever_the_others_hold(
    local_epsilon: float, users: int, share: float
) -> None:
    exact = true_delta(responses(local_epsilon), users, share * local_epsilon)
    bound = antipodal_delta(share * local_epsilon, local_epsilon, users)
    assert exact <= bound * (1 + 1e-12)
    if users <= 2:  # the only other client's answer is a fair coin, or its vector
        assert bound <= 1.5 * exact


EIGHTHS = np.arange(8) * math.pi / 4
"""Angles of vectors in the plane. Half-planes around them cut the circle into arcs, one between any two neighbours."""


def plane(local_epsilon: float, lengths: tuple[float, ...] = (1.0,)) -> Array:
    """Return the laws of the arc that an answer is in, for vectors at EIGHTHS of each length, and for 0."""
    middles = EIGHTHS + math.pi / 8
    sides = np.sign(np.cos(middles - EIGHTHS[:, np.newaxis]))
    tau = math.tanh(local_epsilon / 2)
    rows = [(1 + tau * length * sides) / 8 for length in lengths]
    return np.concatenate([*rows, np.full((1, 8), 1 / 8)])


@pytest.mark.parametrize(("local_epsilon", "share"), [(0.7, 0.15), (2.5, 0.6)])
def test_vectors_of_the_plane_at_any_angles_are_within_the_bound(local_epsilon: float, share: float) -> None:
    """All outcomes of two and three clients, one of whom has any pair of vectors, and the others any vectors."""
    for users, lengths in ((2, (1.0, 0.5)), (3, (1.0,))):
        exact = true_delta(plane(local_epsilon, lengths), users, share * local_epsilon)
        assert 0 < exact <= antipodal_delta(share * local_epsilon, local_epsilon, users) * (1 + 1e-12)


def test_blocks_of_which_a_client_fills_any_are_within_the_bound() -> None:
    """Three blocks of one number: all outcomes of three clients that fill any block, or none, to any end."""
    local, tau = 1.3, math.tanh(0.65)
    vectors = np.vstack([np.eye(3), -np.eye(3), np.zeros((1, 3))])
    signs = np.array(list(itertools.product((-1, 1), repeat=3)))
    masses = np.prod(0.5 + tau / 2 * vectors[:, np.newaxis] * signs, axis=2)
    assert 0 < true_delta(masses, 3, 0.3) <= antipodal_delta(0.3, local, 3)


@pytest.mark.parametrize("users", [1, 2, 30, 1000, 10**6])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_the_inverse_is_safe_and_sharp_and_never_below_the_clones(users: int, epsilon: float) -> None:
    local = antipodal_local_epsilon(epsilon, DELTA, users)
    assert local >= max(epsilon, clones_local_epsilon(epsilon, DELTA, users) * (1 - 1e-8))
    assert antipodal_delta(epsilon, local, users) <= DELTA
    assert antipodal_epsilon(DELTA, local, users) <= epsilon * (1 + 1e-8)
    assert antipodal_delta(epsilon, local * (1 + 1e-6), users) > DELTA


def counts(held: int, others: int, lie: float) -> Array:
    """Return the law of the answers in one half, of `others` who hold its opposite and of one client."""
    law = stats.binom.pmf(np.arange(others + 1), others, lie)
    own = (lie, 1 - lie) if held else (1 - lie, lie)
    return np.append(law * own[0], 0.0) + np.append(0.0, law * own[1])


def attack(epsilon: float, local_epsilon: float, users: int) -> float:
    """Return δ(ε) of the count, the larger of both directions."""
    lie = 1 / (1 + math.exp(local_epsilon))
    one, other = (counts(held, users - 1, lie) for held in (0, 1))
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((one, other), (other, one)))


def attacked(epsilon: float, users: int) -> float:
    """Return the largest ε₀ at which the attack does not refute (ε, DELTA)."""
    return greatest_met(lambda local: attack(epsilon, local, users) <= DELTA, epsilon, 20.0, 1e-6)


PAGE = (Path(__file__).parents[2] / "docs/concepts/privacy/shuffling.md").read_text("utf-8")
GAPS = [
    line.strip("| ").split(" | ")
    for line in PAGE.partition("| deviation, above what the attack leaves |\n|---|---|---|---|---|\n")[2]
    .partition("\n\n")[0]
    .splitlines()
]


def test_the_noise_of_a_ball_is_as_near_the_least_that_the_attack_allows_as_the_page_says() -> None:
    """Deviations are as 1/tanh(ε₀/2), and no proof allows a larger ε₀ than the attack. The gap is in knowing C."""
    assert len(GAPS) == 4
    for clients, epsilon, *shown in GAPS:
        n = int(clients.replace(",", ""))
        local, limit = planned_mechanism(n, float(epsilon), BALL).local, attacked(float(epsilon), n)
        assert local < limit
        gap = 100 * (math.tanh(limit / 2) / math.tanh(local / 2) - 1)
        assert [f"{local:.3f}", f"{limit:.3f}", f"{gap:.1f} %"] == shown


def sum_deviation(mechanism: ShuffledSphere) -> float:
    """Return the standard deviation of the sum of rewards that are 0 or 1."""
    lie = 1 / (1 + math.exp(mechanism.local))
    return 2 * mechanism.radius * math.sqrt(mechanism.clients * lie * (1 - lie))


def test_the_figures_of_the_page_are_reached() -> None:
    """A message of a ball, and the sum of 1,000 rewards that are 0 or 1."""
    for clients, epsilon, deviation in ((1000, 1.0, 1.335), (10_000, 0.2, 1.397)):
        assert planned_mechanism(clients, epsilon, BALL).error(1).std == pytest.approx(deviation, abs=5e-4)
    mechanism = planned_mechanism(1000, 1.0, Reward())
    assert sum_deviation(mechanism) == pytest.approx(6.405, abs=5e-4)
    values = np.repeat([0.0, 1.0], [300, 700])
    messages = mechanism.randomize(np.tile(values, 400)[:, np.newaxis], UnsafeSeededStream(3)).reshape(400, 1000)
    errors = messages.sum(axis=1) * mechanism.step + 1000 * mechanism.origin - 700
    assert abs(errors.mean()) < 5.5 * 6.405 / 20  # 400 cohorts: false alarm below 1e-7
    assert 6.405 / 1.25 < errors.std() < 6.405 * 1.25  # below 1e-8, of 400 squares of nearly Gaussian sums


@pytest.mark.parametrize("statistic", [Reward(), BALL, ContextualSum(features=2, blocks=3, moments=False)])
def test_messages_are_those_of_the_local_mechanism_at_the_amplified_epsilon(statistic: Statistic) -> None:
    mechanism = planned_mechanism(300, 1.0, statistic)
    local = planned(MechanismSpec(name="local-sphere", epsilon=mechanism.local), 300, statistic=statistic)
    assert isinstance(local, LocalSphere)
    vectors = np.zeros((300, statistic.dimension))
    vectors[:, :2] = np.random.default_rng(2).uniform(-0.7, 0.7, (300, min(2, statistic.dimension)))
    first, second = (one.randomize(vectors, UnsafeSeededStream(6)) for one in (mechanism, local))
    assert np.array_equal(first, second)
    assert (mechanism.modulus, mechanism.radius) == (local.modulus, local.radius)
    assert mechanism.error(300).quantile(0.01) == local.error(300).quantile(0.01)


def exact_renyi(local_epsilon: float, users: int, order: float) -> float:
    """Return the largest Rényi divergence of counts in one coordinate, over all that the others hold."""
    lie, worst = 1 / (1 + math.exp(local_epsilon)), 0.0
    for ones in range(users):
        law = np.ones(1)
        for chance in [1 - lie] * ones + [lie] * (users - 1 - ones):
            law = np.append(law * (1 - chance), 0.0) + np.append(0.0, law * chance)
        pair = [np.append(law * (1 - own), 0.0) + np.append(0.0, law * own) for own in (lie, 1 - lie)]
        for p, q in (pair, pair[::-1]):
            worst = max(worst, math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1))
    return worst


@pytest.mark.parametrize("users", [1, 2, 8])
@pytest.mark.parametrize("local", [0.3, 1.5, 4.0])
@pytest.mark.parametrize("order", [1.25, 2.0, 16.0])
def test_divergences_lie_between_the_truth_and_one_message(users: int, local: float, order: float) -> None:
    result = antipodal_renyi(local, users, (order,))[0]
    assert exact_renyi(local, users, order) <= result * (1 + 1e-12)
    assert result <= 1.01 * response_renyi(local, order) + 1e-3


@pytest.mark.parametrize("clients", [1, 2, 40])
def test_a_small_cohort_promises_what_was_asked_for_and_its_message_no_less(clients: int) -> None:
    mechanism = planned_mechanism(clients, 0.5, Reward())
    whole, alone = mechanism.privacy().promise, mechanism.privacy(clients, clients - 1).promise
    assert whole.epsilon is not None
    assert alone.epsilon is not None
    assert 0.5 * (1 - 1e-6) <= whole.epsilon <= 0.5
    assert whole.epsilon <= alone.epsilon <= mechanism.local
    assert (alone.kind, alone.model) == ("pure", "local")
    assert whole.kind == ("pure" if clients == 1 else "approximate")


@pytest.mark.parametrize(
    ("field", "value"), [("delta", 0.5), ("delta", 0.0), ("local", 0.0), ("local", 51.0), ("calibration", "paper")]
)
def test_a_value_outside_of_the_theorem_is_refused_by_its_field(field: str, value: object) -> None:
    document = planned_mechanism(100, 1.0, Reward()).model_dump()
    with pytest.raises(ValueError, match=field):
        ShuffledSphere.model_validate({**document, field: value})

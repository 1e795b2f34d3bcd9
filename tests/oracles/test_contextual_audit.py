"""Tests by audits of the deployed code that a contextual client's arm and context stay hidden.

There are three arms with parameters of their own, and contexts of two numbers. Seeds are fixed. A lower bound is wrong
with probability 1e-7 an audit, and one of the forty of this file for one in 250 000 sets of seeds.
"""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from typer.testing import CliRunner

from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.dp.mechanisms.local.additive import LocalGaussian
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.__main__ import app
from distrust.lab.audit.broken import broken, counter_example
from distrust.lab.audit.in_process import audit_mechanism as audit
from distrust.lab.audit.observation import evidence, evidence_names
from distrust.lab.audit.secret import Secret, arm_secret, context_secret, named_secret
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import epsilon_at_least, judge_worlds

ALARM = 1e-7
ARMS = ContextualSum(features=2, blocks=3)
SECRETS = [pytest.param(arm_secret(ARMS), id="arm"), pytest.param(context_secret(ARMS), id="context")]


def planned_mechanism(name: str, clients: int, statistic: ContextualSum = ARMS, **fields: Any) -> Mechanism:
    return PrivacyQuery(clients=clients, epsilon=2.0, **fields).planned(name, "exact", statistic)


def variance(mechanism: Any) -> float:
    """Return the variance of the noise in each coordinate of the view, in data units squared.

    The view is a sum, and a single record for shuffled records.
    """
    bits = mechanism.name == "shuffled-binomial"
    steps = mechanism.clients * mechanism.coins * mechanism.chance * (1 - mechanism.chance) if bits else 0.0
    return float(steps or mechanism.variance) * ((mechanism.high - mechanism.low) / mechanism.precision) ** 2


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Return ε at δ of Gaussian noise, `distance` in standard deviations (Balle & Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        near, far = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far)) - delta

    return float(brentq(excess, 0, 50))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    ("name", "clients", "view", "share"),
    [
        pytest.param("local-gaussian", 4, "message", 0.7, id="a-report"),
        pytest.param("distributed-discrete-gaussian", 4, "sum", 0.7, id="a-masked-sum"),
        pytest.param("central-gaussian", 4, "estimate", 0.7, id="an-estimate"),
        pytest.param("shuffled-binomial", 4, "sum", 0.5, id="sums-of-bits"),
        pytest.param("shuffled-gaussian", 2, "records", 0.3, id="permuted-records"),
    ],
)
@pytest.mark.few(4)
def test_a_secret_keeps_the_claim_and_uses_a_fair_share_of_its_noise(
    secret: Secret, name: str, clients: int, view: str, share: float
) -> None:
    """The audit shows at least `share` of the ε of Gaussian noise of this variance on the two vectors, and no more.

    For permuted records that ε is the one of a single record before it is permuted.
    """
    mechanism = planned_mechanism(name, clients, delta=0.1)
    result = audit(mechanism, stream=UnsafeSeededStream(31), trials=30_000, secret=secret, alarm=ALARM)
    told = gaussian_epsilon(float(np.linalg.norm(np.subtract(*secret.ends))) / math.sqrt(variance(mechanism)), 0.1)
    assert (result.view, result.secret, result.violated) == (view, secret.hidden, False)
    assert share * told < result.lower <= told <= (result.claim or 0)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_stream_of_batches_keeps_its_claim(secret: Secret) -> None:
    mechanism = planned_mechanism("tree", 4, delta=0.1, batches=4)
    result = audit(mechanism, stream=UnsafeSeededStream(32), trials=20_000, secret=secret, alarm=ALARM)
    assert (result.view, result.evidence) == ("stream", "nodes")
    assert 0.35 * 2 < result.lower <= (result.claim or 0)


GRADIENTS = ContextualSum(features=2, blocks=3, moments=False, residual="logistic")


@pytest.mark.parametrize(
    "secret", [*SECRETS, pytest.param(arm_secret(GRADIENTS), id="gradient"), context_secret(GRADIENTS)]
)
def test_the_sphere_keeps_its_claim(secret: Secret) -> None:
    """The claim is the coin's ε. An answer lies in the vector's half of the sphere with a chance by its length."""
    mechanism = planned_mechanism("local-sphere", 4, secret.statistic)
    result = audit(mechanism, stream=UnsafeSeededStream(33), trials=20_000, secret=secret, alarm=ALARM)
    assert result.delta == 0
    assert 0.4 * 2 < result.lower <= (result.claim or 0)


@pytest.mark.parametrize("secret", SECRETS)
def test_a_quarter_of_the_noise_is_found_out(secret: Secret) -> None:
    """A quarter of the noise is detected, so the other audits are not passed by weakness."""
    whole = planned_mechanism("local-gaussian", 4, delta=0.1)
    assert isinstance(whole, LocalGaussian)
    quarter = whole.model_copy(update={"variance": whole.variance / 16})
    result = audit(quarter, stream=UnsafeSeededStream(34), trials=20_000, secret=secret, alarm=ALARM)
    assert result.lower > 1.1 * 2
    assert not result.violated  # its own guarantee says as much


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_reports_without_synthetic_updates_tell_the_pulled_arm(epsilon: float) -> None:
    name = "skipped-synthetic-updates"
    bare, secret = broken(name, 10, epsilon), counter_example(name).secret
    assert secret is not None
    result = audit(bare, stream=UnsafeSeededStream(35), trials=10_000, secret=secret, alarm=ALARM)
    assert (result.evidence, result.violated) == ("unnoised", True)
    assert 0.9 * result.reach < result.lower <= result.reach
    honest = LocalGaussian.model_validate(bare.model_dump())
    kept = audit(honest, stream=UnsafeSeededStream(35), trials=10_000, secret=secret, alarm=ALARM)
    assert kept.claim == result.claim == pytest.approx(epsilon, rel=1e-6)
    assert kept.lower <= kept.claim


STATISTICS = [
    ARMS,
    ContextualSum(features=3),
    ContextualSum(features=2, rewards=[-3.0, 1.0]),
    ContextualSum(features=2, rewards=[0.0, 0.1]),
    ContextualSum(features=1),
    ContextualSum(features=1, rewards=[0.0, 0.3]),
    ContextualSum(features=4, blocks=2, moments=False),
    GRADIENTS,
    ContextualSum(features=2, residual="poisson", rewards=[0.0, 5.0]),
]


@pytest.mark.parametrize("statistic", STATISTICS, ids=str)
def test_no_two_contexts_are_farther_apart_than_the_secret_ones(statistic: ContextualSum) -> None:
    """The secret's pair reaches the stated sensitivity, and 20 000 random pairs of any lengths and rewards do not."""
    rng, size = np.random.default_rng(36), (2, 20_000)
    contexts = rng.standard_normal((*size, statistic.features))
    contexts *= rng.choice([0.3, 1.0, 5.0], (*size, 1)) / np.linalg.norm(contexts, axis=-1, keepdims=True)
    drawn = Observation(
        np.zeros(size, dtype=np.int64),
        contexts,
        rng.choice([*statistic.rewards, sum(statistic.rewards) / 2], size),
        rng.choice([-1.0, 0.0, 1.0], size),
    )
    lengths = np.linalg.norm(np.subtract(*statistic.vectors(drawn)), axis=-1)
    secret = context_secret(statistic)
    apart = float(np.linalg.norm(np.subtract(*secret.ends)))
    assert 0.8 * apart < lengths.max() <= apart * (1 + 1e-12)
    assert apart == pytest.approx(statistic.model_copy(update={"blocks": 1}).sensitivity)
    assert (np.linalg.norm(secret.ends, axis=1) <= statistic.radius * (1 + 1e-12)).all()


@pytest.mark.parametrize("statistic", [one for one in STATISTICS if one.blocks > 1], ids=str)
def test_two_arms_fill_two_blocks_with_the_same_numbers(statistic: ContextualSum) -> None:
    ends = arm_secret(statistic).ends.reshape(2, statistic.blocks, statistic.width)
    assert (ends[0, 0] == ends[1, 1]).all()
    assert np.linalg.norm(ends[0, 0]) == pytest.approx(statistic.radius)
    assert not ends[0, 1:].any()
    assert not ends[1, 0].any()


def test_the_ratio_adds_up_coordinates_that_each_have_values_of_their_own() -> None:
    """The oracle is both worlds' law of a message, with noise and rounding, written out from the definition."""
    mechanism = planned_mechanism("local-gaussian", 4, delta=0.1)
    assert isinstance(mechanism, LocalGaussian)
    secret = context_secret(ARMS)
    setting = Setting(mechanism, 4, secret=secret)
    assert evidence_names(setting) == ("projection", "likelihood", "unnoised")
    steps = (secret.ends - mechanism.low) * mechanism.precision / (mechanism.high - mechanism.low)
    messages = np.rint(steps[0] + np.random.default_rng(37).normal(0, math.sqrt(mechanism.variance), (50, 1, 15)))

    def log_mass(value: np.ndarray) -> np.ndarray:
        """Return ln P up to a constant of ⌊value⌋ or ⌈value⌉, rounded at random, plus discrete Gaussian noise."""
        parts = [np.exp(-((messages - np.floor(value) - up) ** 2) / (2 * mechanism.variance)) for up in (0, 1)]
        chance = value - np.floor(value)
        return np.log((1 - chance) * parts[0] + chance * parts[1]).sum(axis=2)

    result = evidence(setting, messages)
    assert result[:, 1] == pytest.approx((log_mass(steps[1]) - log_mass(steps[0]))[:, 0], abs=1e-6)
    unit = (secret.ends[1] - secret.ends[0]) / np.linalg.norm(secret.ends[1] - secret.ends[0])
    assert result[:, 0] == pytest.approx(messages[:, 0] @ unit, abs=1e-6)


def test_coordinates_without_noise_are_counted() -> None:
    """A message of world 0 without noise has all four values that tell it from world 1, one of world 1 the others."""
    setting = Setting(planned_mechanism("local-gaussian", 4, delta=0.1, precision=20), 4, secret=arm_secret(ARMS))
    steps = (setting.ends + setting.mechanism.high) * (20 / (2 * setting.mechanism.high))
    assert setting.telling.tolist() == [0, 2, 5, 7]
    for seen in (np.floor(steps), np.ceil(steps)):
        assert evidence(setting, seen[:, np.newaxis])[:, 2].tolist() == [-4, 4]
    assert evidence(setting, np.full((1, 1, 15), 30.0))[:, 2].tolist() == [0]


def test_the_others_stand_on_the_grid_and_in_the_ball() -> None:
    setting = Setting(planned_mechanism("distributed-discrete-gaussian", 4, delta=0.1), 4, secret=context_secret(ARMS))
    mechanism, others = setting.mechanism, setting.others
    assert isinstance(mechanism, GridMechanism)
    steps = (others - mechanism.low) * (mechanism.precision / (mechanism.high - mechanism.low))
    assert steps == pytest.approx(np.rint(steps), abs=1e-9)
    assert np.linalg.norm(others) <= ARMS.radius
    assert np.abs(others - setting.ends[0]).max() < (mechanism.high - mechanism.low) / mechanism.precision
    assert mechanism.on_grid(others[np.newaxis]) == pytest.approx(np.rint(steps)[np.newaxis], abs=1e-6)


def test_three_numbers_a_trial_share_the_alarm() -> None:
    setting = Setting(planned_mechanism("local-gaussian", 4, delta=0.1), 4, secret=arm_secret(ARMS))
    rng = np.random.default_rng(39)
    worlds = [rng.normal(mean, 1, (4000, 3)) for mean in (0, 2)]
    result = judge_worlds(setting, worlds[0], worlds[1], alarm=0.01)
    likely, rare = (np.array([hits]) for hits in result.hits)
    assert result.lower > 0
    assert result.lower == epsilon_at_least(likely, rare, 2000, 0.1, 0.01 / (8 * 3))[0]


@pytest.mark.parametrize("name", ["local-gaussian", "distributed-discrete-gaussian", "central-gaussian"])
def test_without_a_secret_the_ends_are_as_far_apart_as_clients_can_be(name: str) -> None:
    """√4.5 on a ball of diameter 2√2, rounded up to a step. So the claim holds, and the audit comes near it."""
    mechanism = planned_mechanism(name, 4, delta=0.1)
    ends = Setting(mechanism, 4).ends
    step = (mechanism.high - mechanism.low) / mechanism.precision
    assert ARMS.sensitivity <= np.linalg.norm(ends[1] - ends[0]) < ARMS.sensitivity + step
    result = audit(mechanism, stream=UnsafeSeededStream(40), trials=30_000, alarm=ALARM)
    assert 0.6 * 2 < result.lower <= (result.claim or 0)


def test_a_secret_of_other_vectors_is_refused() -> None:
    with pytest.raises(BadParameter, match="vectors of 15 coordinates"):
        Setting(planned_mechanism("local-gaussian", 4, delta=0.1), 4, secret=arm_secret(GRADIENTS))


COMMAND = ["audit", "local-gaussian", "--epsilon", "1", "--delta", "0.1", "--trials", "5000", "--seed", "4"]


@pytest.mark.parametrize(
    ("words", "dimension"),
    [
        pytest.param("--secret arm --features 2 --arms 3", 15, id="arm"),
        pytest.param("--secret arm", 10, id="two-arms-of-two-numbers"),
        pytest.param("--secret context --features 3", 9, id="shared-parameters"),
        pytest.param("--secret context --features 3 --arms 2 --residual logistic --low -1", 6, id="gradient"),
    ],
)
def test_the_command_plans_the_mechanism_for_what_clients_report(words: str, dimension: int) -> None:
    done = CliRunner().invoke(app, [*COMMAND, *words.split(), "--json", "-"])
    result = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (result["secret"], result["dimension"], result["norm"]) == (words.split()[1], dimension, "l2")
    assert result["lower"] <= result["claim"] == pytest.approx(1, rel=1e-6)
    shown = CliRunner().invoke(app, [*COMMAND, *words.split()])
    assert f"the client's {words.split()[1]}" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--secret reward", "secret = 'reward': must be one of arm, context"),
        ("--secret arm --arms 1", "arms = 1: must be at least 2, with parameters of their own"),
        ("--secret context --arms 0", "arms = 0: must be at least 1"),
        ("--secret arm --features 201", "features = 201: must be at most 200"),
        ("--secret arm --features 100 --arms 100", "features = 100: 100 blocks of 5150 coordinates are above 20000"),
        ("--secret arm --residual probit", "residual = 'probit': must be 'identity', 'logistic' or 'poisson'"),
        ("--secret arm --high 2e6", "high = 2000000.0: must lie in [-1e+06, 1e+06], as a reward's"),
        ("--secret arm --dimension 4", "dimension = 4: the secret brings its own vectors: leave it out"),
        ("--secret arm --norm l1", "norm = 'l1': the secret brings its own vectors: leave it out"),
        ("--features 3", "features = 3: is for a secret, and none is named: leave it out"),
        ("--arms 3", "arms = 3: is for a secret, and none is named: leave it out"),
        ("--residual logistic", "residual = 'logistic': is for a secret, and none is named: leave it out"),
    ],
)
def test_bad_words_are_refused_in_one_line(words: str, said: str) -> None:
    refused = CliRunner().invoke(app, [*COMMAND, *words.split()])
    assert isinstance(refused.exception, BadParameter)
    assert str(refused.exception) == said


@pytest.mark.parametrize("words", ["--secret arm", "--arms 3", "--features 2", "--residual logistic"])
def test_a_counter_example_brings_its_own_secret(words: str) -> None:
    refused = CliRunner().invoke(app, ["audit", "--broken", "skipped-synthetic-updates", *words.split()])
    assert isinstance(refused.exception, BadParameter)
    assert str(refused.exception).endswith("the counter-example brings its own: leave it out")


def test_words_without_a_command_are_checked_as_well() -> None:
    with pytest.raises(BadParameter, match=r"high = 0\.0: must be above low = 1"):
        named_secret("arm", low=1.0, high=0.0)

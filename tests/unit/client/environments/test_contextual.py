"""Tests that the drawn worlds of contextual bandits follow their laws, and that clients follow the rule.

Distribution functions are compared by the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant, averages by
Hoeffding's: both are exact, and one comparison has a false alarm rate of 1e-9. There are about 40.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.contextual import (
    Contexts,
    ContextualWorld,
    GeneralizedLinear,
    clipped_contexts,
    experience,
    longer_by_client,
    within_ball,
)
from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice, Link, Screen
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.specs.linucb import LinUcbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.linucb import LinUcb

Floats = NDArray[np.float64]

DRAWS = 200_000


def _slack(count: int) -> float:
    """Return s with P(deviation > s) ≤ 2 exp(-2 n s²) = 1e-9 by both inequalities, for values in [0, 1]."""
    return math.sqrt(math.log(2 / 1e-9) / (2 * count))


def _world(**table: object) -> GeneralizedLinear:
    world = build_environment(read_spec(table))
    assert isinstance(world, ContextualWorld)
    assert isinstance(world, GeneralizedLinear)
    return world


def _sphere(**more: object) -> GeneralizedLinear:
    return _world(name="glm-sphere", seed=4, **more)


def _stream(*labels: object) -> UnsafeSeededStream:
    return UnsafeSeededStream(7, "contextual", *map(str, labels))


def _furthest(sample: Floats, law: Floats, points: Floats) -> float:
    empirical = np.searchsorted(np.sort(sample), points, side="right") / len(sample)
    return float(np.abs(empirical - law).max())


def _entry_law(points: Floats, size: int) -> Floats:
    """Return P(entry ≤ points) of a uniform point of the sphere of R^size.

    (1 + entry)/2 is Beta((size-1)/2, (size-1)/2).
    """
    shape = (size - 1) / 2
    return np.asarray(stats.beta.cdf((1 + points) / 2, shape, shape))


@pytest.mark.parametrize("size", [2, 3, 10])
def test_contexts_of_the_sphere_are_uniform_and_each_clients_own(size: int) -> None:
    met = _sphere(dimension=size, arms=10).contexts(DRAWS // 10, _stream("sphere", size))
    assert met.features.shape == (DRAWS // 10, 10, size)
    assert np.allclose((met.features**2).sum(axis=-1), 1)
    points = np.linspace(-1, 1, 201)
    for entry in (0, size - 1):
        sample = met.features[..., entry].ravel()
        assert _furthest(sample, _entry_law(points, size), points) < _slack(len(sample))
    # Independent of each other: the first entries of two arms are positive together in a quarter of the clients.
    together = (met.features[:, 0, 0] > 0) & (met.features[:, 1, 0] > 0)
    assert abs(together.mean() - 0.25) < _slack(len(together))


def test_luck_is_uniform() -> None:
    payout_draws = _sphere().contexts(DRAWS, _stream("luck")).payout_draws
    points = np.linspace(0, 1, 201)
    assert _furthest(payout_draws, points, points) < _slack(DRAWS)


def test_clients_of_the_sphere_with_parameters_an_arm_have_one_context() -> None:
    world = _sphere(parameters="multi", arms=4, dimension=3)
    assert world.theta.shape == (4, 3)
    assert np.allclose((world.theta**2).sum(axis=1), 1)
    features = world.contexts(50, _stream("multi")).features
    assert features.shape == (50, 1, 3)
    means = world.means(features)
    for client in range(50):
        for arm in range(4):
            assert means[client, arm] == pytest.approx(sum(features[client, 0] * world.theta[arm]), abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_vectors_of_the_synthetic_world_are_half_uniform_and_half_constant(size: int) -> None:
    world = _world(name="contextual-synthetic", seed=3, arms=10_000, dimension=size)
    assert world.fixed is not None
    vectors = np.concatenate([world.theta, world.fixed])
    assert vectors.shape == (10_001, size)
    assert (vectors[:, -1] == math.sqrt(0.5)).all()
    assert np.allclose((vectors**2).sum(axis=1), 1)
    sample = vectors[:, 0] * math.sqrt(2)
    if size == 2:  # the sphere of R¹ is -1 and 1
        assert abs((sample > 0).mean() - 0.5) < _slack(len(sample))
    else:
        points = np.linspace(-1, 1, 101)
        assert _furthest(sample, _entry_law(points, size - 1), points) < _slack(len(sample))


def test_means_of_the_synthetic_world_are_inner_products_in_0_1_and_all_clients_meet_the_same() -> None:
    world = _world(name="contextual-synthetic", seed=3, arms=500)
    assert world.fixed is not None
    met = world.contexts(6, _stream("fixed"))
    assert met.features.shape == (1, 500, 5)
    means = world.means(met.features)[0]
    assert means.min() >= 0
    assert means.max() <= 1
    for arm in (0, 17, 499):
        expected = sum(x * y for x, y in zip(world.theta[0].tolist(), world.fixed[arm].tolist(), strict=True))
        assert means[arm] == pytest.approx(expected, abs=1e-12)


PREDICTORS = (-1.0, -0.4, 0.0, 0.7, 1.0)


@pytest.mark.parametrize(
    ("table", "mean", "low", "high"),
    [
        pytest.param({"link": "identity"}, lambda z: z, -1.0, 1.0, id="identity"),
        pytest.param({"link": "logistic"}, lambda z: math.exp(z) / (1 + math.exp(z)), 0.0, 1.0, id="logistic"),
    ],
)
def test_rewards_have_two_values_and_the_mean_of_the_link(
    table: dict[str, object], mean: Callable[[float], float], low: float, high: float
) -> None:
    world = _sphere(**table)
    assert world.rewards == (low, high)
    direction = world.theta[0]
    for predictor in PREDICTORS:
        means = world.means((predictor * direction)[np.newaxis, np.newaxis])
        assert means.item() == pytest.approx(mean(predictor), abs=1e-12)
        payout_draws = np.random.default_rng(int(10 * predictor) + 50).random(DRAWS)
        rewards = world.pay(np.full(DRAWS, means.item()), payout_draws)
        assert set(np.unique(rewards)) <= {low, high}
        assert abs(rewards.mean() - mean(predictor)) < (high - low) * _slack(DRAWS)


def test_rewards_of_the_synthetic_world_are_bernoulli() -> None:
    world = _world(name="contextual-synthetic", seed=3, arms=5)
    for arm in range(5):
        seen, _ = experience(world, ChoiceRule(np.zeros((1, 5)), only=arm), DRAWS, _stream("bernoulli", arm))
        assert set(np.unique(seen.rewards)) <= {0.0, 1.0}
        mean = float(world.means(world.contexts(1, _stream()).features)[0, arm])
        assert abs(seen.rewards.mean() - mean) < _slack(DRAWS)


def test_rewards_without_noise_are_the_means() -> None:
    world = _sphere(noiseless=True)
    means = np.linspace(-1, 1, 9)
    assert (world.pay(means, np.zeros(9)) == means).all()


@pytest.mark.parametrize("largest", [3.0, 10.0])
def test_counts_are_poisson_up_to_the_largest(largest: float) -> None:
    world = _sphere(link="poisson", largest=largest)
    for predictor in PREDICTORS:
        mean = float(world.means((predictor * world.theta)[np.newaxis])[0, 0])
        assert mean == pytest.approx(math.e**predictor)
        payout_draws = np.random.default_rng(int(10 * predictor) + 90).random(DRAWS // 4)
        rewards = world.pay(np.full(DRAWS // 4, mean), payout_draws)
        points = np.arange(int(largest) + 1.0)
        terms = np.array([math.exp(-mean) * mean**k / math.factorial(k) for k in range(int(largest) + 1)])
        law = np.where(points >= largest, 1.0, np.cumsum(terms))
        assert rewards.max() <= largest
        assert (rewards == np.floor(rewards)).all()
        assert _furthest(rewards, law, points) < _slack(DRAWS // 4)


def test_counts_of_no_luck_are_zero() -> None:
    """Luck may be exactly 0, where a quantile function answers -1."""
    rewards = _sphere(link="poisson", largest=5).pay(np.array([0.5, 2.0]), np.zeros(2))
    assert (rewards == 0).all()


@pytest.mark.parametrize("name", ["contextual-synthetic", "glm-sphere"])
def test_the_same_seed_gives_the_same_world_and_the_same_stream_the_same_clients(name: str) -> None:
    first, again, other = (_world(name=name, seed=seed) for seed in (1, 1, 2))
    assert (first.theta == again.theta).all()
    assert (first.theta != other.theta).any()
    rule = ChoiceRule(np.ones((1, first.dimension)))
    seen, regrets = experience(first, rule, 40, _stream("same"))
    twice, regrets_twice = experience(again, rule, 40, _stream("same"))
    assert (seen.features == twice.features).all()
    assert (seen.rewards == twice.rewards).all()
    assert (regrets == regrets_twice).all()
    assert (experience(first, rule, 40, _stream("other"))[0].rewards != seen.rewards).any()


@pytest.mark.parametrize("parameters", ["single", "multi"])
def test_clients_choose_by_the_rule_and_report_the_chosen_arms_context(parameters: str) -> None:
    world = _sphere(parameters=parameters, arms=6, dimension=3, noiseless=True)
    theta = np.random.default_rng(1).standard_normal(world.theta.shape)
    seen, regrets = experience(world, ChoiceRule(theta), 200, _stream("rule"))
    met = world.contexts(200, _stream("rule")).features
    for client in range(200):
        contexts = [met[client, arm if parameters == "single" else 0] for arm in range(6)]
        rows = [0] * 6 if parameters == "single" else list(range(6))
        scores = [float(contexts[arm] @ theta[rows[arm]]) for arm in range(6)]
        means = [float(contexts[arm] @ world.theta[rows[arm]]) for arm in range(6)]
        chosen = max(range(6), key=lambda arm: scores[arm])
        assert seen.arms[client] == chosen
        assert (seen.features[client] == contexts[chosen]).all()
        assert seen.predictors[client] == pytest.approx(scores[chosen])
        assert seen.rewards[client] == pytest.approx(means[chosen])
        assert regrets[client] == pytest.approx(max(means) - means[chosen], abs=1e-12)


def test_a_client_chooses_by_the_shortened_contexts_that_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second arm's context is the longer one, and the worse one at length 1. The world pays by what it drew."""
    world = _sphere(arms=2, dimension=2, noiseless=True)
    drawn = Contexts(np.array([[[0.9, 0.0], [4.0, 3.0]]]), np.array([0.5]))
    monkeypatch.setattr(GeneralizedLinear, "contexts", lambda *_: drawn)
    rule = ChoiceRule(np.array([[1.0, 0.0]]))
    assert rule.choose(drawn.features)[0].tolist() == [1]
    seen, regrets = experience(world, rule, 1, _stream("long"))
    assert (seen.arms.tolist(), seen.features.tolist()) == ([0], [[0.9, 0.0]])
    means = drawn.features[0] @ world.theta[0]
    assert seen.rewards == pytest.approx(means[0])
    assert regrets == pytest.approx(means.max() - means[0])
    shortened, _ = experience(world, ChoiceRule(np.array([[0.0, 1.0]])), 1, _stream("long"))
    assert shortened.features == pytest.approx(np.array([[0.8, 0.6]]))
    assert shortened.predictors == pytest.approx([0.6])


def test_contexts_are_counted_once_for_each_client_that_shortens_them() -> None:
    long, short = [3.0, 4.0], [0.6, 0.8]
    own = np.array([[long, short], [short, short], [long, long]])
    assert longer_by_client(own, 3).tolist() == [1, 0, 2]
    assert longer_by_client(own[:1], 4).tolist() == [1, 1, 1, 1]
    odd = np.array([[[math.nan, 9.0], [math.inf, 0.0]], [[1e200, 0.0], short]])  # the first two count as 0
    assert longer_by_client(odd, 2).tolist() == [0, 1]


def test_a_context_that_is_longer_by_rounding_stays_as_it_is() -> None:
    contexts = _sphere(dimension=5).contexts(1000, _stream("rounding")).features
    assert (np.vecdot(contexts, contexts) > 1).any()
    assert clipped_contexts(contexts) is contexts


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e300, -1e300])
@pytest.mark.parametrize("link", ["identity", "poisson"])
def test_a_client_answers_whatever_its_context_and_its_reward_are(
    odd: float, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence would disclose its context. NaN and infinities count as 0, and the other clients are unchanged."""
    statistic = ContextualSum(features=2, moments=False, residual=link, rewards=[0.0, 3.0])
    drawn = Contexts(np.array([[[0.6, 0.0], [0.0, 0.8]], [[odd, 0.0], [odd, 1e-9]]]), np.full(2, 0.5))
    world = replace(_sphere(arms=2, dimension=2), rewards=(0.0, 3.0))
    monkeypatch.setattr(GeneralizedLinear, "contexts", lambda *_: drawn)
    monkeypatch.setattr(GeneralizedLinear, "means", lambda *_: np.array([[1.0, 2.0], [1.0, 2.0]]))
    monkeypatch.setattr(GeneralizedLinear, "pay", lambda *_: np.array([2.0, odd]))
    seen, _ = experience(world, ChoiceRule(np.array([[1.0, 0.0]])), 2, _stream("odd"))
    vectors = statistic.vectors(seen)
    assert seen.features[1].tolist() == ([np.sign(odd), 0.0] if np.isfinite(odd) else [0.0, 0.0])
    assert (seen.arms[0], seen.rewards[0], seen.features[0].tolist()) == (0, 2.0, [0.6, 0.0])
    assert np.linalg.norm(vectors, axis=1).max() <= statistic.radius


@pytest.mark.parametrize("link", ["identity", "logistic"])
@pytest.mark.parametrize("parameters", ["single", "multi"])
def test_the_true_parameters_have_no_regret(parameters: str, link: str) -> None:
    world = _sphere(parameters=parameters, arms=5, dimension=4, link=link)
    _, regrets = experience(world, ChoiceRule(world.theta), 500, _stream("truth"))
    assert np.abs(regrets).max() < 1e-12
    _, others = experience(world, ChoiceRule(-world.theta), 500, _stream("truth"))
    assert (others > 0).all()


def test_an_arm_that_is_given_is_played_by_all() -> None:
    world = _sphere(parameters="multi", arms=5, dimension=4)
    seen, regrets = experience(world, ChoiceRule(world.theta, only=3), 100, _stream("only"))
    assert (seen.arms == 3).all()
    assert (regrets >= 0).all()
    assert (regrets > 0).any()


def _by_hand(weights: list[float], predictors: Floats) -> list[int]:
    chosen = []
    for row in predictors.tolist():
        values = [weight / (1 + math.exp(-z)) for weight, z in zip(weights, row, strict=True)]
        chosen.append(values.index(max(values)))
    return chosen


def test_weights_make_clients_choose_by_value() -> None:
    rng = np.random.default_rng(5)
    features, theta, weights = rng.standard_normal((300, 4, 3)), rng.standard_normal((1, 3)), [0.1, 0.4, 0.7, 1.0]
    rule = ChoiceRule(theta, weights=np.array(weights), link="logistic")
    arms, predictors = rule.choose(features)
    expected = _by_hand(weights, features @ theta[0])
    assert arms.tolist() == expected
    assert expected != ChoiceRule(theta).choose(features)[0].tolist()
    assert np.allclose(predictors, [features[client, arm] @ theta[0] for client, arm in enumerate(expected)])
    # A bonus goes into μ: with V⁻¹ = I it is β times the context's length.
    bonus = ChoiceRule(theta, np.eye(3)[np.newaxis], 0.5, weights=np.array(weights), link="logistic")
    longer = features @ theta[0] + 0.5 * np.sqrt((features**2).sum(axis=-1))
    assert bonus.choose(features)[0].tolist() == _by_hand(weights, longer)


def test_a_screen_judges_by_value_as_well() -> None:
    theta = np.array([[1.0], [0.5]])
    context, weights = np.ones((1, 1, 1)), np.array([0.1, 1.0])
    screen = Screen(theta, "identity", 0.3)
    assert screen.allowed(context).tolist() == [[True, False]]
    assert screen.allowed(context, weights).tolist() == [[False, True]]
    assert ChoiceRule(theta, screen=screen, weights=weights).choose(context)[0].tolist() == [1]


def test_weights_travel_with_the_choice_and_are_absent_without() -> None:
    weighted = ContextualChoice(theta=[[0.5, 0.25]], weights=[0.0, 0.5, 1.0], link="logistic")
    again = ContextualChoice.model_validate_json(weighted.model_dump_json())
    assert again == weighted
    assert ContextualChoice.of(again.rule) == weighted
    assert not {"weights", "link"} & set(ContextualChoice(theta=[[0.5]]).model_dump())
    with pytest.raises(ValueError, match="one for each of the 3 arms"):
        ContextualChoice(theta=[[0.5], [0.1], [0.2]], weights=[0.0, 1.0])
    with pytest.raises(ValueError, match="weights"):
        ContextualChoice(theta=[[0.5]], weights=[0.5, 1.5])
    assert "weights" not in LinUcbSpec(name="linucb", features=2).model_dump()


def test_a_policy_publishes_the_values_of_its_arms() -> None:
    facts = RunFacts(arms=3, horizon=100, smallest=1, calibration="exact", laplace_scale=1.0)
    policy = LinUcb.of(LinUcbSpec(name="linucb", features=2, batch=10, weights=[0.0, 0.5, 1.0]), facts)
    ask = policy.ask(100)
    assert ask is not None
    assert isinstance(ask.decision, ContextualChoice)
    assert ask.decision.weights == [0.0, 0.5, 1.0]
    with pytest.raises(BadParameter, match=r"policy\.weights = 2: one for each of the 3 arms"):
        LinUcb.of(LinUcbSpec(name="linucb", features=2, batch=10, weights=[0.0, 1.0]), facts)


def test_long_contexts_are_shortened_and_counted_or_refused_by_line() -> None:
    contexts = np.array([[0.6, 0.8], [3.0, 4.0], [0.1, 0.0], [0.0, 2.0]])
    short, clipped = within_ball(contexts, "clip", 2)
    assert clipped == 2
    assert np.allclose(short, [[0.6, 0.8], [0.6, 0.8], [0.1, 0.0], [0.0, 1.0]])
    with pytest.raises(BadParameter, match=r"line 3 of the data has a context of length 5, and 2 lines") as caught:
        within_ball(contexts, "refuse", 2)
    assert caught.value.field == "environment.long_contexts"
    assert within_ball(contexts / 5, "refuse", 2)[1] == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        pytest.param({"name": "contextual-synthetic", "seed": 1, "dimension": 1}, "dimension", id="only-the-constant"),
        pytest.param({"name": "contextual-synthetic", "seed": 1, "arms": 1}, "arms", id="one-arm"),
        pytest.param({"name": "contextual-synthetic"}, "seed", id="synthetic-without-seed"),
        pytest.param({"name": "glm-sphere"}, "seed", id="sphere-without-seed"),
        pytest.param({"name": "glm-sphere", "seed": 1, "arms": 1}, "arms", id="sphere-of-one-arm"),
        pytest.param({"name": "glm-sphere", "seed": 1, "dimension": 0}, "dimension", id="no-dimension"),
        pytest.param({"name": "glm-sphere", "seed": 1, "link": "poisson"}, "unbounded", id="unbounded-counts"),
        pytest.param(
            {"name": "glm-sphere", "seed": 1, "link": "poisson", "largest": 2.0}, "largest", id="below-the-means"
        ),
        pytest.param(
            {"name": "glm-sphere", "seed": 1, "link": "poisson", "largest": float("nan")}, "largest", id="nan"
        ),
        pytest.param({"name": "glm-sphere", "seed": 1, "largest": 5.0}, "poisson only", id="largest-of-two-values"),
        pytest.param(
            {"name": "glm-sphere", "seed": 1, "link": "logistic", "noiseless": True}, "noiseless", id="noiseless"
        ),
        pytest.param({"name": "glm-sphere", "seed": 1, "link": "probit"}, "link", id="unknown-link"),
    ],
)
def test_bad_worlds_are_refused_in_one_line(table: dict[str, object], words: str) -> None:
    with pytest.raises(BadParameter, match=words) as caught:
        build_environment(read_spec(table))
    assert "\n" not in str(caught.value)

"""Tests what a client chooses and reports of its context, and the largest distance of two reports."""

import json
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from scipy.optimize import minimize

from distrust.common.bandit.contextual_choice import (
    ChoiceRule,
    ContextualChoice,
    Screen,
    least_slope,
    link_mean,
    packed_triangle,
    unpacked_triangle,
)
from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.bandit.decisions import Decision
from distrust.common.errors import BadParameter

Floats = NDArray[np.float64]


def seen(features: Floats, rewards: Floats, arms: list[int] | None = None) -> Observation:
    count = len(features)
    return Observation(np.array(arms or [0] * count), features, rewards, np.zeros(count))


def reach(statistic: ContextualSum, arms: list[int], seed: int) -> float:
    """Return the largest distance of two clients' vectors that a search from random starts finds."""
    rng, size = np.random.default_rng(seed), statistic.features

    def distance(values: Floats) -> float:
        contexts = values[: 2 * size].reshape(2, size)
        rewards = np.clip(values[2 * size :], *statistic.rewards)
        first, second = statistic.vectors(seen(contexts, rewards, arms))
        return -float(np.linalg.norm(first - second))

    # Near a maximum an error of 1e-6 in the place is one of 1e-12 in the value.
    options = {"maxiter": 3000, "xatol": 1e-6, "fatol": 1e-9}
    starts = rng.normal(size=(4, 2 * size + 2))
    return max(-minimize(distance, start, method="Nelder-Mead", options=options).fun for start in starts)


@pytest.mark.parametrize("features", [1, 2, 3])
def test_no_two_reports_are_farther_apart_than_the_sensitivity_which_some_reach(features: int) -> None:
    for bound in (0.3, 1.0, 2.0):
        statistic = ContextualSum(features=features, rewards=[-bound, bound])
        assert reach(statistic, [0, 0], 1) == pytest.approx(statistic.sensitivity, rel=1e-6)
    plain = ContextualSum(features=features, moments=False, rewards=[-1.0, 1.0])
    assert reach(plain, [0, 0], 2) == pytest.approx(plain.sensitivity, rel=1e-6)


def test_unit_contexts_and_rewards_have_the_sensitivity_root_four_and_a_half() -> None:
    """CTX calibrates two releases of sensitivity 2 each; one joint release needs √4.5, at ⟨φ, φ'⟩ = -1/2."""
    statistic = ContextualSum(features=2)
    pair = np.array([[1.0, 0.0], [-0.5, math.sqrt(0.75)]])
    first, second = statistic.vectors(seen(pair, np.ones(2)))
    assert np.linalg.norm(first - second) == pytest.approx(math.sqrt(4.5))
    assert statistic.sensitivity == pytest.approx(math.sqrt(4.5))
    assert statistic.sensitivity < 2 * statistic.radius


def test_two_arms_blocks_are_no_farther_apart_than_the_sensitivity() -> None:
    for bound in (0.3, 1.0, 2.0):
        statistic = ContextualSum(features=2, blocks=3, rewards=[-bound, bound])
        assert reach(statistic, [0, 2], 3) <= statistic.sensitivity * (1 + 1e-9)
        assert max(reach(statistic, arms, 4) for arms in ([0, 2], [1, 1])) == pytest.approx(statistic.sensitivity)


@pytest.mark.parametrize("residual", [None, "logistic"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_parts_of_summed_reports_are_the_sums_of_their_parts(blocks: int, residual: str | None) -> None:
    rng = np.random.default_rng(5)
    statistic = ContextualSum.model_validate({"features": 3, "blocks": blocks, "residual": residual})
    contexts = rng.normal(size=(40, 3)) * 2
    short = contexts / np.maximum(1, np.linalg.norm(contexts, axis=1, keepdims=True))
    arms, rewards, predictors = rng.integers(blocks, size=40), rng.random(40) * 1.2, rng.normal(size=40)
    vectors = statistic.vectors(Observation(arms, contexts, rewards, predictors))
    assert vectors.shape == (40, statistic.dimension)
    assert np.linalg.norm(vectors, axis=1).max() <= statistic.radius * (1 + 1e-12)
    linear, moments = statistic.parts(vectors.sum(axis=0))
    factor = np.clip(rewards, 0, 1)
    if residual is not None:
        factor = 1 / (1 + np.exp(-np.clip(predictors, -1, 1))) - factor
    for block in range(blocks):
        own = arms == block
        np.testing.assert_allclose(linear[block], factor[own] @ short[own], atol=1e-12)
        assert moments is not None
        np.testing.assert_allclose(moments[block], short[own].T @ short[own], atol=1e-12)


@pytest.mark.parametrize(("link", "largest"), [("identity", 4.0), ("logistic", 1 / (1 + math.exp(-3)))])
def test_a_residual_is_clamped_to_its_bound_whatever_parameters_the_server_sent(link: str, largest: float) -> None:
    """S = 3: |μ(z) - r| is at most that of z = ±3 and the other end of the rewards, and ±50 are taken as ±3."""
    fields = {"features": 2, "moments": False, "residual": link, "rewards": [-1.0 if link == "identity" else 0.0, 1.0]}
    statistic = ContextualSum.model_validate({**fields, "theta_norm": 3.0})
    assert statistic.radius == pytest.approx(largest)
    contexts, rewards = np.array([[0.6, 0.8]] * 2), np.array([statistic.rewards[0], 1.0])
    vectors = statistic.vectors(Observation(np.zeros(2, np.int64), contexts, rewards, np.array([50.0, -50.0])))
    assert vectors == pytest.approx(np.array([[0.6, 0.8], [-0.6, -0.8]]) * largest)
    assert "theta_norm" not in ContextualSum.model_validate(fields).model_dump_json()


def test_a_gradient_is_shortened_to_the_clip_and_the_noise_is_for_that_length() -> None:
    fields = {"features": 2, "moments": False, "residual": "identity", "rewards": [-1.0, 1.0]}
    whole, clipped = (ContextualSum.model_validate({**fields, **more}) for more in ({}, {"clip": 1.0}))
    contexts = np.array([[0.6, 0.8], [0.3, 0.4], [1.0, 0.0]])
    observed = Observation(np.zeros(3, np.int64), contexts, np.array([-1.0, -1.0, 1.0]), np.array([1.0, 1.0, 0.5]))
    np.testing.assert_allclose(whole.vectors(observed), [[1.2, 1.6], [0.6, 0.8], [-0.5, 0.0]])
    np.testing.assert_allclose(clipped.vectors(observed), [[0.6, 0.8], [0.6, 0.8], [-0.5, 0.0]])
    assert (whole.radius, whole.sensitivity, clipped.radius, clipped.sensitivity) == (2.0, 4.0, 1.0, 2.0)
    assert reach(clipped, [0, 0], 2) <= 2.0 * (1 + 1e-9)
    assert "clip" not in whole.model_dump_json()
    with pytest.raises(ValidationError, match=r"clip = 1: goes with a residual and without moments"):
        ContextualSum(features=2, clip=1.0)


def test_the_clip_of_one_learns_twice_a_mean_over_one_plus_it() -> None:
    """Rewards ±1 of mean z > 0: the mean of the clipped residual is 0 at 2z/(1 + z), and without a clip at z."""
    fields = {"features": 1, "moments": False, "residual": "identity", "rewards": [-1.0, 1.0]}
    for clip, settled in ((None, lambda z: z), (1.0, lambda z: 2 * z / (1 + z))):
        statistic = ContextualSum.model_validate({**fields, "clip": clip})
        for z in (0.1, 0.5, 0.9):
            rewards, predictors = np.array([1.0, -1.0]), np.full(2, settled(z))
            residuals = statistic.vectors(Observation(np.zeros(2, np.int64), np.ones((2, 1)), rewards, predictors))
            assert np.array([(1 + z) / 2, (1 - z) / 2]) @ residuals[:, 0] == pytest.approx(0, abs=1e-12)


def test_contexts_and_rewards_that_are_no_numbers_are_refused() -> None:
    statistic = ContextualSum(features=2)
    for contexts, rewards in (([[np.nan, 0]], [1.0]), ([[0, 0]], [np.inf])):
        with pytest.raises(BadParameter, match="finite numbers"):
            statistic.vectors(seen(np.array(contexts, dtype=float), np.array(rewards)))
    with pytest.raises(BadParameter, match="must have 2 numbers"):
        statistic.vectors(seen(np.zeros((1, 3)), np.zeros(1)))
    with pytest.raises(ValidationError, match="must rise"):
        ContextualSum(features=2, rewards=[1.0, 1.0])


@pytest.mark.filterwarnings("error")
def test_huge_finite_contexts_keep_their_direction_and_no_other_context_changes() -> None:
    ordinary = np.random.default_rng(4).normal(size=(50, 2)) * 2
    huge = np.array([[1e200, 1e200], [3e300, -4e300], [1.7e308, 0.0], [1e120, 1e-300]])
    units = np.array([[math.sqrt(0.5), math.sqrt(0.5)], [0.6, -0.8], [1.0, 0.0], [1.0, 0.0]])
    statistic, count = ContextualSum(features=2), len(ordinary)
    alone = statistic.vectors(seen(ordinary, np.ones(count)))
    together = statistic.vectors(seen(np.concatenate([ordinary, huge]), np.ones(count + len(huge))))
    assert (together[:count] == alone).all()
    np.testing.assert_allclose(together[count:, :2], units, rtol=1e-15, atol=1e-300)
    assert np.linalg.norm(together, axis=1).max() <= statistic.radius * (1 + 1e-12)


def best_arms(rule: ChoiceRule, features: Floats) -> list[int]:
    """Return the arms as the formula says, one client and one arm at a time."""
    arms = []
    for own in features:
        scores = []
        for arm in range(max(len(rule.theta), len(own))):
            context, row = own[min(arm, len(own) - 1)], min(arm, len(rule.theta) - 1)
            score = context @ rule.theta[row]
            if rule.inverse is not None:
                score += float(rule.beta) * math.sqrt(context @ rule.inverse[row] @ context)
            if rule.screen is not None:
                means = link_mean(rule.screen.link, rule.screen.theta @ own[0])
                score = score if means[arm] >= means.max() - rule.screen.margin else -math.inf
            scores.append(score)
        arms.append(int(np.argmax(scores)))
    return arms


@pytest.mark.parametrize("kind", ["shared", "shared-with-bonus", "own", "own-with-bonus", "own-screened"])
def test_a_rule_chooses_the_best_arm_and_keeps_its_choices_on_the_wire(kind: str) -> None:
    rng = np.random.default_rng(6)
    rows, contexts = (1, 5) if kind.startswith("shared") else (5, 1)
    roots = rng.normal(size=(rows, 3, 3))
    bonus = roots @ np.swapaxes(roots, 1, 2) if kind.endswith("bonus") else None
    screen = Screen(rng.normal(size=(5, 3)), "logistic", 0.3) if kind.endswith("screened") else None
    rule = ChoiceRule(rng.normal(size=(rows, 3)), bonus, 0.8, screen)
    features = rng.normal(size=(50, contexts, 3))
    arms, predictors = rule.choose(features)
    assert arms.tolist() == best_arms(rule, features)
    assert len(set(arms.tolist())) > 2
    own = [features[i, min(arm, contexts - 1)] @ rule.theta[min(arm, rows - 1)] for i, arm in enumerate(arms)]
    np.testing.assert_allclose(predictors, own)
    told = TypeAdapter[Decision](Decision).validate_json(ContextualChoice.of(rule).model_dump_json())
    assert isinstance(told, ContextualChoice)
    assert told.rule.choose(features)[0].tolist() == arms.tolist()
    assert told.pulls(None, 50) == ((None, 50),)


def test_runs_in_lock_step_choose_as_they_do_alone() -> None:
    rng = np.random.default_rng(7)
    theta, inverse, beta = rng.normal(size=(4, 1, 3)), np.stack([np.eye(3)[None]] * 4), rng.random(4)
    features = rng.normal(size=(4, 6, 5, 3))
    arms, predictors = ChoiceRule(theta, inverse, beta).choose(features)
    for run in range(4):
        alone = ChoiceRule(theta[run], inverse[run], beta[run]).choose(features[run])
        assert alone[0].tolist() == arms[run].tolist()
        np.testing.assert_allclose(alone[1], predictors[run])


def test_in_a_warm_up_all_clients_play_the_arm_that_is_public() -> None:
    rule = ChoiceRule(np.array([[1.0, 0.0]]), only=3)
    arms, predictors = rule.choose(np.array([[[0.5, 0.1]], [[-1.0, 0.2]]]))
    assert (arms.tolist(), predictors.tolist()) == ([3, 3], [0.5, -1.0])
    assert ContextualChoice.of(rule).pulls(None, 2) == ((3, 2),)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"theta": [[1.0, 2.0], [1.0]]}, "every row must have the 2 numbers"),
        ({"inverse": [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]}, "one triangle for each of the 1 rows"),
        ({"inverse": [[1.0, 0.0]]}, "has 3 numbers"),
        ({"theta": [[math.inf, 0.0]]}, "finite"),
        ({"beta": -1.0}, "greater than or equal to 0"),
    ],
)
def test_a_choice_that_cannot_be_computed_is_refused(change: dict[str, object], why: str) -> None:
    fields = {"kind": "contextual-choice", "theta": [[1.0, 2.0]], **change}
    with pytest.raises(ValidationError, match=why):
        ContextualChoice.model_validate_json(json.dumps(fields).replace("Infinity", "1e999"))


def test_links_and_triangles() -> None:
    z = np.linspace(-1, 1, 201)
    assert link_mean("logistic", np.array([0.0, 800.0, -800.0])).tolist() == [0.5, 1.0, 0.0]
    for link in ("identity", "logistic", "poisson"):
        slopes = np.diff(link_mean(link, z)) / np.diff(z)
        assert slopes.min() == pytest.approx(least_slope(link), rel=0.01)
    matrix = np.array([[1.0, 2.0], [2.0, 5.0]])
    assert packed_triangle(matrix).tolist() == [1.0, 2.0, 5.0]
    assert unpacked_triangle(packed_triangle(matrix), 2).tolist() == matrix.tolist()

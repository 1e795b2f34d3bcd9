"""Tests that clients check a contextual decision against the configuration before they look at a context.

A client that failed for some contexts only would disclose, by not answering, which kind it has.
"""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from distrust.client.checks.agreement import LARGEST, _check_policy, check_own_world
from distrust.client.environments import build_environment, read_spec
from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice, Link, Screen
from distrust.common.errors import Refused
from distrust.common.specs.contextual import (
    ContextualPolicySpec,
    LdpGlocSpec,
    LdpOlsSpec,
    LdpSgdSpec,
)
from distrust.common.specs.linucb import LinUcbSpec
from distrust.common.specs.thompson import GlocThompsonSpec

OWN = [0.0, 0.5, 1.0]


def _agree(own: list[float] | None, **received: Any) -> None:
    """Check a round of a run of 3 arms with these weights, whose decision carries `received`."""
    check(LinUcbSpec(name="linucb", features=2, batch=5, weights=own), number=1, **received)


def check(policy: ContextualPolicySpec, number: int, clients: int = 0, **received: Any) -> None:
    """Check round `number` of a run of 3 arms and 1,000 clients, whose decision carries `received`.

    clients  of the round's cohort; 0: as many as the policy's batches have.
    """
    mechanism = SimpleNamespace(calibration="exact")
    config = SimpleNamespace(policy=policy, arms=3, horizon=1000, mechanism=mechanism)
    rows = 1 if policy.parameters == "single" else 3
    decision = ContextualChoice(**{"theta": [[0.1, 0.2]] * rows, **received})
    round_ = SimpleNamespace(decision=decision, statistic=policy.statistic(3, decision), number=number)
    assignment = SimpleNamespace(arm=None, cohort=SimpleNamespace(clients=clients or policy.batch))
    _check_policy(config, round_, assignment)  # type: ignore[arg-type]  # only what is read


OLS = LdpOlsSpec(name="ldp-ols", features=2, parameters="multi", warm_up=6, margin=0.1)
SGD = LdpSgdSpec(name="ldp-sgd", features=2, link="logistic")
GLOC = LdpGlocSpec(name="ldp-gloc", features=2)
LONG = LdpSgdSpec(name="ldp-sgd", features=2, link="logistic", step=1.0, theta_norm=5.0)
LINUCB = LinUcbSpec(name="linucb", features=2)
BARE = LinUcbSpec(name="linucb", features=2, width_scale=0.0)
DRAWN = GlocThompsonSpec(name="gloc-thompson", features=2)
SCREEN = {"theta": [[0.0, 0.0]] * 3, "link": "identity", "margin": 0.1}


def test_what_the_servers_policies_publish_is_accepted() -> None:
    check(LINUCB, 5, inverse=[[1.0, 0.0, 1.0]], beta=2.0)
    check(OLS, 4, only=1)
    check(OLS, 7, screen=SCREEN)
    check(SGD, 3)
    check(LONG, 3, theta=[[3.0, 4.0]])
    check(GLOC, 3, inverse=[[1.0, 0.0, 1.0]], anchor=[[0.6, 0.8]], beta=2.0)
    check(DRAWN, 3, theta=[[30.0, -2.0]], anchor=[[0.6, 0.8]])


LIES: dict[str, tuple[ContextualPolicySpec, int, dict[str, Any], str]] = {
    "a row for an arm that is not there": (OLS, 7, {"theta": [[0.0, 0.0]] * 3 + [[1.0, 0.0]]}, "asks for 3"),
    "rows where the arms share one": (LINUCB, 2, {"theta": [[0.0, 0.0]] * 3}, "asks for 1"),
    "one row where each arm has one": (OLS, 7, {"theta": [[0.1, 0.2]]}, "asks for 3"),
    "rows of other contexts": (LINUCB, 2, {"theta": [[0.1, 0.2, 0.3]]}, "numbers a row = 3"),
    "a screen of other arms": (OLS, 7, {"screen": {**SCREEN, "theta": [[0.0, 0.0]]}}, "screen = 1 rows"),
    "a screen by another link": (OLS, 7, {"screen": {**SCREEN, "link": "poisson"}}, "screen.link"),
    "a screen for linucb": (LINUCB, 2, {"screen": {**SCREEN, "theta": [[0.0, 0.0]]}}, "asks for none"),
    "a bonus for greedy play": (SGD, 2, {"inverse": [[1.0, 0.0, 1.0]], "beta": 1.0}, "asks for none"),
    "a bonus for a width of nothing": (BARE, 2, {"inverse": [[1.0, 0.0, 1.0]], "beta": 1.0}, "asks for none"),
    "a bonus for a drawn θ": (DRAWN, 2, {"inverse": [[1.0, 0.0, 1.0]], "beta": 1.0}, "asks for none"),
    "a residual at a drawn θ": (DRAWN, 2, {"theta": [[3.0, 0.0]]}, "in the ball of radius 1"),
    "an anchor for linucb": (LINUCB, 2, {"anchor": [[0.0, 0.0]]}, "asks for none"),
    "numbers that overflow": (LINUCB, 2, {"theta": [[1.7e308, -1.7e308]]}, "no number may exceed"),
    "a bonus that overflows": (LINUCB, 2, {"inverse": [[1.0, 0.0, 1.0]], "beta": 1e300}, "β may not exceed"),
    "a residual outside the ball": (SGD, 2, {"theta": [[3.0, 0.0]]}, "in the ball of radius 1"),
    "an anchor outside the ball": (GLOC, 2, {"anchor": [[3.0, 0.0]]}, "in the ball of radius 1"),
    "a residual outside a larger ball": (LONG, 2, {"theta": [[3.0, 4.1]]}, "in the ball of radius 5"),
    "a public arm without a warm-up": (LINUCB, 2, {"only": 1}, "decision.only = 1"),
    "a public arm after the warm-up": (OLS, 7, {"only": 1}, "decision.only = 1"),
    "another arm than the warm-up's": (OLS, 4, {"only": 2}, "decision.only = 2"),
    "no public arm in the warm-up": (OLS, 4, {}, "decision.only = None"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_decision_that_some_contexts_could_not_answer_is_refused_by_all(lie: str) -> None:
    policy, number, received, words = LIES[lie]
    with pytest.raises(Refused, match=words):
        check(policy, number, **received)


def test_a_cohort_of_another_size_than_the_policys_batch_is_refused() -> None:
    with pytest.raises(Refused, match=r"cohort\.clients = 2: the run's configuration gives 1"):
        check(LINUCB, 2, clients=2)


@pytest.mark.parametrize("link", ["identity", "logistic", "poisson"])
def test_the_largest_numbers_that_a_client_accepts_overflow_for_no_context(link: Link) -> None:
    """A warning or an error for some contexts only would disclose them. Contexts and weights of 0 are tried.

    As the scores of all arms are numbers, a client chooses an arm that the screen left it.
    """
    contexts = np.array([[0.0, 0.0], [1.0, 0.0], [-0.6, 0.8], [1e-300, 1.0]])[:, np.newaxis]
    largest = np.array([[LARGEST, LARGEST], [-LARGEST, LARGEST], [-LARGEST, -LARGEST]])
    rule = ChoiceRule(
        theta=largest,
        inverse=np.full((3, 2, 2), LARGEST),
        beta=LARGEST,
        screen=Screen(largest, link, 1e308),
        weights=np.array([0.0, 1.0, 0.5]),
        link=link,
    )
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        arms, predictors = rule.choose(contexts)
    assert np.isfinite(predictors).all()
    assert ((arms >= 0) & (arms < 3)).all()


def test_a_configuration_of_another_world_is_refused_before_any_ticket() -> None:
    world = build_environment(read_spec({"name": "glm-sphere", "seed": 1, "arms": 3, "dimension": 2}))
    config = SimpleNamespace(arms=3, policy=LdpOlsSpec(name="ldp-ols", features=2, rewards=[-1.0, 1.0]))
    check_own_world(config, world)  # type: ignore[arg-type]  # only what is read
    others = {"arms": 4, "features": 3, "parameters": "multi", "rewards": [0.0, 1.0], "weights": [1.0, 0.5, 0.5]}
    for field, value in others.items():
        changed = SimpleNamespace(arms=config.arms, policy=config.policy)
        if field == "arms":
            changed.arms = value
        else:
            changed.policy = config.policy.model_copy(update={field: value})
        with pytest.raises(Refused, match=f"{field} = {re.escape(repr(value))}: this client's own world has "):
            check_own_world(changed, world)  # type: ignore[arg-type]


def test_a_refusal_tells_the_configurations_number_of_arms_from_the_worlds() -> None:
    world = build_environment(read_spec({"name": "bernoulli", "seed": 1, "means": [0.1, 0.5, 0.9]}))
    run = SimpleNamespace(arms=2, policy=None)
    with pytest.raises(Refused, match=r"^config\.arms = 2: this client's own world has 3$"):
        check_own_world(run, world)  # type: ignore[arg-type]  # only what is read


def test_the_weights_of_the_configuration_are_accepted() -> None:
    _agree(OWN, weights=OWN)
    _agree(None)


@pytest.mark.parametrize(
    ("own", "received", "words"),
    [
        pytest.param(
            OWN, {"weights": [0.0, 0.5, 0.9]}, r"decision\.weights = \[0\.0, 0\.5, 0\.9\]", id="another-value"
        ),
        pytest.param(OWN, {"weights": [0.0, 1.0]}, r"decision\.weights = \[0\.0, 1\.0\]", id="too-few"),
        pytest.param(OWN, {}, r"decision\.weights = None", id="left-out"),
        pytest.param(None, {"weights": OWN}, r"decision\.weights = \[0\.0, 0\.5, 1\.0\]", id="added"),
        pytest.param(OWN, {"weights": OWN, "link": "logistic"}, r"decision\.link = 'logistic'", id="another-link"),
        pytest.param(None, {"link": "poisson"}, r"decision\.link = 'poisson'", id="a-link-without-weights"),
    ],
)
def test_other_weights_are_refused(own: list[float] | None, received: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        _agree(own, **received)

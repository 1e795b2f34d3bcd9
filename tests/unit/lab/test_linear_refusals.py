"""Tests of refused run files of linear bandits: the refusal names the field, the value and what is allowed."""

import pytest

from distrust.common.errors import BadParameter
from distrust.common.specs.policy import DpDpeSpec
from distrust.lab.play.run_file import BadRunFile, parse


def text(policy: str = 'name = "dp-pe"', world: str = 'name = "linear-sphere"\narms = 10', horizon: int = 3000) -> str:
    return f"""
run = "linear"
horizon = {horizon}
[policy]
{policy}
[mechanism]
name = "identity"
[environment]
seed = 3
{world}
"""


def environment_with(vectors: str, more: str = "") -> str:
    return f'name = "linear-sphere"\nactions = {{kind = "given", vectors = {vectors}}}\n{more}'


def ball(dimension: int, spacing: float) -> str:
    return f'name = "linear-sphere"\nactions = {{kind = "ball", dimension = {dimension}, spacing = {spacing}}}'


def refusal(file: str) -> str:
    with pytest.raises((BadRunFile, BadParameter)) as caught:
        parse(file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (environment_with("[]"), "environment.actions = '0 vectors': must be 1 to 100000 vectors"),
        (environment_with("[[]]"), "environment.actions = (1, 0): must be at least one vector of"),
        (
            environment_with("[[1.0, 0.0], [0.0, 1.0, 0.0]]"),
            "environment.actions[1] = [0.0, 1.0, 0.0]: must have 2 numbers, like the first one",
        ),
        (
            environment_with("[[1.0, 0.0], [nan, 1.0]]"),
            "environment.actions.vectors.1.0 = nan: must be a finite number",
        ),
        (environment_with("[[inf, 0.0], [0.0, 1.0]]"), "environment.actions.vectors.0.0 = inf: must be a"),
        (environment_with("[[1.0, 0.0], [0.6, 0.9]]"), "environment.actions[1] = 1.0816"),
        (environment_with("[[1.0, 0.0], [2.0, 0.0]]"), "= 2.0: its norm must be at most 1"),
        (environment_with("[[0.0, 0.0]]"), "environment.actions = 'only zero vectors': must tell"),
        (
            environment_with("[[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.0, 1.0, 0.0]]"),
            "environment.actions = 'actions of rank 2': must span all 3 dimensions",
        ),
        ('name = "linear-sphere"\narms = 4\ndimension = 5', "of rank 4': must span all 5"),
        (
            environment_with("[[1.0, 0.0], [0.0, 1.0]]", "dimension = 3"),
            "environment.dimension = 3: environment.actions has 2",
        ),
        (environment_with("[[1.0, 0.0], [0.0, 1.0]]", "arms = 5"), "environment.arms = 5: environment.actions has 2"),
        (environment_with('[["one"]]'), "environment.actions"),
        (ball(11, 0.5), "environment.actions.dimension = 11"),
        (ball(2, 0.0), "environment.actions.spacing = 0.0"),
        (ball(2, 1.5), "environment.actions.spacing = 1.5"),
        (ball(6, 0.05), "environment.actions.spacing = 0.05: the net would have more than 100000 points"),
        ('name = "linear-distributed"\nbound = 0.0', "environment.bound = 0.0"),
        ('name = "linear-distributed"\nbound = -1.0', "environment.bound = -1.0"),
        ('name = "linear-distributed"\nbound = inf', "environment.bound = inf"),
        ('name = "linear-distributed"\nnoise = 1.0', "environment.bound = 1.5: must be at least 4.01"),
        ('name = "linear-distributed"\ndeviation = 1.0', "environment.bound = 1.5: must be at least 4.01"),
        ('name = "linear-distributed"\nnoise = -0.1', "environment.noise = -0.1"),
    ],
)
def test_a_world_that_cannot_be_is_refused(world: str, message: str) -> None:
    assert message in refusal(text(world=world))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ('name = "dp-dpe"\nalpha = 0.0', "policy.alpha = 0.0: must be above 0"),
        ('name = "dp-dpe"\nalpha = 1.0', "policy.alpha = 1.0: must be below 1"),
        ('name = "dp-dpe"\nalpha = -2', "policy.alpha = -2"),
        ('name = "dp-dpe"\nalpha = nan', "policy.alpha = nan"),
        ('name = "dp-dpe"\nclients = 0', "policy.clients = 0"),
        ('name = "dp-dpe"\nclients = "many"', "policy.clients = 'many'"),
        ('name = "dp-dpe"\ndeviation = -1.0', "policy.deviation = -1.0"),
        ('name = "dp-dpe"\nbeta = 0.0', "policy.beta = 0.0: must be above 0"),
        ('name = "dp-pe"\nbeta = 0.0', "policy.beta = 0.0: must be above 0"),
        ('name = "dp-pe"\nbeta = 1.0', "policy.beta = 1.0: must be below 1"),
        ('name = "dp-pe"\nbeta = 1e-13', "policy.beta = 1e-13: must be at least 1e-12"),
        ('name = "almost-free"\nbeta = 1.0', "policy.beta = 1.0: must be below 1"),
        ('name = "almost-free"\nbeta = nan', "policy.beta = nan"),
        ('name = "dp-pe"\nbound = 0.0', "policy.bound = 0.0: must be above 0"),
        ('name = "almost-free"\nbound = -1.0', "policy.bound = -1.0: must be above 0"),
        ('name = "dp-pe"\nbound = 0.5', "policy.bound = 0.5: must be at least 1"),
        ('name = "almost-free"\nmodel = "shuffle"', "policy.model = 'shuffle'"),
        ('name = "almost-free"\ncore_set = "no"', "policy.core_set = 'no'"),
    ],
)
def test_numbers_of_a_policy_outside_their_ranges_are_refused(policy: str, message: str) -> None:
    assert message in refusal(text(policy))


@pytest.mark.parametrize("name", ["dp-pe", "dp-dpe", "almost-free"])
def test_a_beta_without_a_finite_logarithm_is_refused_for_the_papers_widths(name: str) -> None:
    world = 'name = "linear-distributed"\narms = 10\ndimension = 2' if name == "dp-dpe" else 'name = "linear-sphere"'
    file = text(f'name = "{name}"\nbeta = 1e-301', world).replace('"identity"', '"identity"\ncalibration = "paper"')
    assert "policy.beta = 1e-301: must be at least 1e-300 for the paper's widths" in refusal(file)


DIFFERENT = 'name = "linear-distributed"\ndeviation = 0.2\nnoise = 0.3\nbound = 3.0'
SPHERE = 'name = "linear-sphere"'


@pytest.mark.parametrize(
    ("stated", "world", "message"),
    [
        ("noise = 0.29", DIFFERENT, "policy.noise = 0.29: must be at least 0.3, the environment's"),
        ("noise = 0", DIFFERENT, "policy.noise = 0: must be at least 0.3, the environment's"),
        ("deviation = 0.1", DIFFERENT, "policy.deviation = 0.1: must be at least 0.2, the environment's"),
        ("noise = 0.9", SPHERE, "policy.noise = 0.9: must be at least 1, the environment's"),
    ],
)
def test_a_policy_that_is_told_of_less_spread_than_there_is_is_refused(stated: str, world: str, message: str) -> None:
    assert message in refusal(text(f'name = "dp-dpe"\n{stated}', world=world))


def test_a_policy_may_be_told_of_more_spread_than_there_is() -> None:
    policy = parse(text('name = "dp-dpe"\nnoise = 0.5\ndeviation = 0.2', world=DIFFERENT)).config.policy
    assert isinstance(policy, DpDpeSpec)
    assert (policy.deviation, policy.noise) == (0.2, 0.5)


@pytest.mark.parametrize(
    ("policy", "horizon", "message"),
    [
        ('name = "dp-pe"', 12, "horizon = 12: must be at least 14, the first batch of 7 clients for each of 2 arms"),
        ('name = "dp-dpe"', 1, "horizon = 1: must be at least 2"),
        ('name = "almost-free"', 7, "horizon = 7: must be at least 8, for one batch"),
        ('name = "almost-free"\ncore_set = false', 9, "horizon = 9: must be at least 20, the first"),
    ],
)
def test_a_horizon_shorter_than_one_phase_is_refused(policy: str, horizon: int, message: str) -> None:
    assert message in refusal(text(policy, horizon=horizon))


def test_a_policy_does_not_bring_actions_of_its_own() -> None:
    own = 'name = "dp-pe"\nactions = {kind = "given", vectors = [[1.0]]}'
    assert "policy.actions = 'given': belongs into the environment" in refusal(text(own))


def test_arms_that_the_actions_do_not_have_are_refused() -> None:
    assert "arms = 7: " in refusal("arms = 7\n" + text())

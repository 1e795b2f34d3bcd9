"""Tests every policy for linear bandits, end to end in one process."""

import numpy as np
import pytest

from distrust.common.errors import BadParameter
from distrust.lab.play import in_process
from distrust.lab.play.run_file import BadRunFile, parse

MECHANISMS = {
    "identity": 'name = "identity"',
    "central-laplace-discrete": 'name = "central-laplace-discrete"\nepsilon = 5.0',
    "local-laplace-discrete": 'name = "local-laplace-discrete"\nepsilon = 5.0',
    "distributed-polya": 'name = "distributed-polya"\nepsilon = 5.0',
    "distributed-skellam": 'name = "distributed-skellam"\nepsilon = 5.0',
    "shuffled-binomial": 'name = "shuffled-binomial"\nepsilon = 5.0\ndelta = 1e-3',
}
POLICIES = {
    "dp-dpe": 'name = "dp-dpe"',
    "dp-dpe-fixed": 'name = "dp-dpe"\nclients = 40',
    "dp-pe": 'name = "dp-pe"',
    "almost-free": 'name = "almost-free"',
    "almost-free-local": 'name = "almost-free"\nmodel = "local"',
    "almost-free-no-core-set": 'name = "almost-free"\ncore_set = false',
    "almost-free-shuffled": 'name = "almost-free"\nmodel = "shuffled"',
}
WORLDS = {
    "linear-distributed": 'name = "linear-distributed"\nseed = 3\narms = 30\ndimension = 3',
    "linear-sphere": 'name = "linear-sphere"\nseed = 3\narms = 10',
}


def text(
    policy: str,
    mechanism: str = MECHANISMS["identity"],
    world: str = "linear-sphere",
    horizon: int = 3000,
    more: str = "",
) -> str:
    return f"""
run = "linear"
horizon = {horizon}
[policy]
{policy}
[mechanism]
{mechanism}
[unsafe]
noise_seed = 5
[environment]
{WORLDS[world]}
{more}
"""


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plays_to_its_horizon_and_keeps_the_best_action(policy: str) -> None:
    """The best action is lost with a probability below 2βkL, some 1e-3 here; the seeds are fixed.

    tests/unit/lab/test_matrix.py plays every policy on every mechanism.
    """
    world = "linear-distributed" if policy.startswith("dp-dpe") else "linear-sphere"
    noisy = MECHANISMS["central-laplace-discrete"]  # which serves all of them
    result = in_process.run(parse(text(POLICIES[policy], noisy, world, more="[fleet]\ndropout = 0.02")))
    assert sum(result.pulls) == 3000
    assert result.arms[result.best].active
    assert len(result.rounds) >= 5
    assert result.regret.final == pytest.approx(result.regret.curve[-1][1])


@pytest.mark.parametrize("policy", POLICIES)
def test_without_noise_bad_actions_drop_out_and_the_best_is_chosen(policy: str) -> None:
    world = "linear-distributed" if policy.startswith("dp-dpe") else "linear-sphere"
    result = in_process.run(parse(text(POLICIES[policy], world=world, horizon=100_000)))
    assert sum(arm.active for arm in result.arms) <= len(result.arms) / 2
    assert result.chosen == result.best


def test_intervals_hold_the_true_means_of_every_action() -> None:
    file = parse(text(POLICIES["dp-dpe"], MECHANISMS["distributed-polya"], "linear-distributed", 20_000))
    result = in_process.run(file)
    means = file.world().means
    assert all(arm.lower <= means[arm.arm] <= arm.upper for arm in result.arms if arm.lower is not None and arm.upper)


def test_more_clients_a_phase_cost_no_pulls() -> None:
    """The horizon counts rounds of play: DPE's phases are as long whichever clients play them."""
    fixed = in_process.run(parse(text(POLICIES["dp-dpe-fixed"], world="linear-distributed")))
    grown = in_process.run(parse(text(POLICIES["dp-dpe"], world="linear-distributed")))
    assert fixed.rounds[0].decision == grown.rounds[0].decision
    assert [record.cohorts[0].clients for record in fixed.rounds[:3]] == [40, 40, 40]
    assert [one.cohorts[0].clients for one in grown.rounds[:5]] == [2, 4, 6, 10, 16]  # ⌈2^{0.8 l}⌉


@pytest.mark.parametrize(
    ("policy", "mechanism", "message"),
    [
        ('name = "phased-elimination"', "distributed-polya", "baseline without privacy"),
        ('name = "dp-dpe"\nalpah = 0.5', "identity", "did you mean alpha"),
        (POLICIES["almost-free-shuffled"], "distributed-polya", "shuffled actions need"),
        ("first_batch = 2", "identity", "linear-sphere goes with dp-dpe"),
    ],
)
def test_a_run_that_cannot_be_is_refused(policy: str, mechanism: str, message: str) -> None:
    """tests/unit/lab/test_linear_refusals.py has the refusals of numbers, worlds and horizons."""
    with pytest.raises((BadRunFile, BadParameter), match=message):
        parse(text(policy, MECHANISMS[mechanism]))


def test_the_shuffler_deals_every_action_its_plays_and_the_noise_stays_by_slot() -> None:
    result = in_process.run(parse(text(POLICIES["almost-free-shuffled"], MECHANISMS["local-laplace-discrete"])))
    for record in result.rounds:
        assert record.decision.kind == "assigned-action"
        assert record.cohorts[0].clients == sum(record.decision.times)
        assert record.cohorts[0].estimate is not None
        assert len(record.cohorts[0].estimate) == len(record.decision.actions)
    again = in_process.run(parse(text(POLICIES["almost-free-shuffled"], MECHANISMS["local-laplace-discrete"])))
    assert again.pulls == result.pulls


def test_the_public_seed_of_the_actions_is_not_the_worlds() -> None:
    file = parse(text('name = "dp-pe"'))
    assert file.config.policy.name == "dp-pe"
    assert file.config.policy.actions.kind == "sphere"
    assert file.config.policy.actions.seed != file.environment.seed
    assert np.linalg.norm(file.world().means) > 0

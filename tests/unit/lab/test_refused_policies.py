"""Tests that a policy that cannot run is refused with one line: the field, its value, what is allowed."""

import re

import pytest

from distrust.common.errors import BadParameter
from distrust.lab.play.run_file import BadRunFile, RunFile, parse
from distrust.server.learner.run_config import _check_stream, check_for_services
from distrust.server.policies.base import Ask, Query

IDENTITY = 'name = "identity"'
POLYA = 'name = "distributed-polya"\nepsilon = 1.0'
PUBLISHED = 'constants = "published-code"'
TREE = 'name = "tree"\nepsilon = 1.0\ndelta = 1e-6\nbatches = 20_000'


def read(policy: str, mechanism: str = IDENTITY, horizon: int = 3000, more: str = "") -> RunFile:
    world = 'name = "gaussian-easy"\nseed = 1'
    return parse(
        f'run = "x"\nhorizon = {horizon}\n[policy]\n{policy}\n[mechanism]\n{mechanism}\n[environment]\n{world}\n{more}'
    )


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("base = 3", "policy.base = 3: must be 2 or 4"),
        ("failure = 0.0", "policy.failure = 0.0: must be above 0.0"),
        ("failure = 1.0", "policy.failure = 1.0: must be below 1.0"),
        ("failure = nan", "policy.failure = nan: must be a finite number"),
        ('name = "dp-se"\nfailure = -0.1', "policy.failure = -0.1: must be above"),
        ('name = "vb-sdp-ae"\nfailure = 2.0', "policy.failure = 2.0: must be below"),
        ("failure = 1e-16", "policy.failure = 1e-16: must be at least 9e-14 for 10 arms: the widths need"),
        ('name = "dp-se"\nfailure = 1e-16', "policy.failure = 1e-16: must be at least 9e-14 for 10 arms"),
        ('name = "vb-sdp-ae"\nfailure = 1e-16', "policy.failure = 1e-16: must be at least 9e-14 for 10 arms"),
        ('name = "adap-ucb"\nalpha = 3.0', "policy.alpha = 3.0: must be above 3"),
        ('name = "dp-ucb"\nalpha = 2.0', "policy.alpha = 2.0: must be above 2"),
        ('name = "dp-ucb"\nfailure = 1e-16', "policy.failure = 1e-16: must be at least 1.5e-13 for 10 arms"),
        ('name = "dp-ucb"\nbatch = 301', "policy.batch = 301: must be at most 300, as each of 10 arms has a batch"),
        ('name = "adap-ucb"\nfailure = 1e-16', "policy.failure = 1e-16: must be at least 4.5e-13 for 10 arms"),
        ("first_batch = 0", "policy.first_batch = 0: must be at least 1"),
        ("first_batch = 31", "policy.first_batch = 31: must be at most 30"),
        ("first_batch = 9", "horizon = 3000: must be at least 5120, the first batch"),
        ("first_batch = 5\nbase = 4", "horizon = 3000: must be at least 10240"),
        ('name = "dp-se"', "horizon = 3000: must be at least 8560, the first batch of 856"),
        ('name = "vb-sdp-ae"\nfirst_batch = 9', "horizon = 3000: must be at least 5120, the first"),
        ('name = "adap-ucb"\nfirst_batch = 9', "horizon = 3000: must be at least 5120, the first"),
        ('constants = "exact"', "policy.constants = 'exact': must be 'published-code'"),
        (PUBLISHED, 'goes with mechanism.calibration = "paper"'),
        ('name = "ucb2"', "policy.name = 'ucb2': must be one of 'successive-elim"),
        ('name = "dp-se"\nbase = 4', "policy.base = 4: unknown key; allowed keys are name, f"),
        ("bsae = 4", "policy.bsae = 4: unknown key, did you mean base?"),
    ],
)
def test_bad_numbers_are_refused(policy: str, message: str) -> None:
    with pytest.raises((BadRunFile, BadParameter), match=re.escape(message)):
        read(policy)


@pytest.mark.parametrize(
    ("mechanism", "horizon", "more", "message"),
    [
        (POLYA, 3000, "", "ucb1 is a baseline without privacy"),
        (IDENTITY, 9, "", "horizon = 9: must be at least arms = 10"),
        (
            IDENTITY,
            3000,
            "[intermediary]\nminimum = 2",
            "intermediary.minimum = 2: must be at most 1, the clients of the first batch",
        ),
    ],
)
def test_ucb1_is_refused_where_it_cannot_ask_one_client(mechanism: str, horizon: int, more: str, message: str) -> None:
    with pytest.raises((BadRunFile, BadParameter), match=re.escape(message)):
        read('name = "ucb1"', mechanism, horizon, more)


@pytest.mark.parametrize("epsilon", ["0.0", "-1.0", "1e9"])
def test_an_epsilon_that_no_mechanism_takes_sets_no_batch_length(epsilon: str) -> None:
    with pytest.raises(BadParameter, match=r"mechanism\.epsilon"):
        read('name = "dp-se"', f'name = "central-laplace"\nepsilon = {epsilon}', 30_000)


@pytest.mark.parametrize(
    ("policy", "mechanism", "longest"),
    [
        ("base = 2", POLYA, 2_000_000),
        ("base = 4", POLYA, 1_500_000),
        ('name = "vb-sdp-ae"', POLYA, 2_000_000),
        ('name = "dp-se"', POLYA, 2_000_000),
        ('name = "adap-ucb"', POLYA, 2_000_000),
        ('name = "dp-ucb"\nbatch = 2', TREE, 20_001),
        ('name = "ucb1"', IDENTITY, 10_001),
    ],
)
def test_services_refuse_a_horizon_whose_batches_fit_no_cohort(policy: str, mechanism: str, longest: int) -> None:
    check_for_services(read(policy, mechanism, longest - 1).config)
    with pytest.raises(BadParameter, match=f"horizon = {longest}: must be below {longest} over services"):
        check_for_services(read(policy, mechanism, longest).config)


def test_services_refuse_a_client_alone_at_the_aggregator() -> None:
    """A run file goes to the shuffler unless it says otherwise."""
    check_for_services(read('name = "ucb1"').config)
    with pytest.raises(BadParameter, match=r"mechanism\.via = 'aggregator': ucb1 asks one client at a time"):
        check_for_services(read('name = "ucb1"', f'{IDENTITY}\nvia = "aggregator"').config)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (POLYA, "mechanism.name = 'distributed-polya': dp-ucb counts a stream an arm: tree"),
        (TREE.replace("20_000", "59"), "mechanism.batches = 59: must be at least 60, the cohorts"),
    ],
)
def test_dp_ucb_is_refused_where_no_stream_holds_all_rounds_of_an_arm(mechanism: str, message: str) -> None:
    policy = 'name = "dp-ucb"\nbatch = 50'
    read(policy, TREE.replace("20_000", "60"))
    with pytest.raises(BadParameter, match=re.escape(message)):
        read(policy, mechanism)


def test_streams_of_several_arms_have_no_more_batches_together_than_the_mechanism_counts() -> None:
    """A client that returns is charged for that many: a policy of a user's own may ask for three arms a round."""
    config = read('name = "dp-ucb"\nbatch = 50', TREE.replace("20_000", "60")).config
    ask = Ask(1, tuple(Query(arm, 50) for arm in range(3)), cumulative=True)
    _check_stream(config, ask)
    short = config.model_copy(update={"mechanism": config.mechanism.model_copy(update={"batches": 59})})
    with pytest.raises(BadParameter, match=r"mechanism\.batches = 59: must be at least 60, the cohorts of this run"):
        _check_stream(short, ask)

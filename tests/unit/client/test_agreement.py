"""Tests that a client computes a round again, and refuses what differs from it."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from distrust.client.checks.agreement import (
    DEEPEST,
    _check_equal,
    _overflow_probability,
    check_round,
    differing_field,
    read_terms,
)
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.mechanisms import MechanismSpec, plan
from distrust.common.errors import Refused
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round
from tests.support.fleet_harness import RUN_ID, config_of

MakeRound = Callable[..., Round]
GIVEN = {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0]]}


def check(round_: Round) -> None:
    check_round(config_of(round_), RUN_ID, round_, round_.assignments[0])


def served_round(round_: Round, **changes: Any) -> Round:
    return round_.model_copy(update={"mechanism": round_.mechanism.model_copy(update=changes)})


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param("[" * 10**6, id="never-closed"),
        pytest.param("[" * 10**6 + "]" * 10**6, id="lists"),
        pytest.param('{"a":' * 10**5 + "1" + "}" * 10**5, id="objects"),
        pytest.param("[" * (sys.getrecursionlimit() - 300) + "]" * (sys.getrecursionlimit() - 300), id="readable"),
        pytest.param("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), id="one-level-too-deep"),
    ],
)
def test_terms_that_are_nested_too_deep_are_refused(make_round: MakeRound, terms: str) -> None:
    cohort = make_round().assignments[0].cohort
    deep = cohort.model_copy(update={"terms": terms})
    with pytest.raises(Refused, match=r"cohort\.terms"):
        read_terms(deep)
    with pytest.raises(Refused, match=r"cohort\.terms"):
        differing_field(cohort, deep)


def test_terms_of_the_greatest_depth_are_read(make_round: MakeRound) -> None:
    cohort = make_round().assignments[0].cohort.model_copy(update={"terms": "[" * DEEPEST + "1" + "]" * DEEPEST})
    assert isinstance(read_terms(cohort), list)


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(
    ("name", "field", "spec"),
    [
        ("tree", "batches", {"batches": 5000, "delta": 1e-6}),
        ("distributed-polya", "precision", {"precision": 5000}),
        ("distributed-polya", "modulus", {}),
    ],
)
def test_an_integer_of_the_plan_is_equal_however_large_it_is(
    make_round: MakeRound, name: str, field: str, spec: dict[str, Any], step: int
) -> None:
    """One batch in 5000 is 0.02 %, less than calibrated numbers may differ by; it leaves the tree's depth as it is."""
    round_ = make_round(name, **spec)
    own = getattr(round_.mechanism, field)
    with pytest.raises(Refused, match=rf"mechanism\.{field} = {own + step}: the run's configuration gives {own}"):
        check(served_round(round_, **{field: own + step}))


@pytest.mark.parametrize(
    ("field", "own", "received"), [("dimension", 5000, 5001), ("epsilon", 1.0, 1.0 - 1e-7)], ids=["integer", "last-bit"]
)
def test_a_number_that_is_not_searched_is_equal_to_the_last_bit(
    make_round: MakeRound, field: str, own: float, received: float
) -> None:
    plan_ = make_round("distributed-skellam", delta=1e-6).mechanism.model_copy(update={field: own})
    with pytest.raises(Refused, match=rf"mechanism\.{field} = {received}: .* gives {own}"):
        _check_equal(plan_, plan_.model_copy(update={field: received}))


def test_blocks_are_equal_though_json_leaves_a_single_one_out() -> None:
    """A client compares fields, and not keys of JSON: a server that says one block is refused by name."""
    many = ContextualSum(features=2, blocks=2, moments=False, residual="logistic")
    spec = MechanismSpec(name="local-sphere", epsilon=1.0)
    own = plan(spec, clients=5, min_survivors=5, min_honest=5, overflow_probability=1e-9, statistic=many)
    with pytest.raises(Refused, match=r"mechanism\.blocks = 1: .* gives 2"):
        _check_equal(own, own.model_copy(update={"blocks": 1}))


@pytest.mark.parametrize(
    "overflow_probability",
    [0.5, 0.99, 1e-12, 5e-324, 1e-9 * (1 + 1e-9), 3e-9 / 4, 3e-9 * 1.5, math.nextafter(1.0, 0.0)],
)
def test_a_probability_of_a_wrapped_sum_that_the_policy_never_has_is_refused(
    make_round: MakeRound, overflow_probability: float
) -> None:
    """The whole plan is honest but for p': modulus, channel and terms follow from it. No number of arms gives it."""
    round_ = make_round()
    config, own = config_of(round_), round_.mechanism
    sizes = {"clients": own.clients, "min_survivors": 18, "min_honest": own.floor}
    planned = plan(config.mechanism, **sizes, overflow_probability=overflow_probability, statistic=round_.statistic)
    with pytest.raises(Refused, match=rf"mechanism\.wrap = {overflow_probability!r}: the run's configuration gives"):
        check(round_.model_copy(update={"mechanism": planned}))


@pytest.mark.parametrize("active", [1, 2, 3])
def test_every_number_of_arms_in_the_race_gives_a_probability_that_is_accepted(
    make_round: MakeRound, active: int
) -> None:
    round_ = make_round(number=2)
    config = config_of(round_)
    own = config.overflow_probability(2, active)
    assert _overflow_probability(config, 2, own) == own == 1.5e-8 / (5 * active * 2**2)


POLICIES: list[dict[str, Any]] = [
    {"name": "successive-elimination", "first_batch": 4},
    {"name": "successive-elimination", "constants": "published-code"},
    {"name": "dp-se"},
    {"name": "vb-sdp-ae", "first_batch": 3},
    {"name": "ucb1"},
    {"name": "adap-ucb"},
    {"name": "dp-ucb", "batch": 1000},
    {"name": "thompson", "first_batch": 3},
    {"name": "dp-pe", "actions": GIVEN},
    {"name": "dp-dpe", "actions": GIVEN, "beta": 1e-4},
    {"name": "almost-free", "actions": GIVEN, "model": "shuffled"},
]


@pytest.mark.parametrize("arms", [2, 100_000])
@pytest.mark.parametrize("calibration", ["exact", "paper"])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_client_finds_the_probability_of_any_round_of_any_policy(
    policy: dict[str, Any], calibration: str, arms: int
) -> None:
    fields = {"name": "distributed-polya", "epsilon": 1.0, "calibration": calibration}
    config = RunConfig.model_validate(
        {"run": "demo", "arms": arms, "horizon": 10**9, "policy": policy, "mechanism": fields}
    )
    for number in (1, 2, 30):
        for active in {1, 2, arms - 1, arms}:
            overflow_probability = config.overflow_probability(number, active)
            assert _overflow_probability(config, number, overflow_probability) == overflow_probability


def test_a_round_beyond_the_last_pull_is_refused(make_round: MakeRound) -> None:
    round_, far = make_round(), 10**400
    cohort = round_.assignments[0].cohort.model_copy(update={"round": far})
    late = Assignment(arm=0, cohort=cohort)
    with pytest.raises(Refused, match=r"round\.number = 10+: the run has 1000000 pulls"):
        check(round_.model_copy(update={"number": far, "assignments": [late]}))


def test_a_refusal_names_the_field_that_was_told_and_not_the_configuration(make_round: MakeRound) -> None:
    """The configuration has neither a round nor n: two parts of what was told contradict each other."""
    round_ = make_round()
    with pytest.raises(Refused) as number:
        check(round_.model_copy(update={"number": 3}))
    assert number.value.detail == "cohort.round = 1: the round says round.number = 3"
    grown = Assignment(arm=0, cohort=round_.assignments[0].cohort.model_copy(update={"clients": 40}))
    with pytest.raises(Refused) as clients:
        check(round_.model_copy(update={"assignments": [grown]}))
    assert clients.value.detail == "cohort.clients = 40: the round says mechanism.clients = 20"


@pytest.mark.parametrize("seconds", [0.0, 86_401.0])
def test_another_time_until_messages_are_scrubbed_is_refused(make_round: MakeRound, seconds: float) -> None:
    round_ = make_round()
    (assignment, *others) = round_.assignments
    longer = assignment.model_copy(update={"cohort": assignment.cohort.model_copy(update={"keep_seconds": seconds})})
    told = round_.model_copy(update={"assignments": [longer, *others]})
    with pytest.raises(Refused, match=rf"cohort\.keep_seconds = {seconds}"):
        check_round(config_of(round_), RUN_ID, told, longer)

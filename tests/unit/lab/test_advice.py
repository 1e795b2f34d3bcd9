"""Tests that advice ranks mechanisms by the width that a run has, and says why others are none."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import distrust
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.errors import BadParameter
from distrust.lab.__main__ import app
from distrust.lab.play.advice import COLUMNS, _expected, _sum, advise
from distrust.lab.play.in_process import play_learner
from distrust.lab.play.run_file import parse
from distrust.server.learner.learner import Learner

ARMS = 'environment = {name = "bernoulli", seed = 4, means = [0.5, 0.5]}'
CONTEXTS = 'environment = {name = "contextual-synthetic", seed = 4, arms = 8, dimension = 2}'


def words(world: str = ARMS, policy: str = "", mechanism: str = "local-laplace-discrete", horizon: int = 4000) -> str:
    return f'run = "a"\nhorizon = {horizon}\n{policy}\nmechanism = {{name = "{mechanism}", epsilon = 1.0}}\n{world}\n'


@pytest.mark.parametrize("base", [2, 4])
def test_a_width_is_that_of_the_last_intervals_of_a_run_in_which_no_arm_is_dropped(base: int) -> None:
    """Equal arms are not dropped in this run, whose intervals have the same widths, whatever was drawn."""
    file = parse(words(policy=f"policy = {{base = {base}}}"))
    learner = play_learner(file)
    assert learner.policy.active == (0, 1)
    (choice,) = (one for one in advise(file, ["local-laplace-discrete"]).choices if one.batch == f"base = {base}")
    widths = [(interval.upper - interval.lower) / 2 for interval in learner.policy.intervals]
    assert widths == pytest.approx([choice.width] * 2, rel=1e-12)
    assert (choice.clients, choice.bits) == (learner.rounds[-1].mechanism.clients, learner.rounds[-1].mechanism.bits)


def test_the_narrowest_intervals_come_first_and_a_trusted_server_needs_less_noise() -> None:
    advice = advise(words(), ["local-laplace-discrete", "central-laplace-discrete", "distributed-polya"])
    widths = [choice.width for choice in advice.choices]
    assert widths == sorted(widths)
    assert [one.mechanism for one in advice.choices if one.batch == "base = 4"] == [
        "central-laplace-discrete",
        "distributed-polya",
        "local-laplace-discrete",
    ]


def test_every_mechanism_is_a_choice_or_has_its_reason() -> None:
    advice = advise(words(horizon=200, policy="policy = {first_batch = 5}"))
    known = {choice.mechanism for choice in advice.choices} | {name for name, _, _ in advice.refused}
    assert known == {name for name, kind in MECHANISMS.items() if kind.model != "none"}
    reasons = {name: why for name, _, why in advice.refused}
    assert reasons["tree"] == "mechanism = 'tree': counts a stream of batches, and this policy asks for none"
    assert "delta" in reasons["local-gaussian"]


def test_streams_of_arms_are_compared_by_mechanisms_that_count_them_and_by_their_batches() -> None:
    stream = "epsilon = 1.0, delta = 1e-3, batches = 10"
    file = words(policy='policy = {name = "dp-ucb", batch = 100}', mechanism="tree", horizon=1000)
    advice = advise(file.replace("epsilon = 1.0", stream), ["tree", "prefix-factorization", "central-laplace"])
    assert {choice.mechanism for choice in advice.choices} == {"tree", "prefix-factorization"}
    assert {one.batch for one in advice.choices} == {"batch = 10", "batch = 100"}
    reasons = {name: why for name, _, why in advice.refused}
    assert "dp-ucb counts a stream an arm: tree, prefix-factorization, or identity" in reasons["central-laplace"]


def test_with_larger_batches_a_contextual_run_has_less_noise_of_single_cohorts_and_less_of_a_stream() -> None:
    file = words(CONTEXTS, 'policy = {name = "linucb", batch = 100}', horizon=2000)
    advice = advise(file, ["central-gaussian", "prefix-factorization"], delta=1e-3)
    assert {one.batch for one in advice.choices} == {"batch = 10", "batch = 100", "batch = 1000"}
    width = {(choice.mechanism, choice.batch): choice.width for choice in advice.choices}
    assert width["central-gaussian", "batch = 1000"] < width["central-gaussian", "batch = 10"]
    assert width["prefix-factorization", "batch = 10"] < width["central-gaussian", "batch = 10"]


def test_expected_contexts_have_length_1_and_look_in_all_directions_alike() -> None:
    for blocks in (1, 3):
        statistic = ContextualSum(features=4, blocks=blocks)
        linear, moments = statistic.parts(np.array([_sum(statistic, 60)]))
        assert moments is not None
        assert not linear.any()
        for one in moments[0]:
            np.testing.assert_allclose(one, np.eye(4) * 60 / 4 / blocks, rtol=1e-15)


@pytest.mark.parametrize(("mechanism", "times"), [("tree", 2), ("central-gaussian", 1)])
def test_a_stream_is_expected_to_hold_all_batches_so_far(mechanism: str, times: int) -> None:
    more = ", delta = 1e-3" + (", batches = 20" if mechanism == "tree" else "")
    text = words(CONTEXTS, 'policy = {name = "linucb", batch = 100}', mechanism, 2000)
    learner, sums = Learner(parse(text.replace("epsilon = 1.0", f"epsilon = 1.0{more}")).config), []
    for _ in range(2):
        plan = learner.plan()
        assert plan is not None
        outcome = _expected(plan, plan.cohorts[0])
        learner.absorb(outcome)
        sums.append(np.array(outcome.sum))
    np.testing.assert_allclose(sums[1], times * sums[0])


@pytest.mark.parametrize(
    ("file", "mechanisms", "why"),
    [
        (
            words().replace(", epsilon = 1.0", "").replace("local-laplace-discrete", "identity"),
            None,
            r"^mechanism\.epsilon",
        ),
        (words(), ["nonsense"], "^mechanism = 'nonsense': must be one of central-laplace"),
        (words(), ["identity"], "^mechanism = 'identity': must be one of"),
        (words(), ["central-gaussian"], r"^mechanism\.delta"),
        (words(CONTEXTS, 'policy = {name = "ldp-sgd"}', horizon=200), ["local-sphere"], "has no intervals"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(file: str, mechanisms: list[str] | None, why: str) -> None:
    with pytest.raises(BadParameter, match=why):
        advise(file, mechanisms)


def test_the_pages_table_is_that_of_the_first_run() -> None:
    pages = Path(__file__).parents[3] / "docs"
    text = (pages / "how-to/start.md").read_text("utf-8").partition("```toml\n")[2].partition("```")[0]
    shown = [
        tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
        for line in (pages / "how-to/choose.md").read_text("utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert len(shown) >= 5
    lines = advise(text, [line[0] for line in shown], delta=1e-6).lines()
    assert [line for line in lines if line in shown] == shown


def test_the_runs_calibration_holds_for_all_and_its_other_numbers_for_its_own_mechanism() -> None:
    text = words(policy="policy = {first_batch = 5}").replace(
        "epsilon = 1.0", 'epsilon = 1.0, calibration = "paper", precision = 3'
    )
    advice = advise(text, ["local-laplace-discrete", "central-laplace-discrete", "shuffled-sphere"])
    learner = play_learner(parse(text.replace("first_batch = 5", "first_batch = 5, base = 2")))
    (own,) = (one for one in advice.choices if (one.mechanism, one.batch) == ("local-laplace-discrete", "base = 2"))
    assert (own.clients, own.bits) == (learner.rounds[-1].mechanism.clients, learner.rounds[-1].mechanism.bits)
    assert learner.rounds[-1].mechanism.precision == 3
    assert {choice.mechanism for choice in advice.choices} == {"local-laplace-discrete", "central-laplace-discrete"}
    assert {name for name, _, _ in advice.refused} == {"shuffled-sphere"}


def test_a_delta_that_no_theorem_has_is_refused() -> None:
    for delta in (-1.0, 0.5, float("nan")):
        with pytest.raises(BadParameter, match=r"^delta = "):
            advise(words(), ["local-laplace-discrete"], delta)


def test_advice_is_a_table_for_people_and_for_programs(tmp_path: Path) -> None:
    advice = distrust.advise(words(), ["local-laplace-discrete", "tree"])
    frame = advice.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame.refused.notna().sum() == 2
    path = tmp_path / "run.toml"
    path.write_text(words())
    result = CliRunner().invoke(app, ["advise", str(path), "--mechanism", "local-laplace-discrete", "--json", "-"])
    assert result.exit_code == 0
    own = distrust.advise(words(), ["local-laplace-discrete"])
    assert json.loads(result.stdout) == json.loads(json.dumps(own.described()))
    shown = CliRunner().invoke(
        app, ["advise", str(path), "--mechanism", "local-laplace-discrete"], env={"COLUMNS": "200"}
    )
    assert "base = 4" in shown.stdout
    assert "half of the widest interval" in shown.stdout

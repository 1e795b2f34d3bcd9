"""Tests that a run counts its widths, and those that failed, against the true means."""

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.lab.play import in_process
from distrust.lab.play.contextual_failures import missed_widths
from distrust.lab.play.failures import tracker_of
from distrust.lab.play.progress import print_result
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import RunFile, parse, parse_table


def run_file(
    means: list[float], policy: str = "", mechanism: str = 'name = "identity"', more: str = "", horizon: int = 6000
) -> RunFile:
    return parse(
        f"""
run = "trial"
horizon = {horizon}
[policy]
{policy or "first_batch = 5"}
[mechanism]
{mechanism}
[environment]
name = "bernoulli"
seed = 5
means = {means}
[unsafe]
noise_seed = 2
{more}
"""
    )


def test_a_run_says_how_many_widths_it_formed_and_that_they_held() -> None:
    result = in_process.run(run_file([0.1, 0.4, 0.9]))
    assert result.events is not None
    assert result.events.widths == sum(len(record.arms) for record in result.rounds)
    assert (result.events.width_failures, result.events.best_dropped, result.events.failure) == (0, False, 0.1)
    assert result.fault is None


def test_a_witness_of_another_world_sees_every_failure() -> None:
    """The policy plays [0.1, 0.9]; with [0.9, 0.1] for true it must find all widths wrong, and the best arm gone."""
    file, believed = run_file([0.1, 0.9]), run_file([0.9, 0.1])
    tracker = tracker_of(believed)
    learner = in_process.play_learner(file, tracker)
    events = tracker.truth(learner).events
    result = in_process.run(file)
    dropped = next(place for place, one in enumerate(result.rounds) if 0 in one.eliminated)
    assert events.best_dropped
    assert events.best_dropped_at == result.regret.curve[dropped][0]
    assert events.widths == sum(len(record.arms) for record in result.rounds)
    assert events.width_failures == events.widths


def test_of_two_best_arms_one_may_go() -> None:
    file, believed = run_file([0.1, 0.9, 0.9]), run_file([0.9, 0.9, 0.1])
    tracker = tracker_of(believed)
    learner = in_process.play_learner(file, tracker)
    assert 0 not in learner.policy.active
    assert not tracker.truth(learner).events.best_dropped


PUBLISHED = 'constants = "published-code"\nfirst_batch = 3'
PAPER = 'name = "distributed-polya"\nepsilon = 1.0\ncalibration = "paper"'


@pytest.mark.parametrize(
    ("policy", "mechanism", "expected"),
    [
        pytest.param("failure = 0.02", 'name = "identity"', 0.02, id="p"),
        pytest.param("failure = 0.02", PAPER, 0.06, id="lemma-2-states-3p"),
        pytest.param("failure = 0.5", PAPER, 1.0, id="never-more-than-certain"),
        pytest.param(PUBLISHED, PAPER, None, id="published-code-states-nothing"),
        pytest.param('name = "ucb1"', 'name = "identity"', None, id="ucb1-states-nothing"),
        pytest.param('name = "dp-se"', 'name = "central-laplace"\nepsilon = 1.0', 0.1, id="dp-se"),
        pytest.param('name = "vb-sdp-ae"', PAPER, 0.1, id="vb-sdp-ae"),
        pytest.param('name = "adap-ucb"', PAPER, 0.1, id="adap-ucb"),
        pytest.param('name = "dp-ucb"\nbatch = 10', 'name = "identity"', 0.1, id="dp-ucb"),
        pytest.param('name = "thompson"', PAPER, 0.1, id="thompson"),
    ],
)
def test_the_stated_level_is_the_policys_own(policy: str, mechanism: str, expected: float | None) -> None:
    result = in_process.run(run_file([0.2, 0.8], policy, mechanism, horizon=1500))
    assert result.events is not None
    assert result.events.failure == pytest.approx(expected)


LINEAR = """
run = "trial"
horizon = 20000
[policy]
name = "dp-pe"
beta = 0.001
[mechanism]
name = "central-laplace"
epsilon = 1.0
[environment]
name = "linear-sphere"
seed = 5
[unsafe]
noise_seed = 2
"""


def test_a_linear_policy_states_beta_for_every_event_of_its_phases() -> None:
    result = in_process.run(parse(LINEAR))
    assert result.events is not None
    closed = [record for record in result.rounds if all(cohort.survivors is not None for cohort in record.cohorts)]
    sums = sum(len(one.cohorts) for one in closed)
    assert result.events.failure == pytest.approx(0.001 * (2 * result.events.widths + sums))
    assert result.events.width_failures == 0


@pytest.mark.parametrize("size", [2, 3])
def test_a_width_is_missed_where_the_norm_of_the_error_in_v_is_above_beta(size: int) -> None:
    rng = np.random.default_rng(7)
    factors = rng.normal(size=(40, 3, size, size))
    matrices = factors @ factors.mT + 0.1 * np.eye(size)
    theta, true = rng.normal(size=(40, 3, size)), rng.normal(size=(3, size))
    away = theta - true
    norms = np.sqrt(np.einsum("rki,rkij,rkj->rk", away, matrices, away)).max(axis=-1)
    beta = np.median(norms)
    missed = missed_widths(ChoiceRule(theta, np.linalg.inv(matrices), beta), true)
    assert missed is not None
    assert missed.sum() == 20
    assert (missed == (norms > beta)).all()


def shown(result: Result) -> list[str]:
    """Return the lines of the closing table."""
    print_result(result, Console(file=(text := io.StringIO()), width=200))
    return text.getvalue().splitlines()


SPHERE = {"name": "glm-sphere", "seed": 3, "arms": 4, "dimension": 2}
ROWS = {"name": "contextual-mslr", "seed": 3, "arms": 4, "dimension": 3}
SILENT = "no theorem states this policy's widths, or the clients' world has no θ*: none is judged"


@pytest.mark.parametrize(
    ("policy", "world", "says"),
    [
        pytest.param({"name": "linucb"}, SPHERE, "0 of 9 decisions' ellipsoids miss θ* (p = 0.0025 that any does)"),
        pytest.param({"name": "ldp-sgd"}, SPHERE, "this policy states no widths"),
        pytest.param({"name": "ldp-gloc"}, SPHERE, SILENT),
        pytest.param({"name": "linucb"}, ROWS, SILENT),
    ],
)
def test_a_contextual_run_says_what_was_judged_and_speaks_of_no_best_arm_and_lists_no_arms(
    policy: dict[str, Any], world: dict[str, Any], says: str
) -> None:
    mechanism = {"name": "local-gaussian", "epsilon": 1.0, "delta": 1e-2}
    table = {"run": "trial", "horizon": 400, "mechanism": mechanism, "environment": world}
    result = in_process.run(parse_table(table | {"policy": policy | {"batch": 40}}))
    lines, html = shown(result), result._repr_html_()
    hidden = "each client chooses by its own context, and the server does not learn which"
    assert lines[:2] == ["run trial", f"arms        {hidden}"]
    assert f"failures    {says}" in lines
    assert "best arm" not in "\n".join(lines) + html
    assert "confidence interval" not in html


def test_a_missed_ellipsoid_and_a_public_warm_up_are_shown() -> None:
    table = {"run": "trial", "horizon": 400, "mechanism": {"name": "identity"}, "environment": SPHERE}
    result = in_process.run(parse_table(table | {"policy": {"name": "linucb", "batch": 40, "failure": 0.5}}))
    events = result.events.model_copy(update={"width_failures": 2})
    missed = result.model_copy(update={"events": events, "pulls": [3, 0, 0, 0]})
    assert "failures    2 of 9 decisions' ellipsoids miss θ* (p = 0.5 that any does)" in shown(missed)
    assert "confidence interval" in shown(missed)[2]

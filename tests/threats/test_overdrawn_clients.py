"""Tests of a learner that overdraws the budget of its run: the clients of `distrust run` refuse on their own.

The server refuses such a plan too (`tests/unit/server/test_budget.py`). Here its check is switched off.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BudgetExceeded, Refused
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse_table
from distrust.lab.services.connection import check_clients
from distrust.lab.services.fleet_processes import fleet_environment
from distrust.lab.stack.stack import Urls
from tests.support.limits import lenient
from tests.support.recording import Exchange, RecordedRun, record_run

NOWHERE = Urls("http://server", "http://shuffler", "http://aggregator", token=None)

MECHANISMS = {"masked": {"name": "distributed-polya"}, "sealed": {"name": "local-laplace-discrete", "via": "shuffler"}}
FIVE = "5 contributions would cost ε = 2.5 at δ = 0, and the budget is ε = 2"
CONTEXTS = {"name": "contextual-synthetic", "arms": 4, "dimension": 2, "seed": 1}


def file(contributions: int, mechanism: dict[str, Any], epsilon: float | None = 2.0, delta: float = 0.0) -> RunFile:
    """Return a run with ε = 0.5 a cohort, and with a budget for each client unless `epsilon` is None."""
    table: dict[str, Any] = {
        "run": "run",
        "horizon": 192,
        "policy": {"first_batch": 5},
        "mechanism": {"epsilon": 0.5, **mechanism},
        "intermediary": {"minimum": 20},
        "returning": {"contributions": contributions},
        "environment": {"name": "gaussian-easy", "arms": 2, "seed": 1},
    }
    return parse_table(table if epsilon is None else {**table, "budget": {"epsilon": epsilon, "delta": delta}})


def contextual(mechanism: dict[str, Any], batch: int, contributions: int, **budget: float) -> RunFile:
    """Return a contextual run of three cohorts, with ε = 0.5 at δ = 1e-3 for one, and a budget for each client."""
    return parse_table(
        {
            "run": "run",
            "policy": {"name": "linucb", "batch": batch},
            "mechanism": {"epsilon": 0.5, "delta": 1e-3, **mechanism},
            "returning": {"contributions": contributions},
            "budget": {"delta": 1e-3, **budget},
            "environment": CONTEXTS,
        }
        | ({"horizon": 96, "intermediary": {"dropout": 0.0}} if mechanism["name"] == "tree" else {"horizon": 36})
    )


def stream(epsilon: float) -> RunFile:
    """Return a run of a tree of eight batches, whose clients come to three."""
    return contextual({"name": "tree", "batches": 8, "precision": 2000}, 12, 3, epsilon=epsilon)


def aggregated(epsilon: float) -> RunFile:
    """Return a run of three cohorts through secure aggregation, whose clients come to all three."""
    return contextual({"name": "distributed-discrete-gaussian"}, 12, 3, epsilon=epsilon)


def requirements(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> PrivacyRequirements:
    """Return the users' requirements in a fleet started for this run file, through its environment variables.

    The users accept small cohorts.
    """
    monkeypatch.setenv("DISTRUST_MIN_SURVIVORS", "1")
    for name, value in fleet_environment(file, NOWHERE).items():
        monkeypatch.setenv(name, value)
    return FleetSettings().requirements()


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RecordedRun]:
    """Return a function that plays a run over HTTP, with the users that its file gives, or others."""

    def played(file: RunFile, held: PrivacyRequirements | None = None, **more: Any) -> RecordedRun:
        held = held or requirements(file, monkeypatch)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        return record_run(folder, [file.config], 0.0, monkeypatch, requirements=held, world=file.world(), **more)

    return played


@pytest.mark.parametrize(
    ("overdrawn", "why"),
    [
        pytest.param(lambda: file(5, MECHANISMS["masked"]), FIVE, id="masked"),
        pytest.param(lambda: file(5, MECHANISMS["sealed"]), FIVE, id="sealed"),
        pytest.param(lambda: stream(1.5), "3 contributions would cost", id="a-stream"),
        pytest.param(lambda: aggregated(1.05), "3 contributions would cost", id="contexts"),
    ],
)
def test_a_contribution_that_would_overdraw_is_refused_by_the_client_before_anything_is_sent(
    overdrawn: Callable[[], RunFile], why: str, play: Callable[..., RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner refuses as well, before its check is switched off."""
    with pytest.raises(BudgetExceeded, match=why):
        in_process.run(overdrawn())
    monkeypatch.setattr("distrust.server.learner.learner.check_budget", lambda *_: None)
    exchanges: list[Exchange] = []
    with pytest.raises(BudgetExceeded, match=why):
        play(overdrawn(), exchanges=exchanges)
    sent = [exchange.url.path.rpartition("/")[2] for exchange in exchanges if exchange.caller.startswith("fleet")]
    assert set(sent) == {"round", "config"}  # they looked, and took not even a ticket


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_what_the_budget_covers_is_played_to_its_end(
    mechanism: dict[str, Any], play: Callable[..., RecordedRun]
) -> None:
    """The last contribution spends the budget to the last digit."""
    view = play(file(4, mechanism)).views["run"]
    assert (view.state, view.snapshot.guarantee.epsilon) == ("finished", pytest.approx(2.0))


@pytest.mark.parametrize(
    ("covered", "released", "epsilon"),
    [
        pytest.param(lambda: stream(1.55), 8, 1.527, id="stream"),
        pytest.param(lambda: aggregated(1.2), 3, 1.086, id="contexts"),
    ],
)
def test_all_cohorts_of_a_client_that_comes_back_are_charged_as_one_release_by_server_and_clients(
    covered: Callable[[], RunFile], released: int, epsilon: float, play: Callable[..., RecordedRun]
) -> None:
    """Three batches move the tree by √26 times a vector, one moves it by 2: ε = 1.53, above 3 · 0.5.

    Three cohorts through secure aggregation are one release of ε = 1.086, below 3 · 0.5.
    """
    view = play(covered()).views["run"]
    spent = view.snapshot.guarantee
    assert (view.state, view.cohorts_released, view.snapshot.pulls) == ("finished", released, 12 * released)
    assert (spent.kind, spent.delta) == ("approximate", 1e-3)
    assert spent == in_process.run(covered()).guarantee
    assert spent.epsilon == pytest.approx(epsilon, rel=1e-3)


def test_clients_that_come_more_often_than_a_stream_has_batches_refuse_it(
    play: Callable[..., RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The users' own setting is nine cohorts, and the run's stream has eight batches."""
    covered = stream(1.55)
    with pytest.raises(Refused, match="the stream of tree has 8 batches, and this user takes part in 9 cohorts"):
        play(covered, replace(requirements(covered, monkeypatch), contributions=9))


def test_a_budget_at_a_smaller_delta_than_a_guarantee_is_shown_at_is_kept_all_the_same(
    play: Callable[..., RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Rényi guarantee holds at every δ and is shown at 1e-6. The budget is at δ = 1e-9."""
    covered = file(1, {"name": "distributed-skellam"}, 4.0, 1e-9)
    held = requirements(covered, monkeypatch)
    assert (held.max_epsilon, held.max_delta) == (4.0, 1e-9)
    assert play(covered, held).views["run"].state == "finished"


def test_where_nothing_was_declared_returning_clients_play_over_http_what_they_play_in_process(
    play: Callable[..., RecordedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 contributions of ε = 0.5 add up to more than a user accepts in one cohort, which is no limit of the sum."""
    undeclared = file(40, MECHANISMS["masked"], epsilon=None)
    held = requirements(undeclared, monkeypatch)
    assert held == PrivacyRequirements(min_survivors=1, config_digest=undeclared.config.digest())
    view = play(undeclared, held).views["run"]
    assert (view.state, view.snapshot.guarantee) == ("finished", in_process.run(undeclared).guarantee)


def test_a_user_told_of_contributions_alone_calls_its_own_limit_by_its_name(play: Callable[..., RecordedRun]) -> None:
    """The run declares no budget, so the refusal names the user's limit and no budget."""
    undeclared = file(40, MECHANISMS["masked"], epsilon=None)
    with pytest.raises(BudgetExceeded, match=r"40 contributions would cost .*, and this user's limit is ε = 10"):
        play(undeclared, lenient(contributions=40, max_delta=None))


@pytest.mark.parametrize(("contributions", "epsilon", "delta"), [(1, 0.6, 5e-4), (2, 0.95, 5e-4), (2, 0.35, 0.05)])
def test_what_the_law_proves_within_a_budget_is_played_over_http_as_in_process(
    contributions: int, epsilon: float, delta: float, play: Callable[..., RecordedRun]
) -> None:
    """One cohort of the mechanism states (0.5, 1e-3), which is outside each of these budgets."""
    budget = {"epsilon": epsilon, "delta": delta, "min_survivors": 14}
    covered = contextual({"name": "shuffled-binomial"}, 18, contributions, **budget)
    check_clients(covered)
    view = play(covered).views["run"]
    assert (view.state, view.snapshot.guarantee) == ("finished", in_process.run(covered).guarantee)
    assert view.snapshot.guarantee.delta == delta
    assert 0 < (view.snapshot.guarantee.epsilon or 0.0) <= epsilon

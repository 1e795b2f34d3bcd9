"""Tests of a learner that overdraws the budget of its run: the clients of `distrust run` refuse on their own.

The server refuses such a plan too (`tests/unit/server/test_budget.py`). Here its check is switched off.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.fleet.settings import FleetSettings
from distrust.common.errors import BudgetExceeded, Refused
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.connection import check_clients
from distrust.lab.services.fleet_processes import fleet_environment
from distrust.lab.stack.stack import Urls
from tests.support.limits import lenient
from tests.support.recording import Exchange, record_run

NOWHERE = Urls("http://server", "http://shuffler", "http://aggregator", token=None)


def file(contributions: int, mechanism: str, epsilon: float | None = 2.0, delta: float = 0.0) -> RunFile:
    """Return a run with ε = 0.5 a cohort, and with a budget for each client unless `epsilon` is None."""
    budget = "" if epsilon is None else f"[budget]\nepsilon = {epsilon}\ndelta = {delta}"
    return parse(
        f"""
run = "run"
horizon = 192
[policy]
first_batch = 5
[mechanism]
epsilon = 0.5
{mechanism}
[intermediary]
minimum = 20
[returning]
contributions = {contributions}
{budget}
[environment]
name = "gaussian-easy"
arms = 2
seed = 1
"""
    )


def stream(contributions: int, epsilon: float) -> RunFile:
    """Return a run of a tree of eight batches, with ε = 0.5 for one batch, and a budget for each client at δ = 1e-3."""
    return parse(
        f"""
run = "run"
horizon = 96
[policy]
name = "linucb"
batch = 12
[mechanism]
name = "tree"
epsilon = 0.5
delta = 1e-3
batches = 8
precision = 2000
[returning]
contributions = {contributions}
[budget]
epsilon = {epsilon}
delta = 1e-3
[intermediary]
dropout = 0.0
[environment]
name = "contextual-synthetic"
arms = 4
dimension = 2
seed = 1
"""
    )


def requirements(file: RunFile, monkeypatch: pytest.MonkeyPatch) -> PrivacyRequirements:
    """Return the users' requirements in a fleet started for this run file, through its environment variables.

    The users accept small cohorts.
    """
    monkeypatch.setenv("DISTRUST_MIN_SURVIVORS", "1")
    for name, value in fleet_environment(file, NOWHERE).items():
        monkeypatch.setenv(name, value)
    return FleetSettings().requirements()


MECHANISMS = {"masked": 'name = "distributed-polya"', "sealed": 'name = "local-laplace-discrete"\nvia = "shuffler"'}


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_a_contribution_that_would_overdraw_is_refused_by_the_client_before_anything_is_sent(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdrawn = file(5, mechanism)
    monkeypatch.setattr("distrust.server.learner.learner.check_budget", lambda *_: None)
    exchanges: list[Exchange] = []
    with pytest.raises(BudgetExceeded, match=r"5 contributions would cost ε = 2.5 at δ = 0, and the budget is ε = 2"):
        record_run(
            tmp_path,
            [overdrawn.config],
            0.0,
            monkeypatch,
            exchanges=exchanges,
            requirements=requirements(overdrawn, monkeypatch),
        )
    sent = [exchange.url.path.rpartition("/")[2] for exchange in exchanges if exchange.caller.startswith("fleet")]
    assert set(sent) == {"round", "config"}  # they looked, and took not even a ticket


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_what_the_budget_covers_is_played_to_its_end(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last contribution spends the budget to the last digit."""
    covered = file(4, mechanism)
    recorded = record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=requirements(covered, monkeypatch))
    assert recorded.views["run"].state == "finished"
    assert recorded.views["run"].snapshot.guarantee.epsilon == pytest.approx(2.0)


def test_all_batches_of_a_stream_are_charged_as_one_release_by_server_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches move the tree by √26 times a vector, one moves it by 2: ε = 1.53, above 3 · 0.5."""
    covered = stream(3, 1.55)
    held = requirements(covered, monkeypatch)
    recorded = record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=held, world=covered.world())
    spent = recorded.views["run"].snapshot.guarantee
    assert recorded.views["run"].state == "finished"
    assert (spent.kind, spent.delta) == ("approximate", 1e-3)
    assert spent == in_process.run(covered).guarantee
    assert spent.epsilon == pytest.approx(1.527, rel=1e-3)


def aggregated(epsilon: float) -> RunFile:
    """Return a run of three cohorts through secure aggregation, whose clients come to all three. One costs ε = 0.5."""
    return parse(
        f"""
run = "run"
horizon = 36
policy = {{name = "linucb", batch = 12}}
mechanism = {{name = "distributed-discrete-gaussian", epsilon = 0.5, delta = 1e-3}}
returning = {{contributions = 3}}
budget = {{epsilon = {epsilon}, delta = 1e-3}}
environment = {{name = "contextual-synthetic", arms = 4, dimension = 2, seed = 1}}
"""
    )


def test_contextual_clients_that_come_back_are_charged_by_one_ledger_over_secure_aggregation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times are one release: ε = 1.086, below 3 · 0.5. With less in the budget the clients refuse."""
    covered, overdrawn = aggregated(1.2), aggregated(1.05)
    held = requirements(covered, monkeypatch)
    recorded = record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=held, world=covered.world())
    view = recorded.views["run"]
    assert (view.state, view.cohorts_released, view.snapshot.pulls) == ("finished", 3, 36)
    assert view.snapshot.guarantee == in_process.run(covered).guarantee
    assert view.snapshot.guarantee.epsilon == pytest.approx(1.086, rel=1e-3)
    monkeypatch.setattr("distrust.server.learner.learner.check_budget", lambda *_: None)
    (tmp_path / "again").mkdir()
    with pytest.raises(BudgetExceeded, match="3 contributions would cost"):
        record_run(
            tmp_path / "again",
            [overdrawn.config],
            0.0,
            monkeypatch,
            requirements=requirements(overdrawn, monkeypatch),
            world=overdrawn.world(),
        )


def test_clients_that_come_more_often_than_a_stream_has_batches_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The users' own setting is nine cohorts, and the run's stream has eight batches."""
    covered = stream(3, 1.55)
    held = replace(requirements(covered, monkeypatch), contributions=9)
    with pytest.raises(Refused, match="the stream of tree has 8 batches, and this user takes part in 9 cohorts"):
        record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=held, world=covered.world())


def test_clients_refuse_a_stream_whose_batches_together_overdraw_their_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overdrawn = stream(3, 1.5)
    with pytest.raises(BudgetExceeded, match="3 contributions"):
        in_process.run(overdrawn)
    monkeypatch.setattr("distrust.server.learner.learner.check_budget", lambda *_: None)
    exchanges: list[Exchange] = []
    held = requirements(overdrawn, monkeypatch)
    with pytest.raises(BudgetExceeded, match="3 contributions would cost"):
        record_run(
            tmp_path,
            [overdrawn.config],
            0.0,
            monkeypatch,
            exchanges=exchanges,
            requirements=held,
            world=overdrawn.world(),
        )
    sent = [exchange.url.path.rpartition("/")[2] for exchange in exchanges if exchange.caller.startswith("fleet")]
    assert set(sent) == {"round", "config"}  # they looked, and took not even a ticket


def test_a_budget_at_a_smaller_delta_than_a_guarantee_is_shown_at_is_kept_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Rényi guarantee holds at every δ and is shown at 1e-6. The budget is at δ = 1e-9."""
    covered = file(1, 'name = "distributed-skellam"', 4.0, 1e-9)
    held = requirements(covered, monkeypatch)
    assert (held.max_epsilon, held.max_delta) == (4.0, 1e-9)
    recorded = record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=held)
    assert recorded.views["run"].state == "finished"


def test_where_nothing_was_declared_returning_clients_play_over_http_what_they_play_in_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 contributions of ε = 0.5 add up to more than a user accepts in one cohort, which is no limit of the sum."""
    undeclared = file(40, MECHANISMS["masked"], epsilon=None)
    held = requirements(undeclared, monkeypatch)
    assert held == PrivacyRequirements(min_survivors=1, config_digest=undeclared.config.digest())
    recorded = record_run(tmp_path, [undeclared.config], 0.0, monkeypatch, requirements=held)
    spent = [recorded.views["run"].snapshot.guarantee, in_process.run(undeclared).guarantee]
    assert recorded.views["run"].state == "finished"
    assert spent[0] == spent[1]


def test_a_user_told_of_contributions_alone_calls_its_own_limit_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run declares no budget, so the refusal names the user's limit and no budget."""
    undeclared = file(40, MECHANISMS["masked"], epsilon=None)
    with pytest.raises(BudgetExceeded, match=r"40 contributions would cost .*, and this user's limit is ε = 10"):
        record_run(
            tmp_path, [undeclared.config], 0.0, monkeypatch, requirements=lenient(contributions=40, max_delta=None)
        )


@pytest.mark.parametrize(("contributions", "epsilon", "delta"), [(1, 0.6, 5e-4), (2, 0.95, 5e-4), (2, 0.35, 0.05)])
def test_what_the_law_proves_within_a_budget_is_played_over_http_as_in_process(
    contributions: int, epsilon: float, delta: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cohort of the mechanism states (0.5, 1e-3), which is outside each of these budgets."""
    covered = parse(
        f"""
run = "run"
horizon = 36
policy = {{name = "linucb", batch = 18}}
mechanism = {{name = "shuffled-binomial", epsilon = 0.5, delta = 1e-3}}
returning = {{contributions = {contributions}}}
budget = {{epsilon = {epsilon}, delta = {delta}, min_survivors = 14}}
environment = {{name = "contextual-synthetic", arms = 4, dimension = 2, seed = 1}}
"""
    )
    check_clients(covered)
    held = requirements(covered, monkeypatch)
    recorded = record_run(tmp_path, [covered.config], 0.0, monkeypatch, requirements=held, world=covered.world())
    view = recorded.views["run"]
    assert (view.state, view.snapshot.guarantee) == ("finished", in_process.run(covered).guarantee)
    assert view.snapshot.guarantee.delta == delta
    assert 0 < (view.snapshot.guarantee.epsilon or 0.0) <= epsilon

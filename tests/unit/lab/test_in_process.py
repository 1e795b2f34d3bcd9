"""Tests that a run in one process has the pulls, regret, sums and promises that its run file asks for."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.lab.play import in_process
from distrust.lab.play.progress import print_result
from distrust.lab.play.result import CohortResult, Result, facts
from distrust.lab.play.run_file import RunFile, parse
from distrust.server.learner.rounds import run_ledger


def run_file(mechanism: str = 'name = "distributed-polya"\nepsilon = 1.0', extra: str = "") -> RunFile:
    return parse(
        f"""
run = "trial"
horizon = 3000
[policy]
first_batch = 6
[mechanism]
{mechanism}
[environment]
name = "bernoulli"
seed = 11
means = [0.2, 0.5, 0.9]
{extra}
"""
    )


@pytest.fixture(scope="module")
def result() -> Result:
    return in_process.run(run_file(extra="[unsafe]\nnoise_seed = 3\n[fleet]\ndropout = 0.05"))


def test_every_client_of_the_horizon_is_a_pull(result: Result) -> None:
    assert sum(result.pulls) == result.horizon == 3000


def test_regret_is_gaps_times_pulls_and_the_curve_ends_there(result: Result) -> None:
    expected = float(np.dot([0.7, 0.4, 0.0], result.pulls))
    assert result.regret.final == pytest.approx(expected)
    assert result.regret.curve[-1] == (3000, pytest.approx(expected))
    values = [regret for _, regret in result.regret.curve]
    assert values == sorted(values)


def test_departed_clients_are_not_in_the_sum(result: Result) -> None:
    cohorts = [cohort for record in result.rounds for cohort in record.cohorts]
    assert all(cohort.survivors is not None and cohort.survivors <= cohort.clients for cohort in cohorts)
    lost = sum(cohort.clients - (cohort.survivors or 0) for cohort in cohorts)
    assert 0 < lost <= 0.05 * sum(cohort.clients for cohort in cohorts)


def test_the_seeded_run_is_repeatable_and_the_deployed_one_is_not() -> None:
    seeded = [in_process.run(run_file(extra="[unsafe]\nnoise_seed = 3")).rounds for _ in range(2)]
    deployed = [in_process.run(run_file()).rounds for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert deployed[0] != deployed[1]


def test_a_seeded_run_claims_no_privacy(result: Result) -> None:
    assert result.guarantee.kind == "none"
    assert in_process.run(run_file()).guarantee.kind == "pure"


def test_without_privacy_the_estimates_are_the_true_sums_up_to_rounding() -> None:
    played = in_process.run(run_file('name = "identity"'))
    for cohort in (cohort for record in played.rounds for cohort in record.cohorts):
        assert cohort.estimate is not None
        assert cohort.estimate[0] == pytest.approx(round(cohort.estimate[0]), abs=1e-9)
        assert 0 <= cohort.estimate[0] <= cohort.clients


def test_more_departures_than_the_run_allows_release_nothing() -> None:
    played = in_process.run(run_file(extra="[fleet]\ndropout = 0.6"))
    assert played.aborted > 0
    assert all(cohort.estimate is None for record in played.rounds for cohort in record.cohorts)
    assert played.chosen is None


def test_the_closing_table_says_what_was_learned_and_what_is_promised(result: Result) -> None:
    text = io.StringIO()
    print_result(result, Console(file=text, width=160))
    shown = text.getvalue()
    for word in (
        "chosen",
        "confidence interval",
        "regret",
        "best arm kept",
        "no privacy",
        "⌈log₂ m⌉",
        "clients per second",
        "assumes",
    ):
        assert word in shown
    assert "wire" not in shown  # there is none in process


def test_the_closing_table_says_why_cohorts_ended_and_which_clients_lied(result: Result) -> None:
    """Over services a cohort has a reason; three are shown."""
    why = "27 clients, at least 29 needed: nothing is released; clients that lied: slots 2, 4"
    first = result.rounds[0]
    lost = [CohortResult(cohort=f"trial.1.0.{n}", arm=0, clients=32, reason=why) for n in range(1, 6)]
    named = CohortResult(cohort="trial.1.1.1", arm=1, clients=32, liars=[7], disputes=2)
    result_with_failures = result.model_copy(update={"rounds": [first.model_copy(update={"cohorts": [*lost, named]})]})
    shown = Console(file=io.StringIO(), width=200)
    print_result(result_with_failures, shown)
    assert isinstance(shown.file, io.StringIO)
    lines = shown.file.getvalue().splitlines()
    aborted = [line for line in lines if line.startswith("aborted ")]
    assert aborted == [f"aborted     trial.1.0.{n}: {why}" for n in (1, 2, 3)]
    assert "liars       1 clients with false boxes, shares or accusations, 2 disputed pairs" in lines


def test_watch_is_called_after_every_cohort() -> None:
    seen: list[int] = []
    played = in_process.run(run_file(), lambda learner: seen.append(len(learner.rounds)))
    assert len(seen) == sum(len(record.cohorts) for record in played.rounds)


def test_a_run_keeps_what_clients_have_spent_by_how_often_they_came_and_in_total() -> None:
    come = in_process.run(run_file(extra="[returning]\ncontributions = 3\n[budget]\nepsilon = 3.0"))
    assert {one.contributions: one.guarantee.epsilon for one in come.spent} == pytest.approx({1: 1.0, 2: 2.0, 3: 3.0})
    assert come.spent[-1].guarantee == come.guarantee
    once = in_process.run(run_file())
    assert [(one.contributions, one.guarantee) for one in once.spent] == [(1, once.guarantee)]
    shown = Console(file=io.StringIO(), width=200)
    print_result(come, shown)
    assert isinstance(shown.file, io.StringIO)
    assert "ε = 2 for a client that came 2 ×" in shown.file.getvalue()
    assert come.guarantee.alone.epsilon == pytest.approx(
        3 * (once.guarantee.alone.epsilon or 0.0)
    )  # ε adds up here, too
    assert f"alone       ε = {come.guarantee.alone.epsilon:.4g} if all other clients collude" in shown.file.getvalue()
    frame = come.frame("ledger")
    assert frame["epsilon_alone"].tolist() == [one.guarantee.alone.epsilon for one in come.spent]


def test_every_round_of_a_result_has_its_line_of_the_ledger() -> None:
    file = run_file(extra="[returning]\ncontributions = 3")
    learner = in_process.play_learner(file)
    lines = [entry.guarantee for entry in run_ledger(file.config, learner.rounds).entries]
    left = [one.guarantee for one in run_ledger(file.config, learner.rounds, alone=True).entries]
    shown = [record.guarantee for record in in_process.run(file).rounds]
    assert shown == [ShownGuarantee.of(line, alone) for line, alone in zip(lines, left, strict=True)]
    assert [line.epsilon for line in lines] == pytest.approx([1.0] * len(lines))


PAGE = (Path(__file__).parents[3] / "docs/concepts/privacy/returning.md").read_text("utf-8")
RETURNING = PAGE.partition("## What a run spends\n")[2].partition("\n## ")[0]
SPENT = re.findall(r"^\| `([\w-]+)` \| (ε[^|]+) \| (ε[^|]+) \| (ε[^|]+) \|$", RETURNING, re.MULTILINE)


@pytest.mark.parametrize(("mechanism", "once", "twice", "four"), SPENT)
def test_a_contextual_run_with_clients_that_come_back_spends_what_the_page_says(
    mechanism: str, once: str, twice: str, four: str
) -> None:
    text = RETURNING.partition("```toml\n")[2].partition("```")[0].replace("distributed-discrete-gaussian", mechanism)
    result, times = in_process.run(text), {1: once, 2: twice, 4: four}
    spent = "; ".join(f"{cost} for a client that came {count} ×" for count, cost in times.items())
    assert (len(SPENT), dict(facts(result))["spent"], len(result.rounds)) == (3, spent, 8)
    assert result.guarantee == result.spent[-1].guarantee
    assert result.guarantee.epsilon is not None
    assert result.guarantee.epsilon <= 1.75

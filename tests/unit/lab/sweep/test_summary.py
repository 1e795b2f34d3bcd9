"""Tests that a sweep's closing tables give regret with its spread, and judge the stated confidence."""

import io

import pytest
from rich.console import Console
from scipy.stats import beta

from distrust.lab.sweep.cells import load_experiment
from distrust.lab.sweep.display import confidence, confidence_table, regret_table, share
from distrust.lab.sweep.row import Cell, Row
from tests.support.experiments import played, small


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Row:
    return played(load_experiment(small(tmp_path_factory.mktemp("experiment"))), Cell("wide", "private", 0))


def runs(row: Row, failed: int, count: int, stated: float | None = 0.1) -> list[Row]:
    return [row.model_copy(update={"width_failures": int(one < failed), "failure": stated}) for one in range(count)]


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (3, 20), (20, 20), (1, 1)])
def test_the_interval_is_clopper_and_pearsons(hits: int, trials: int) -> None:
    result = share(hits, trials)
    assert result.low == pytest.approx(beta.ppf(0.005, hits, trials - hits + 1) if hits else 0)
    assert result.high == pytest.approx(beta.ppf(0.995, hits + 1, trials - hits) if hits < trials else 1)


@pytest.mark.parametrize(
    ("failed", "count", "stated", "holds"),
    [
        pytest.param(0, 20, 0.1, "not refuted", id="twenty-runs-show-little"),
        pytest.param(0, 100, 0.1, "yes", id="a-hundred-without-a-failure"),
        pytest.param(10, 100, 0.1, "not refuted", id="as-stated"),
        pytest.param(25, 100, 0.1, "no", id="far-too-many"),
        pytest.param(1, 20, 1e-6, "no", id="one-where-there-should-be-none"),
        pytest.param(5, 20, None, "nothing stated", id="no-promise"),
    ],
)
def test_confidence_holds_or_not(row: Row, failed: int, count: int, stated: float | None, holds: str) -> None:
    (result,) = confidence(runs(row, failed, count, stated))
    assert (result.failed.hits, result.failed.runs, result.holds) == (failed, count, holds)


def test_runs_of_all_panels_count_for_their_series_and_the_largest_statement_stands(row: Row) -> None:
    other = row.model_copy(update={"panel": "narrow", "failure": 0.3, "best_dropped": True, "widths": 7})
    result = confidence([row, row, other, row.model_copy(update={"series": "public"})])
    assert [(one.series, one.failed.runs, one.stated) for one in result] == [("private", 3, 0.3), ("public", 1, 0.1)]
    assert result[0].dropped == share(1, 3)
    assert result[0].widths == 2 * row.widths + 7


def test_the_tables_say_regret_with_its_spread_and_whether_confidence_holds(row: Row) -> None:
    regrets = [row.model_copy(update={"regret": value, "seconds": 2.0}) for value in (10.0, 20.0, 30.0)]
    text = io.StringIO()
    narrow = Console(file=text, width=40, soft_wrap=True)
    narrow.print(regret_table(regrets))
    narrow.print(confidence_table(regrets))
    lines = text.getvalue().splitlines()
    assert lines[1].split()[:5] == ["wide", "private", "20.0", "10.0", "3"]
    assert any("0/3 [0.000, 0.829]" in line and "not refuted" in line for line in lines)


def test_the_table_of_failures_has_the_batches_that_noise_left_indefinite_where_there_are_any(row: Row) -> None:
    for counts, shown in (((None, None), False), ((0, 0), False), ((2, 3), True)):
        rows = [row.model_copy(update={"indefinite": count}) for count in counts]
        text = io.StringIO()
        Console(file=text, width=200).print(confidence_table(rows))
        assert ("indefinite" in text.getvalue()) == shown
        assert not shown or text.getvalue().splitlines()[1].split()[-1] == "5"


def test_a_series_of_contextual_runs_has_no_best_arm_and_a_greedy_one_no_widths(row: Row) -> None:
    contextual = row.model_copy(update={"best": None, "widths": 9, "width_failures": 2})
    greedy = contextual.model_copy(update={"widths": 0, "width_failures": 0, "failure": None})
    assert confidence([contextual])[0].cells() == ("private", "", "1/1 [0.005, 1.000]", "0.1", "not refuted", "2 of 9")
    assert confidence([greedy])[0].cells() == ("private", "", "", "", "nothing stated", "no widths")


def test_a_single_run_has_no_spread(row: Row) -> None:
    text = io.StringIO()
    Console(file=text, width=160).print(regret_table([row]))
    assert text.getvalue().splitlines()[1].split()[3] == "1"

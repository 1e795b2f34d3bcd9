"""Tests that `distrust privacy` takes those who answered and who collude into account, and labels figures."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from distrust.common.dp.accounting import composition
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.calculator.compare import Comparison, stronger
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.errors import BadParameter
from distrust.lab.cli.privacy import comparison_table, report_table
from tests.support.calculator import answer, comparison, read, text

COHORT: dict[str, Any] = {"clients": 1000, "dropout": 0.1, "corrupt": 0.1}
PURE = Guarantee(kind="pure", epsilon=1.0, model="distributed", calibration="exact")
NO_PROMISE = PURE.model_copy(update={"kind": "none", "epsilon": None, "model": "none"})
SMALL: dict[str, Any] = {"clients": 40, "epsilon": 0.5, "delta": 1e-6, "target_delta": None}


def epsilon(survivors: int | None = None, colluders: int = 0) -> float:
    queried = answer("distributed-polya", epsilon=1.0, survivors=survivors, colluders=colluders, **COHORT)
    result: float = read(queried)["exact"]["guarantee"]["epsilon"]
    return result


def small(**table: Any) -> Comparison:
    return comparison(**{**SMALL, **table})


def compared(**table: Any) -> dict[str, Any]:
    return read(small(**table))


def test_colluders_are_taken_off_once() -> None:
    """The floor of 800 leaves out the 100 that may collude; of the 900 that are sure to answer, 100 do."""
    assert epsilon(colluders=100) == epsilon(900, 100) == pytest.approx(1)
    assert epsilon(colluders=200) == epsilon(900, 200) > 1.1


def test_side_by_side_they_are_taken_off_once_too() -> None:
    table = {"colluders": 4, "dropout": 0.1, "corrupt": 0.1, "delta": None}
    for one, other in zip(compared(**table)["mechanisms"], compared(**table, survivors=36)["mechanisms"], strict=True):
        assert one.get("guarantee") == other.get("guarantee")


def test_more_colluders_than_may_answer_are_refused() -> None:
    with pytest.raises(BadParameter, match=r"colluders = 901: must lie in \[0, min_survivors = 900\]"):
        epsilon(colluders=901)


@pytest.mark.parametrize(("survivors", "opened"), [(None, True), (900, True), (899, False)])
def test_a_sum_that_is_never_opened_is_said_to_be_one(survivors: int | None, opened: bool) -> None:  # noqa: FBT001
    result = answer("distributed-polya", epsilon=1.0, survivors=survivors, **COHORT)
    assert read(result)["notes"] == ([] if opened else ["never opened: a release needs 900 answers, and 899 came"])
    assert ("never opened" in text(report_table(result))) != opened


def test_side_by_side_it_is_said_once() -> None:
    shown = text(comparison_table(small(survivors=30, delta=None)))
    assert shown.count("never opened: a release needs 40 answers, and 30 came") == 1


def test_both_reports_say_all_that_was_asked() -> None:
    one = read(answer("distributed-polya", **{**SMALL, "delta": None, "survivors": 39, "colluders": 1}))
    queried = {field.name for field in fields(PrivacyQuery)} | {"least", "floor", "wrap", "notes"}
    for message in (one, compared(delta=None)):
        assert queried <= message.keys()
    assert (one["survivors"], one["colluders"], one["contributions"], one["target_delta"]) == (39, 1, 1, None)


def test_bounds_are_labelled_in_both_tables() -> None:
    table: dict[str, Any] = {"clients": 40, "epsilon": 0.5, "delta": 1e-3}
    exact, bound = (answer(name, **table) for name in ("central-gaussian", "shuffled-laplace"))
    assert "│ epsilon                      │ 0.5" in text(report_table(exact))
    assert "│ epsilon                      │ ≤ 0." in text(report_table(bound))
    both = small(clients=200, delta=1e-3)
    rows = read(both)["mechanisms"]
    how = {
        row["mechanism"]: row["guarantee"]["how"]
        for row in rows
        if row["calibration"] == "exact" and "guarantee" in row
    }
    assert {name for name, label in how.items() if label == "bound"} == BOUNDS
    lines = text(comparison_table(both)).splitlines()
    assert all(("ε ≤" in line) == (line.split()[0] in BOUNDS) for line in lines if " exact " in line)


def test_rows_whose_promise_is_not_the_one_asked_for_are_marked() -> None:
    """MAB Theorem 2 without s promises 4.9 for ε = 1; the paper's constants for bits, 0.07; nothing is hidden: no ε."""
    both = small(clients=1000, epsilon=1.0, delta=1e-6)
    rows = {(one["mechanism"], one["calibration"]): one for one in read(both)["mechanisms"] if "guarantee" in one}
    for row in rows.values():
        epsilon = row["guarantee"]["epsilon"]
        assert row["same_promise"] is (epsilon is not None and 0.99 <= epsilon <= 1 + 1e-9)
    marks = {(line[0], line[1]): line[3] for line in both.lines()}
    assert all(mark == "as asked" for pair, mark in marks.items() if pair[1] == "exact" and pair[0] != "identity")
    assert marks["distributed-skellam", "paper"] == "weaker"
    assert marks["shuffled-binomial", "paper"] == "stronger"
    assert marks["identity", "exact"] == "none"
    note = "promise: as asked is ε = 1 at δ = 1e-06 or less, or up to 1% less; a weaker one has a larger ε"
    assert note in " ".join(text(comparison_table(both)).split())
    assert list(both.frame()["same_promise"].dropna()) == [row["same_promise"] for row in rows.values()]


BOUNDS = {"shuffled-gaussian", "shuffled-laplace", "shuffled-sphere", "relaxed-secagg-shuffle"}


@pytest.fixture
def coarse_losses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute losses on a grid of 2^14 cells instead of 2^20, for a test of δ only. Nothing of it stays cached."""
    composition.compose.cache_clear()
    monkeypatch.setattr(composition, "MOST_CELLS", 1 << 14)
    yield
    composition.compose.cache_clear()


@pytest.mark.slow
def test_what_is_compared_is_compared_at_one_delta(coarse_losses: None) -> None:
    """Two contributions at 1e-6 each: those that add up by basic composition need 2e-6, the others less."""
    both = small(contributions=2)
    result = read(both)
    deltas = {row["guarantee"]["delta"] for row in result["mechanisms"] if "guarantee" in row}
    assert deltas == {0.0, result["shared_delta"]}
    assert result["shared_delta"] == pytest.approx(2e-6)
    assert "2 contributions, compared at δ = 2e-06" in text(comparison_table(both))


QUESTION = [
    *("clients", "epsilon", "delta", "dropout", "corrupt", "batches", "dimension", "norm", "low", "high", "noise"),
    *("scale", "precision", "least", "floor", "wrap", "survivors", "colluders"),
    *("contributions", "target_delta", "notes"),
]
GUARANTEE = [
    *("kind", "epsilon", "delta", "claimed", "rdp", "neighbours", "model", "calibration", "assumptions", "how"),
]
PROMISE = {
    "guarantee": GUARANTEE,
    "alone": GUARANTEE,
    "profile": ["delta", "pure", "approximate", "rdp", "rdp_how", "notes"],
}


def test_the_object_of_one_mechanism_has_these_keys_in_this_order() -> None:
    result = read(answer("distributed-polya", clients=20, epsilon=1.0))
    assert list(result) == ["mechanism", *QUESTION, "exact", "paper"]
    for side in (result["exact"], result["paper"]):
        assert list(side) == ["parameters", "bits", "via", "error", *PROMISE]
        assert list(side["parameters"]) == ["g", "m", "tau", "scale"]
        assert list(side["error"]) == ["survivors", "of", "std", "rounding_std", "quantiles", "quantiles_how"]
        assert {name: list(side[name]) for name in PROMISE} == PROMISE
    assert list(read(answer("tree", clients=20, epsilon=1.0, delta=1e-3, batches=2))["paper"]) == ["refused"]


def test_the_object_of_all_mechanisms_has_these_keys_in_this_order() -> None:
    result = compared(delta=None)
    assert list(result) == [*QUESTION, "shared_delta", "tail", "mechanisms"]
    row = next(row for row in result["mechanisms"] if "refused" not in row)
    assert list(row) == ["mechanism", "calibration", *PROMISE, "same_promise", "error", "bits", "via", "trust"]
    assert list(row["error"]) == ["std", "quantile", "quantile_how"]
    refused = next(row for row in result["mechanisms"] if "refused" in row)
    assert list(refused) == ["mechanism", "calibration", "refused"]


@pytest.mark.parametrize(
    ("change", "order"),
    [
        ({"epsilon": 1.0 - 5e-3}, "equal"),  # noise found on a grid ends a little below what was asked for
        ({"epsilon": 0.9}, "second"),
        ({"epsilon": 1.1}, "first"),
        ({"delta": 1e-6}, "first"),
        ({"delta": 1e-6, "epsilon": 0.5}, "neither"),
        ({"delta": 1e-6, "epsilon": 2.0}, "first"),
        ({"model": "local", "epsilon": 2.0}, "models"),
        ({"kind": "none", "epsilon": None, "model": "none"}, "first"),
    ],
)
def test_the_stronger_of_two_promises_has_no_larger_epsilon_and_no_larger_delta_in_one_model(
    change: dict[str, Any], order: str
) -> None:
    other = PURE.model_copy(update=change)
    assert stronger(PURE, other) == order
    assert stronger(other, PURE) == {"first": "second", "second": "first"}.get(order, order)
    assert stronger(NO_PROMISE, NO_PROMISE) == "equal"

"""`distrust privacy` by who answered and who colludes, what it says of the question, and its labels."""

import io
from dataclasses import fields
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from distrust.common.errors import BadParameter
from distrust.lab.privacy import calculator, compare, table
from distrust.lab.privacy.query import PrivacyQuery

COHORT: dict[str, Any] = {"clients": 1000, "dropout": 0.1, "corrupt": 0.1}
SMALL: dict[str, Any] = {"clients": 40, "epsilon": 0.5, "delta": 1e-6, "target_delta": None}
TAKEN = ("survivors", "colluders", "contributions", "target_delta")


def epsilon(survivors: int | None = None, colluders: int = 0) -> float:
    asked = calculator.report("distributed-polya", epsilon=1.0, survivors=survivors, colluders=colluders, **COHORT)
    found: float = asked["exact"]["guarantee"]["epsilon"]
    return found


def compared(**words: Any) -> dict[str, Any]:
    return compare.compare(**{**SMALL, "survivors": None, "colluders": 0, "contributions": 1, **words})


def text(shown: Table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def test_colluders_are_taken_off_once() -> None:
    """The floor of 800 leaves out the 100 that may collude; of the 900 that are sure to answer, 100 do."""
    assert epsilon(colluders=100) == epsilon(900, 100) == pytest.approx(1)
    assert epsilon(colluders=200) == epsilon(900, 200) > 1.1


def test_side_by_side_they_are_taken_off_once_too() -> None:
    words = {"colluders": 4, "dropout": 0.1, "corrupt": 0.1, "delta": None}
    for one, other in zip(compared(**words)["mechanisms"], compared(**words, survivors=36)["mechanisms"], strict=True):
        assert one.get("guarantee") == other.get("guarantee")


def test_more_colluders_than_may_answer_are_refused() -> None:
    with pytest.raises(BadParameter, match=r"colluders = 901: must lie in \[0, least = 900\]"):
        epsilon(colluders=901)


@pytest.mark.parametrize(("survivors", "opened"), [(None, True), (900, True), (899, False)])
def test_a_sum_that_is_never_opened_is_said_to_be_one(survivors: int | None, opened: bool) -> None:  # noqa: FBT001
    found = calculator.report("distributed-polya", epsilon=1.0, survivors=survivors, colluders=0, **COHORT)
    assert found["notes"] == ([] if opened else ["never opened: a release needs 900 answers, and 899 came"])
    assert ("never opened" in text(table.table(found))) != opened


def test_side_by_side_it_is_said_once() -> None:
    shown = text(compare.table(compared(survivors=30, delta=None)))
    assert shown.count("never opened: a release needs 40 answers, and 30 came") == 1


def test_both_reports_say_all_that_was_asked() -> None:
    one = calculator.report("distributed-polya", **{**SMALL, "delta": None, "survivors": 39, "colluders": 1})
    asked = {field.name for field in fields(PrivacyQuery)} | set(TAKEN) | {"least", "floor", "wrap", "notes"}
    for said in (one, compared(delta=None)):
        assert asked <= said.keys()
    assert (one["survivors"], one["colluders"], one["contributions"], one["target_delta"]) == (39, 1, 1, None)


def test_bounds_are_labelled_in_both_tables() -> None:
    words: dict[str, Any] = {"clients": 40, "epsilon": 0.5, "delta": 1e-3, "survivors": None, "colluders": 0}
    exact, bound = (calculator.report(name, **words) for name in ("central-gaussian", "shuffled-laplace"))
    assert "│ epsilon                  │ 0.5" in text(table.table(exact))
    assert "│ epsilon                  │ ≤ 0." in text(table.table(bound))
    rows = compared(clients=200, delta=1e-3)["mechanisms"]
    how = {
        row["mechanism"]: row["guarantee"]["how"]
        for row in rows
        if row["calibration"] == "exact" and "guarantee" in row
    }
    assert {name for name, label in how.items() if label == "bound"} == BOUNDS
    lines = text(compare.table(compared(clients=200, delta=1e-3))).splitlines()
    assert all(("ε ≤" in line) == (line.split()[0] in BOUNDS) for line in lines if " exact " in line)


BOUNDS = {"shuffled-gaussian", "shuffled-laplace", "relaxed-secagg-shuffle"}


@pytest.mark.slow
def test_what_is_compared_is_compared_at_one_delta() -> None:
    """Two contributions at 1e-6 each: those that add up by basic composition need 2e-6, the others less."""
    found = compared(contributions=2)
    deltas = {row["guarantee"]["delta"] for row in found["mechanisms"] if "guarantee" in row}
    assert deltas == {0.0, found["shared_delta"]}
    assert found["shared_delta"] == pytest.approx(2e-6)
    assert "2 contributions, compared at δ = 2e-06" in text(compare.table(found))

"""Tests that each test is in exactly one stage of CI, and that `make test` plays those of the first two."""

import re
from itertools import product

import pytest

from tests.support.checkout import ROOT
from tests.support.picked import ALL, picked

MARKS = ("slow", "alone", "ray", "kernels")
STAGES = ("fast", "slow", "kernels", "ray", "alone")


def expressions() -> dict[str, str]:
    """Return the expression of marks of each target of the Makefile that runs tests."""
    text = (ROOT / "Makefile").read_text("utf-8")
    return dict(re.findall(r'^(test[\w-]*):.*\n\t.*pytest .*-m "([^"]+)"', text, re.MULTILINE))


def plays(expression: str, marks: dict[str, bool]) -> bool:
    return bool(eval(expression, {"__builtins__": {}}, marks))  # ours, of four names


def test_every_mark_is_in_one_stage_of_ci_and_make_test_has_the_first_two() -> None:
    targets = expressions()
    assert set(targets) == {"test", *(f"test-{stage}" for stage in STAGES)}
    for values in product((False, True), repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        playing = [stage for stage in STAGES if plays(targets[f"test-{stage}"], marks)]
        assert len(playing) == 1, marks
        assert plays(targets["test"], marks) == (playing[0] in STAGES[:2])


def test_ci_plays_every_stage() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.findall(r"^stage (\w+) \|\|", text, re.MULTILINE) == list(STAGES)


def test_ci_leaves_nothing_out_that_other_runs_pick_from() -> None:
    text = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.search(rf"^export .*\b{ALL}=1\b", text, re.MULTILINE)
    offered = list(range(9))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(ALL, "1")
        assert picked(offered, 2, "numbers") == offered
        environment.delenv(ALL)
        few = picked(offered, 2, "numbers")
        assert len(few) == 2
        assert few == sorted(few) == picked(offered, 2, "numbers")


def test_every_mark_is_declared() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert tuple(re.findall(r'^  "(\w+): ', text, re.MULTILINE)) == (*MARKS, "few")

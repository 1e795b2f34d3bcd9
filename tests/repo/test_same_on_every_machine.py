"""Tests that two processors plan the same mechanisms and play the same runs."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from distrust.common.dp.mechanisms import MECHANISMS
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import differing_columns
from tests.support.printed_plans import CELL
from tests.support.processors import ROOT, SETS, environment

pytestmark = pytest.mark.kernels

FARTHEST = [name for name in SETS if name not in ("the processor", "AVX2")]
"""The sets whose bytes are compared with the processor's own. The one between is left out."""

SUM = """
import math, numpy as np
a = np.random.default_rng(1).normal(size=(300, 300))
print((a @ a).tobytes().hex()[:100000], np.exp(a).tobytes().hex()[:100000], [math.exp(x) for x in a[0]])
"""


@cache
def printed(name: str, *words: str) -> str:
    """Return the standard output of Python with a set of features."""
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment(name), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_taking_features_away_changes_last_bits() -> None:
    """The comparison of rows needs two sets of features whose results differ. On x86 matrix products alone do."""
    if np.__config__.show(mode="dicts")["Machine Information"]["host"]["cpu"] == "x86_64":
        assert printed("the processor", "-c", SUM) != printed("the oldest", "-c", SUM)


def lines(name: str) -> dict[str, str]:
    """Return the lines of `tests.support.printed_plans` by their label."""
    return dict(line.split("\t", 1) for line in printed(name, "-m", "tests.support.printed_plans").splitlines())


def row(text: str) -> Row:
    """Return a cell's row from its JSON."""
    return Row.model_validate_json(text)


@pytest.mark.parametrize("name", FARTHEST)
def test_plans_and_the_demo_are_the_same_bytes_and_cells_the_same_rows_with_other_features(name: str) -> None:
    ours, theirs = lines("the processor"), lines(name)
    assert ours.keys() == theirs.keys()
    assert {label.split()[0] for label in ours} >= {*MECHANISMS, "demo", "figure", CELL.strip()}
    cells = [label for label in ours if label.startswith(CELL)]
    assert [label for label in ours if label not in cells and ours[label] != theirs[label]] == []
    assert differing_columns([row(ours[label]) for label in cells], [row(theirs[label]) for label in cells]) == {}

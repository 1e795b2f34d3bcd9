"""Tests that two processors plan the same mechanisms and play the same runs.

A process takes its matrix kernels from OpenBLAS, its vector loops from numpy and its elementary functions from glibc,
each by what the processor can do. Variables in the environment take abilities away; the processor itself is never
left out, so that at least two sets are compared on every machine.
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy._core import _multiarray_umath as umath
from threadpoolctl import threadpool_info

from distrust.common.mechanisms import MECHANISMS
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import differing_columns
from tests.support.printed_plans import CELL

ROOT = Path(__file__).parents[2]
FOUND = [feature for feature in umath.__cpu_dispatch__ if umath.__cpu_features__.get(feature, False)]
SETS = {
    "the processor": {},
    "the oldest": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": " ".join(FOUND),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-AVX2_Usable,-FMA,-FMA_Usable,-FMA4",
    },
}
OWN = {library.get("architecture") for library in threadpool_info()}  # the kernels that OpenBLAS chose by itself
if any("512" in feature for feature in FOUND) and "SkylakeX" not in OWN:
    SETS["AVX-512"] = {"OPENBLAS_CORETYPE": "SkylakeX"}

SUM = """
import math, numpy as np
a = np.random.default_rng(1).normal(size=(300, 300))
print((a @ a).tobytes().hex()[:100000], np.exp(a).tobytes().hex()[:100000], [math.exp(x) for x in a[0]])
"""


def environment(name: str) -> dict[str, str]:
    """Return a process's variables, without the empty ones: they would name an unknown feature."""
    own = {key: value for key, value in SETS[name].items() if value}
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **own}


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETS if name != "the processor"])
def test_plans_and_the_demo_are_the_same_bytes_and_cells_the_same_rows_with_other_features(name: str) -> None:
    ours, theirs = lines("the processor"), lines(name)
    assert ours.keys() == theirs.keys()
    assert {label.split()[0] for label in ours} >= {*MECHANISMS, "demo", "figure", CELL.strip()}
    cells = [label for label in ours if label.startswith(CELL)]
    assert [label for label in ours if label not in cells and ours[label] != theirs[label]] == []
    assert differing_columns([row(ours[label]) for label in cells], [row(theirs[label]) for label in cells]) == {}

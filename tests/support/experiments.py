"""A small experiment for tests: two panels, two series, a tenth of a second a cell at most."""

from pathlib import Path

from distrust.lab.sweep.cells import play_cell
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row

SMALL = """
title = "small"
source = "a test"
claim = "none"
repetitions = 3
points = 4

[run]
horizon = 2000

[run.environment]
name = "bernoulli"
means = [0.2, 0.5, 0.9]

[run.policy]
first_batch = 4

[run.mechanism]
epsilon = 1.0

[[panels]]
label = "wide"
run.mechanism.epsilon = 4.0

[[panels]]
label = "narrow"

[[series]]
label = "private"
run.mechanism.name = "distributed-polya"

[[series]]
label = "public"
run.mechanism.name = "identity"
without = ["mechanism.epsilon"]

[quick]
repetitions = 1
run.horizon = 500

[draw]
kind = "regret"
"""


def small(folder: Path, *changes: tuple[str, str], name: str = "small") -> str:
    """Write the small experiment with some texts replaced, and return its path. changes: pairs of old and new text."""
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / f"{name}.toml"
    path.write_text(text, "utf-8")
    return str(path)


def played(experiment: Experiment, cell: Cell) -> Row:
    result = play_cell(experiment, cell)
    assert isinstance(result, Row)
    return result

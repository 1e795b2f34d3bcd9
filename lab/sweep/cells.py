"""The cells of an experiment, and what makes each one a run of its own: its name and its seeds."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.run.run_file import RunFile, extensions, of_table
from distrust.lab.sweep.experiment import Experiment


class Cell(NamedTuple):
    """One run: the labels of its panel and series, and its repetition from 0."""

    panel: str
    series: str
    repetition: int


def cells(experiment: Experiment) -> Iterator[Cell]:
    """All of them, in the order of the table: panel, series, repetition."""
    for panel, series in experiment.all_pairs():
        for repetition in range(experiment.repetitions_of(series)):
            yield Cell(panel.label, series.label, repetition)


def table(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """A cell's run file as a table.

    Rewards   Every panel and series of a repetition plays the same world. Series of one panel also get the same
              rewards, cohort by cohort, because their runs have one name; panels get others, so that runs of one
              series are independent once the worlds are given.
    Noise     from a seed of the cell's own: synthetic clients, repeatable, and named unsafe.
    """
    panels = [panel.label for panel in experiment.panels]
    (panel,) = (one for one in experiment.panels if one.label == cell.panel)
    (series,) = (one for one in experiment.series if one.label == cell.series)
    plain = experiment.table(panel, series)
    environment = plain.get("environment")
    if isinstance(environment, dict):
        seed = _seed(experiment.name, "world", cell.repetition)
        plain["environment"] = {**environment, "seed": seed}
    name = f"{experiment.name}.{panels.index(cell.panel)}.{cell.repetition}"
    return {**plain, "run": name, "unsafe": {"noise_seed": _seed(experiment.name, "noise", *cell)}}


def digest(experiment: Experiment, cell: Cell) -> str:
    """Hex, 12 digits: of all that a cell's row depends on, but for the code (`lab.sweep.code`).

    Classes of the user's own count with the source of their modules.
    """
    read = experiment.points if experiment.spacing == "even" else [experiment.points, experiment.spacing]
    words = table(experiment, cell)
    own = [one.model_dump(mode="json") for one in extensions(words)]
    text = json.dumps([read, words, *own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run_file(experiment: Experiment, cell: Cell) -> RunFile:
    """A cell's run file, checked. Raises BadRunFile or BadParameter."""
    return of_table(table(experiment, cell))


def _seed(*labels: str | int) -> int:
    """63 bits from a cell's place."""
    return int.from_bytes(UnsafeSeededStream(0, "sweep", *labels).bytes(8), "little") >> 1

"""The cells of an experiment: run files with a name and seeds of their own, checked before the first one runs."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from distrust.common.errors import ProtocolError
from distrust.common.machine import one_thread
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.run.run_file import RunFile, extensions, parse_table
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell
from distrust.server.learner.learner import Learner


def all_cells(experiment: Experiment) -> Iterator[Cell]:
    """Yield all cells, in the order of the table: panel, series, repetition."""
    for panel, series in experiment.all_pairs():
        for repetition in range(experiment.repetitions_of(series)):
            yield Cell(panel.label, series.label, repetition)


def run_table(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Return a cell's run file as a table.

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


def cell_digest(experiment: Experiment, cell: Cell) -> str:
    """Return the digest of what a cell's row depends on, except the code (`lab.sweep.code`): 12 hex digits.

    Classes of the user's own count with the source of their modules.
    """
    places = experiment.points if experiment.spacing == "even" else [experiment.points, experiment.spacing]
    words = run_table(experiment, cell)
    own = [one.model_dump(mode="json") for one in extensions(words)]
    text = json.dumps([places, words, *own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cell_run_file(experiment: Experiment, cell: Cell) -> RunFile:
    """Return a cell's run file, checked. Raises BadRunFile or BadParameter."""
    return parse_table(run_table(experiment, cell))


def _seed(*labels: str | int) -> int:
    """Return a seed of 63 bits that these labels determine."""
    return int.from_bytes(UnsafeSeededStream(0, "sweep", *labels).bytes(8), "little") >> 1


class Standing(NamedTuple):
    """Progress of a sweep. done: cells with a row, `kept` of them from an earlier start; failed: cells without one."""

    total: int
    kept: int
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed

    @property
    def played(self) -> int:
        """Cells that ended since this start."""
        return self.done + self.failed - self.kept


class BadExperiment(ProtocolError):
    """An experiment that cannot be used: names the experiment, the place in it, the value and what is allowed."""

    code, status = "bad-experiment", 422


def check_run_files(experiment: Experiment) -> None:
    """Parse the run file of every panel and series. Raises BadExperiment for the first fault.

    Repetitions differ in their seeds only, so that the first one's run files are checked for all.
    """
    for panel, series in experiment.all_pairs():
        with _named(experiment, panel.label, series.label):
            cell_run_file(experiment, Cell(panel.label, series.label, 0))


def check_first_rounds(experiment: Experiment, wanted: Iterable[Cell]) -> None:
    """Plan the first round of every panel and series among the cells, calibration included. Raises BadExperiment."""
    for panel, series in dict.fromkeys((cell.panel, cell.series) for cell in wanted):
        with _named(experiment, panel, series):
            Learner(cell_run_file(experiment, Cell(panel, series, 0)).config)


@contextmanager
def _named(experiment: Experiment, panel: str, series: str) -> Iterator[None]:
    try:
        with one_thread():
            yield
    except ProtocolError as error:
        place = f"{experiment.name}, panel {panel!r}, series {series!r}"
        raise BadExperiment(f"{place}: {error.detail}") from error

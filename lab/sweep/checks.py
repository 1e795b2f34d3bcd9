"""What an experiment must satisfy before its first cell runs."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from distrust.common.errors import ProtocolError
from distrust.common.machine import one_thread
from distrust.lab.sweep.cells import Cell, run_file
from distrust.lab.sweep.experiment import Experiment
from distrust.server.learner.learner import Learner


class BadExperiment(ProtocolError):
    """An experiment that cannot be used: names the experiment, the place in it, the value and what is allowed."""

    code, status = "bad-experiment", 422


def check(experiment: Experiment) -> None:
    """Parse the run file of every panel and series. Raises BadExperiment for the first fault.

    Repetitions differ in their seeds only, so that the first one's run files are checked for all.
    """
    for panel, series in experiment.all_pairs():
        with _named(experiment, panel.label, series.label):
            run_file(experiment, Cell(panel.label, series.label, 0))


def check_first_rounds(experiment: Experiment, wanted: Iterable[Cell]) -> None:
    """Plan the first round of every panel and series among the cells, calibration included. Raises BadExperiment."""
    for panel, series in dict.fromkeys((cell.panel, cell.series) for cell in wanted):
        with _named(experiment, panel, series):
            Learner(run_file(experiment, Cell(panel, series, 0)).config)


@contextmanager
def _named(experiment: Experiment, panel: str, series: str) -> Iterator[None]:
    try:
        with one_thread():
            yield
    except ProtocolError as error:
        place = f"{experiment.name}, panel {panel!r}, series {series!r}"
        raise BadExperiment(f"{place}: {error.detail}") from error

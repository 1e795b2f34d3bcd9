"""Play what is missing of an experiment, keep every cell as it ends, and write the table."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from distrust.lab.sweep import code
from distrust.lab.sweep.cells import all_cells, check_first_rounds
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.play import Failure, play_cell
from distrust.lab.sweep.result_store import ResultStore, write_failures
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import check_format, write_rows
from distrust.lab.sweep.workers import check_backend, check_jobs, unordered


class Standing(NamedTuple):
    """Where a sweep is. done: cells with a row, `kept` of them from an earlier start; failed: cells without one."""

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


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Rows in the order of the table, what failed and why, and the file that holds the rows."""

    rows: list[Row]
    failures: dict[Cell, str]
    path: Path


def run_sweep(
    experiment: Experiment,
    out: Path,
    *,
    backend: str = "loky",
    jobs: int | None = None,
    form: str = "parquet",
    watch: Callable[[Standing], None] = lambda _standing: None,
) -> SweepOutcome:
    """Finish an experiment below the folder `out`: cells that this code has played already are not played again.

    backend  "loky", "dask" or "ray": joblib's. jobs: worker processes, all cores when absent.
    form     of the table: "parquet" or "csv". It is written when nothing is missing but what failed.
    watch    is called at the start and after every cell.
    Raises   BadExperiment, BadParameter, Unavailable for a folder that cannot be written, WorkerLost.
    """
    chosen, workers, kind = check_backend(backend), check_jobs(jobs), check_format(form)
    wanted = list(all_cells(experiment))
    with ResultStore(experiment, out) as shelf:
        found = shelf.rows()
        missing = [cell for cell in wanted if cell not in found]
        check_first_rounds(experiment, missing)
        failures: dict[Cell, str] = {}
        standing = Standing(len(wanted), len(wanted) - len(missing), len(wanted) - len(missing))
        watch(standing)
        with closing(unordered(partial(_played, code.code_digest(), experiment), missing, chosen, workers)) as ends:
            for end in ends:
                standing = _note(end, shelf, found, failures, standing)
                watch(standing)
        write_failures(shelf.folder, failures)
        rows = [found[cell] for cell in wanted if cell in found]
        path = shelf.folder / f"rows.{kind}"
        write_rows(rows, path, kind)
    return SweepOutcome(rows, failures, path)


def _played(expected: str, experiment: Experiment, cell: Cell) -> Row | Failure:
    """In a worker: the cell's row, if the worker has the sweep's own code. Those of a cluster may have another."""
    if code.code_digest() != expected:
        return Failure(cell, f"this worker has other code ({code.code_digest()}) than the sweep ({expected})")
    return play_cell(experiment, cell)


def _note(
    end: Row | Failure, shelf: ResultStore, found: dict[Cell, Row], failures: dict[Cell, str], standing: Standing
) -> Standing:
    """Keep a cell's end."""
    if isinstance(end, Failure):
        failures[end.cell] = end.reason
        return standing._replace(failed=standing.failed + 1)
    shelf.keep(end)
    found[end.cell] = end
    return standing._replace(done=standing.done + 1)

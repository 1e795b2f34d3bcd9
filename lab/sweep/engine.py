"""The engine of sweeps: plays the missing cells of an experiment, stores each as it ends, and writes the table."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from distrust.lab.sweep import code
from distrust.lab.sweep.cells import Standing, all_cells, check_first_rounds
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.play import Failure, play_cell
from distrust.lab.sweep.result_store import ResultStore, write_failures
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import check_format, write_rows
from distrust.lab.sweep.workers import check_backend, check_jobs, unordered


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """Rows in the order of the table, failed cells with their reasons, and the file that holds the rows."""

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
    """Finish an experiment below the folder `out`. Cells that this code has played already are not played again.

    backend  "loky", "dask" or "ray": joblib's. jobs: worker processes, all cores when absent.
    form     of the table: "parquet" or "csv". It is written once every cell has ended.
    watch    is called at the start and after every cell.
    Raises   BadExperiment, BadParameter, Unavailable for a folder that cannot be written, WorkerLost.
    """
    chosen, workers, kind = check_backend(backend), check_jobs(jobs), check_format(form)
    wanted = list(all_cells(experiment))
    with ResultStore(experiment, out) as store:
        rows = store.rows()
        missing = [cell for cell in wanted if cell not in rows]
        check_first_rounds(experiment, missing)
        failures: dict[Cell, str] = {}
        standing = Standing(len(wanted), len(wanted) - len(missing), len(wanted) - len(missing))
        watch(standing)
        with closing(unordered(partial(_played, code.code_digest(), experiment), missing, chosen, workers)) as ends:
            for end in ends:
                standing = _note(end, store, rows, failures, standing)
                watch(standing)
        write_failures(store.folder, failures)
        finished = [rows[cell] for cell in wanted if cell in rows]
        path = store.folder / f"rows.{kind}"
        write_rows(finished, path, kind)
    return SweepOutcome(finished, failures, path)


def _played(expected: str, experiment: Experiment, cell: Cell) -> Row | Failure:
    """Play a cell in a worker; fail if the worker has other code than the sweep, as one of a cluster may."""
    if code.code_digest() != expected:
        return Failure(cell, f"this worker has other code ({code.code_digest()}) than the sweep ({expected})")
    return play_cell(experiment, cell)


def _note(
    end: Row | Failure, store: ResultStore, rows: dict[Cell, Row], failures: dict[Cell, str], standing: Standing
) -> Standing:
    """Store a cell's row or failure. Return the progress after it."""
    if isinstance(end, Failure):
        failures[end.cell] = end.reason
        return standing._replace(failed=standing.failed + 1)
    store.keep(end)
    rows[end.cell] = end
    return standing._replace(done=standing.done + 1)

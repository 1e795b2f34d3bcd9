"""Plays the missing cells of an experiment, stores each as it ends, and writes the table.

Cells are played in groups where they go in lock step. Rows arrive in the order in which cells end.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from distrust.common.errors import BadParameter
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.lab.play.lock_step import in_lock_step
from distrust.lab.sweep import code
from distrust.lab.sweep.backends import check_backend, check_jobs, unordered
from distrust.lab.sweep.cells import (
    Failure,
    Standing,
    all_cells,
    cell_run_file,
    check_first_rounds,
    load_experiment,
    play_cell,
    play_group,
)
from distrust.lab.sweep.display import (
    CONFIDENCE_HEAD,
    REGRET_HEAD,
    SHARES_CAPTION,
    RegretSummary,
    confidence,
    regret_summaries,
)
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.result_store import ResultStore, write_failures
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import check_format, write_rows

SEEDED_NOTE = "Noise of a sweep is drawn from seeds, for synthetic clients: these runs are repeatable, and not private."
SHOWN_FAILURES = 8
"""Failed cells that a notebook names."""

MOST_TOGETHER = 64
"""Cells of a group at most. More make a round no cheaper for one of them, and need more memory."""


@dataclass(frozen=True, slots=True, repr=False)
class SweepOutcome(Shown):
    """Rows in the order of the table, failed cells with their reasons, and the file that holds the rows.

    frame(table)  one of three tables:
    rows          a line a run; `curve` is a list of regrets at the checkpoints.
    summary       a line a panel and series: final regret, bits and seconds, over the runs.
    confidence    a line a series: runs in which the best arm was dropped or a width failed, of how many. `dropped` is
                  None for contextual runs, whose clients have best arms of their own.
    """

    TABLES = ("rows", "summary", "confidence")

    experiment: Experiment
    rows: list[Row]
    failures: dict[Cell, str]
    path: Path

    @override
    def _table(self, name: str) -> NamedRows:
        if name == "rows":
            return list(Row.model_fields), (row.model_dump() for row in self.rows)
        if name == "summary":
            return [one.name for one in fields(RegretSummary)], self.lines("summary")
        return ("series", "runs", "dropped", "failed", "stated", "holds", "widths", "missed"), self.lines("confidence")

    def lines(self, table: Literal["summary", "confidence"]) -> list[dict[str, Any]]:
        """Return the lines of one of the two short tables of `frame`."""
        if table == "summary":
            return [asdict(summary) for summary in regret_summaries(self.rows)]
        return [
            {
                "series": one.series,
                "runs": one.failed.runs,
                "dropped": None if one.dropped is None else one.dropped.hits,
                "failed": one.failed.hits,
                "stated": one.stated,
                "holds": one.holds,
                "widths": one.widths,
                "missed": one.missed,
            }
            for one in confidence(self.rows)
        ]

    @override
    def _line(self) -> str:
        return f"of {self.experiment.name}: {len(self.rows)} rows, {len(self.failures)} cells failed"

    @override
    def _cards(self) -> list[Card]:
        """Return the tables of `distrust sweep`, without the seconds."""
        regret = HtmlTable(REGRET_HEAD, [summary.cells() for summary in regret_summaries(self.rows)], REGRET_HEAD[:2])
        shares = [one.cells() for one in confidence(self.rows)]
        failed = [
            f"failed: {cell.panel}, {cell.series}, {cell.repetition}: {why}" for cell, why in self.failures.items()
        ]
        facts = {"source": self.experiment.source, "note": self.experiment.note}
        held = HtmlTable(CONFIDENCE_HEAD, shares, CONFIDENCE_HEAD, caption=SHARES_CAPTION)
        notes = [SEEDED_NOTE, *failed[:SHOWN_FAILURES]]
        told = [(name, fact) for name, fact in facts.items() if fact]
        return [Card(self.experiment.title, told, [regret, held], notes)]


def sweep(
    experiment: str | Path | Mapping[str, Any] | Experiment,
    *,
    quick: bool = False,
    repetitions: int | None = None,
    out: str | Path = "sweeps",
    backend: str = "loky",
    jobs: int | None = None,
    watch: Callable[[Standing], None] = lambda _standing: None,
) -> SweepOutcome:
    """Play the missing cells of an experiment on all cores, as `distrust sweep` does, and return its outcome.

    experiment   a name of lab/experiments, the path of a .toml file, a dictionary of its keys with a `name`, or an
                 Experiment, which has its own repetitions.
    quick        the experiment's reduced version.
    repetitions  another number than the file's.
    out          folder that keeps finished cells, so that the same call goes on after a kill.
    jobs         worker processes, all cores when absent; 1 plays in this process.
    backend      loky, dask or ray.
    Raises       BadExperiment, BadParameter, Unavailable for a folder that cannot be written, WorkerLost.

    >>> import distrust, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = distrust.sweep("smoke", quick=True, repetitions=1, out=folder, jobs=1)
    >>> len(outcome.rows), [row.best_dropped for row in outcome.rows]
    (4, [False, False, False, False])
    """
    if isinstance(experiment, Experiment):
        if quick or repetitions is not None:
            raise BadParameter("experiment", experiment.name, "is loaded already: give quick and repetitions before")
        loaded = experiment
    else:
        loaded = load_experiment(experiment, quick=quick, repetitions=repetitions)
    return run_sweep(loaded, Path(out), backend=backend, jobs=jobs, watch=watch)


def run_sweep(
    experiment: Experiment,
    out: Path,
    *,
    backend: str = "loky",
    jobs: int | None = None,
    form: str = "parquet",
    watch: Callable[[Standing], None] = lambda _standing: None,
) -> SweepOutcome:
    """Finish an experiment below the folder `out` and return its outcome. Cells that this code has played are kept.

    backend  "loky", "dask" or "ray": joblib's.
    jobs     worker processes, all cores when absent.
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
        groups = grouped(experiment, missing, workers)
        work = partial(_played, code.code_digest(), code.files_digest(), experiment)
        with closing(unordered(work, groups, chosen, workers)) as ends:
            for end in chain.from_iterable(ends):
                standing = _note(end, store, rows, failures, standing)
                watch(standing)
        write_failures(store.folder, failures)
        finished = [rows[cell] for cell in wanted if cell in rows]
        path = store.folder / f"rows.{kind}"
        write_rows(finished, path, kind)
    return SweepOutcome(experiment, finished, failures, path)


def grouped(experiment: Experiment, cells: Sequence[Cell], workers: int) -> list[tuple[Cell, ...]]:
    """Return the cells in groups that one worker plays at once, in their order.

    Cells that can be played in lock step are together with those of their panel and series, in as many groups as there
    are workers at least. Each other one is alone.
    """
    pairs: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        pairs.setdefault((cell.panel, cell.series), []).append(cell)
    groups: list[tuple[Cell, ...]] = []
    for own in pairs.values():
        together = in_lock_step(cell_run_file(experiment, own[0]))
        pieces = max(-(-len(own) // MOST_TOGETHER), -(-workers // len(pairs))) if together else len(own)
        size = -(-len(own) // pieces)
        groups += [tuple(own[start : start + size]) for start in range(0, len(own), size)]
    return groups


def _played(expected: str, files: str, experiment: Experiment, cells: tuple[Cell, ...]) -> list[Row | Failure]:
    """Return the outcomes of cells, played in a worker. Fail if the worker has other code than the sweep.

    expected, files  the sweep's digests of its code and of its files, which are compared first as that takes 20 ms.
    """
    if code.files_digest() != files and code.code_digest() != expected:
        why = f"this worker has other code ({code.code_digest()}) than the sweep ({expected})"
        return [Failure(cell, why) for cell in cells]
    return [play_cell(experiment, cells[0])] if len(cells) == 1 else play_group(experiment, cells)


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

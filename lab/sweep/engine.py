"""Plays the missing cells of an experiment, stores each as it ends, and writes the table.

Cells are played on all cores, or on a cluster, with joblib, in groups where they go in lock step. Rows arrive in the
order in which cells end.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool
from typing_extensions import override

from distrust.common.errors import BadParameter, ProtocolError, Unavailable, describe_error
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.lab.run.lock_step import in_lock_step
from distrust.lab.stack.parent_death import tie
from distrust.lab.sweep import code
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

Backend = Literal["loky", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
NEEDS = {"dask": "distributed", "ray": "ray"}

SEEDED_NOTE = "Noise of a sweep is drawn from seeds, for synthetic clients: these runs are repeatable, and not private."
SHOWN_FAILURES = 8
"""Failed cells that a notebook names."""

Task = TypeVar("Task")
Value = TypeVar("Value")

LEAST_CHUNK = 4
"""Cells a worker and chunk, where a backend hands over results in chunks only."""

MOST_TOGETHER = 64
"""Cells of a group at most. More make a round no cheaper for one of them, and need more memory."""

EXPECTED = ("A worker stopped while some jobs were given", ".*tasks which were still being processed")
"""Warnings of joblib that are ignored: a worker that had grown was replaced; a sweep was stopped."""


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
            return [asdict(one) for one in regret_summaries(self.rows)]
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
        regret = HtmlTable(REGRET_HEAD, [one.cells() for one in regret_summaries(self.rows)], REGRET_HEAD[:2])
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


class WorkerLost(ProtocolError):
    """A worker process died, which no cell can catch: most often it needed more memory than there is."""

    code, status = "worker-lost", 503


def check_backend(backend: str) -> Backend:
    """Return the backend of that name. Raises BadParameter if it is unknown, or its package is not installed."""
    for known in BACKENDS:
        if backend == known:
            needed = NEEDS.get(known)
            if needed is not None and find_spec(needed) is None:
                allowed = f"needs the package {needed}: pip install 'distrust[{known}]'"
                raise BadParameter("backend", backend, allowed)
            return known
    raise BadParameter("backend", backend, f"must be one of {', '.join(BACKENDS)}")


def check_jobs(jobs: int | None) -> int:
    """Return the number of worker processes; the number of cores for None. Raises BadParameter."""
    if jobs is not None and jobs < 1:
        raise BadParameter("jobs", jobs, "must be at least 1")
    return int(cpu_count()) if jobs is None else jobs


def unordered(work: Callable[[Task], Value], tasks: Sequence[Task], backend: Backend, jobs: int) -> Generator[Value]:
    """Yield `work` of every task, in the order in which they end. Closing the iterator stops the workers.

    Memory  Tasks are handed out as workers get free, so that only a few are in memory at once.
    Raises  WorkerLost.
    """
    if not tasks:
        return
    with ExitStack() as stack, warnings.catch_warnings():
        for known in EXPECTED:
            warnings.filterwarnings("ignore", message=known)
        stack.enter_context(_config(backend, jobs))
        try:
            for chunk in _chunks(tasks, backend, jobs):
                yield from _results(work, chunk, backend)
        except BrokenProcessPool as error:
            reason = "a worker process died, perhaps for want of memory; finished cells are kept: try fewer --jobs"
            raise WorkerLost(reason) from error


def _results(work: Callable[[Task], Value], tasks: Sequence[Task], backend: Backend) -> Iterator[Value]:
    return_as = "list" if backend == "ray" else "generator_unordered"
    results = Parallel(return_as=return_as)(delayed(work)(task) for task in tasks)
    try:
        yield from results
    finally:
        if return_as != "list":
            results.close()


def _chunks(tasks: Sequence[Task], backend: Backend, jobs: int) -> Iterator[Sequence[Task]]:
    """Return all tasks as one chunk; for Ray, whose joblib backend returns whole lists only, in chunks."""
    size = LEAST_CHUNK * jobs if backend == "ray" else max(len(tasks), 1)
    return (tasks[start : start + size] for start in range(0, len(tasks), size))


def _config(backend: Backend, jobs: int) -> AbstractContextManager[Any]:
    """Return joblib's configuration. Dask's scheduler is the one in DASK_SCHEDULER_ADDRESS, or one on this machine."""
    if backend == "dask":
        return _dask(jobs)
    if backend == "ray":
        return _ray(jobs)
    if jobs == 1:
        return _joblib("sequential")
    return _joblib("loky", n_jobs=jobs, initializer=_start_worker, initargs=(os.getpid(),), inner_max_num_threads=1)


@contextmanager
def _joblib(backend: str, **settings: Any) -> Iterator[None]:
    with parallel_config(backend, **settings):
        yield


@contextmanager
def _ray(jobs: int) -> Iterator[None]:
    """Use the cluster of RAY_ADDRESS, or one on this machine. Raises Unavailable if Ray does not start."""
    import ray  # noqa: PLC0415 - an extra
    from ray.util.joblib import register_ray  # noqa: PLC0415

    here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, **here)
        register_ray()
    except Exception as error:  # Ray's own errors have no common class
        why = describe_error(error)
        raise Unavailable(f"Ray could not be started: {why}; --backend loky needs nothing else") from error
    with _joblib("ray", n_jobs=jobs):
        yield


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    import dask  # noqa: PLC0415 - an extra
    from distributed import Client  # noqa: PLC0415

    address = dask.config.get("scheduler-address", None)
    here = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None, "set_as_default": False}
    quiet = {"silence_logs": logging.ERROR}  # Dask would warn of workers that a stop kills in the middle of a cell
    client: Any = Client  # untyped
    with client(address) if address else client(**here, **quiet) as cluster, _joblib("dask", client=cluster):
        if not address:
            cluster.run(_ignore_interrupts)
        yield


def _start_worker(parent: int) -> None:
    """Start a worker of loky: it ends when the sweep does."""
    _ignore_interrupts()
    tie(parent)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to all processes, and the sweep alone must stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

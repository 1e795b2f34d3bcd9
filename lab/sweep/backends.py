"""Plays tasks with joblib: on this machine's cores by loky, or on a cluster of Dask's or Ray's.

Each backend yields results as tasks end, and its processes end with the sweep.
"""

import logging
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar, get_args

from joblib import Parallel, cpu_count, delayed, parallel_config
from joblib.externals.loky.process_executor import BrokenProcessPool

from distrust.common.errors import BadParameter, ProtocolError, Unavailable, describe_error
from distrust.common.extras import dask, distributed, ray, ray_joblib
from distrust.lab.stack.parent_death import tie

Backend = Literal["loky", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
NEEDS = {"dask": "distributed", "ray": "ray"}

Task = TypeVar("Task")
Value = TypeVar("Value")

LEAST_CHUNK = 4
"""Cells a worker and chunk, where a backend hands over results in chunks only."""

EXPECTED = ("A worker stopped while some jobs were given", ".*tasks which were still being processed")
"""Warnings of joblib that are ignored: a worker that had grown was replaced; a sweep was stopped."""

_LOST = "a worker process died, perhaps for want of memory; finished cells are kept: try fewer --jobs"

_PRIVATE = 0o077  # umask: only the owner may read what Ray writes


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
            raise WorkerLost(_LOST) from error


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
    """Use the caller's cluster, that of RAY_ADDRESS, or one on this machine. Raises Unavailable if Ray does not start.

    Ray's token, by which other processes may have this cluster run code, is written for this user only.
    """
    here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}
    with ExitStack() as stack:
        if not ray.is_initialized():
            stack.enter_context(_without_address_checks())
            stack.callback(ray.shutdown)
        others = os.umask(_PRIVATE)
        try:
            ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR, **here)
            ray_joblib.register_ray()
        except Exception as error:  # Ray's own errors have no common class
            why = describe_error(error)
            raise Unavailable(f"Ray could not be started: {why}; --backend loky needs nothing else") from error
        finally:
            os.umask(others)
        with _joblib("ray", n_jobs=jobs):
            try:
                yield
            except ray.exceptions.RayActorError as error:
                raise WorkerLost(_LOST) from error


@contextmanager
def _without_address_checks() -> Iterator[None]:
    """Keep jsonschema's checks of web addresses out of the Python processes that are started meanwhile.

    Ray's processes import jsonschema. That imports rfc3987_syntax where it is installed, for 3.7 s, and does without it
    where it is not. Ray's agent has 15 s to start, and with it is late on a busy machine.
    """
    before = os.environ.get("PYTHONPATH")
    with TemporaryDirectory(prefix="distrust-ray-") as folder:
        Path(folder, "rfc3987_syntax.py").write_text("raise ImportError('left out, as it takes long')\n", "utf-8")
        os.environ["PYTHONPATH"] = folder if before is None else f"{folder}{os.pathsep}{before}"
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


@contextmanager
def _dask(jobs: int) -> Iterator[None]:
    address = dask.config.get("scheduler-address", None)
    # The scheduler serves pages in any case; told no address, on port 8787, and it warns where that is taken.
    pages = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    here = {"n_workers": jobs, "threads_per_worker": 1, "scheduler_kwargs": pages, "set_as_default": False}
    quiet = {"silence_logs": logging.CRITICAL}  # Dask would tell of workers that a stop kills in the middle of a cell
    client = distributed.Client
    with client(address) if address else client(**here, **quiet) as cluster, _joblib("dask", client=cluster):
        if not address:
            cluster.run(_start_dask_worker)
        yield


def _start_worker(parent: int) -> None:
    """Start a worker of loky: it ends when the sweep does."""
    _ignore_interrupts()
    tie(parent)


def _start_dask_worker() -> None:
    """Start a worker of Dask on this machine: it logs no traceback where a stop closes its connections."""
    _ignore_interrupts()
    logging.disable(logging.ERROR)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in a worker: a terminal sends it to all processes, and the sweep alone must stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

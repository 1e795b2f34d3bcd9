"""Settings of the process for all tests: threads, Hypothesis, signals, garbage collection."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from itertools import chain, groupby, islice

import pytest
from hypothesis import settings

from tests.support.picked import picked

# Before NumPy is imported: matrices are small here, and the threads of every process of the suite would spin for each
# other's cores. Programs that play a run take one thread by themselves (`one_thread`).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Hypothesis examples have no deadline: benchmarks measure time, tests do not. Each run draws others.
settings.register_profile("distrust", deadline=None, max_examples=50)
settings.load_profile("distrust")

# A shell starts background jobs with SIGINT ignored, and children inherit that. Tests that press ctrl-c would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def small_cohorts() -> Iterator[None]:
    """Let the fleets that a module's runs start accept small cohorts: they find their limits in these variables."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("DISTRUST_MIN_SURVIVORS", "1")
        variables.setenv("DISTRUST_MAX_DELTA", "0.01")
        yield


@pytest.hookimpl(trylast=True)  # after -k and -m: what they leave is picked from
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what this run leaves out of the parameter sets of a test that is marked `few`."""
    offered: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few"):
            offered.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out: set[pytest.Item] = set()
    for name, group in offered.items():
        marker = group[0].get_closest_marker("few")
        assert marker is not None
        out.update(set(group).difference(picked(group, min(marker.args[0], len(group)), name)))
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = _slow_ones_first(items, workers)


def _slow_ones_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the items in an order whose equal shares, one for each worker, begin with modules that have slow tests.

    With `--dist worksteal` each worker gets such a share, and one that is done takes tests from the end of another one.
    So short tests are left, and no worker is idle while another one has many tests that wait.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    modules = [(path, list(group)) for path, group in groupby(items, lambda item: item.path)]
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for number, group in enumerate(group for path, group in modules if path in slow):
        first[number % workers].extend(group)
    others = chain.from_iterable(group for path, group in modules if path not in slow)
    share, more = divmod(len(items), workers)
    shares = [[*own, *islice(others, max(0, share + (k < more) - len(own)))] for k, own in enumerate(first)]
    return [*chain.from_iterable(shares), *others]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the objects that collection creates from every later garbage collection.

    These are libraries, modules and thousands of tests, which last to the end. Otherwise the collector would walk them
    again and again, for a tenth of the suite's CPU.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()

"""What all tests share."""

import gc
import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# Before NumPy is imported: matrices are small here, and the threads of every process of the suite would spin for each
# other's cores. Programs that play a run take one thread by themselves (`common.privacy.searches.one_thread`).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No example promises how long it takes: benchmarks measure time, tests do not.
settings.register_profile("distrust", deadline=None)
settings.load_profile("distrust")

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests that press ctrl-c would wait.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what is made while tests are collected, and lasts to the end, out of every later garbage collection.

    Libraries, modules and thousands of tests are walked again and again otherwise, for a tenth of the suite's CPU.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()

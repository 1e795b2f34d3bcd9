"""How many threads linear algebra may take."""

from contextlib import AbstractContextManager
from typing import Any

from threadpoolctl import threadpool_limits


def one_thread() -> AbstractContextManager[Any]:
    """One, for as long as the block lasts: matrices are small here, and more threads only wait for each other.

    Whoever plays a run takes one, in process or over services, so that the same numbers do not hang on the cores.
    """
    limits: AbstractContextManager[Any] = threadpool_limits(1)  # untyped
    return limits

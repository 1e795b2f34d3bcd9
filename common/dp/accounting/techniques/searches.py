"""Searches through monotone functions, whose results are the same on every machine.

They find the least noise for a target, and the coarsest grid that needs enough of it. Results are snapped to a grid
(`snap_up`), and linear algebra has one thread (`one_thread`): last bits differ between processors and numbers of cores.
"""

import importlib
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from typing import Any

import scipy
from threadpoolctl import ThreadpoolController

from distrust.common.errors import BadParameter

SLACK = 1e-11
"""Relative accuracy of a search for a calibrated number, far below SNAP_MARGIN."""

SNAPPED_BITS = 22
"""Significant bits of a snapped number: neighbours are between 2.4e-7 and 4.8e-7 of it apart."""

SNAP_MARGIN = 2.0**-30
"""Relative error of a search that snapping covers, 9.3e-10; about 1e5 times that of the linear algebra."""

HALF = 1 << (SNAPPED_BITS - 1)
"""Numbers of `SNAPPED_BITS` bits in [1, 2)."""

GOLDEN_SECTION = (math.sqrt(5) - 1) / 2
LEAST_WIDTH = 1e-12  # of the interval in which a search for a least value ends

FIRST_REACH = HALF >> 7
"""Places, half a percent, from a guess to the next number that is tried."""


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which linear algebra uses one thread.

    Every program that plays a run takes one, in process or over services, so that its numbers do not depend on the
    number of cores. Matrices are small here: more threads would only wait for each other.
    """
    # SciPy's modules are imported when they are first used, and a limit holds for libraries that are there already.
    importlib.import_module("scipy.linalg")
    limits: AbstractContextManager[Any] = _libraries(len(sys.modules)).limit(limits=1)  # untyped
    return limits


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> Any:
    """Return the libraries of linear algebra in this process. Looking for them takes a millisecond.

    _modules  how many modules are imported: a library is loaded by the import of one, and looked for again then.
    """
    return ThreadpoolController()


def snap_up(value: float) -> float:
    """Return the least number of `SNAPPED_BITS` bits that is at least `value` · (1 + SNAP_MARGIN).

    For calibrated parameters where more is safer, such as a variance. The last bits of FFTs and matrix products differ
    between processors, and a search passes the difference on. Two results within SNAP_MARGIN of each other give the
    same snapped number, unless a boundary of the grid lies between them: about once in 500,000 searches where they
    differ by 1e-12. The boundaries lie SNAP_MARGIN below the numbers with few bits, so that a search whose true result
    is such a number (ε₀ = 1) is as stable as others. Snapping twice therefore moves a number twice.

    value  finite, above 0. The result is at most 4.8e-7 larger, relatively. Raises BadParameter.
    """
    return _snapped(value, 1 + SNAP_MARGIN, math.ceil)


def snap_down(value: float) -> float:
    """Return the largest number of `SNAPPED_BITS` bits that is at most `value` · (1 - SNAP_MARGIN); see `snap_up`.

    For calibrated parameters where less is safer, such as the ε₀ of one message.
    """
    return _snapped(value, 1 - SNAP_MARGIN, math.floor)


def least_on_grid(excess: Callable[[float], float], guess: float) -> float:
    """Return the least number of `SNAPPED_BITS` bits with excess ≤ 0; excess falls, and is evaluated on the grid only.

    For functions that take an FFT: about ten evaluations from a guess that is some percent off. The last bits of
    `excess` choose the next point before it is rounded to the grid, so that all processors try the same numbers.
    Where excess is not monotone the result still meets it, and its lower neighbour does not.
    """
    return _number(_crossing(lambda place: excess(_number(place)), _place(snap_up(guess)), FIRST_REACH))


def greatest_on_grid(excess: Callable[[float], float], guess: float) -> float:
    """Return the largest number of `SNAPPED_BITS` bits with excess ≤ 0; excess rises. See `least_on_grid`."""
    return _number(_crossing(lambda place: -excess(_number(place)), _place(snap_up(guess)), FIRST_REACH) - 1)


def least_integer(excess: Callable[[int], float], guess: int) -> int:
    """Return the least n ≥ 1 with excess ≤ 0; excess falls. See `least_on_grid`."""
    first = max(1, guess)
    return _crossing(lambda n: excess(n) if n > 0 else 1.0, first, max(1, first >> 7))


def _crossing(falling: Callable[[int], float], first: int, reach: int) -> int:
    """Return the least place, next to a place where `falling` is above 0, where it is not.

    `reach` is the first step.
    """
    at = cache(falling)
    low = high = first
    while at(high) > 0:
        low, high, reach = high, high + reach, 2 * reach
    while at(low) <= 0:
        low, high, reach = low - reach, low, 2 * reach
    if high - low > 1:
        high = round(scipy.optimize.brentq(lambda real: at(round(real)), low, high, xtol=0.25, rtol=1e-15))
    while at(high) > 0:
        high += 1
    while at(high - 1) <= 0:
        high -= 1
    return high


def _place(snapped: float) -> int:
    """Return the numbers of `SNAPPED_BITS` bits in a row: neighbours have neighbouring places."""
    mantissa, exponent = math.frexp(snapped)
    return exponent * HALF + int(math.ldexp(mantissa, SNAPPED_BITS)) - HALF


def _number(place: int) -> float:
    exponent, mantissa = divmod(place, HALF)
    return math.ldexp(mantissa + HALF, exponent - SNAPPED_BITS)


def _snapped(value: float, margin: float, towards: Callable[[float], int]) -> float:
    """Return the number rounded to the grid. Its mantissa is scaled to an integer: exact on every processor."""
    if not (0 < value < math.inf):
        raise BadParameter("a calibrated parameter", value, "must be finite and above 0")
    mantissa, exponent = math.frexp(value * margin)
    return math.ldexp(towards(math.ldexp(mantissa, SNAPPED_BITS)), exponent - SNAPPED_BITS)


def least_root(excess: Callable[[float], float], guess: float, slack: float = SLACK) -> float:
    """Return the least positive number with excess ≤ 0, to a relative accuracy and rounded up; excess falls."""

    def at(log_value: float) -> float:
        return excess(math.exp(log_value))

    low, high = math.log(guess) - 0.02, math.log(guess) + 0.02
    while at(low) <= 0:
        low -= 0.2
    while at(high) > 0:
        high += 0.2
    root = float(scipy.optimize.brentq(at, low, high, xtol=slack / 4))
    while at(root) > 0:
        root += slack / 4
    return math.exp(root)


def least_value(value: Callable[[float], float], low: float, high: float) -> float:
    """Return the least value in [low, high] of a function that falls and then rises, by golden section.

    The least point is found to 1e-12. So a kink there costs 1e-12 of the slope, which the tolerance of SciPy's
    minimizers, above 1e-8, does not promise. It takes about 60 evaluations.
    """
    inner = [high - GOLDEN_SECTION * (high - low), low + GOLDEN_SECTION * (high - low)]
    values = [value(x) for x in inner]
    best = min(values)
    while high - low > LEAST_WIDTH:
        left = values[0] <= values[1]
        low, high = (low, inner[1]) if left else (inner[0], high)
        new = high - GOLDEN_SECTION * (high - low) if left else low + GOLDEN_SECTION * (high - low)
        inner, values = (
            ([new, inner[0]], [value(new), values[0]]) if left else ([inner[1], new], [values[1], value(new)])
        )
        best = min(best, *values)
    return best


def coarsest(noise: Callable[[int], float], wanted: float, about: float) -> int:
    """Return the least g with noise(g) ≥ wanted, for a variance that grows about as g².

    about  noise(1), roughly: on a coarse grid with little noise the law itself is slow to compute.
    """
    g = max(1, math.ceil(math.sqrt(wanted / about)))
    g = max(1, math.ceil(g * math.sqrt(wanted / noise(g))))
    while noise(g) < wanted:
        g += 1
    while g > 1 and noise(g - 1) >= wanted:
        g -= 1
    return g


def least_satisfying(met: Callable[[int], bool], guess: int) -> int:
    """Return the least n ≥ 1 that satisfies a monotone condition, from a guess."""
    low, high = 0, max(1, guess)
    while not met(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def least_met(met: Callable[[float], bool], low: float, high: float, digits: float) -> float:
    """Return the least x in [low, high] with `met`, to a relative error of `digits` and rounded up.

    `high` must meet it.

    Where `met` is not monotone the answer still meets it.
    """
    if met(low):
        return low
    while high - low > digits * high:
        middle = (low + high) / 2
        low, high = (low, middle) if met(middle) else (middle, high)
    return high


def greatest_met(met: Callable[[float], bool], low: float, high: float, digits: float) -> float:
    """Return the greatest x in [low, high] with `met`, rounded down; `low` must meet it."""
    if met(high):
        return high
    while high - low > digits * high:
        middle = (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return low

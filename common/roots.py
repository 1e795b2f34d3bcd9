"""Finds a root, or the minimum in an interval, of a function of one number.

Results are those of `scipy.optimize` bit by bit: the steps are in the same order of operations. Importing that package
takes a third of a second, which each command, fleet and service would spend before its first answer.

Source  Brent 1973, chapter 4 (roots) and chapter 5 (minima).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

ULPS = 4 * 2.0**-52  # relative: the accuracy of a root where none is asked for
MOST_STEPS = 100  # of a search for a root: bisection alone would end a search between doubles of one size
MOST_POINTS = 500  # at which a function is evaluated for its minimum
GOLDEN = (3 - math.sqrt(5)) / 2
FLAT = math.sqrt(2.2e-16)  # relative: nearer to its minimum a smooth function is constant in double precision


class _Point(NamedTuple):
    """A number and the function's value there."""

    x: float
    y: float


def root(excess: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float = ULPS) -> float:
    """Return a root of a continuous function between `low` and `high`, where its signs differ.

    xtol, rtol  its accuracy is `xtol` + `rtol` · |root|. The result may lie on either side of the root.
    Raises      ValueError for equal signs at both ends, and for a value that is no number. RuntimeError after
                MOST_STEPS evaluations.
    """
    before, best = _numbered(excess, low), _numbered(excess, high)
    if 0 in {before.y, best.y}:
        return before.x if before.y == 0 else best.x
    if (before.y < 0) == (best.y < 0):
        raise ValueError(f"the function has one sign at {low!r} and at {high!r}")
    across, last, step = before, 0.0, 0.0  # `across` has the other sign; `last` and `step`: the last two steps
    for _ in range(MOST_STEPS):
        if best.y != 0 and (before.y < 0) != (best.y < 0):
            across = before
            last = step = best.x - before.x
        if abs(across.y) < abs(best.y):
            before, best, across = best, across, best
        near, half = (xtol + rtol * abs(best.x)) / 2, (across.x - best.x) / 2
        if best.y == 0 or abs(half) < near:
            return best.x
        tried = _interpolated(before, best, across) if abs(last) > near and abs(best.y) < abs(before.y) else math.inf
        if 2 * abs(tried) < min(abs(last), 3 * abs(half) - near):
            last, step = step, tried
        else:
            last = step = half
        least = near if half > 0 else -near
        following = best.x + (step if abs(step) > near else least)
        before, best = best, _numbered(excess, following)
    raise RuntimeError(f"no root is found between {low!r} and {high!r} in {MOST_STEPS} steps")


def _point(function: Callable[[float], float], x: float) -> _Point:
    return _Point(float(x), float(function(x)))  # NumPy's numbers would make the root one of them


def _numbered(excess: Callable[[float], float], x: float) -> _Point:
    point = _point(excess, x)
    if math.isnan(point.y):
        raise ValueError(f"the function is no number at {point.x!r}")
    return point


def _interpolated(before: _Point, best: _Point, across: _Point) -> float:
    """Return the step from the best point to a root by the secant; by inverse quadratics through three points."""
    if before.x == across.x:
        return -best.y * (best.x - before.x) / (best.y - before.y)
    one = (before.y - best.y) / (before.x - best.x)
    other = (across.y - best.y) / (across.x - best.x)
    steep = other * one * (across.y - before.y)
    return -best.y * (across.y * other - before.y * one) / steep if steep else math.inf  # it may underflow


def minimum(function: Callable[[float], float], low: float, high: float, *, xtol: float) -> tuple[float, float]:
    """Return where a function is least between `low` and `high`, and its value there: of a valley the only minimum.

    xtol  accuracy of the place. The value is one that the function has, so that it is never below the minimum.
    """
    best = second = third = _point(function, low + GOLDEN * (high - low))
    last = step = 0.0
    for _ in range(MOST_POINTS - 1):
        middle, near = (low + high) / 2, FLAT * abs(best.x) + xtol / 3
        if abs(best.x - middle) <= 2 * near - (high - low) / 2:
            break
        tried = None
        if abs(last) > near:
            last, tried = step, _parabola(best, second, third, last, (low, high))
        if tried is None:
            last = (low if best.x >= middle else high) - best.x
            step = GOLDEN * last
        else:
            close = best.x + tried - low < 2 * near or high - (best.x + tried) < 2 * near
            step = math.copysign(near, middle - best.x) if close else tried
        moved = best.x + (step if abs(step) >= near else math.copysign(near, step))
        point = _point(function, moved)
        if point.y <= best.y:
            low, high = (best.x, high) if point.x >= best.x else (low, best.x)
            best, second, third = point, best, second
            continue
        low, high = (point.x, high) if point.x < best.x else (low, point.x)
        if point.y <= second.y or second.x == best.x:
            second, third = point, second
        elif point.y <= third.y or third.x in {best.x, second.x}:
            third = point
    return best


def _parabola(best: _Point, second: _Point, third: _Point, last: float, ends: tuple[float, float]) -> float | None:
    """Return the step to the vertex through three points; None where it is too long or leaves the interval.

    last  the step before the last one: the new one must be less than half of it.
    """
    right = (best.x - second.x) * (best.y - third.y)
    left = (best.x - third.x) * (best.y - second.y)
    above, below = (best.x - third.x) * left - (best.x - second.x) * right, 2 * (left - right)
    above, below = (-above if below > 0 else above), abs(below)
    inside = below * (ends[0] - best.x) < above < below * (ends[1] - best.x)
    return above / below if abs(above) < abs(below * last / 2) and inside else None

"""Tests that roots and minima are those of SciPy bit by bit: the published figures were computed with those."""

import math
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import scipy

from distrust.common.roots import minimum, root

Function = Callable[[float], float]

RISING: tuple[Callable[[float, float], Function], ...] = (
    lambda a, b: lambda x: math.atan(b * (x - a)),
    lambda a, _: lambda x: (x - a) ** 3,
    lambda a, b: lambda x: math.expm1(min(b * (x - a), 600)),
    lambda a, _: lambda x: math.floor(1e3 * (x - a)) / 1e3 + 1e-4,
    lambda a, _: lambda x: math.log(1e-9 + max(0.0, x + 10)) - a,
    lambda a, b: lambda x: (x - a) * (1 + b * math.sin(7 * x) ** 2),
    lambda a, _: lambda x: -1.0 if x < a else 1.0,
    lambda a, _: lambda x: 1e-200 * (x - a) ** 3,
)
VALLEYS: tuple[Callable[[float, float], Function], ...] = (
    lambda a, b: lambda x: b * (x - a) ** 2,
    lambda a, _: lambda x: abs(x - a),
    lambda a, b: lambda x: math.cosh(b * (x - a) / 10),
    lambda _, b: lambda x: math.sin(b * x),
    lambda _, b: lambda x: b * x,
)


def found(search: Callable[[], float]) -> float | None:
    """Return what a search ends with; None where it gives up."""
    try:
        return search()
    except RuntimeError:
        return None


def test_roots_are_scipys_bit_by_bit() -> None:
    dice, compared = random.Random(4), 0
    for _ in range(2000):
        excess = dice.choice(RISING)(dice.uniform(-3, 3), dice.uniform(0.01, 20))
        ends = [-dice.uniform(3.1, 9.9), dice.uniform(3.1, 40)]
        low, high = ends if dice.random() < 0.7 else ends[::-1]
        xtol = 10 ** dice.uniform(-16, -1) if dice.random() < 0.9 else 1e-300
        rtol = 10 ** dice.uniform(-15, -2)
        if excess(low) * excess(high) > 0:
            continue
        theirs = found(lambda: scipy.optimize.brentq(excess, low, high, xtol=xtol, rtol=rtol))  # noqa: B023
        ours = found(lambda: root(excess, low, high, xtol=xtol, rtol=rtol))  # noqa: B023
        assert ours == theirs
        compared += 1
    assert compared > 1500


def test_minima_are_scipys_bit_by_bit() -> None:
    dice = random.Random(5)
    for _ in range(1000):
        function = dice.choice(VALLEYS)(dice.uniform(-3, 3), dice.uniform(0.01, 20))
        low = -dice.uniform(0.1, 9.9)
        high = low + dice.uniform(0.1, 40)
        xtol = 10 ** dice.uniform(-9, -1)
        theirs = scipy.optimize.minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xtol})
        assert minimum(function, low, high, xtol=xtol) == (theirs.x, theirs.fun)


def test_a_root_at_an_end_is_found_and_numpys_numbers_leave_python_numbers() -> None:
    assert root(lambda x: x, 0.0, 1.0, xtol=1e-9) == 0.0
    assert root(lambda x: x - 1, 0.0, 1.0, xtol=1e-9) == 1.0
    answer = root(lambda x: np.float64(x) ** 2 - 2, np.float64(0), np.float64(2), xtol=1e-12)
    assert type(answer) is float
    assert math.isclose(answer, math.sqrt(2), rel_tol=1e-11)


def test_ends_of_one_sign_and_what_is_no_number_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the function has one sign at 1\.0 and at 2\.0"):
        root(lambda x: x, 1.0, 2.0, xtol=1e-9)
    with pytest.raises(ValueError, match=r"the function is no number at 2\.0"):
        root(lambda x: math.nan if x == 2 else -1.0, 1.0, 2.0, xtol=1e-9)


def test_a_promise_is_computed_without_the_libraries_that_take_half_a_second_to_import() -> None:
    program = (
        "import sys\n"
        "from distrust.common.privacy.amplification.clones import clones_epsilon\n"
        "from distrust.common.privacy.gaussian import gaussian_epsilon, zcdp_epsilon\n"
        "assert 0 < clones_epsilon(1e-6, 1.0, 1000) < 1 < gaussian_epsilon(1.0, 1e-6) < zcdp_epsilon(0.5, 1e-6)[0]\n"
        "print(*(one for one in ('scipy.optimize', 'scipy.stats') if one in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

"""Tests that the grid of searched parameters is coarser than rounding noise, and always on the safe side."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrust.common.dp.accounting.techniques.hockey_stick import least_epsilon
from distrust.common.dp.accounting.techniques.searches import (
    SNAP_MARGIN,
    SNAPPED_BITS,
    greatest_on_grid,
    least_integer,
    least_on_grid,
    least_value,
    snap_down,
    snap_up,
)
from distrust.common.errors import BadParameter

POSITIVE = st.floats(1e-12, 1e30)


@given(POSITIVE)
def test_snapping_moves_by_less_than_half_a_millionth_to_the_side_that_was_asked_for(value: float) -> None:
    assert value < snap_up(value) <= value * (1 + 5e-7)
    assert value * (1 - 5e-7) <= snap_down(value) < value


@given(POSITIVE)
def test_a_snapped_number_has_few_bits(value: float) -> None:
    for snapped in (snap_up(value), snap_down(value)):
        mantissa, _ = math.frexp(snapped)
        assert (mantissa * 2**SNAPPED_BITS).is_integer()


@given(st.integers(2**21, 2**22), st.integers(-60, 60), st.floats(-1, 1))
def test_rounding_noise_about_a_number_of_few_bits_does_not_change_its_snapped_value(
    mantissa: int, exponent: int, noise: float
) -> None:
    value = math.ldexp(mantissa, exponent)
    moved = value * (1 + noise * SNAP_MARGIN / 2)
    assert snap_up(moved) == snap_up(value)
    assert snap_down(moved) == snap_down(value)


def test_snapping_follows_the_order_of_numbers_across_a_power_of_two() -> None:
    values = [2.0 + k * 1e-8 for k in range(-200, 200)]
    for snap in (snap_up, snap_down):
        snapped = [snap(value) for value in values]
        assert snapped == sorted(snapped)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_parameter_is_refused(value: float) -> None:
    for snap in (snap_up, snap_down):
        with pytest.raises(BadParameter, match="finite and above 0"):
            snap(value)


@given(POSITIVE, st.floats(0.5, 2), st.floats(0.3, 5))
def test_a_search_on_the_grid_ends_within_half_a_millionth_of_the_root_in_few_steps(
    root: float, off: float, power: float
) -> None:
    tried: list[float] = []

    def above(value: float) -> float:
        tried.append(value)
        return power * math.log(root / value)

    least = least_on_grid(above, root * off)
    assert root * (1 - 1e-15) <= least <= root * (1 + 5e-7)
    greatest = greatest_on_grid(lambda value: -above(value), root * off)
    assert root * (1 - 5e-7) <= greatest <= root * (1 + 1e-15)
    assert len(tried) <= 60


@given(POSITIVE, st.floats(0.9, 1.1), st.integers(0, 2**32))
def test_noise_in_the_last_bits_of_what_is_searched_through_does_not_move_the_result(
    root: float, off: float, seed: int
) -> None:
    noise = random.Random(seed)

    def steps(value: float) -> float:
        return math.floor(1e4 * math.log(root / value)) + 0.5

    def noisy(value: float) -> float:
        return steps(value) * (1 + 1e-12 * noise.uniform(-1, 1))

    assert least_on_grid(noisy, root * off) == least_on_grid(steps, root * off)


def test_a_search_whose_excess_is_never_zero_or_jumps_ends() -> None:
    jump = least_on_grid(lambda value: 1.0 if value < 3.7 else -1.0, 1.0)
    assert 3.7 <= jump <= 3.7 * (1 + 5e-7)
    assert greatest_on_grid(lambda value: -1.0 if value < 3.7 else 1.0, 50.0) == pytest.approx(3.7, rel=5e-7)


@given(st.floats(0.5, 1e7), st.integers(1, 10**7))
def test_the_least_integer_is_found_from_any_guess(root: float, guess: int) -> None:
    assert least_integer(lambda n: math.log(root / n), guess) == math.ceil(root)


@given(st.floats(-3, 3), st.floats(0, 5), st.floats(0.01, 100))
def test_the_least_value_is_found_to_eleven_digits_also_at_a_kink(place: float, left: float, right: float) -> None:
    def value(x: float) -> float:
        return 7 + max(right * (x - place), left * (place - x))

    assert 7 <= least_value(value, -4.0, 4.0) <= 7 + 1e-12 * max(left, right) + 1e-14


@given(st.floats(1e-3, 50), st.floats(0.5, 40), st.integers(0, 2**32))
def test_the_sign_that_rounding_gives_a_root_does_not_move_epsilon(root: float, slope: float, seed: int) -> None:
    """Two processors whose δ differ in the last bits find ε equal to fourteen digits, and not to the search's ten."""

    def found(processor: int) -> float:
        def excess(epsilon: float) -> float:
            last_bits = random.Random(f"{seed} {processor} {epsilon!r}").uniform(-1, 1) * 1e-15
            return slope * math.log(root / max(epsilon, 1e-9)) + last_bits

        return least_epsilon(excess)

    assert found(1) == pytest.approx(found(2), rel=1e-14)
    assert root < found(1) < root * (1 + 3e-11)

"""Tests that a polynomial is decoded from shares with errors, if most shares lie on it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.aggregator.confirmation import value_at
from distrust.aggregator.decoding import Parity, decode, interpolate
from distrust.common.protocol.crypto.share import PRIME

ELEMENT = st.integers(0, PRIME - 1)


def shared_secret(t: int, count: int, chance: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Return a polynomial, some points, and the values there."""
    polynomial = [chance.randrange(PRIME) for _ in range(t)]
    points = sorted(chance.sample(range(1, 2 * count + 1), count))
    return polynomial, points, [value_at(polynomial, x) for x in points]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 12), st.randoms(use_true_random=False))
def test_up_to_half_of_the_spare_shares_may_be_false(t: int, spare: int, chance: random.Random) -> None:
    for false in (spare // 2, chance.randint(0, spare // 2)):
        polynomial, points, values = shared_secret(t, t + spare, chance)
        for place in chance.sample(range(t + spare), false):
            values[place] = chance.choice([chance.randrange(PRIME), 0, values[place] + 1]) % PRIME
        assert decode(points, values, t) == polynomial


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 8), st.randoms(use_true_random=False))
def test_what_is_decoded_agrees_with_all_but_half_of_the_spare_shares_or_is_nothing(
    t: int, spare: int, chance: random.Random
) -> None:
    _, points, values = shared_secret(t, t + spare, chance)
    for place in chance.sample(range(t + spare), spare):
        values[place] = chance.randrange(PRIME)
    result = decode(points, values, t)
    if result is not None:
        off = sum(value_at(result, x) != y for x, y in zip(points, values, strict=True))
        assert len(result) == t
        assert 2 * off <= spare


@pytest.mark.parametrize("polynomial", [[0, 0, 0], [5, 0, 0], [0, 0, 7]])
def test_polynomials_with_zeros_are_found(polynomial: list[int]) -> None:
    points = [1, 2, 4, 7, 8]
    values = [value_at(polynomial, x) for x in points]
    assert decode(points, values, 3) == polynomial
    values[1] += 1
    assert decode(points, values, 3) == polynomial


def test_fewer_than_t_shares_decode_to_nothing() -> None:
    assert decode([1, 2], [3, 4], 3) is None


@settings(deadline=None)
@given(st.lists(ELEMENT, min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_interpolation_goes_through_all_points(values: list[int], chance: random.Random) -> None:
    points = sorted(chance.sample(range(1, 30), len(values)))
    result = interpolate(points, values)
    assert [value_at(result, x) for x in points] == values


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(0, 12), st.randoms(use_true_random=False))
def test_parity_holds_for_shares_of_one_polynomial_and_for_no_others(t: int, spare: int, chance: random.Random) -> None:
    """A false share passes with probability below 12/2¹³⁰."""
    _, points, values = shared_secret(t, t + spare, chance)
    parity = Parity(t, chance.randrange(PRIME))
    assert parity.holds(tuple(points), values)
    place = chance.randrange(t + spare)
    values[place] = (values[place] + chance.randrange(1, PRIME)) % PRIME
    assert parity.holds(tuple(points), values) == (spare == 0)

"""Tests that t shares rebuild a secret, fewer disclose nothing, and false shares are detected."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrust.common.errors import BadParameter, BadShare
from distrust.common.protocol.crypto.share import PRIME, SHARE_SIZE, blend, coefficients, combine, evaluate, polynomials

SECRETS = st.binary(min_size=16, max_size=16)


def split(a: bytes, b: bytes, count: int, threshold: int) -> list[bytes]:
    return evaluate(polynomials(a, b, threshold), count)


@given(SECRETS, SECRETS, st.integers(1, 60), st.data())
def test_any_t_shares_rebuild_both_secrets(a: bytes, b: bytes, count: int, data: st.DataObject) -> None:
    t = data.draw(st.integers(1, count))
    pairs = split(a, b, count, t)
    points = tuple(sorted(data.draw(st.permutations(range(1, count + 1)))[:t]))
    assert combine(points, [pairs[x - 1][:SHARE_SIZE] for x in points]) == a
    assert combine(points, [pairs[x - 1][SHARE_SIZE : 2 * SHARE_SIZE] for x in points]) == b


@given(st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=40), st.integers(1, 1000))
def test_a_share_is_the_polynomial_at_its_point(polynomial: list[int], count: int) -> None:
    count = max(count, len(polynomial))
    largest = [PRIME - 1] * len(polynomial)
    shares = evaluate((polynomial, polynomial[::-1], largest), count)
    for x in {1, count // 2 + 1, count}:
        rows = (polynomial, polynomial[::-1], largest)
        values = [sum(c * pow(x, i, PRIME) for i, c in enumerate(row)) % PRIME for row in rows]
        assert shares[x - 1] == b"".join(value.to_bytes(17, "big") for value in values)


@pytest.mark.parametrize("size", [512, 600])
def test_long_polynomials_are_evaluated_exactly(size: int) -> None:
    """Beyond 512 coefficients the products are added up in blocks; these are the largest that there are."""
    largest = [PRIME - 1] * size
    result = evaluate((largest, [1] * size), size + 1)
    for x in (1, 2, size, size + 1):
        value = sum(pow(x, i, PRIME) for i in range(size)) % PRIME
        assert result[x - 1] == (-value % PRIME).to_bytes(17, "big") + value.to_bytes(17, "big")


@given(st.lists(st.tuples(*[st.integers(0, PRIME - 1)] * 3), max_size=5), st.integers(1, PRIME - 1))
def test_a_blend_is_the_combination_of_each_row(rows: list[tuple[int, int, int]], factor: int) -> None:
    expected = [(factor * a + 2 * b + r) % PRIME for a, b, r in rows]
    assert blend((factor, 2), rows) == b"".join(value.to_bytes(17, "big") for value in expected)


def test_the_blinding_polynomial_is_uniform_with_its_constant() -> None:
    """Top two bits of 4000 constants: each value within 6 standard deviations (false alarm 8e-9)."""
    tops = [polynomials(bytes(16), bytes(16), 2)[2][0] >> 128 for _ in range(4000)]
    assert all(abs(tops.count(v) - 1000) < 6 * (4000 * 3 / 16) ** 0.5 for v in range(4))


@given(st.sets(st.integers(1, 2000), min_size=1, max_size=40).map(lambda s: tuple(sorted(s))))
def test_coefficients_are_lagranges(points: tuple[int, ...]) -> None:
    for x, result in zip(points, coefficients(points), strict=True):
        value = 1
        for other in points:
            if other != x:
                value = value * other * pow(other - x, -1, PRIME) % PRIME
        assert result == value


@pytest.mark.parametrize("points", [(0, 1), (1, 1), (2, 1), (-1, 2)], ids=["zero", "twice", "unsorted", "negative"])
def test_points_must_be_distinct_and_not_zero(points: tuple[int, ...]) -> None:
    with pytest.raises(BadParameter, match="points"):
        combine(points, [bytes(17)] * 2)


def test_fewer_than_t_shares_fit_every_secret() -> None:
    """With t - 1 shares fixed, each secret has exactly one polynomial: the share that is missing takes any value."""
    points, known = (1, 2, 3), [5, 7]
    third = {
        secret: (secret - sum(c * y for c, y in zip(coefficients(points), known, strict=False)))
        * pow(coefficients(points)[2], -1, PRIME)
        % PRIME
        for secret in range(50)
    }
    assert len(set(third.values())) == 50


def test_a_changed_share_gives_another_secret_or_none() -> None:
    a, points = bytes(range(16)), (1, 2, 3)
    shares = [pair[:SHARE_SIZE] for pair in split(a, a, 3, 3)]
    for bit in range(130):
        changed = int.from_bytes(shares[1], "big") ^ 1 << bit
        with suppress(BadShare):
            assert combine(points, [shares[0], changed.to_bytes(17, "big"), shares[2]]) != a


@pytest.mark.parametrize("value", [PRIME, 2**136 - 1], ids=["the-prime", "all-ones"])
def test_a_share_outside_the_field_is_a_bad_share(value: int) -> None:
    with pytest.raises(BadShare):
        combine((1, 2), [bytes(17), value.to_bytes(17, "big")])


def test_two_splits_of_one_secret_have_no_share_in_common() -> None:
    """Chance of a false alarm: 20/2¹³⁰."""
    first, second = (split(bytes(16), bytes(16), 20, 11) for _ in range(2))
    assert not set(first) & set(second)
    assert all(pair[:SHARE_SIZE] != pair[SHARE_SIZE : 2 * SHARE_SIZE] for pair in first)


def test_a_single_share_of_a_fixed_secret_is_uniform() -> None:
    """Top two bits of 4000 shares of zero: each value within 6 standard deviations (false alarm 8e-9)."""
    tops = [int.from_bytes(split(bytes(16), bytes(16), 2, 2)[1][:SHARE_SIZE], "big") >> 128 for _ in range(4000)]
    assert all(abs(tops.count(v) - 1000) < 6 * (4000 * 3 / 16) ** 0.5 for v in range(4))


def test_a_threshold_above_the_number_of_shares_is_refused() -> None:
    with pytest.raises(BadParameter, match="threshold"):
        split(bytes(16), bytes(16), 3, 4)

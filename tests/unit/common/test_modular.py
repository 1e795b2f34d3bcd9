"""Tests numbers modulo m as bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.modular import Vector, add, pack, pack_rows, packed_size, subtract, sum_rows, unpack, unpack_rows

MODULI = st.one_of(st.integers(2, 2**63 - 1), st.integers(1, 62).map(lambda b: 2**b), st.integers(2, 300))


@st.composite
def matrices(draw: st.DrawFn) -> tuple[int, Vector]:
    modulus, rows, columns = draw(MODULI), draw(st.integers(1, 9)), draw(st.integers(1, 40))
    values = st.lists(st.integers(0, modulus - 1), min_size=columns, max_size=columns)
    return modulus, np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=np.uint64)


@given(matrices())
def test_packing_is_one_big_number_of_ceil_log2_m_bits_a_coordinate(case: tuple[int, Vector]) -> None:
    modulus, matrix = case
    bits, row = (modulus - 1).bit_length(), matrix[0].tolist()
    text = "".join(format(value, f"0{bits}b") for value in row)
    size = -(-len(text) // 8)
    assert pack(matrix[0], modulus) == int(text.ljust(8 * size, "0"), 2).to_bytes(size, "big")
    assert packed_size(modulus, len(row)) == size


@given(matrices())
def test_rows_pack_and_unpack_like_single_vectors(case: tuple[int, Vector]) -> None:
    modulus, matrix = case
    body = pack_rows(matrix, modulus)
    assert body == b"".join(pack(row, modulus) for row in matrix)
    assert np.array_equal(unpack_rows(body, modulus, matrix.shape[1]), matrix)
    assert np.array_equal(unpack(pack(matrix[0], modulus), modulus, matrix.shape[1]), matrix[0])


@given(matrices())
def test_sums_are_exact_modulo_m(case: tuple[int, Vector]) -> None:
    modulus, matrix = case
    rows = matrix.tolist()
    assert sum_rows(matrix, modulus).tolist() == [sum(column) % modulus for column in zip(*rows, strict=True)]
    first, last = rows[0], rows[-1]
    assert add(matrix[0], matrix[-1], modulus).tolist() == [(a + b) % modulus for a, b in zip(first, last, strict=True)]
    assert subtract(matrix[0], matrix[-1], modulus).tolist() == [
        (a - b) % modulus for a, b in zip(first, last, strict=True)
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_a_sum_of_the_largest_values_does_not_overflow(rows: int) -> None:
    modulus = 2**63 - 1
    assert sum_rows(np.full((rows, 2), modulus - 1, dtype=np.uint64), modulus).tolist() == [-rows % modulus] * 2


def test_the_sum_of_no_rows_is_zero() -> None:
    assert sum_rows(np.empty((0, 3), dtype=np.uint64), 7).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dimension", [3, 40])
def test_a_value_of_m_or_more_is_refused_both_ways(dimension: int) -> None:
    vector = np.zeros(dimension, dtype=np.uint64)
    vector[-1] = 5
    body = pack(vector, 6)
    with pytest.raises(BadMessage, match="below the modulus 5"):
        unpack(body, 5, dimension)
    with pytest.raises(BadMessage, match="below the modulus 5"):
        pack(vector, 5)


@pytest.mark.parametrize("dimension", [3, 41])
def test_a_wrong_size_is_refused(dimension: int) -> None:
    body = pack(np.ones(dimension, dtype=np.uint64), 5)
    for wrong in (body + b"\0", body[:-1], b""):
        with pytest.raises(BadMessage, match="bytes"):
            unpack(wrong, 5, dimension)
    with pytest.raises(BadMessage, match="bytes"):
        unpack_rows(body + body[:-1], 5, dimension)


@pytest.mark.parametrize("dimension", [3, 41])
def test_padding_must_be_zero_so_that_a_vector_has_one_encoding(dimension: int) -> None:
    body = pack(np.ones(dimension, dtype=np.uint64), 5)
    with pytest.raises(BadMessage, match="zero bits"):
        unpack(body[:-1] + bytes([body[-1] | 1]), 5, dimension)


def test_a_large_matrix_passes_in_blocks() -> None:
    matrix = np.random.default_rng(5).integers(0, 1000, (700, 1000)).astype(np.uint64)
    assert np.array_equal(unpack_rows(pack_rows(matrix, 1000), 1000, 1000), matrix)


@pytest.mark.parametrize("modulus", [0, 1, 2**63])
def test_a_modulus_outside_its_range_is_refused(modulus: int) -> None:
    with pytest.raises(BadParameter, match="modulus"):
        packed_size(modulus, 1)

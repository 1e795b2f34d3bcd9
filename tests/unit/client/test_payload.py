"""Tests the golden bytes of what a client hands to its intermediary."""

import numpy as np
import pytest

from distrust.client.cohort.randomizer import record
from distrust.common.errors import BadMessage


def _row(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize(
    ("row", "modulus", "hexed"),
    [
        pytest.param(_row(5), 8, "a0", id="three-bits-padded"),
        pytest.param(_row(5), 1000, "0140", id="ten-bits"),
        pytest.param(_row(1, 2, 3), 4, "6c", id="coordinate-after-coordinate"),
        pytest.param(_row(2**63 - 2), 2**63 - 1, "fffffffffffffffc", id="the-widest-modulus"),
    ],
)
def test_records_are_packed_in_the_bits_that_the_modulus_needs(row: np.ndarray, modulus: int, hexed: str) -> None:
    assert record(row, modulus).hex() == hexed


def test_a_value_outside_the_modulus_is_never_sent() -> None:
    with pytest.raises(BadMessage):
        record(_row(8), 8)

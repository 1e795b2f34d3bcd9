"""Tests the golden bytes of what a client hands to its intermediary."""

import numpy as np
import pytest

from distrust.common.errors import BadMessage
from distrust.common.modular import packed_size
from distrust.common.protocol.channels.sealed import REPORT_ID, Sealed


def _row(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, dtype=np.uint64)


def payload(row: np.ndarray, modulus: int) -> bytes:
    """Return what a client gives the seal, without the report id before it."""
    channel = Sealed(size=packed_size(modulus, len(row)), server_key=bytes(32))
    return channel.report(row, modulus, lambda _, packed: packed, b"")[REPORT_ID:]


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
    assert payload(row, modulus).hex() == hexed


def test_a_value_outside_the_modulus_is_never_sent() -> None:
    with pytest.raises(BadMessage):
        payload(_row(8), 8)

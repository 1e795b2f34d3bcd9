"""Tests that masks are uniform in Z_m for any m, and equal on every machine."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from distrust.common.protocol.crypto.mask import sum_masks

MODULI = st.one_of(st.integers(2, 2**63 - 1), st.integers(2**62, 2**63 - 1), st.integers(2, 50))


def by_the_definition(key: bytes, modulus: int, dimension: int) -> list[int]:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    accepted: list[int] = []
    while len(accepted) < dimension:
        word = int.from_bytes(stream.update(bytes(8)), "little")
        if word < 2**64 // modulus * modulus:
            accepted.append(word % modulus)
    return accepted


@given(st.binary(min_size=32, max_size=32), MODULI, st.sampled_from([1, 2, 8, 9, 100]))
def test_a_mask_is_the_first_accepted_words_of_the_stream_however_they_are_drawn(key: bytes, m: int, d: int) -> None:
    assert sum_masks([bytearray(key)], m, d).tolist() == by_the_definition(key, m, d)


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=9), MODULI, st.sampled_from([1, 3, 20]))
def test_the_sum_of_masks_is_their_sum_mod_m(keys: list[bytes], m: int, d: int) -> None:
    masks = [by_the_definition(key, m, d) for key in keys]
    assert sum_masks(map(bytearray, keys), m, d).tolist() == [sum(mask[i] for mask in masks) % m for i in range(d)]


@pytest.mark.parametrize("modulus", [2, 3, 1000, 3 * 2**61, 2**63 - 1])
def test_masks_are_uniform_where_a_plain_remainder_would_not_be(modulus: int) -> None:
    """Chi-square over 96 equal classes; false alarm 1e-7 a case."""
    classes, size = min(modulus, 96), 200_000
    values = sum_masks([bytearray(hashlib.sha256(b"uniform").digest())], modulus, size)
    bins = (values.astype(np.float64) * (classes / modulus)).astype(np.int64) if modulus > classes else values
    counts = np.bincount(bins.astype(np.int64), minlength=classes)
    expected = (
        size * np.diff(np.array([-(-i * modulus // classes) for i in range(classes + 1)], dtype=object)) / modulus
    )
    statistic = float((((counts - expected) ** 2) / expected).sum())
    assert statistic < chi2.isf(1e-7, classes - 1)


def test_different_keys_give_different_masks() -> None:
    a, b = (sum_masks([bytearray(hashlib.sha256(name).digest())], 2**61, 4) for name in (b"a", b"b"))
    assert not (a == b).any()


@pytest.mark.parametrize("dimension", [1, 8, 9])
def test_a_key_is_zeroed_as_its_mask_is_made(dimension: int) -> None:
    keys = [bytearray(b"k" * 32) for _ in range(3)]
    sum_masks(keys, 1000, dimension)
    assert keys == [bytearray(32)] * 3

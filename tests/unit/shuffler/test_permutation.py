"""Tests that permutations are uniform, keep their items, and do not depend on the order of arrival."""

from collections import Counter
from itertools import permutations
from math import comb, factorial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from distrust.common.protocol.channels import permutation as module
from distrust.common.protocol.channels.permutation import count_ones, random_order, scatter
from distrust.common.randomness import SystemStream, UnsafeSeededStream

FALSE_ALARM = 1e-7


def fits_uniform(counts: Counter[object], cells: int, draws: int) -> bool:
    """Return False if Pearson's χ² rejects uniform counts, at 1e-7. Each cell expects hundreds of draws."""
    expected = draws / cells
    statistic = sum((count - expected) ** 2 for count in counts.values()) / expected
    statistic += expected * (cells - len(counts))
    return bool(statistic < chi2.isf(FALSE_ALARM, cells - 1))


def test_every_order_of_four_is_equally_likely() -> None:
    stream = UnsafeSeededStream(1, "order")
    draws = 24_000
    counts: Counter[object] = Counter(tuple(random_order(4, stream).tolist()) for _ in range(draws))
    assert set(counts) <= set(permutations(range(4)))
    assert fits_uniform(counts, factorial(4), draws)


def test_every_arrangement_of_ones_is_equally_likely_across_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BUCKET", 2)
    monkeypatch.setattr(module, "_DRAWS", 2)
    stream = UnsafeSeededStream(2, "scatter")
    draws = 40_000
    counts: Counter[object] = Counter(scatter(3, 6, stream) for _ in range(draws))
    assert fits_uniform(counts, comb(6, 3), draws)


@pytest.mark.parametrize(("ones", "size"), [(0, 9), (9, 9), (1, 1), (0, 1), (70_001, 200_003)])
def test_scattering_keeps_the_ones_and_pads_with_zeros(ones: int, size: int) -> None:
    raw = np.frombuffer(scatter(ones, size, SystemStream()), dtype=np.uint8)
    bits = np.unpackbits(raw, bitorder="little")
    assert raw.size == (size + 7) // 8
    assert (int(bits.sum()), int(bits[size:].sum())) == (ones, 0)


def test_equal_keys_are_drawn_again() -> None:
    class Repeating:
        def __init__(self) -> None:
            self.drawn = 0

        def words(self, count: int) -> NDArray[np.uint64]:
            self.drawn += 1
            return np.zeros(count, np.uint64) if self.drawn < 3 else np.arange(count, dtype=np.uint64)[::-1].copy()

        def bytes(self, count: int) -> bytes:
            raise NotImplementedError("random_order draws words only; a stream of the product implements bytes")

    stream = Repeating()
    assert random_order(3, stream).tolist() == [2, 1, 0]
    assert stream.drawn == 3


@pytest.mark.parametrize("unpacked", [1, 40, 2**24])
def test_ones_are_counted_by_label_whatever_fits_in_memory(monkeypatch: pytest.MonkeyPatch, unpacked: int) -> None:
    monkeypatch.setattr(module, "_UNPACKED", unpacked)
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2, (7, 3, 5), dtype=np.uint8)
    bodies = [np.packbits(client.ravel(), bitorder="little").tobytes() for client in bits]
    clients, ones = count_ones(bodies, 3, 5)
    assert clients == 7
    assert ones.tolist() == bits.sum(axis=(0, 2)).tolist()

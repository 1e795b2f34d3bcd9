"""Convolutions of positive terms: no cancellation, so that far tails keep their relative accuracy."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.mechanisms.relaxed.design import Design

Array = NDArray[np.float64]


def window_sums(terms: Array, width: int) -> Array:
    """Sums of `terms` over every window of `width` entries, overhanging ones too: size + width - 1 of them.

    A window is the end of one block and the start of the next: cumulated from both sides, never subtracted.
    """
    count = terms.size + width - 1
    blocks = -(-(count + width - 1) // width)
    padded = np.zeros(blocks * width)
    padded[width - 1 : width - 1 + terms.size] = terms
    rows = padded.reshape(blocks, width)
    sums = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1]
    sums[:-1, 1:] += np.cumsum(rows[1:, :-1], axis=1)
    return sums.ravel()[:count]


def shares(design: Design, count: int, last: int) -> tuple[Array, Array]:
    """P(D = 0), …, P(D = last) from below and from above, D the sum of `count` ≤ t users' γ⁺ - γ⁻.

    D = A - B, A and B sums of one-sided shares. Their laws on {0..last} need nothing from beyond, and beyond they fall
    by β or faster (see `certificate`): the pairs with A > last weigh at most P(A = last) P(A = last - s) β²/(1 - β²).
    """
    one = np.zeros(last + 1)
    kept = _power(design, count, last)
    one[: kept.size] = kept
    lower = np.correlate(one, one, "full")[last:]
    rest = design.beta**2 / (1 - design.beta**2) * one[last]
    return lower, lower + rest * one[::-1]


@lru_cache(maxsize=256)
def _power(design: Design, count: int, last: int) -> Array:
    """The law of `count` one-sided shares on {0..last}."""
    if count == 0:
        return np.ones(1)
    if count == 1:
        return design.one_sided()[: last + 1]
    half = _power(design, count // 2, last)
    whole: Array = np.convolve(half, half)[: last + 1]
    if count % 2:
        whole = np.convolve(whole, design.one_sided())[: last + 1]
    return whole

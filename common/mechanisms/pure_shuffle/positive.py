"""Convolutions of positive terms: no cancellation, so that far tails keep their relative accuracy."""

import math
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distrust.common.mechanisms.pure_shuffle.design import Design

Array = NDArray[np.float64]
Terms = TypeVar("Terms", NDArray[np.float64], NDArray[np.complex128])

LONG = 400
"""Entries from which laws are not convolved term by term."""


def window_sums(terms: Terms, width: int) -> Terms:
    """Sums of `terms` over every window of `width` entries, overhanging ones too: size + width - 1 of them.

    A window is the end of one block and the start of the next: cumulated from both sides, never subtracted.

    terms  real, or two laws as real and imaginary parts: each addition waits for the one before, and takes both.
    """
    count = terms.size + width - 1
    blocks = -(-(count + width - 1) // width)
    padded = np.zeros(blocks * width, dtype=terms.dtype)
    padded[width - 1 : width - 1 + terms.size] = terms
    rows = padded.reshape(blocks, width)
    sums = np.empty_like(rows)
    np.cumsum(rows[:, ::-1], axis=1, out=sums[:, ::-1])
    sums[:-1, 1:] += np.cumsum(rows[1:, :-1], axis=1)
    return sums.reshape(-1)[:count]


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
    if LONG <= last <= 2 * design.reach:
        return _cut(design, count, last)
    half = _power(design, count // 2, last)
    whole: Array = np.convolve(half, half)[: last + 1]
    if count % 2:
        whole = np.convolve(whole, design.one_sided())[: last + 1]
    return whole


def _cut(design: Design, count: int, last: int) -> Array:
    """Return the same for last ≤ 2W, where one share at most can be above W.

    The sum of whole shares is Pólya(count/t). What has one share u > W is count Σ_u P(share = u) P(the others = v - u),
    and is taken off: never more than half of it at v ≤ 3W/2. The rest is divided by the chance that no share is cut.
    """
    whole = _polya(count / design.share, design, last)
    one = _polya(1 / design.share, design, last)
    others = _polya((count - 1) / design.share, design, last)
    above = design.reach + 1
    kept = whole.copy()
    if last >= above:
        kept[above:] -= count * np.convolve(one[above:], others[: last - above + 1])[: last - above + 1]
    return np.asarray(kept / float(one[:above].sum()) ** count, dtype=np.float64)


def _polya(shape: float, design: Design, last: int) -> Array:
    """Probabilities of Pólya(shape, β) on {0..last}."""
    x = np.arange(last)
    ratios = (x + shape) / (x + 1) * design.beta
    law: Array = (-math.expm1(-1 / design.scale)) ** shape * np.concatenate(([1.0], np.cumprod(ratios)))
    return law

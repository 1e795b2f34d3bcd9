"""Laplace noise on every coordinate of a box at a δ, exactly: the losses of discrete Laplace noise lie on a lattice.

A coordinate that is moved by g loses (g - 2x)/scale, where x is its noise, put between 0 and g. So D of them lose
(Dg - 2j)/scale, j the sum of D such x: one convolution of positive terms. The neighbour's law is the mirror image.

Other moves, with β = e^(-1/scale) and u_t(ε) = e^(-ε/2) Σ min(p, e^ε q) for the law p and its shift q by t: the larger,
the less is told. For |ε| ≥ t/scale it is e^(-|ε|/2); at each loss (t - 2j)/scale it is e^(-t/(2 scale)), by a geometric
series; and between those Σ min(p, e^ε q) is linear in e^ε.

- One coordinate is the worst. Where two are moved by s and t, u is the mean of u_t(ε - loss) over √(pq) of the first.
  At ε = (s + t - 2j)/scale that is e^(-(s+t)/(2 scale)) (1 + (1-β)/(1+β) min(j, s, t, s + t - j)), and so never below
  u_(s+t): whole moves of several coordinates tell no more than their sum in one of them, at every ε.
- The grid is the worst. Continuous noise has u(ε) = e^(-max(|ε|, t/scale)/2) everywhere, and discrete noise of the same
  ε, on any grid, has the chords of its Σ min(p, e^ε q).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.amplification.ranges import least_met

LONGEST = 1 << 13
"""Dg of a box that is convolved: a few hundredths of a second."""

DIGITS = 1e-10  # relative, of ε, upwards
ROUNDING = 1e-12  # relative, of δ


def fits(shift: int, dimension: int) -> bool:
    """Whether a box's losses are few enough."""
    return shift * dimension <= LONGEST


@lru_cache(maxsize=256)
def box_epsilon(scale: float, shift: int, dimension: int, delta: float) -> float:
    """The least ε at `delta` of Lap_Z(scale) on `dimension` coordinates, all moved by `shift`; rounded up."""
    masses = _power(_coordinate(scale, shift), dimension)
    losses = (dimension * shift - 2 * np.arange(masses.size)) / scale

    def met(epsilon: float) -> bool:
        above = losses > epsilon
        return float(masses[above] @ -np.expm1(epsilon - losses[above])) <= delta * (1 - ROUNDING)

    return least_met(met, 0.0, float(losses[0]), DIGITS)


def continuous_box_epsilon(loss: float, dimension: int, delta: float) -> float:
    """An ε at `delta` of Laplace noise in reals on `dimension` coordinates that lose `loss` each: a fine grid's."""
    steps = max(1, LONGEST // dimension)
    return box_epsilon(steps / loss, steps, dimension, delta)


def _coordinate(scale: float, shift: int) -> NDArray[np.float64]:
    """The law of a coordinate's noise, put between 0 and the shift."""
    inner = math.tanh(1 / (2 * scale)) * np.exp(-np.arange(1, shift) / scale)
    least, most = (1 / (1 + math.exp(sign / scale)) for sign in (-1, 1))
    return np.concatenate(([least], inner, [most * math.exp(-(shift - 1) / scale)]))


def _power(law: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """The law of the sum of `terms`, by squaring."""
    if terms == 1:
        return law
    half = _power(law, terms // 2)
    whole: NDArray[np.float64] = np.convolve(half, half)
    return np.convolve(whole, law) if terms % 2 else whole

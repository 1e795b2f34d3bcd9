"""Moments of the privacy loss of one coordinate, over the part of the law on which its shifts are possible too."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.accounting import NEGLIGIBLE
from common.noise.law import Pmf

ERROR = 1e-11
"""Relative error of a stored probability."""


@dataclass(frozen=True, eq=False)
class Losses:
    """ln Σ_(x in A) p(x)^α p(x - s)^(1-α), A an interval: all of it for Rényi divergences, less for (ε, δ).

    p is log-concave, so that every term's logarithm is convex in s for α > 1, and so is the logarithm of their sum.

    logs    ln p over its stored support.
    start, stop  A as positions of `logs`; where x - s is not stored, x is left out.
    both    p is not symmetric: the worse direction counts.
    tails   of a symmetric p's whole law: terms farther than αs + tails from its middle are too small to be added.
    """

    logs: NDArray[np.float64]
    start: int
    stop: int
    both: bool = False
    tails: int | None = None

    def at(self, shift: int, order: float) -> float:
        """The logarithm for one shift ≥ 0, upwards by the error of the stored probabilities."""
        worst = _log_sum(self.logs, *self._window(shift, order), shift, order)
        if self.both:
            size = self.logs.size
            worst = max(worst, _log_sum(self.logs[::-1], size - self.stop, size - self.start, shift, order))
        return worst + (2 * order - 1) * ERROR

    def _window(self, shift: int, order: float) -> tuple[int, int]:
        if self.tails is None:
            return self.start, self.stop
        middle, reach = self.logs.size // 2, math.ceil(order * shift) + self.tails
        return max(self.start, middle - reach), min(self.stop, middle + reach + 1)


def central(pmf: Pmf, shift: int, lost: float, *, both: bool = False) -> tuple[Losses, float]:
    """The losses on the middle of the law, and the mass beside it.

    Every shift up to `shift` stays on the stored support; where that allows it, at most `lost` is beside the middle.
    """
    masses = pmf.masses
    below = int(np.searchsorted(np.cumsum(masses), lost / 2, side="right"))
    above = int(np.searchsorted(np.cumsum(masses[::-1]), lost / 2, side="right"))
    start = max(below, shift)
    stop = max(start, masses.size - max(above, shift))
    beside = float(masses[:start].sum() + masses[stop:].sum()) + pmf.lost
    return Losses(pmf.logs, start, stop, both), min(1.0, beside)


def whole(pmf: Pmf, tails: int) -> Losses:
    """The losses on all of a symmetric law: `tails` is some deviations, which are all that counts on either side.

    For an order α and a shift s the stored support must reach (α - 1) s + tails, as for `common.accounting.rdp`.
    """
    return Losses(pmf.logs, 0, pmf.logs.size, tails=tails)


def _log_sum(logs: NDArray[np.float64], start: int, stop: int, shift: int, order: float) -> float:
    start = max(start, shift)
    if start >= stop:
        return -np.inf
    here, there = logs[start:stop], logs[start - shift : stop - shift]
    exponents = order * here + (1 - order) * there
    top = float(exponents.max())
    telling = exponents[exponents > top - NEGLIGIBLE]
    return top + float(np.log(np.sum(np.exp(telling - top))))

"""Moments of the privacy loss of one coordinate, over the part of the law on which its shifts are possible too."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """

    logs: NDArray[np.float64]
    start: int
    stop: int
    both: bool = False

    def at(self, shift: int, order: float) -> float:
        """The logarithm for one shift ≥ 0, upwards by the error of the stored probabilities."""
        worst = _log_sum(self.logs, self.start, self.stop, shift, order)
        if self.both:
            size = self.logs.size
            worst = max(worst, _log_sum(self.logs[::-1], size - self.stop, size - self.start, shift, order))
        return worst + (2 * order - 1) * ERROR


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


def whole(pmf: Pmf, *, both: bool = False) -> Losses:
    """The losses on all that is stored, whose support must reach as far as `common.accounting.rdp` asks for."""
    return Losses(pmf.logs, 0, pmf.logs.size, both)


def _log_sum(logs: NDArray[np.float64], start: int, stop: int, shift: int, order: float) -> float:
    start = max(start, shift)
    if start >= stop:
        return -np.inf
    here, there = logs[start:stop], logs[start - shift : stop - shift]
    exponents = order * here + (1 - order) * there
    top = float(exponents.max())
    return top + float(np.log(np.sum(np.exp(exponents - top))))

"""Bounds the privacy of many coordinates with noise of their own, each moved by the same shift, by composed losses.

The loss of one coordinate is ln P(x)/P(x - s). Losses are put on a grid, so δ is never smaller than the true one, and
larger by O(cell²) only. The composed law is a power of a Fourier transform.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.hockey_stick import FAINT, least_epsilon
from distrust.common.dp.noise.law import Pmf

CELLS = 256
"""Cells of the grid for each standard deviation of one coordinate's loss.

The split adds a cell² / 6 on average to the variance of a loss, 2.5e-6 of it, and half of that to a deviation of it.
"""

MOST = 1 << 22  # cells of one coordinate
SHORT = 1 << 15  # cells of the sum whose whole law is composed
KEPT_DEVIATIONS = 16.0  # deviations of the tilted sum on either side that are composed of longer ones
NOISE = 1e-14  # of a Fourier transform and its power, relative to the largest value
STEEPEST = 1e6  # of a tilt, in 1/ε: beyond it ε is the largest loss


def product_epsilon(pmf: Pmf, shift: int, count: int, delta: float) -> float:
    """Return the ε at `delta` of `count` independent sums with noise `pmf`, all of which one client moves by `shift`.

    Domain   symmetric log-concave noise, so that no smaller shift of a coordinate, in either direction, is worse. The
             mass that the support lacks counts as seen, and so does that which the shift moves in from outside it.
    Returns  inf where δ does not suffice.
    """
    composed = losses_of(pmf, shift, count)
    if composed is None or count * composed.infinite >= delta:
        return math.inf
    return least_epsilon(lambda epsilon: composed.log_delta(epsilon) - math.log(delta))


def product_log_delta(pmf: Pmf, shift: int, count: int, epsilon: float) -> float:
    """Return ln δ(ε) of `count` such losses together."""
    composed = losses_of(pmf, shift, count)
    return 0.0 if composed is None else composed.log_delta(epsilon)


@dataclass(frozen=True, eq=False)
class GridLosses:
    """A coordinate's losses on a grid, to be added up `count` times.

    first     the least loss is first · cell.
    masses    of it and of the losses above it, one by one.
    infinite  mass of the coordinate that counts as an infinite loss.
    """

    first: int
    masses: NDArray[np.float64]
    cell: float
    infinite: float
    count: int

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Return the losses on the grid."""
        return np.asarray(self.cell * (self.first + np.arange(self.masses.size)), dtype=np.float64)

    @cached_property
    def logs(self) -> NDArray[np.float64]:
        """Return the logarithms of the masses."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.masses), dtype=np.float64)

    def log_delta(self, epsilon: float) -> float:
        """Return ln δ(ε) of the sum."""
        rare = math.log(max(self.count * self.infinite, 1e-300))
        if epsilon >= self.count * self.losses[-1]:
            return min(0.0, rare)
        # The power is taken of the exponentially tilted law whose mean is ε. What decides about δ is then where the
        # tilted law is largest, and rounding errors are relative, however small δ is.
        tilt = self._tilt(epsilon)
        log_moment, tilted = self._tilted(tilt)
        sums, masses, beyond = self._power(tilted, tilt)
        above = sums > epsilon
        gaps = sums[above] - epsilon
        gained = float((masses[above] + NOISE * masses.max()) @ (np.exp(-tilt * gaps) * -np.expm1(-gaps)))
        inside = self.count * log_moment - tilt * epsilon + math.log(max(gained, 1e-300))
        return min(0.0, float(np.logaddexp(np.logaddexp(inside, beyond), rare)))

    def _tilted(self, tilt: float) -> tuple[float, NDArray[np.float64]]:
        """Return the logarithm of E[e^(tilt · loss)], and the law that this tilt makes of the losses'."""
        exponents = self.logs + tilt * self.losses
        top = float(exponents.max())
        weights = np.exp(exponents - top)
        total = float(weights.sum())
        return top + math.log(total), weights / total

    def _tilt(self, epsilon: float) -> float:
        """Return approximately the tilt ≥ 0 under which the sum has the mean ε."""

        def lacks(tilt: float) -> float:
            return epsilon - self.count * float(self._tilted(tilt)[1] @ self.losses)

        if lacks(0.0) <= 0:
            return 0.0
        high = 1.0
        while lacks(high) > 0:
            high *= 2
            if high > STEEPEST:
                return high
        return float(scipy.optimize.brentq(lacks, 0.0, high, xtol=1e-3, rtol=1e-3))

    def _power(
        self, tilted: NDArray[np.float64], tilt: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return sums, their masses under the tilted law, and ln of the untilted mass above the last of them.

        Where the whole law would be longer than SHORT, KEPT_DEVIATIONS deviations on either side of its mean are kept.
        Mass below them comes in again above, where it adds to δ. Mass above them is bounded by Chernoff.
        """
        size = self.count * (self.masses.size - 1) + 1
        mean = float(tilted @ self.losses)
        spread = math.sqrt(self.count * float(tilted @ (self.losses - mean) ** 2))
        length = scipy.fft.next_fast_len(math.ceil(2 * KEPT_DEVIATIONS * spread / self.cell) + 1, real=True)
        if size <= max(SHORT, length):
            length = scipy.fft.next_fast_len(size, real=True)
            masses = scipy.fft.irfft(scipy.fft.rfft(tilted, length) ** self.count, length)[:size]
            sums = self.cell * np.arange(self.count * self.first, self.count * self.first + size, dtype=np.float64)
            return sums, np.maximum(masses, 0.0), -math.inf
        folded = np.bincount(np.arange(tilted.size) % length, weights=tilted, minlength=length)
        masses = scipy.fft.irfft(scipy.fft.rfft(folded) ** self.count, length)
        start = round(self.count * mean / self.cell) - length // 2  # the loss of the window's beginning, in cells
        sums = self.cell * np.arange(start, start + length, dtype=np.float64)
        steeper = tilt + KEPT_DEVIATIONS / spread
        beyond = self.count * self._tilted(steeper)[0] - steeper * float(sums[-1])
        return sums, np.maximum(np.roll(masses, -((start - self.count * self.first) % length)), 0.0), beyond


@lru_cache(maxsize=64)
def losses_of(pmf: Pmf, shift: int, count: int) -> GridLosses | None:
    """Return the losses of `count` coordinates with this noise; None where they are too many, or no loss is finite."""
    losses, masses, infinite = _losses(pmf, shift)
    if losses.size == 0:
        return None
    mean = float(losses @ masses)
    cell = math.sqrt(float((losses - mean) ** 2 @ masses)) / CELLS
    if cell <= 0 or (losses.max() - losses.min()) / cell > MOST:
        return None
    first, grid = _split(losses, masses, cell)
    return GridLosses(first, grid, cell, infinite, count)


def _losses(pmf: Pmf, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return finite losses, their masses, and the mass that counts as an infinite loss.

    That is the mass of outputs that the neighbour cannot give, or that lie far out.
    """
    logs, size = pmf.logs, pmf.logs.size
    masses = pmf.masses
    if shift >= size:
        return np.empty(0), np.empty(0), 1.0
    losses, kept = logs[shift:] - logs[: size - shift], masses[shift:]  # log-concave: the largest loss comes first
    rare = np.cumsum(kept) <= FAINT
    least = losses[np.flatnonzero(np.cumsum(kept[::-1])[::-1] > FAINT)[-1]]  # smaller ones are raised to it
    infinite = float(masses[:shift].sum() + kept[rare].sum()) + pmf.lost
    return np.maximum(losses, least)[~rare], kept[~rare], infinite


def _split(losses: NDArray[np.float64], masses: NDArray[np.float64], cell: float) -> tuple[int, NDArray[np.float64]]:
    """Return the atoms' masses on a grid: each on the points k and k + 1 around its loss."""
    # The masses under both laws are kept: a + b = m and a + b e^-cell = m e^(k cell - loss). Merging the two points
    # gives the atom back. So the pair of laws that is composed has the true pair as a function of its outcome.
    below = np.floor(losses / cell).astype(np.int64)
    beyond = -np.expm1(below * cell - losses) / -math.expm1(-cell)
    up = masses * np.clip(beyond, 0.0, 1.0)
    first = int(below.min())
    grid = np.bincount(below - first, weights=masses - up, minlength=int(below.max()) - first + 2)
    grid += np.bincount(below - first + 1, weights=up, minlength=grid.size)
    return first, np.asarray(grid, dtype=np.float64)

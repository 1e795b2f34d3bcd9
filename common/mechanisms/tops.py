"""The highest point of φ(d) - λ d^q: what one more coordinate can cost beyond its price, rounding included."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

STEEP = 200.0
"""Rise of ln M in one step from which every move counts as rounded up."""

NOT_ZERO = 1e-300


@dataclass(frozen=True, eq=False)
class Intervals:
    """Shifts, and ln M at them, as intervals [s, s + w]. M over one step: κ is the rise of its logarithm, k = e^κ - 1.

    φ(s + f) = ln((1 - f) M(s) + f M(s + 1)), 0 ≤ f ≤ 1. Where w > 1, ln M is below its chord and φ below the chord and
    what rounding adds to it. Where κ is huge, φ is below ln M at the right end.
    """

    left: Numbers
    width: Numbers
    low: Numbers
    high: Numbers
    slope: Numbers
    jump: Numbers

    @classmethod
    def of(cls, shifts: NDArray[np.int64], logs: Numbers) -> "Intervals":
        """Between neighbouring shifts, which increase."""
        width = np.diff(shifts).astype(np.float64)
        slope = np.diff(logs) / width
        jump = np.maximum(np.expm1(np.minimum(slope, STEEP)), NOT_ZERO)
        return cls(shifts[:-1].astype(np.float64), width, logs[:-1], logs[1:], slope, jump)

    def highest(self, price: float, power: int) -> float:
        """Bound on the maximum over all d of φ(d) - λ d^q; λ > 0, q = 1 or 2."""
        top = np.where(self.width == 1, self._of_logarithms(price, power), self._of_chords(price, power))
        return float(np.where(self.slope > STEEP, self.high - price * self.left**power, top).max())

    def _of_logarithms(self, price: float, power: int) -> Numbers:
        """A + ln(1 + kt) - λ (s + t)^q is concave: its top is where the derivative is 0, or at an end."""
        if power == 1:
            t = 1 / price - 1 / self.jump
        else:  # k t² + (1 + ks) t + s - k/(2λ) = 0, the larger root without cancellation
            linear, constant = 1 + self.jump * self.left, self.left - self.jump / (2 * price)
            t = -2 * constant / (linear + np.sqrt(np.maximum(linear**2 - 4 * self.jump * constant, 0.0)))
        t = np.clip(t, 0.0, 1.0)
        top: Numbers = self.low + np.log1p(self.jump * t) - price * (self.left + t) ** power
        return top

    def _of_chords(self, price: float, power: int) -> Numbers:
        """A + κ (d - s) - λ d^q, and what rounding adds."""
        end = self.left + self.width
        best = self.slope / (2 * price) if power == 2 else np.where(self.slope > price, end, self.left)
        d = np.clip(best, self.left, end)
        top: Numbers = self.low + self.slope * (d - self.left) - price * d**power + self._bump()
        return top

    def _bump(self) -> Numbers:
        """The largest ln(1 + fk) - κf over f in [0, 1]."""
        f = np.clip(1 / np.maximum(self.slope, NOT_ZERO) - 1 / self.jump, 0.0, 1.0)
        bump: Numbers = np.maximum(0.0, np.log1p(f * self.jump) - self.slope * f)
        return bump

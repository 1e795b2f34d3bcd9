"""Defines error laws: how far a private sum may lie from the truth. Scales noise to the data's units.

Policies form their widths from an `ErrorLaw`, and know no mechanism and no noise.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
"""Real numbers. The function that takes or returns them gives their shape."""

Calibration = Literal["exact", "paper"]
"""Noise and widths are as small as the theorems allow (exact), or have the paper's constants (paper)."""

How = Literal["exact", "bound"]
"""A figure is the law's own (exact), or no smaller than that (bound)."""


class ErrorLaw(Protocol):
    """The law of estimate - true sum that the privacy noise causes, in the data's units; rounding excluded."""

    @property
    def std(self) -> float:
        """Return the standard deviation of the noise in one coordinate of the sum."""
        ...

    def quantile(self, p: float) -> float:
        """Return the least q with P(|noise| > q) ≤ p, exactly, for p down to 1e-12."""
        ...

    @property
    def sub_exponential(self) -> tuple[float, float]:
        """Return (σ, h) of the paper's Assumption 1: |noise| ≤ σ√ln(2/p) + h ln(2/p) with probability 1 - 2p."""
        ...


class Spread(Protocol):
    """A law of noise as far as an error law needs it."""

    @property
    def std(self) -> float: ...

    def quantile(self, p: float) -> float:
        """Return the least q with P(|noise| > q) ≤ p."""
        ...


@dataclass(frozen=True, slots=True)
class ScaledErrorLaw:
    """Noise in grid steps, seen in the data's units: `law` times `step`; `law` None is no noise at all."""

    law: Spread | None
    step: float
    sub_exponential: tuple[float, float]

    @property
    def std(self) -> float:
        return 0.0 if self.law is None else self.step * self.law.std

    @property
    def quantile_how(self) -> How:
        """Return "exact", or "bound" where the law is too long to be stored or depends on the data."""
        how: How = getattr(self.law, "quantile_how", "exact")
        return how

    def quantile(self, p: float) -> float:
        return 0.0 if self.law is None else self.step * self.law.quantile(p)

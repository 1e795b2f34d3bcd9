"""Defines error laws: how far a private sum may lie from the truth. Scales noise to the data's units.

Policies form their widths from an `ErrorLaw`, and know no mechanism and no noise.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
"""Real numbers. The function that takes or returns them gives their shape."""

Calibration = Literal["exact", "paper"]
"""Noise and widths are as small as the theorems allow (exact), or have the paper's constants (paper)."""

Complexes: TypeAlias = NDArray[np.complex128]
"""Complex numbers. The function that takes or returns them gives their shape."""

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


@runtime_checkable
class Transformed(Protocol):
    """A law of noise whose moment generating function is known: E e^{zX}, X less its mean, z = s + it."""

    @property
    def mean(self) -> float: ...

    @property
    def std(self) -> float: ...

    @property
    def reach(self) -> float:
        """Return the least s > 0 for which E e^{sX} or E e^{-sX} is infinite."""
        ...

    @property
    def lattice(self) -> bool:
        """Return whether the law is on the whole numbers less its mean; else it has a density."""
        ...

    @property
    def symmetric(self) -> bool: ...

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        """Return ln E e^{(s + it)X} for |s| < reach, and |t| ≤ π on a lattice."""
        ...

    def log_size(self, s: Floats, t: Floats) -> Floats:
        """Return a bound on ln |E e^{(s + it)X}| that falls as |t| grows, up to π on a lattice."""
        ...

    def decay(self, t: Floats) -> Floats:
        """Return an n ≥ 0 with |E e^{(s+iu)X}| ≤ (t/u)ⁿ |E e^{(s+it)X}| for all u ≥ t and s; 0 on a lattice."""
        ...


class Masses(Protocol):
    """Probabilities of `first`, `first` + 1, …; `lost` bounds all others together."""

    @property
    def first(self) -> int: ...

    @property
    def lost(self) -> float: ...

    @property
    def masses(self) -> Floats: ...


class Whole(Transformed, Protocol):
    """A law on the whole numbers less its mean."""

    def pmf(self) -> Masses: ...


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

    @property
    def transformed(self) -> Transformed | None:
        """Return the law in grid steps if its moment generating function is known."""
        return self.law if isinstance(self.law, Transformed) else None

    def quantile(self, p: float) -> float:
        return 0.0 if self.law is None else self.step * self.law.quantile(p)

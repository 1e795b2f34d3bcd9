"""Sums over cohorts to an estimate of θ*, and how its errors depend on theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from common.error_law import ErrorLaw

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Readings:
    """What is known of some actions, in one order.

    vectors   shape (s, d); they may span less than R^d, and then everything happens in their span.
    plays     shape (s,): weights in V = Σ plays x xᵀ.
    means     shape (s,): estimates of ⟨θ*, x⟩.
    clients   shape (s,): how many clients each mean is over.
    laws      of the noise in each sum, that is in clients * mean.
    rounding  standard deviation of one client's rounding error.
    """

    vectors: Floats
    plays: Floats
    means: Floats
    clients: Floats
    laws: Sequence[ErrorLaw]
    rounding: float

    @cached_property
    def inverse(self) -> Floats:
        """V⁻¹ on the span of the vectors, 0 across it; shape (d, d)."""
        gram = (self.vectors.T * self.plays) @ self.vectors
        return np.asarray(np.linalg.pinv(gram, rcond=1e-10, hermitian=True), dtype=np.float64)

    @cached_property
    def theta(self) -> Floats:
        """θ̃ = V⁻¹ Σ plays x mean(x), shape (d,)."""
        return np.asarray(self.inverse @ ((self.plays * self.means) @ self.vectors), dtype=np.float64)

    def influence(self, actions: Floats) -> Floats:
        """C with ⟨x, θ̃⟩ = Σ_j c_j mean_j for each row x of `actions`, shape (k, s)."""
        shares: Floats = (actions @ self.inverse @ self.vectors.T) * self.plays
        return shares

"""Sums over cohorts to an estimate of θ*, and how its errors depend on theirs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import ErrorLaw

Floats = NDArray[np.float64]

SMALL = 1e-12  # singular values of √plays x below this share of the largest are none
ASTRAY = 1e-6  # share of an action's length that may lie across the span of what was played


@dataclass(frozen=True)
class Readings:
    """What is known of some actions, in one order.

    vectors   shape (s, d); they may span less than R^d, and then everything happens in their span.
    plays     shape (s,): weights in V = Σ plays x xᵀ, at least 0.
    means     shape (s,): estimates of ⟨θ*, x⟩.
    clients   shape (s,): how many clients each mean is over.
    laws      of the noise in each sum, that is in clients * mean.
    rounding  standard deviation of one client's rounding error.
    joint     the noises are not independent, but a combination of them with weights c has ‖c‖₂ times the law of one.
    """

    vectors: Floats
    plays: Floats
    means: Floats
    clients: Floats
    laws: Sequence[ErrorLaw]
    rounding: float
    joint: bool = False

    @cached_property
    def root(self) -> Floats:
        """The pseudo-inverse of √plays x, shape (d, s): V⁻¹ = root rootᵀ, without the loss of forming V."""
        return np.asarray(np.linalg.pinv(self._weighted, rcond=SMALL), dtype=np.float64)

    @cached_property
    def theta(self) -> Floats:
        """θ̃ = V⁻¹ Σ plays x mean(x), shape (d,)."""
        return np.asarray(self.root @ (np.sqrt(self.plays) * self.means), dtype=np.float64)

    def influence(self, actions: Floats) -> Floats:
        """C with ⟨x, θ̃⟩ = Σ_j c_j mean_j for each row x of `actions`, shape (k, s)."""
        shares: Floats = (actions @ self.root) * np.sqrt(self.plays)
        return shares

    def spans(self, actions: Floats) -> NDArray[np.bool_]:
        """Whether each action lies in the span of what was played, shape (k,): of others nothing is known."""
        across = actions - (actions @ self.root) @ self._weighted
        inside: NDArray[np.bool_] = np.linalg.norm(across, axis=1) <= ASTRAY * np.linalg.norm(actions, axis=1)
        return inside

    @property
    def _weighted(self) -> Floats:
        return np.sqrt(self.plays)[:, np.newaxis] * self.vectors

"""Bounds the noise of a summed matrix in operator norm, and of a summed vector in length.

A released sum has independent noise of standard deviation ς in every entry. The matrix is symmetric, and its
off-diagonal entries were weighted by √2, so that its noise N has entries of deviation ς on the diagonal and ς/√2 off
it. All bounds here are for ς = 1. They take the noise as Gaussian: it is the sum of a run's many draws.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from distrust.common.bandit.contextual_choice import unpacked_triangle
from distrust.common.randomness import UnsafeSeededStream, generator
from distrust.server.policies.contextual.base import RoundNoise

DRAWS = 20_000
"""Monte Carlo draws of a matrix's norm."""

LARGEST = 30
"""Rows of a matrix above which a proven bound on the mean stands for the draws, which would take seconds."""

CONFIDENCE = 1e-6
"""Probability that a Monte Carlo bound is too small; the draws have a fixed seed."""


def vector_bound(size: int, failure: float, *, exact: bool) -> float:
    """Return h with P(‖N‖ > h) ≤ failure for `size` independent standard normal entries.

    exact  the quantile of the chi law; else √d + √(2 ln(1/p)) (the length is 1-Lipschitz, and at most √d on average).
    """
    if exact:
        from scipy.stats import chi  # noqa: PLC0415 - half a second of every start, for contextual policies only

        return float(chi.isf(failure, size))
    return math.sqrt(size) + math.sqrt(2 * math.log(1 / failure))


def matrix_bound(size: int, failure: float, *, exact: bool) -> float:
    """Return q with P(‖N‖ > q) ≤ failure for a symmetric matrix of `size` rows, in operator norm.

    exact  the least of a Monte Carlo quantile's upper confidence bound, and of a bound on the mean with Gaussian
           concentration: N is standard normal in the Frobenius norm, in which the operator norm is 1-Lipschitz. Else
           √2 (√d + √ln(2/p)).
    """
    if not exact:
        return math.sqrt(2) * (math.sqrt(size) + math.sqrt(math.log(2 / failure)))
    if size > LARGEST:  # N = (G + Gᵀ)/2 for a square G of standard normal entries, whose norm is at most 2√d on average
        return 2 * math.sqrt(size) + math.sqrt(2 * math.log(1 / failure))
    norms = _norms(size)
    # The mean of the draws is off by more than this with probability CONFIDENCE, as one draw's law is sub-Gaussian.
    mean = float(norms.mean()) + math.sqrt(2 * math.log(1 / CONFIDENCE) / DRAWS)
    concentrated = mean + math.sqrt(2 * math.log(1 / failure))
    # With at most `allowed` draws above the quantile, the chance that so few are is CONFIDENCE.
    from scipy.stats import binom  # noqa: PLC0415

    allowed = int(binom.ppf(CONFIDENCE, DRAWS, failure)) - 1
    return min(concentrated, float(norms[DRAWS - 1 - allowed])) if allowed >= 0 else concentrated


@lru_cache(maxsize=32)
def _norms(size: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return ascending operator norms of random matrices, shape (DRAWS,)."""
    rng = generator(UnsafeSeededStream(2022, "norms of noise"))  # the same bound for all parties; it holds no secret
    rows, columns = np.triu_indices(size)
    spread = np.where(rows == columns, 1.0, math.sqrt(0.5))
    norms = [
        np.abs(np.linalg.eigvalsh(unpacked_triangle(rng.standard_normal((1000, len(rows))) * spread, size))).max(axis=1)
        for _ in range(DRAWS // 1000)
    ]
    return np.sort(np.concatenate(norms))


@dataclass(frozen=True, slots=True)
class Regularizer:
    """λ, the least and largest of what noise leaves of it, and ν, which noise adds to the width."""

    value: float = 1.0
    least: float = 1.0
    largest: float = 1.0
    drift: float = 0.0

    @classmethod
    def against(cls, noise: RoundNoise, size: int, batches: int, failure: float, *, exact: bool) -> Self:
        """Return the regularizer for noise that may fail with probability `failure` in `batches` batches.

        noise  of one batch; the sums over all batches are what counts. `paper` uses a union over the batches, and for
               prefix sums the constants of Shariff & Sheffet's code (2018). `exact` splits the failure in two.
        """
        largest = math.sqrt(noise.variance_after(batches))  # of one entry's noise, after any batch
        if largest == 0:
            return cls()
        if exact:
            # Sums of symmetric independent batches: Lévy's inequality, P(max_m ‖N_m‖ > x) ≤ 2 P(‖N_M‖ > x). Prefix
            # sums of a tree have at most `nodes` terms each, and a union over the batches.
            each = failure / 2 / (batches if noise.prefix else 2)
            q = largest * matrix_bound(size, each, exact=True)
            drift = largest * vector_bound(size, each, exact=True)
        elif noise.prefix:
            logarithm = 2 * math.log(2 * batches / failure)
            # Their bound has √2σ: the deviation on the diagonal of a matrix that has σ off it. Ours is that, too.
            q = largest * (4 * math.sqrt(size) + logarithm)
            drift = largest * (math.sqrt(size) + math.sqrt(logarithm))
        else:
            q = largest * matrix_bound(size, failure / (2 * batches), exact=False)
            drift = largest * vector_bound(size, failure / (2 * batches), exact=False)
        value = max(2 * q, 1.0)  # 1: the least, as without noise
        return cls(value, value - q, value + q, drift / math.sqrt(value - q))

    def width(self, size: int, clients: int, failure: float, spread: float) -> float:
        """Return β after `clients` clients; the self-normalized bound may fail with probability `failure`.

        spread  R: the rewards are sub-Gaussian with it. Source: Abbasi-Yadkori et al. 2011, Theorem 2.
        """
        logarithm = 2 * math.log(1 / failure) + size * math.log(1 + clients / (size * self.least))
        return spread * math.sqrt(logarithm) + math.sqrt(self.largest) + self.drift

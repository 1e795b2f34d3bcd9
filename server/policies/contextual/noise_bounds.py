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

from distrust.common.bandit.error_law import Floats
from distrust.common.extras import optimize, special
from distrust.server.policies.contextual.designs import RoundNoise

LARGEST = 300
"""Rows of a matrix above which a coarser, proven bound stands for the density, whose terms leave a double's range."""

FAINT_MEAN = 1e-300  # what a logarithm is taken of

NODES = 256
"""Points of the quadrature over a density of eigenvalues."""
NOISELESS = 1e-4
"""λ of CTX's published code without noise."""

BEYOND = 12.0
"""Deviations of an entry beyond the bulk of the eigenvalues, after which the density is left out."""


def vector_bound(size: int, failure: float, *, exact: bool) -> float:
    """Return h with P(‖N‖ > h) ≤ failure for `size` independent standard normal entries.

    exact  the quantile of the chi law; else √d + √(2 ln(1/p)) (the length is 1-Lipschitz, and at most √d on average).
    """
    if exact:
        return math.sqrt(2 * float(special.gammainccinv(size / 2, failure)))
    return math.sqrt(size) + math.sqrt(2 * math.log(1 / failure))


@lru_cache(maxsize=256)
def matrix_bound(size: int, failure: float, *, exact: bool) -> float:
    """Return q with P(‖N‖ > q) ≤ failure for a symmetric matrix of `size` rows, in operator norm.

    exact  the q beyond which ±q leave p eigenvalues on average. It is hardly above the quantile, as two of them are
           seldom there at once. Else √2 (√d + √ln(2/p)).
    """
    if not exact:
        return math.sqrt(2) * (math.sqrt(size) + math.sqrt(math.log(2 / failure)))
    # N = (G + Gᵀ)/2 for a square G of standard normal entries, whose norm is at most 2√d on average. It is 1-Lipschitz
    # in the Frobenius norm, in which N is standard normal.
    most = 2 * math.sqrt(size) + math.sqrt(2 * math.log(2 * size / failure))
    if size > LARGEST:
        return most
    nodes = np.polynomial.legendre.leggauss(NODES)

    def excess(q: float) -> float:
        return math.log(max(2 * _expected_above(size, q, nodes) / failure, FAINT_MEAN))

    return float(optimize.brentq(excess, 0.0, most, xtol=1e-10))


def _expected_above(size: int, edge: float, nodes: tuple[Floats, Floats]) -> float:
    """Return the expected number of eigenvalues of N above `edge` ≥ 0, by these points and weights on [-1, 1].

    N is of the Gaussian orthogonal ensemble, whose eigenvalues have the density Σφ_j² + √(d/2) φ_(d-1)(x) (I_d/2 -
    ∫_x φ_d) over j < d, and φ_(d-1)/I_(d-1) more for odd d. φ_j are the Hermite functions, I_j their integrals.
    Source: Mehta, Random Matrices, section 7.2.
    """
    points, weights = nodes
    half = (BEYOND + math.sqrt(2 * size)) / 2
    x = edge + half * (points + 1)
    here, before = math.pi**-0.25 * np.exp(-x * x / 2), np.zeros_like(x)  # φ_j and φ_(j-1), from j = 0
    right, right_before = math.pi**0.25 / math.sqrt(2) * special.erfc(x / math.sqrt(2)), np.zeros_like(x)  # their ∫_x
    whole, whole_before = math.pi**0.25 * math.sqrt(2), 0.0
    density = np.zeros_like(x)
    for j in range(size):
        density += here * here
        up, down = math.sqrt(2 / (j + 1)), math.sqrt(j / (j + 1))
        right, right_before = down * right_before + up * here, right
        here, before = up * x * here - down * before, here
        whole, whole_before = down * whole_before, whole
    density += math.sqrt(size / 2) * before * (whole / 2 - right)
    if size % 2:
        density += before / whole_before
    return half * float(density @ weights)


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
            # sums of a stream share their noise: `nodes` bounds each of them, and a union over the batches all.
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


@dataclass(frozen=True, slots=True)
class PublishedRegularizer:
    """λ and β of CTX's authors in their code: Γ = ς√d, λ = 2Γ, β = √(Γd) + R √(d ln((1 + T/Γ)/α)) in every round.

    ς is the deviation of one entry's noise in the sum over the whole run, of the noise that is really released. Without
    noise the code has Γ = 1 in β and 10⁻⁴ in place of λ. It bounds ‖θ*‖ by √d, where Lemma A.2 has 1, and states no
    failure: Γ is no bound on the noise.
    """

    gamma: float
    value: float
    horizon: int

    @classmethod
    def against(cls, noise: RoundNoise, size: int, batches: int, horizon: int) -> Self:
        """Return the regularizer for noise of one batch, in so many batches with T = `horizon` clients."""
        gamma = math.sqrt(noise.variance_after(batches) * size)
        return cls(1.0, NOISELESS, horizon) if gamma == 0 else cls(gamma, 2 * gamma, horizon)

    @property
    def least(self) -> float:
        """Return what an indefinite V is shifted to; the code inverts it as it is."""
        return min(self.gamma, self.value)

    def width(self, size: int, clients: int, failure: float, spread: float) -> float:
        """Return β, the same after any number of clients. `spread` is R; contexts have length 1 at most."""
        del clients
        logarithm = math.log((1 + self.horizon / self.gamma) / failure)
        return math.sqrt(self.gamma * size) + spread * math.sqrt(size * logarithm)

"""Least squares on noisy sums: shifts the matrices of many runs and parameters, and solves them.

A sum of φφᵀ with noise need not be positive definite. Each caller adds a shift that outweighs the noise with high
probability. A matrix that is not positive definite all the same is counted, and lifted before it is inverted.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.server.policies.base import Estimate

SINGULAR = 1e-9
"""A matrix is not inverted if its least eigenvalue is at most this share of its trace: 1e9 is the worst condition."""


PAIR_SCALE = math.sqrt(0.5)
"""Factor that removes the weight √2 of an entry off the diagonal."""

ADJUGATE = np.array([2, 1, 1, 0])
"""Places of the entries of [[c, b], [b, a]] among a, b, c; with -b for b it is the inverse times the determinant."""


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """Facts of a released sum besides its value.

    clients    that it is over: of this batch, also for a prefix sum.
    deviation  standard deviation of one entry's noise, rounding included; for a prefix sum of one node, without it.
    prefix     the sum is over all batches so far.
    nodes      the most noise that any prefix sum has, in squares of `deviation`.
    most       `deviation` if every client answers, as noise that clients add grows with their number. 0: the same.
    rounded    variance that rounding a whole batch adds to an entry of a prefix sum.
    """

    clients: int
    deviation: float
    prefix: bool = False
    nodes: float = 1
    most: float = 0.0
    rounded: float = 0.0

    @classmethod
    def of(cls, estimate: Estimate) -> "RoundNoise":
        """Return what an estimate says of itself."""
        survivors, law, square = estimate.counts[0], estimate.laws[0], estimate.rounding**2
        clients, whole = max(estimate.clients, survivors), estimate.whole or law
        if estimate.prefix:
            return cls(survivors, law.std, True, estimate.nodes, whole.std, clients * square)
        own, most = law.std**2 + survivors * square, whole.std**2 + clients * square
        return cls(survivors, float(np.sqrt(own)), False, estimate.nodes, float(np.sqrt(most)))

    def variance_after(self, batches: int) -> float:
        """Return the largest variance of one entry's noise in the sum over `batches` batches, rounding included."""
        terms = self.nodes if self.prefix else batches
        return terms * max(self.deviation, self.most) ** 2 + batches * self.rounded


class Designs:
    """Σ sφ and Σ φφᵀ of R runs and b blocks, one for each θ.

    variances   of one entry's noise in the sums so far, by block, shape (b,).
    clients     whose reports are in the sums, by block, shape (b,).
    indefinite  how often noise left a matrix that is not positive definite, by run, shape (R,).
    """

    def __init__(self, features: int, blocks: int, runs: int) -> None:
        rows, columns = np.triu_indices(features)
        self._size, self._eye = features, np.eye(features)
        self._totals = np.zeros((runs, blocks, features + len(rows)))
        # Where each entry of the matrix stands among a block's numbers, and what undoes the weight √2.
        self._places = np.empty((features, features), dtype=np.int64)
        self._places[rows, columns] = self._places[columns, rows] = features + np.arange(len(rows))
        each = np.concatenate([np.ones(features), np.where(rows == columns, 1.0, PAIR_SCALE)])
        self._scale = np.tile(each, blocks)
        self.variances, self.clients = np.zeros(blocks), np.zeros(blocks, dtype=np.int64)
        self.indefinite = np.zeros(runs, dtype=np.int64)
        self._batches = 0

    def add(self, sums: Floats, noise: RoundNoise, block: int | None = None) -> None:
        """Take a batch's sums: of all blocks, shape (R, D), or of one, shape (R, D/b)."""
        if block is not None:
            self._totals[:, block] += sums
            self.variances[block] += noise.deviation**2
            self.clients[block] += noise.clients
            return
        blocks = sums.reshape(self._totals.shape)
        self.clients += noise.clients
        self._batches += 1
        if noise.prefix:
            self._totals[...] = blocks
            self.variances[:] = noise.variance_after(self._batches)
        else:
            self._totals += blocks
            self.variances += noise.deviation**2

    def unpacked(self, sums: Floats) -> Floats:
        """Return the matrices, shape (R, b, d, d), that are in sums of shape (R, D) or (R, b, D/b)."""
        scaled: Floats = sums.reshape(len(sums), -1) * self._scale
        return scaled.reshape(self._totals.shape).take(self._places, axis=-1)

    def products(self, sums: Floats, vectors: Floats) -> Floats:
        """Return Mv, shape (R, b, d), of the matrices M in one batch's sums, shape (R, D), and v, shape (R, b, d)."""
        products: Floats
        if self._size != 2:
            products = np.matvec(self.unpacked(sums), vectors)
            return products
        blocks = sums.reshape(self._totals.shape)
        products = blocks[..., 2::2] * vectors  # by the diagonal
        products += (blocks[..., 3:4] * PAIR_SCALE) * vectors[..., ::-1]
        return products

    def least_eigenvalues(self, shift: Floats) -> Floats:
        """Return those of the matrices after the shift, shape (R, b)."""
        lowest: Floats = np.linalg.eigvalsh(self.unpacked(self._totals))[..., 0] + shift
        return lowest

    def solve(
        self,
        shift: Floats | float,
        linear: Floats | None = None,
        *,
        invert: bool = False,
        least: float | None = None,
    ) -> tuple[Floats, Floats]:
        """Return θ̂ = (Σφφᵀ + shift I)⁻¹ u, shape (R, b, d), and the inverses, shape (R, b, d, d).

        shift   by block, shape (b,), or the same for all.
        linear  u, shape (R, b, d); Σ sφ when absent.
        invert  whether the inverses are wanted; else they may be empty, shape (0,).
        least   what the least eigenvalue of an indefinite matrix is lifted to; when absent one standard deviation of an
                entry's noise, at least 1.
        """
        if self._size == 2 and least is None:
            return self._solve_pairs(shift, linear, invert=invert)
        u = self._totals[..., : self._size] if linear is None else linear
        shifts = np.asarray(shift)[..., np.newaxis, np.newaxis] * self._eye
        matrices = self._lifted(self.unpacked(self._totals) + shifts, least)
        inverse = np.linalg.inv(matrices)
        inverse = (inverse + np.swapaxes(inverse, -1, -2)) / 2
        return (inverse @ u[..., np.newaxis])[..., 0], inverse

    def _solve_pairs(self, shift: Floats | float, linear: Floats | None, *, invert: bool) -> tuple[Floats, Floats]:
        """Return what `solve` returns, for d = 2 in closed form. The matrices are [[a, b], [b, c]]."""
        # Numbers of one kind lie together, and two of a kind share a call: calls of NumPy are most of a round's time.
        numbers = self._totals.transpose(2, 0, 1).copy()
        u = numbers[:2] if linear is None else np.ascontiguousarray(linear.transpose(2, 0, 1))
        entries = numbers[2:]  # a, b, c
        diagonal, (a, b, c) = entries[::2], entries
        diagonal += shift
        b *= PAIR_SCALE
        trace, determinant = a + c, a * c - b * b
        # The least eigenvalue is at least determinant/trace, and at most twice that, where both are positive.
        largest = trace.item(trace.argmax())
        if determinant.item(determinant.argmin()) <= SINGULAR * largest**2 or trace.item(trace.argmin()) <= 0:
            least = np.minimum(determinant - SINGULAR * trace * trace, trace)
            diagonal += self._lift(least <= 0, trace / 2 - np.hypot((a - c) / 2, b))
            determinant = a * c - b * b
        entries /= determinant
        theta = np.empty((*a.shape, 2))
        np.subtract(diagonal[::-1] * u, b * u[::-1], out=theta.transpose(2, 0, 1))
        if not invert:
            return theta, np.empty(0)
        np.negative(b, out=b)
        inverse = entries.take(ADJUGATE, axis=0).transpose(1, 2, 0).copy()
        return theta, inverse.reshape(*a.shape, 2, 2)

    def _lifted(self, matrices: Floats, least: float | None) -> Floats:
        """Return positive definite matrices."""
        traces = np.maximum(np.trace(matrices, axis1=-2, axis2=-1), 0)
        negligible = SINGULAR * (traces if least is None else np.full(traces.shape, least))
        try:
            np.linalg.cholesky(matrices - negligible[..., np.newaxis, np.newaxis] * self._eye)
        except np.linalg.LinAlgError:
            lowest: Floats = np.asarray(np.linalg.eigvalsh(matrices)[..., 0], dtype=np.float64)
            lift = self._lift(lowest <= negligible, lowest, least)
            lifted: Floats = matrices + lift[..., np.newaxis, np.newaxis] * self._eye
            return lifted
        return matrices

    def _lift(self, singular: NDArray[np.bool_], lowest: Floats, least: float | None = None) -> Floats:
        """Return what each matrix is shifted further by, shape (R, b); count those that noise made indefinite.

        Without noise a singular matrix means that too few clients have answered so far, which is no failure.
        """
        self.indefinite += (singular & (self.variances > 0)).any(axis=-1)
        lifted = np.maximum(np.sqrt(self.variances), 1.0) if least is None else least
        return np.where(singular, lifted - lowest, 0.0)

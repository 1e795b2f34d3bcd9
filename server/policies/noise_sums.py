"""Defines weighted sums of independent noises by their moment generating functions along a line of complex numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats, Transformed

PART = 0.5  # least deviation of the noise that is smoothed, as a share of the largest one
DEGREES = (24, 40, 64, 128)  # of polynomials in the sizes; fewer sizes than these are evaluated one by one
VALUES_AT_ONCE = 1 << 18  # values of a transform held at once
CACHED = 1 << 13  # values of a polynomial computed at once
PIECES = np.concatenate(([0.0], math.pi * 2.0 ** np.arange(-14.0, 1.0)))  # ends of pieces of half a period


@dataclass(frozen=True)
class Contour:
    """Nodes s + ikh, k = 0 … count, of every row, where logarithms may be off by `fit`."""

    s: Floats
    h: Floats
    count: int
    fit: float

    @property
    def t(self) -> Floats:
        """Return kh, shape (rows, nodes)."""
        return np.asarray(np.multiply.outer(self.h, np.arange(self.count + 1)))

    @property
    def last(self) -> Floats:
        return self.h * self.count

    @property
    def z(self) -> Complexes:
        return np.asarray(self.s[:, np.newaxis] + 1j * self.t)

    @property
    def shared(self) -> bool:
        """Return whether all rows have the same nodes."""
        return bool(np.ptp(self.s) == 0 and np.ptp(self.h) == 0)


@dataclass(frozen=True)
class Sums:
    """Σ_j a_j X_j, row by row: each law with its columns of `sizes` a, shape (rows, columns)."""

    parts: Sequence[tuple[Transformed, Floats]]

    @property
    def rows(self) -> int:
        return len(self.parts[0][1])

    @property
    def symmetric(self) -> bool:
        return all(law.symmetric for law, _ in self.parts)

    @property
    def on_lattice(self) -> NDArray[np.bool_]:
        """Return in which rows a noise on a lattice has a weight."""
        return np.asarray(np.any([law.lattice & sizes.any(axis=1) for law, sizes in self.parts], axis=0))

    @property
    def densities(self) -> "Sums":
        """Return the sums without noises on lattices."""
        return Sums([(law, sizes) for law, sizes in self.parts if not law.lattice])

    @cached_property
    def std(self) -> Floats:
        return np.asarray(np.sqrt(sum(((law.std * sizes) ** 2).sum(axis=1) for law, sizes in self.parts)))

    @cached_property
    def reach(self) -> Floats:
        """Return the s up to which M is known."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.min([law.reach / np.abs(sizes).max(axis=1) for law, sizes in self.parts], axis=0))

    def of(self, rows: slice | NDArray[Any], scale: Floats | float = 1.0) -> "Sums":
        """Return some of the rows, each times its `scale`."""
        return Sums([(law, sizes[rows] * np.reshape(scale, (-1, 1))) for law, sizes in self.parts])

    @property
    def turned(self) -> "Sums":
        return Sums([(law, -sizes) for law, sizes in self.parts])

    def log_moment(self, line: Contour) -> tuple[Complexes, float]:
        """Return ln M at the nodes, shape (rows, nodes), and a bound on its error beyond rounding."""
        total, error = np.zeros((self.rows, line.count + 1), dtype=np.complex128), 0.0
        for law, sizes in self.parts:
            own, off = _summed(law, sizes, line)
            total, error = total + own, error + off
        return total, error

    def log_size(self, s: Floats, t: Floats) -> Floats:
        """Return a bound on ln |M(s + it)| that falls as t grows; all of shape (rows,)."""
        s, t = s[:, np.newaxis], t[:, np.newaxis]
        return np.asarray(sum(law.log_size(sizes * s, sizes * t).sum(axis=1) for law, sizes in self.parts))

    def decay(self, t: Floats) -> Floats:
        """Return n with |M(s+iu)| ≤ (t/u)ⁿ |M(s+it)| for u ≥ t."""
        return np.asarray(sum(law.decay(np.abs(sizes) * t[:, np.newaxis]).sum(axis=1) for law, sizes in self.parts))


def _summed(law: Transformed, sizes: Floats, line: Contour) -> tuple[Complexes, float]:
    """Return Σ_j ln E e^{z a_j X} at the nodes z row by row, and a bound on its error.

    Many sizes on one line: through a polynomial in a, fitted in Chebyshev's points, so that each row needs sums of
    Chebyshev's polynomials only. Its error is measured between these points.
    """
    a = np.abs(sizes) if law.symmetric else sizes
    low, high = float(a.min()), float(a.max())
    for degree in DEGREES if line.shared and low < high else ():
        if degree >= a.size:
            break
        middle, half = (low + high) / 2, (high - low) / 2
        points = chebyshev.chebpts1(degree)
        halves = (points[1:] + points[:-1]) / 2
        at, between = (_at(law, (middle + half * x)[:, np.newaxis], line) for x in (points, halves))
        fitted = chebyshev.chebvander(points, degree - 1).T @ at * (2 / degree)
        fitted[0] /= 2
        error = float(np.abs(chebyshev.chebvander(halves, degree - 1) @ fitted - between).max())
        if error <= line.fit:
            return _chebyshev_sums((a - middle) / half, degree) @ fitted, 4 * sizes.shape[1] * error
    if a.size * line.count <= VALUES_AT_ONCE:
        real, turns = a * line.s[:, np.newaxis], a[..., np.newaxis] * line.t[:, np.newaxis]
        return law.log_moment(real[..., np.newaxis], turns).sum(axis=1), 0.0
    total = np.zeros(line.t.shape, dtype=np.complex128)
    for column in a.T:
        total += law.log_moment(column[:, np.newaxis] * line.s[:, np.newaxis], column[:, np.newaxis] * line.t)
    return total, 0.0


def _at(law: Transformed, sizes: Floats, line: Contour) -> Complexes:
    """Return logarithms on the first row's line, for sizes of shape (n, 1)."""
    return law.log_moment(sizes * line.s[0], sizes * line.t[0])


def _chebyshev_sums(x: Floats, count: int) -> Floats:
    """Return Σ_j T_m(x_j) for m < count, shape (rows, count)."""
    # 2 T_m T_n = T_(m+n) + T_(m-n), so that polynomials of half the degree are enough.
    result = np.empty((len(x), count))
    each = max(1, CACHED // max(1, x.shape[1]))
    for start in range(0, len(x), each):
        rows = slice(start, start + each)
        twice, before, now = 2 * x[rows], np.ones_like(x[rows]), x[rows]
        for m in range(0, count, 2):
            result[rows, m] = 2 * np.vecdot(before, before)
            result[rows, m + 1 : m + 2] = 2 * np.vecdot(before, now)[:, np.newaxis]
            before, now = now, twice * now - before
    result[:, 2::2] -= result[:, :1] / 2
    result[:, 3::2] -= result[:, 1:2] / 2
    result[:, :2] /= 2
    return result


@dataclass(frozen=True)
class Coordinate:
    """One noise on a lattice of every row: a_i, and which rows have it from which law."""

    sizes: Floats
    owners: Sequence[tuple[Transformed, NDArray[np.intp]]]

    @property
    def step(self) -> Floats:
        return np.abs(self.sizes)

    def factor(self, s: Floats, t: Floats, rows: NDArray[Any] | slice = slice(None)) -> Complexes:
        """Return E e^{z a_i (U - 1/2)} = sinh(x)/x, x = a_i z/2, z = s + it, of some rows; t of shape (rows, n)."""
        half = self.sizes[rows, np.newaxis] / 2
        u, v = half * s[rows, np.newaxis], half * t[rows]
        # Real functions of u, of which a row has one, and of v take a quarter of the time of a complex sinh.
        x, sinh = np.empty(v.shape, dtype=np.complex128), np.empty(v.shape, dtype=np.complex128)
        x.real, x.imag = u, v
        sinh.real, sinh.imag = np.sinh(u) * np.cos(v), np.cosh(u) * np.sin(v)
        near = np.abs(x) < 1e-8
        sinh[near] = x[near] = 1.0
        return np.asarray(sinh / x)

    def most(self, s: Floats) -> Floats:
        """Return the largest size of the factor on the line, at its real point."""
        return self.factor(s, np.zeros((s.size, 1)))[:, 0].real

    def size(self, s: Floats, x: Floats) -> Floats:
        """Return the bound of |E e^{zX_i}| / E e^{sX_i} at z = a_i s + ix; x of shape (rows, n)."""
        result = np.empty(x.shape)
        for law, rows in self.owners:
            real = (self.sizes * s)[rows, np.newaxis]
            result[rows] = np.exp(law.log_size(real, x[rows]) - law.log_moment(real, np.zeros(1)).real)
        return result

    def returns(self, s: Floats) -> Floats:
        """Return bounds on size · |sinh(a_i z/2)| for the PIECES of half a period, at x from a return of the size.

        |sinh(a_i z/2)|² = sinh²(a_i s/2) + sin²(x/2).
        """
        sizes = self.size(s, np.broadcast_to(PIECES[:-1], (self.sizes.size, PIECES.size - 1)))
        return sizes * (np.sinh(self.step * s / 2)[:, np.newaxis] + PIECES[1:] / 2)


@dataclass(frozen=True)
class Smoothed:
    """The noises that U smooths: `one`, the finest of those with a large part of the deviation, and perhaps `other`.

    first  π/|a_j| of the coarsest lattice, up to where |M| falls along the line.
    """

    one: Coordinate
    other: Coordinate
    first: Floats

    @classmethod
    def of(cls, sums: Sums) -> Self | None:
        """Return None where no noise is on a lattice."""
        sizes = np.concatenate([sizes for _, sizes in sums.parts], axis=1)
        stds = np.concatenate([np.full(part.shape[1], law.std * law.lattice) for law, part in sums.parts]) * abs(sizes)
        if not stds.any():
            return None
        numbers = np.repeat(np.arange(len(sums.parts)), [part.shape[1] for _, part in sums.parts])

        def coordinate(large: NDArray[np.bool_]) -> tuple[Coordinate, NDArray[np.intp]]:
            places = np.where(large, abs(sizes), np.inf).argmin(axis=1)
            owners = [(law, np.flatnonzero(numbers[places] == number)) for number, (law, _) in enumerate(sums.parts)]
            owners = [(law, rows) for law, rows in owners if rows.size]
            return Coordinate(np.take_along_axis(sizes, places[:, np.newaxis], axis=1)[:, 0], owners), places

        first = math.pi / np.where(stds > 0, abs(sizes), 0).max(axis=1)
        one, places = coordinate((stds >= PART * stds.max(axis=1, keepdims=True)) & (stds > 0))
        np.put_along_axis(stds, places[:, np.newaxis], 0.0, axis=1)
        other, _ = coordinate(stds >= np.maximum(PART * stds.max(axis=1, keepdims=True), 1e-300))
        return cls(one, other, first)

    def beyond(self, line: Contour) -> Floats:
        """Return a bound on (h/π) Σ |M(z_k)| |factor of `one`| / |z_k| beyond `first`, in units of M(s)."""
        a = self.one.step
        again = math.pi / a  # up to where the size of `one` falls
        falling = self.one.size(line.s, (a * self.first)[:, np.newaxis])[:, 0] * self.one.most(line.s) / math.pi
        # From return m on either side |z| ≥ (2m - 1) π/a_i, and Σ 1/(2m - 1)² = π²/8. A piece of length l has at most
        # l/(a_i h) + 1 nodes.
        nodes = np.diff(PIECES) / a[:, np.newaxis] + line.h[:, np.newaxis]
        period = 2 * (nodes * self.one.returns(line.s)).sum(axis=1)
        return np.asarray(falling * (np.log(again / self.first) + line.h / self.first) + a * period / (4 * math.pi))

    def less(self, s: Floats) -> Floats:
        """Return a bound on the size of `other` with U, beyond `first`: where it falls, and where it has returned."""
        falling = self.other.size(s, (self.other.step * self.first)[:, np.newaxis])[:, 0] * self.other.most(s)
        return np.asarray(np.maximum(falling, self.other.returns(s).max(axis=1) * 2 / math.pi))

"""Computes tails of weighted sums of independent noises from their moment generating functions, never too small.

Let M(z) = E e^{zS}, s > 0, h > 0 and L = 2π/h. M(s+it)/(s+it) is the Fourier transform of e^{sw} P(S > w). So by
Poisson's formula, with z_k = s + ikh, and k and m over all integers,
    (h/2π) Σ_k M(z_k) e^{-z_k w} / z_k = Σ_m e^{smL} P(S > w + mL).
No term on the right is below 0, and that of m = 0 is the tail: the left side bounds it, whatever s and h. What comes
after the last node is bounded and added. At the saddle point, with L wide enough, all that is added is negligible.

Where X_i is on a lattice, M does not fall along the line. Then S + a_i U, U uniform on [0, 1], stands for S: it is
larger, by at most a_i, which is one step of a noise that is many steps wide. Its transform is 0 where that of X_i is
largest again, so that all beyond adds up to little.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Self

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats, Masses, Whole
from distrust.server.policies.noise_sums import Contour, Smoothed, Sums

BELOW = 0.9  # largest s in units of the reach, above which repeated tails would fall too slowly
LEAST, FASTEST = 0.3, 60.0  # s in units of 1/std
HIGHER = (0.3, 0.5, 0.7, 0.85, 0.95)  # exponents of Chernoff's bound on repeated tails, from s to the reach
FAR, ALIKE = 12.0, 1.3  # reach in units of 1/std: from where all rows share a line, and ratio up to which some do
TURNS = 40  # of Newton's method, and of what is added at its end
SHORT = 10.0  # steps of deviation up to which laws are convolved: where the support ends, there is no saddle point
SAME = 1e-9  # steps by which values are told apart


@dataclass(frozen=True)
class Aim:
    """The limits of the computation of one tail: its nodes, and the errors that the bound may add.

    nats    that repeated tails stay below it.
    tie     share of the sum of all terms' sizes for rounding; transforms of 10¹³ bits lose a billionth.
    rest    share of the terms that are left out.
    fit     error of a noise's logarithm.
    nodes   at first, and at most.
    rows    that share a line, at most.
    """

    nats: float
    tie: float
    rest: float
    fit: float
    nodes: tuple[int, int]
    rows: int


OF_DENSITY = Aim(nats=26.0, tie=1e-11, rest=1e-11, fit=1e-13, nodes=(16, 1 << 16), rows=32)
ON_LATTICE = Aim(nats=8.0, tie=1e-9, rest=1e-3, fit=1e-6, nodes=(8, 1 << 10), rows=1 << 10)
"""Three digits of a tail are enough here: the half step of U adds more to a width than a fourth one changes."""


@dataclass(frozen=True)
class Tails:
    """A bound on P(S > w), row by row: e^{base - sw} ((h/π) Re Σ_k terms_k e^{-ikhw} + rest + more).

    rest  of the nodes that a longer line would have; `more`: of all others.
    """

    line: Contour
    base: Floats
    terms: Complexes
    rest: Floats
    more: Floats

    @classmethod
    def of(cls, sums: Sums, line: Contour, smoothed: Smoothed | None) -> tuple[Self, Floats]:
        """Return the bound, and by how much S was raised for it: half a step of each noise with U, taken around 0."""
        s, h = line.s, line.h
        logs, error = sums.log_moment(line)
        base = logs[:, 0].real.copy()
        terms: Complexes = np.exp(logs - base[:, np.newaxis]) / line.z
        terms[:, 0] /= 2
        size = np.exp(sums.log_size(s, line.last) - base)
        if smoothed is None:
            with np.errstate(divide="ignore"):
                rest = size / (math.pi * sums.decay(line.last))
            return cls(line, base, terms, rest, _off(h, terms, error + OF_DENSITY.tie)), np.zeros(sums.rows)
        terms *= smoothed.one.factor(s, line.t)
        far, less, raised = smoothed.beyond(line), smoothed.less(s), smoothed.one.step / 2
        # At the saddle point a tail is about M e^{-sw}/(√(2π) s std).
        tail = 1 / (2.5 * s * sums.std)
        both = np.log((tail + far) / (tail + less * far)) / s > smoothed.other.step / 2
        terms[both] *= smoothed.other.factor(s, line.t, both)
        most = smoothed.one.most(s) * np.where(both, smoothed.other.most(s), 1)
        with np.errstate(divide="ignore"):  # no node fits: all is left out
            rest = size * most * np.log(np.maximum(smoothed.first / line.last, 1)) / math.pi
        more = np.where(both, less * far, far) + _off(h, terms, error + ON_LATTICE.tie)
        return cls(line, base, terms, rest, more), raised + both * smoothed.other.step / 2

    @classmethod
    def of_integers(cls, sums: Sums, line: Contour) -> Self:
        """Return the bound on P(S ≥ w) for sums of whole numbers less their mean, w in their lattice; L is odd.

        There Σ_w e^{zw} P(S ≥ w) = M(z)/(1 - e^{-z}). It has the period 2πi, and the nodes come in pairs.
        """
        logs, error = sums.log_moment(line)
        kernel: Complexes = -np.expm1(-line.z)
        base = logs[:, 0].real.copy()
        terms: Complexes = np.exp(logs - base[:, np.newaxis]) / kernel
        terms[:, 0] /= 2
        size = np.exp(sums.log_size(line.s, line.last) - base) / abs(kernel[:, -1])  # all later nodes are smaller
        left = np.round(math.pi / line.h - 0.5) - line.count
        return cls(line, base, terms, line.h / math.pi * size * left, _off(line.h, terms, error + ON_LATTICE.tie))

    def log(self, w: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the logarithm of the bound, its derivative, and which share of it the remainder has."""
        h = self.line.h
        waves, grown = self._waves(h * w)
        inside = h / math.pi * waves.real + self.rest + self.more
        slope = h * h / math.pi * grown.imag
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.base - self.line.s * w + np.log(inside), slope / inside - self.line.s, self.rest / inside

    def _waves(self, turn: Floats) -> tuple[Complexes, Complexes]:
        """Return Σ_k terms_k e^{-ik turn} and Σ_k k terms_k e^{-ik turn}, row by row."""
        # k = start + place: each e^{-ik turn} is a product of two of few such numbers.
        _, blocks, length = self._folded.shape
        starts, places = length * np.arange(blocks), np.arange(length)
        far, near = (np.exp(-1j * np.multiply.outer(turn, k)) for k in (starts, places))
        inner = np.einsum("rbp,rp->rb", self._folded, near)
        grown = starts * inner + np.einsum("rbp,rp->rb", self._folded, places * near)
        return np.vecdot(far.conj(), inner), np.vecdot(far.conj(), grown)

    @cached_property
    def _folded(self) -> Complexes:
        """Return the terms in blocks of about as many as there are blocks, with zeros at the end."""
        rows, count = self.terms.shape
        length = math.isqrt(count - 1) + 1
        result = np.zeros((rows, -(-count // length) * length), dtype=np.complex128)
        result[:, :count] = self.terms
        return result.reshape(rows, -1, length)


def _off(h: Floats, terms: Complexes, error: float) -> Floats:
    """Return a bound on what rounding, and an `error` of the logarithms, make of the terms."""
    return np.asarray(2 * error * h / math.pi * np.abs(terms).sum(axis=1))


def saddle_points(sums: Sums, p: float) -> Floats:
    """Return about the s at which P(S > w) = p has its saddle point: s K' - K = z²/2, as for Gaussian sums.

    They lie between LEAST and BELOW of the reach.
    """
    z = -float(scipy.special.ndtri(p))
    low, high = LEAST / sums.std, BELOW * np.minimum(sums.reach, FASTEST / sums.std)
    s = np.clip(z / sums.std, low, high)
    for _ in range(3):
        at, slope, bend = _derivatives(sums, s)
        aim = s - (s * slope - at - max(z, 0.0) ** 2 / 2) / np.maximum(s * bend, 1e-300)
        s = np.minimum(np.maximum(aim, (s + low) / 2), np.minimum(2 * s, (s + high) / 2))
    return np.asarray(np.clip(s, low, high))


def _derivatives(sums: Sums, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return K = ln M and, about, its derivatives, from its values at s and beside it."""
    h = 0.02 / sums.std
    at, aside = sums.log_moment(Contour(s, h, 1, 0.0))[0].T
    return at.real, aside.imag / h, 2 * (at.real - aside.real) / h**2


def inverted_quantiles(sums: Sums, p: float) -> Floats:
    """Return w with P(|S| > w) ≤ p row by row; ∞ where the remainder is too large to find one."""
    result = np.full(sums.rows, np.inf)
    for kind, aim in ((sums.on_lattice, ON_LATTICE), (~sums.on_lattice, OF_DENSITY)):
        some = np.flatnonzero(kind)
        if not some.size:
            continue
        part = sums.of(some) if aim is ON_LATTICE else sums.of(some).densities
        for rows, scale in _alike(part, aim):
            result[some[rows]] = _quantiles(part.of(rows, scale), p, aim) / scale
    return result


def _alike(sums: Sums, aim: Aim) -> Iterator[tuple[NDArray[np.intp], Floats]]:
    """Yield rows that may share a line when each is multiplied by its scale; those with the shortest reach first.

    Rows of a long reach have the line of Gaussian sums; others are made to have one reach.
    """
    reach = sums.reach * sums.std
    scale = np.where(reach < FAR, np.minimum(sums.reach, FAR / sums.std), 1 / sums.std)
    classes = np.floor(np.log(np.minimum(reach, FAR)) / math.log(ALIKE))
    for number in np.unique(classes):
        rows = np.flatnonzero(classes == number)
        rows = rows[np.argsort(reach[rows], kind="stable")]
        yield from ((part, scale[part]) for part in np.array_split(rows, math.ceil(rows.size / aim.rows)))


def _quantiles(sums: Sums, p: float, aim: Aim) -> Floats:
    sides = (sums,) if sums.symmetric else (sums, sums.turned)
    lines = [np.repeat(_line(side.of(slice(1)), p / 2, aim), side.rows, axis=1) for side in sides]  # shared by all
    result, rows, most = np.full(sums.rows, np.inf), np.arange(sums.rows), aim.nodes[1]
    count = max(_first_count(side, line, aim) for side, line in zip(sides, lines, strict=True))
    while rows.size:
        found, room = [], 0
        for side, (s, h) in zip(sides, lines, strict=True):
            part = side.of(rows)
            smoothed = Smoothed.of(part)
            fits = most if smoothed is None else int((smoothed.first / h[rows]).min())
            line = Contour(s[rows], h[rows], min(count, fits), aim.fit)
            found.append(Tails.of(part, line, smoothed))
            room = max(room, fits)
        w, share = solved([bound for bound, _ in found], p, sums.std[rows])
        raised = np.max([raised for _, raised in found], axis=0)
        result[rows] = np.minimum(result[rows], np.maximum(w + raised, 0))
        if count >= min(most, room):
            break
        rows, count = rows[~(share <= aim.rest)], 2 * count
    return result


def _line(sums: Sums, p: float, aim: Aim) -> tuple[Floats, Floats]:
    """Return s and h for tails of about p."""
    s = saddle_points(sums, p)
    # For m > 0 a repeated tail is at most e^{smL} M(r) e^{-r(w + mL)} for each r > s; w is K'(s), and the tail itself
    # about M(s) e^{-sw}/(2.5 s std).
    at, slope, _ = _derivatives(sums, s)
    room = np.minimum(sums.reach, s + FASTEST / 4 / sums.std) - s
    above = np.full(sums.rows, np.inf)
    for share in HIGHER:
        r = s + share * room
        more = sums.log_size(r, np.zeros_like(r)) - at - (r - s) * slope
        above = np.minimum(above, (aim.nats + np.log(2.5 * s * sums.std + 1) + more) / (r - s))
    return s, 2 * math.pi / np.maximum((aim.nats - math.log(p)) / s, above)


def _first_count(sums: Sums, line: Floats, aim: Aim) -> int:
    """Return how many nodes the first row needs, about."""
    (s, h), (count, most), first = (values[:1] for values in line), aim.nodes, sums.of(slice(1))
    smoothed = Smoothed.of(first)
    if smoothed is not None:
        most = min(most, int(smoothed.first[0] / h[0]))
    base = first.log_size(s, np.zeros(1))[0]
    while count < most and first.log_size(s, count * h)[0] - base > math.log(aim.rest / (s[0] * first.std[0])):
        count *= 2
    return count


def solved(bounds: Sequence[Tails], p: float, std: Floats) -> tuple[Floats, Floats]:
    """Return w at which the bounds add up to p at most, and the remainder's largest share. One bound counts twice."""

    def excess(w: Floats) -> tuple[Floats, Floats, Floats]:
        logs, slopes, shares = (np.array(values) for values in zip(*(bound.log(w) for bound in bounds), strict=True))
        parts = np.exp(logs - logs.max(axis=0))
        total = logs.max(axis=0) + np.log(parts.sum(axis=0)) - math.log(p * len(bounds) / 2)
        return total, (parts * slopes).sum(axis=0) / parts.sum(axis=0), shares.max(axis=0)

    s = bounds[0].line.s
    w = (bounds[0].base - np.log(np.maximum(s * std, 0.4) * p)) / s  # a tail is about M e^{-sw}/(2.5 s std)
    with np.errstate(all="ignore"):
        for _ in range(TURNS):
            over, slope, _ = excess(w)
            moved = np.clip(over / slope, -std, std)
            w = w - moved
            if not (np.abs(moved) > 1e-13 * std).any():
                break
        for up in 2.0 ** np.arange(TURNS) * 1e-13:
            over, _, share = excess(w)
            if not (over > 0).any():
                break
            w = np.where(over > 0, w + up * std, w)
        return np.where(over <= 0, w, np.inf), share


def whole_quantile(laws: Sequence[Whole], p: float) -> float:
    """Return the least w with P(|S| > w) ≤ p for the sum S of independent noises on the whole numbers less their means.

    The least but where a tail is p up to a billionth: there it may be the next.
    """
    sums = Sums([(law, np.ones((1, laws.count(law)))) for law in dict.fromkeys(laws)])
    mean = math.fsum(law.mean for law in laws)
    if sums.std[0] < SHORT:
        return _convolved_quantile([law.pmf() for law in laws], mean, p)
    bounds = [_whole_tails(side, p / 2) for side in (sums, sums.turned)]
    near = float(solved(bounds, p, sums.std)[0][0])
    if not math.isfinite(near):
        return math.inf
    part = mean - math.floor(mean)  # S is a whole number less this, and -S a whole number and this

    def tail(w: float) -> float:
        """Return a bound on P(|S| > w), from the next values of S and -S."""
        after = (math.floor(w + part + SAME) + 1 - part, math.floor(w - part + SAME) + 1 + part)
        return sum(math.exp(bound.log(np.array([x]))[0][0]) for bound, x in zip(bounds, after, strict=True))

    whole = range(math.floor(near) - 3, math.floor(near) + 4)
    values = sorted({max(x, 0.0) for j in whole for x in (j - part, j + part)})
    return next((w for w in values if tail(w) <= p), math.inf)


def _convolved_quantile(laws: Sequence[Masses], mean: float, p: float) -> float:
    """Return the quantile from the sum's law: no term is below 0, so that small tails keep their digits."""
    masses = reduce(np.convolve, [law.masses for law in laws])
    gaps = np.abs(np.arange(masses.size) + (sum(law.first for law in laws) - mean))
    order = np.argsort(-gaps, kind="stable")
    beyond = np.cumsum(masses[order]) + sum(law.lost for law in laws)
    farther = int(np.searchsorted(beyond, p * (1 - ON_LATTICE.tie), side="right"))
    return float(gaps[order[farther]]) if farther < gaps.size else 0.0


def _whole_tails(sums: Sums, p: float) -> Tails:
    s, h = _line(sums, p, OF_DENSITY)
    half, count = math.ceil(math.pi / h[0]), OF_DENSITY.nodes[0]
    while True:
        line = Contour(s, np.full(1, 2 * math.pi / (2 * half + 1)), min(count, half), OF_DENSITY.fit)
        bound = Tails.of_integers(sums, line)
        if count >= half or bound.rest[0] <= OF_DENSITY.rest * line.h[0] * abs(bound.terms[0, 0]):
            return bound
        count *= 2

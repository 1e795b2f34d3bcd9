"""The certificate of `relaxed-secagg-shuffle`: an ε̂ for one user's data in the count of ones, proved for every n.

Fix which k of the other n - 1 users escape; their x̂ then only translate the law. With m others in normal mode, D_m the
sum of their noises and U₁, …, U_k uniform on {0..d}, the sum is, up to a translation, V + D_m + U₁ + … + U_k: the
user's own V is uniform with probability q, else x̂ + noise. Let E and N_x̂ be these two parts of the law for k = 0.

1. Worst pair. N is symmetric and unimodal, E too, about the mirror axis g/2: each is a symmetric unimodal law convolved
   with log-concave ones (Ibragimov 1956). So they stay after U₁ … U_k. Let N_0 have its centre at 0. At s ≥ g the
   largest N_x̂ is N_g, the least is N_0. At 0 ≤ s < g the largest is at most N_0(0) = N_g(g), the least at least N_0(g),
   and E(s) ≥ E(g). That ratio is smaller than the one of N_g and N_0 at g. The rest is the mirror image. So g against 0
   is the worst.
   Moves of m < g. N_(x+m)(s) is above N_x(s) for y = s - x ≥ m/2 only, by a ratio that y decides. E(s) is the less, the
   farther s is from g/2: y + g/2 - m at x = g - m, which is farther than any other x ≤ g - m puts it. So g against
   g - m is the worst.
2. Tails. A sum A of m one-sided shares, truncated or not, has v P(A = v) ≤ β (v - 1 + m/t) P(A = v-1), because one
   share's masses obey v a(v) = β (v - 1 + 1/t) a(v-1). So for m ≤ t the laws of A, and of D_m right of 0, fall by β
   or faster. With M = E[e^(noise/scale)], then N_g(s) ≤ β^W M (1-q) P(D_m = s-W-g) for every s ≥ W + g, and E(s) is
   at least q/(d+1) times the same mass: the escape alone hides the user there if e^ε̂ - 1 ≥ β^W M (1-q)(d+1)/q.
   Left of -W, N_g ≤ N_0.
3. Centre. On a window wider than [-W, W + g] we compute N_g from above, N_0 and E from below. Convolving with U₁ … U_k
   keeps N_g ≤ e^ε̂ N_0 + (e^ε̂ - 1) E where it held, so only the window is convolved and compared.
4. All k. One more independent term is post-processing: a pair (m, k) serves every larger m and k. Blocks of k are
   certified by their least k and their least m, with m ≤ t - 1 and k at most what a double can hold.

The computation uses no normal law and no FFT. Every sum has positive terms, so that relative rounding errors add up;
their bound is added to ε̂.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.noise.law import UNIT, Pmf
from distrust.common.dp.noise.polya import check_shape_and_scale
from distrust.common.errors import BadParameter

LONGEST_REACH = 4_000
"""Largest W that is certified. Beyond it the search takes minutes."""

LEAST_ESCAPE = 2.0**-50
"""Smallest probability of a uniform answer that the sampler draws."""

Terms = TypeVar("Terms", NDArray[np.float64], NDArray[np.complex128])

LONG = 400
"""The number of entries from which laws are not convolved term by term."""

SINGLES = 20  # numbers of escaped users that are certified one by one
GROWTH = 1.25  # factor from one block of such numbers to the next, after SINGLES
MARGIN = 8  # scales of the noise beyond which the window's edge hardly loosens the bound
MOST_ESCAPES = 64  # the most escapes that are convolved; with more of them the certificate counts on these
WORTHWHILE = 300_000  # entries of a law up to which more escapes than SINGLES are convolved
DIGITS = 250  # powers of ten that (d+1)^k may take in a double
LEAST_MASS = 1e-250  # mass of E below which a point is left out: only beyond W + g, which step 2 covers


@dataclass(frozen=True, slots=True)
class BitDesign:
    """The answer of one user: with probability q a uniform number of ones in {0..d}, else c + x̂ + γ⁺ - γ⁻ ones.

    precision  g ≥ 1: x̂ lies in {0..g}.
    share      t ≥ 1: γ± are Pólya(1/t, β), β = e^(-1/scale), each given that it is at most `reach`.
    scale      of the noise, in grid steps: t shares are discrete Laplace with ε = g/scale.
    reach      W ≥ 1.
    length     d ≥ 2W + g, d - g even: bits a user. c = (d - g)/2, so that x̂ ↔ g - x̂ mirrors the law.
    escape     q in (0, 1), at most the probability of a uniform answer.
    Raises     BadParameter naming the field.
    """

    precision: int
    share: int
    scale: float
    reach: int
    length: int
    escape: float

    def __post_init__(self) -> None:
        check_shape_and_scale(Fraction(1, max(1, self.share)), self.scale)
        least = 2 * self.reach + self.precision
        rules = (
            ("precision", self.precision >= 1, "must be at least 1"),
            ("share", self.share >= 1, "must be at least 1"),
            ("reach", 1 <= self.reach <= LONGEST_REACH, f"must lie in [1, {LONGEST_REACH}]: not certified beyond"),
            ("length", self.length >= least, f"must be at least 2 * reach + precision = {least}"),
            ("length", (self.length - self.precision) % 2 == 0, "must be as odd as precision"),
            (
                "length",
                self.length <= 10 * LONGEST_REACH,
                f"must be at most {10 * LONGEST_REACH}: not certified beyond",
            ),
            ("escape", LEAST_ESCAPE <= self.escape < 1, "must lie in [2^-50, 1)"),
        )
        for field, met, allowed in rules:
            if not met:
                raise BadParameter(field, getattr(self, field), allowed)

    @property
    def center(self) -> int:
        """Return c, the ones of a user in normal mode with x̂ = 0 and no noise."""
        return (self.length - self.precision) // 2

    @property
    def beta(self) -> float:
        """Return β, the share that a tail keeps from one step to the next."""
        return math.exp(-1 / self.scale)

    def one_sided(self) -> NDArray[np.float64]:
        """Return the probabilities of γ⁺ on {0..W}."""
        x = np.arange(self.reach)
        masses = np.concatenate(([1.0], np.cumprod((x + 1 / self.share) / (x + 1) * self.beta)))
        return masses / float(masses.sum())

    def overflow(self) -> float:
        """Return a bound on P(γ > W) before truncation."""
        # It is the mass at W + 1 and a geometric tail, because ratios stay below β.
        r, x = 1 / self.share, self.reach + 1
        log = math.lgamma(x + r) - math.lgamma(x + 1) - math.lgamma(r) - x / self.scale
        return math.exp(log + (r - 1) * math.log(-math.expm1(-1 / self.scale)))

    def uniform_chance(self) -> float:
        """Return a bound on the probability that a user's answer is uniform: an escape, or a γ above W."""
        return self.escape + 2 * self.overflow()

    def answer_law(self, steps: int) -> Pmf:
        """Return the law of one user's number of ones for x̂ = `steps`, with `uniform_chance` as the uniform part."""
        one, uniform = self.one_sided(), self.uniform_chance()
        masses = np.full(self.length + 1, uniform / (self.length + 1))
        start = self.center + steps - self.reach
        masses[start : start + 2 * self.reach + 1] += (1 - uniform) * np.convolve(one, one[::-1])
        return Pmf(0, np.log(masses), 0.0)


def window_sums(terms: Terms, width: int) -> Terms:
    """Return sums of `terms` over every window of `width` entries, overhanging ones too, shape (size + width - 1,).

    terms  real, or two laws as real and imaginary parts, which are then added at once.
    """
    # A window is the end of one block and the start of the next: cumulated from both sides, never subtracted.
    count = terms.size + width - 1
    blocks = -(-(count + width - 1) // width)
    padded = np.zeros(blocks * width, dtype=terms.dtype)
    padded[width - 1 : width - 1 + terms.size] = terms
    rows = padded.reshape(blocks, width)
    sums = np.empty_like(rows)
    np.cumsum(rows[:, ::-1], axis=1, out=sums[:, ::-1])
    sums[:-1, 1:] += np.cumsum(rows[1:, :-1], axis=1)
    return sums.reshape(-1)[:count]


def difference_law(design: BitDesign, count: int, last: int) -> tuple[Floats, Floats]:
    """Return P(D = 0), …, P(D = last) from below and from above, D the sum of `count` ≤ t users' γ⁺ - γ⁻."""
    # D = A - B, A and B sums of one-sided shares. Their laws on {0..last} need nothing from beyond, and beyond they
    # fall by β or faster (step 2 of the module's docstring). So the pairs with A > last weigh at most
    # P(A = last) P(A = last - s) β²/(1 - β²).
    one = np.zeros(last + 1)
    kept = _power(design, count, last)
    one[: kept.size] = kept
    lower = np.correlate(one, one, "full")[last:]
    rest = design.beta**2 / (1 - design.beta**2) * one[last]
    return lower, lower + rest * one[::-1]


@lru_cache(maxsize=256)
def _power(design: BitDesign, count: int, last: int) -> Floats:
    """Return the law of `count` one-sided shares on {0..last}."""
    if count == 0:
        return np.ones(1)
    if count == 1:
        return design.one_sided()[: last + 1]
    if LONG <= last <= 2 * design.reach:
        return _cut(design, count, last)
    half = _power(design, count // 2, last)
    whole: Floats = np.convolve(half, half)[: last + 1]
    if count % 2:
        whole = np.convolve(whole, design.one_sided())[: last + 1]
    return whole


def _cut(design: BitDesign, count: int, last: int) -> Floats:
    """Return the law of the sum of `count` one-sided shares on {0..last}, last ≤ 2W."""
    # At most one share can be above W. The sum of whole shares is Pólya(count/t). The part with one share u > W is
    # count Σ_u P(share = u) P(the others = v - u). It is taken off: never more than half of the mass at v ≤ 3W/2. The
    # rest is divided by the probability that no share is cut.
    whole = _polya(count / design.share, design, last)
    one = _polya(1 / design.share, design, last)
    others = _polya((count - 1) / design.share, design, last)
    above = design.reach + 1
    kept = whole.copy()
    if last >= above:
        kept[above:] -= count * np.convolve(one[above:], others[: last - above + 1])[: last - above + 1]
    return np.asarray(kept / float(one[:above].sum()) ** count, dtype=np.float64)


def _polya(shape: float, design: BitDesign, last: int) -> Floats:
    """Return the probabilities of Pólya(shape, β) on {0..last}."""
    x = np.arange(last)
    ratios = (x + shape) / (x + 1) * design.beta
    law: Floats = (-math.expm1(-1 / design.scale)) ** shape * np.concatenate(([1.0], np.cumprod(ratios)))
    return law


@lru_cache(maxsize=1024)
def certified_epsilon(design: BitDesign, honest: int, enough: float = math.inf, move: int | None = None) -> float:
    """Return ε̂ of the count of ones for one of `honest` users, whatever the data; rounded up.

    enough  ends the work early: a value above it is only a lower bound of the certificate.
    move    steps by which that user's x̂ changes at most; None: g.
    """
    if honest < 1:
        raise BadParameter("honest", honest, "must be at least 1")
    worst = 0.0
    for others, escaped in splits(design, honest):
        worst = max(worst, pair_epsilon(design, others, escaped, move))
        if worst > enough:
            break
    return worst


def splits(design: BitDesign, honest: int) -> Iterator[tuple[int, int]]:
    """Yield pairs (normal, escaped): every split of honest - 1 others has at least as many of both as one of them."""
    cap = min(MOST_ESCAPES, math.floor(DIGITS / math.log10(design.length + 1)))
    cap = min(cap, max(SINGLES, WORTHWHILE // design.length))
    first, most = 0, design.share - 1
    while first < honest:
        if first == 0:
            last = max(0, honest - 1 - most)  # the full share is there anyway
        elif first >= cap:
            last = honest - 1
        else:
            last = first if first < SINGLES else min(math.floor(GROWTH * first), cap - 1)
        last = min(last, honest - 1)
        yield min(honest - 1 - last, most), min(first, cap)
        first = last + 1


def pair_epsilon(design: BitDesign, normal: int, escaped: int, move: int | None = None) -> float:
    """Return ε̂ when at least `normal` < t others answer normally and at least `escaped` others escape."""
    if move is not None and not 1 <= move <= design.precision:
        raise BadParameter("move", move, f"must lie in [1, precision = {design.precision}]")
    if not 0 <= normal < design.share:
        raise BadParameter("normal", normal, f"must lie in [0, share - 1 = {design.share - 1}]")
    return _pair_epsilon(design, normal, escaped, design.precision if move is None else move)


@lru_cache(maxsize=4096)
def _pair_epsilon(design: BitDesign, normal: int, escaped: int, move: int) -> float:
    """Return ε̂ of one pair and move. Cached, because the search and the guarantee ask for the same pairs."""
    one, other = _centre(design, normal, move)
    both = np.empty(one.size, dtype=np.complex128)
    both.real, both.imag = one, other
    for _ in range(escaped):
        both = window_sums(both, design.length + 1)
    one, other = both.real, both.imag
    met = one > 0
    inside = float(np.log(one[met] / other[met]).max())  # inf where only one of them is 0
    return max(inside, _tail(design)) + _rounding(design, normal, escaped)


def _centre(design: BitDesign, normal: int, move: int) -> tuple[Floats, Floats]:
    """Return N_g + E with N_g from above, and N_(g-move) + E from below, on s = -B to B + g, B = c + MARGIN scales."""
    g, q = design.precision, design.escape
    reach = design.center + math.ceil(MARGIN * design.scale)
    last = reach + g + math.ceil(MARGIN / 2 * design.scale)
    others, _ = difference_law(design, normal, last)
    lower, upper = difference_law(design, normal + 1, last)
    s = np.arange(-reach, reach + g + 1)
    around = window_sums(np.concatenate((others[:0:-1], others)), design.length + 1)[s + design.center + last]
    flat = q / (design.length + 1) * around
    kept = flat > LEAST_MASS
    return ((1 - q) * upper[np.abs(s - g)] + flat) * kept, ((1 - q) * lower[np.abs(s - g + move)] + flat) * kept


@lru_cache(maxsize=256)
def _tail(design: BitDesign) -> float:
    """Return the ε̂ that the tails need: ln(1 + β^W M (1 - q)(d + 1)/q)."""
    one, powers = design.one_sided(), np.exp(np.arange(design.reach + 1) / design.scale)
    moment = float(one @ powers) * float(one @ (1 / powers))
    least = math.exp(-design.reach / design.scale) * moment * (1 - design.escape) * (design.length + 1)
    return math.log1p(least / design.escape)


def _rounding(design: BitDesign, normal: int, escaped: int) -> float:
    """Return a bound on the relative rounding error of both laws: about one unit for each term of each sum."""
    terms = (normal + 2) * (2 * design.length + 3 * MARGIN * design.scale + 16)
    return 8 * UNIT * (terms + (escaped + 1) * (design.length + 16))

"""What the count of ones tells of one user: ε̂ with a proof for every n, computed with positive terms only.

Fix which k of the other n - 1 users escape; their x̂ then only translate the law. With m others in normal mode, D_m the
sum of their noises and U₁, …, U_k uniform on {0..d}, the sum is, up to a translation, V + D_m + U₁ + … + U_k: the
user's own V is uniform with probability q, else x̂ + noise. Let E and N_x̂ be these two parts of the law for k = 0.

1. Worst pair. N is symmetric and unimodal, E too, about the mirror axis g/2: a symmetric unimodal law convolved with
   log-concave ones (Ibragimov 1956), and so they stay after U₁ … U_k. Let N_0 have its centre at 0. At s ≥ g the
   largest N_x̂ is N_g, the least is N_0. At 0 ≤ s < g the largest is at most N_0(0) = N_g(g), the least at least
   N_0(g), and E(s) ≥ E(g): a smaller ratio than that of N_g and N_0 at g. The rest is the mirror image. So g against
   0 is the worst.
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

No normal law, no FFT. Every sum has positive terms, so relative rounding errors add up; their bound is added to ε̂.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.pure_shuffle.design import Design
from distrust.common.mechanisms.pure_shuffle.positive import Array, shares, window_sums

SINGLES = 20  # numbers of escaped users that are certified one by one
GROWTH = 1.25  # of the blocks after them
MARGIN = 8  # scales of the noise beyond which the window's edge hardly loosens the bound
MOST_ESCAPES = 64
WORTHWHILE = 300_000  # entries of a law after as many escapes, but for SINGLES of them: what more are certified by
DIGITS = 250  # powers of ten that (d+1)^k may take in a double
LEAST = 1e-250  # mass of E below which a point is left out: only beyond W + g, where step 2 has dealt with it
UNIT = 2.0**-53


@lru_cache(maxsize=1024)
def certified_epsilon(design: Design, honest: int, enough: float = math.inf, move: int | None = None) -> float:
    """Return ε̂ of the count of ones for one of `honest` users, whatever the data; rounded up.

    `enough` ends the work early: above it the value is only a lower bound of the certificate.
    move    steps by which that user's x̂ changes at most; g when None.
    """
    if honest < 1:
        raise BadParameter("honest", honest, "must be at least 1")
    worst = 0.0
    for others, escaped in blocks(design, honest):
        worst = max(worst, pair_epsilon(design, others, escaped, move))
        if worst > enough:
            break
    return worst


def blocks(design: Design, honest: int) -> Iterator[tuple[int, int]]:
    """Pairs (normal, escaped): every split of honest - 1 others has at least as many of both as one of the pairs."""
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


def pair_epsilon(design: Design, normal: int, escaped: int, move: int | None = None) -> float:
    """Return ε̂ when at least `normal` < t others answer normally and at least `escaped` others escape."""
    if move is not None and not 1 <= move <= design.precision:
        raise BadParameter("move", move, f"must lie in [1, precision = {design.precision}]")
    if not 0 <= normal < design.share:
        raise BadParameter("normal", normal, f"must lie in [0, share - 1 = {design.share - 1}]")
    return _pair_epsilon(design, normal, escaped, design.precision if move is None else move)


@lru_cache(maxsize=4096)
def _pair_epsilon(design: Design, normal: int, escaped: int, move: int) -> float:
    """Return the same for every move, told or not: the search and the guarantee ask for the same pairs."""
    one, other = _centre(design, normal, move)
    both = np.empty(one.size, dtype=np.complex128)
    both.real, both.imag = one, other
    for _ in range(escaped):
        both = window_sums(both, design.length + 1)
    one, other = both.real, both.imag
    met = one > 0
    inside = float(np.log(one[met] / other[met]).max())  # inf where only one of them is 0
    return max(inside, _tail(design)) + _rounding(design, normal, escaped)


def _centre(design: Design, normal: int, move: int) -> tuple[Array, Array]:
    """Return N_g + E from above in N_g, and N_(g-move) + E from below, from s = -B to B + g, B = c + MARGIN scales."""
    g, q = design.precision, design.escape
    reach = design.center + math.ceil(MARGIN * design.scale)
    last = reach + g + math.ceil(MARGIN / 2 * design.scale)
    others, _ = shares(design, normal, last)
    lower, upper = shares(design, normal + 1, last)
    s = np.arange(-reach, reach + g + 1)
    around = window_sums(np.concatenate((others[:0:-1], others)), design.length + 1)[s + design.center + last]
    flat = q / (design.length + 1) * around
    kept = flat > LEAST
    return ((1 - q) * upper[np.abs(s - g)] + flat) * kept, ((1 - q) * lower[np.abs(s - g + move)] + flat) * kept


@lru_cache(maxsize=256)
def _tail(design: Design) -> float:
    """ln(1 + β^W M (1 - q)(d + 1)/q)."""
    one, powers = design.one_sided(), np.exp(np.arange(design.reach + 1) / design.scale)
    moment = float(one @ powers) * float(one @ (1 / powers))
    least = math.exp(-design.reach / design.scale) * moment * (1 - design.escape) * (design.length + 1)
    return math.log1p(least / design.escape)


def _rounding(design: Design, normal: int, escaped: int) -> float:
    """Bound on the relative rounding error of both laws: about one unit for each term of each sum."""
    terms = (normal + 2) * (2 * design.length + 3 * MARGIN * design.scale + 16)
    return 8 * UNIT * (terms + (escaped + 1) * (design.length + 16))

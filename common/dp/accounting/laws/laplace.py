"""Computes the privacy of Laplace noise on vectors: pure ε, ε at δ and Rényi divergences, on integers and in reals.

- A box at a δ: exact, as the losses of discrete Laplace noise lie on a lattice.
- Several releases of a box about one client: exact too, as they are a box of more coordinates.
- Whole moves of several coordinates tell no more than a move of one coordinate by their sum, at every ε.
- Continuous noise tells no more than discrete noise of the same ε, on any grid.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import How
from distrust.common.dp.accounting.guarantee import RenyiCurve
from distrust.common.dp.accounting.profile import (
    PROFILE_ORDERS,
    RAISED,
    Profile,
    Repeated,
    Spent,
    bound,
    curve,
    exact,
    response_epsilon,
    response_renyi,
    spent_as,
)
from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at, from_rdp, rdp, renyi_divergence
from distrust.common.dp.accounting.techniques.products import product_epsilon
from distrust.common.dp.accounting.techniques.searches import least_met
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.accounting.techniques.vector_bounds import vector_epsilon
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference

LONGEST = 1 << 13
"""Largest Dg of a box that is convolved, which takes a few hundredths of a second."""

DIGITS = 1e-10  # relative, of ε, upwards
DELTA_ROUNDING = 1e-11  # relative, of δ: of two factors of LONGEST terms, and of the factors of these
SERIES = 0.1  # αε below which the continuous law's divergence is a series
LONGEST_MOMENTS = 1000.0  # of noise whose law's moments are looked at, in grid steps
UNFELT = 1e-11  # share of a sum that the law's truncation may add while the sum still counts as exact

# Proof of the second and third statement above. Let β = e^(-1/scale), and u_t(ε) = e^(-ε/2) Σ min(p, e^ε q) for the law
# p and its shift q by t: the larger it is, the less is told. For |ε| ≥ t/scale it is e^(-|ε|/2). At each loss
# (t - 2j)/scale it is e^(-t/(2 scale)), by a geometric series. Between those Σ min(p, e^ε q) is linear in e^ε.
# Where two coordinates are moved by s and t, u is the mean of u_t(ε - loss) over √(pq) of the first. At
# ε = (s + t - 2j)/scale that is e^(-(s+t)/(2 scale)) (1 + (1-β)/(1+β) min(j, s, t, s + t - j)), never below u_(s+t).
# Continuous noise has u(ε) = e^(-max(|ε|, t/scale)/2) everywhere. Discrete noise of the same ε, on any grid, has the
# chords of its Σ min(p, e^ε q).


def has_few_losses(shift: int, dimension: int) -> bool:
    """Return whether a box's losses are few enough."""
    return shift * dimension <= LONGEST


@lru_cache(maxsize=256)
def laplace_box_epsilon(scale: float, shift: int, dimension: int, delta: float) -> float:
    """Return the least ε at `delta` of Lap_Z(scale) on `dimension` coordinates, all moved by `shift`; rounded up."""
    # A coordinate that is moved by g loses (g - 2x)/scale, where x is its noise, put between 0 and g. So D of them lose
    # (Dg - 2j)/scale, j the sum of D such x: one convolution of positive terms. The neighbour's law is the mirror
    # image.
    masses = _power(_coordinate(scale, shift), dimension)
    losses = (dimension * shift - 2 * np.arange(masses.size)) / scale

    def met(epsilon: float) -> bool:
        above = losses > epsilon
        return float(masses[above] @ -np.expm1(epsilon - losses[above])) <= delta * (1 - DELTA_ROUNDING)

    return least_met(met, 0.0, float(losses[0]), DIGITS)


def continuous_box_epsilon(loss: float, dimension: int, delta: float) -> float:
    """Return an ε at `delta` of Laplace noise in reals on `dimension` coordinates that lose `loss` each.

    It is that of discrete noise on a fine grid, which is no smaller.
    """
    steps = max(1, LONGEST // dimension)
    return laplace_box_epsilon(steps / loss, steps, dimension, delta)


@dataclass(frozen=True, slots=True)
class RepeatedLaplace:
    """Releases of one box about one client, with noise of one Laplace variable or more on every coordinate.

    shift       steps that one client may move each of the `dimension` coordinates by, up or down.
    continuous  whether the noise is in reals; else on the integers.
    """

    # A move of all coordinates by g, up or down alike, tells at least as much at every ε as any other, and so does the
    # product of such moves as releases that depend on each other (Zhu, Dong & Wang 2022, Theorem 10). A client that
    # moves by g every time tells that much. More Laplace terms than one are post-processing of one.

    scale: float
    shift: int
    dimension: int
    continuous: bool = False

    def epsilon(self, times: int, delta: float) -> float:
        """Return the ε of `times` releases at δ, exact for one term on the integers; inf for too many losses."""
        count = times * self.dimension
        if self.continuous:
            return continuous_box_epsilon(self.shift / self.scale, count, delta) if count <= LONGEST else math.inf
        if not has_few_losses(self.shift, count):
            return math.inf
        return laplace_box_epsilon(self.scale, self.shift, count, delta)

    def joined(self, other: Repeated) -> Repeated | None:
        """Return this law if `other` is equal. Losses on two lattices may cost more together than as many of either."""
        return self if self == other else None


def repeated_laplace(scale: float, grid: Grid, *, continuous: bool = False) -> RepeatedLaplace | None:
    """Return the law of several releases with noise of one term or more; None in balls, where no move is the worst."""
    return RepeatedLaplace(scale, grid.precision, grid.dimension, continuous) if grid.is_box else None


def _coordinate(scale: float, shift: int) -> NDArray[np.float64]:
    """Return the law of a coordinate's noise, put between 0 and the shift."""
    inner = math.tanh(1 / (2 * scale)) * np.exp(-np.arange(1, shift) / scale)
    least, most = (1 / (1 + math.exp(sign / scale)) for sign in (-1, 1))
    return np.concatenate(([least], inner, [most * math.exp(-(shift - 1) / scale)]))


def _power(law: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """Return the law of the sum of `terms`, by squaring."""
    if terms == 1:
        return law
    half = _power(law, terms // 2)
    whole: NDArray[np.float64] = np.convolve(half, half)
    return np.convolve(whole, law) if terms % 2 else whole


def discrete_laplace_profile(law: PolyaDifference, grid: Grid, pure: float, delta: float) -> Profile:
    """Return the profile of noise `law` on every coordinate, `pure` its ε. For the box, the law's own divergences.

    law  one coordinate's. The worst pair moves all coordinates by g.
    """
    # Noise of one term or more is log-concave. That of less falls log-convexly on both sides of 0, and a set where it
    # beats e^ε times its shift is an interval around 0, whose mass under the shift falls as the shift grows. So every
    # smaller shift's divergence stays below.
    if grid.dimension > 1 and grid.norm != "linf":
        return _in_a_ball(law.scale, grid, pure, delta, whole=law.shape >= 1)
    raw, known = _divergences(law, grid.precision, pure / grid.dimension)
    pairs = tuple((order, min(pure, grid.dimension * one)) for order, one in zip(PROFILE_ORDERS, raw, strict=True))
    return Profile(
        delta=delta,
        pure=exact(pure),
        approximate=_approximate(law, grid, pure, delta, pairs),
        rdp=pairs,
        rdp_how="exact" if known else "bound",
    )


def real_laplace_profile(scale: float, grid: Grid, pure: float, delta: float, how: How) -> Profile:
    """Return the profile of Laplace noise in reals, before anything is rounded: closed forms.

    how  whether the release is this noise itself.
    """
    if grid.dimension > 1 and grid.norm != "linf":
        return _in_a_ball(scale, grid, pure, delta, whole=True)
    pairs = curve(lambda order: grid.dimension * continuous_renyi(grid.precision / scale, order) * RAISED)
    one = max(0.0, pure + 2 * math.log1p(-delta)) * RAISED
    known = tuple((order, epsilon) for order, epsilon in pairs if epsilon is not None)
    several = min(response_epsilon(pure, delta), from_rdp(known, delta))
    if 1 < grid.dimension <= LONGEST:
        several = min(several, continuous_box_epsilon(pure / grid.dimension, grid.dimension, delta))
    approximate = spent_as(min(pure, one), how) if grid.dimension == 1 else bound(several)
    return Profile(delta=delta, pure=spent_as(pure, how), approximate=approximate, rdp=pairs, rdp_how=how)


def continuous_renyi(epsilon: float, order: float) -> float:
    """Return ln[(α e^((α-1)ε) + (α-1) e^(-αε)) / (2α-1)] / (α-1): Mironov 2017, Table II, for a shift of ε scales."""
    a = order
    if a * epsilon < SERIES:
        terms = (((a - 1) ** (k - 1) - (-a) ** (k - 1)) * epsilon**k / math.factorial(k) for k in range(12, 1, -1))
        return math.log1p(a * (a - 1) / (2 * a - 1) * math.fsum(terms)) / (a - 1)
    inner = a + (a - 1) * math.exp(-(2 * a - 1) * epsilon)
    return epsilon + math.log(inner / (2 * a - 1)) / (a - 1)


@lru_cache(maxsize=4096)
def discrete_renyi(scale: float, shift: int, order: float) -> float:
    """Return the Rényi divergence of Lap_Z(scale) and its shift: three stretches, the outer two with one loss each."""
    others, losses = _stretches(scale, shift)
    return renyi_divergence(others, losses, order)


def _stretches(scale: float, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log-masses of Q and losses: x ≤ 0 together, x ≥ shift together, and each x between them."""
    a = 1 / scale
    between = np.arange(1, shift)
    outer = -math.log1p(math.exp(-a)) + np.array([-a * shift, 0.0])
    inner = math.log(math.tanh(a / 2)) - a * (shift - between)
    losses = np.concatenate(([a * shift, -a * shift], a * (shift - 2.0 * between)))
    return np.concatenate((outer, inner)), losses


def _divergences(law: PolyaDifference, shift: int, pure: float) -> tuple[list[float], bool]:
    """Return one coordinate's RDP at every order, and whether that is exact.

    Mass outside the support has a loss of at most `pure`.
    """
    if law.shape == 1:
        return [min(pure, discrete_renyi(law.scale, shift, order) * RAISED) for order in PROFILE_ORDERS], True
    pmf = law.pmf()
    inside = rdp(pmf, shift, PROFILE_ORDERS)
    felt = [
        math.log1p(pmf.lost * math.exp(min(700.0, (order - 1) * (pure - one))))
        for order, one in zip(PROFILE_ORDERS, inside, strict=True)
    ]
    most = [one + more / (order - 1) for one, more, order in zip(inside, felt, PROFILE_ORDERS, strict=True)]
    if law.shape > 1:  # more than one term is post-processing of one
        most = [
            min(one, discrete_renyi(law.scale, shift, order)) for one, order in zip(most, PROFILE_ORDERS, strict=True)
        ]
    return [min(pure, one * RAISED) for one in most], max(felt) < UNFELT


def _approximate(law: PolyaDifference, grid: Grid, pure: float, delta: float, pairs: RenyiCurve) -> Spent:
    if grid.dimension == 1:
        return exact(min(pure, epsilon_at(law.pmf(), grid.precision, delta)))
    if law.shape == 1 and has_few_losses(grid.precision, grid.dimension):
        return exact(min(pure, laplace_box_epsilon(law.scale, grid.precision, grid.dimension, delta)))
    ways = [response_epsilon(pure, delta), from_rdp(pairs, delta)]
    if law.shape >= 1:  # log-concave; the rest composed on a grid of losses would not be
        ways.append(product_epsilon(law.pmf(), grid.precision, grid.dimension, delta))
    return bound(min(ways))


def _in_a_ball(scale: float, grid: Grid, pure: float, delta: float, *, whole: bool) -> Profile:
    """Return the profile of bounds for ℓ₁ and ℓ₂.

    Rényi bounds are those of any ε-pure law, and α Σ(s_i/scale)²/2 for shifts s_i that lose s_i/scale each. ε at δ also
    uses the law's own moments, with the worst spread of the move.
    """
    # Noise in reals on rounded values tells no more than on the grid: a Laplace variable is Lap_Z plus something
    # independent.

    def divergence(order: float) -> float:
        general = response_renyi(pure, order)
        return min(general, order * grid.squared_l2 / (2 * scale**2) * RAISED) if whole else general

    pairs = tuple((order, divergence(order)) for order in PROFILE_ORDERS)
    ways = [response_epsilon(pure, delta), from_rdp(pairs, delta)]
    if whole and grid.rounded and scale <= LONGEST_MOMENTS:
        ways.append(vector_epsilon(DiscreteLaplace(scale).pmf(), grid, delta))
    return Profile(
        delta=delta,
        pure=bound(pure),
        approximate=bound(min(ways)),
        rdp=pairs,
        rdp_how="bound",
    )

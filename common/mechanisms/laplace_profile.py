"""What Laplace noise promises besides its pure ε: (ε, δ) and Rényi divergences, on the integers and in reals."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.accounting import epsilon_at, from_rdp, rdp, renyi
from common.error_law import How
from common.mechanisms.gaussian_search import Grid
from common.mechanisms.laplace_box import LONGEST, box_epsilon, continuous_box_epsilon, fits
from common.mechanisms.spread import vector_epsilon
from common.noise import DiscreteLaplace, PolyaDifference
from common.product_accounting import product_epsilon
from common.profile import (
    ORDERS,
    RAISED,
    Profile,
    Spent,
    bound,
    curve,
    exact,
    response_epsilon,
    response_renyi,
    spent,
)

SERIES = 0.1  # αε below which the continuous law's divergence is a series
Known = tuple[tuple[float, float], ...]

LONGEST_SCALE = 1000.0  # of noise whose law's moments are looked at, in grid steps
UNFELT = 1e-11  # share of a sum that the law's truncation may add without a word


def discrete_profile(law: PolyaDifference, grid: Grid, pure: float, delta: float) -> Profile:
    """Noise `law` on every coordinate, `pure` its ε. One coordinate, or the box: the law's own divergences.

    Worst pair  all coordinates moved by g. Noise of one term or more is log-concave. That of less falls log-convexly on
                both sides of 0, and a set where it beats e^ε times its shift is an interval around 0, whose mass under
                the shift falls as the shift grows: so does every smaller shift's divergence stay below.
    """
    if grid.dimension > 1 and grid.norm != "linf":
        return _in_a_ball(law.scale, grid, pure, delta, whole=law.shape >= 1)
    raw, known = _divergences(law, grid.precision, pure / grid.dimension)
    pairs = tuple((order, min(pure, grid.dimension * one)) for order, one in zip(ORDERS, raw, strict=True))
    return Profile(
        delta=delta,
        pure=exact(pure),
        approximate=_approximate(law, grid, pure, delta, pairs),
        rdp=pairs,
        rdp_how="exact" if known else "bound",
    )


def continuous_profile(scale: float, grid: Grid, pure: float, delta: float, how: How) -> Profile:
    """Laplace noise in reals, before anything is rounded: closed forms. `how`: whether that is what is released."""
    if grid.dimension > 1 and grid.norm != "linf":
        return _in_a_ball(scale, grid, pure, delta, whole=True)
    pairs = curve(lambda order: grid.dimension * continuous_renyi(grid.precision / scale, order) * RAISED)
    one = max(0.0, pure + 2 * math.log1p(-delta)) * RAISED
    known = tuple((order, epsilon) for order, epsilon in pairs if epsilon is not None)
    several = min(response_epsilon(pure, delta), from_rdp(known, delta))
    if 1 < grid.dimension <= LONGEST:
        several = min(several, continuous_box_epsilon(pure / grid.dimension, grid.dimension, delta))
    approximate = spent(min(pure, one), how) if grid.dimension == 1 else bound(several)
    return Profile(delta=delta, pure=spent(pure, how), approximate=approximate, rdp=pairs, rdp_how=how)


def continuous_renyi(epsilon: float, order: float) -> float:
    """ln[(α e^((α-1)ε) + (α-1) e^(-αε)) / (2α-1)] / (α-1): Mironov 2017, Table II, for a shift of ε scales."""
    a = order
    if a * epsilon < SERIES:
        terms = (((a - 1) ** (k - 1) - (-a) ** (k - 1)) * epsilon**k / math.factorial(k) for k in range(12, 1, -1))
        return math.log1p(a * (a - 1) / (2 * a - 1) * math.fsum(terms)) / (a - 1)
    inner = a + (a - 1) * math.exp(-(2 * a - 1) * epsilon)
    return epsilon + math.log(inner / (2 * a - 1)) / (a - 1)


@lru_cache(maxsize=4096)
def discrete_renyi(scale: float, shift: int, order: float) -> float:
    """Rényi divergence of Lap_Z(scale) and its shift: three stretches, the outer two with one loss each."""
    others, losses = _stretches(scale, shift)
    return renyi(others, losses, order)


def _stretches(scale: float, shift: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-masses of Q and losses: x ≤ 0 together, x ≥ shift together, and each x between them."""
    a = 1 / scale
    between = np.arange(1, shift)
    outer = -math.log1p(math.exp(-a)) + np.array([-a * shift, 0.0])
    inner = math.log(math.tanh(a / 2)) - a * (shift - between)
    losses = np.concatenate(([a * shift, -a * shift], a * (shift - 2.0 * between)))
    return np.concatenate((outer, inner)), losses


def _divergences(law: PolyaDifference, shift: int, pure: float) -> tuple[list[float], bool]:
    """One coordinate's RDP at every order, and whether that is exact: mass outside the support has a loss ≤ `pure`."""
    if law.shape == 1:
        return [min(pure, discrete_renyi(law.scale, shift, order) * RAISED) for order in ORDERS], True
    pmf = law.pmf()
    inside = rdp(pmf, shift, ORDERS)
    felt = [
        math.log1p(pmf.lost * math.exp(min(700.0, (order - 1) * (pure - one))))
        for order, one in zip(ORDERS, inside, strict=True)
    ]
    most = [one + more / (order - 1) for one, more, order in zip(inside, felt, ORDERS, strict=True)]
    if law.shape > 1:  # more than one term is post-processing of one
        most = [min(one, discrete_renyi(law.scale, shift, order)) for one, order in zip(most, ORDERS, strict=True)]
    return [min(pure, one * RAISED) for one in most], max(felt) < UNFELT


def _approximate(law: PolyaDifference, grid: Grid, pure: float, delta: float, pairs: Known) -> Spent:
    if grid.dimension == 1:
        return exact(min(pure, epsilon_at(law.pmf(), grid.precision, delta)))
    if law.shape == 1 and fits(grid.precision, grid.dimension):
        return exact(min(pure, box_epsilon(law.scale, grid.precision, grid.dimension, delta)))
    ways = [response_epsilon(pure, delta), from_rdp(pairs, delta)]
    if law.shape >= 1:  # log-concave; the rest composed on a grid of losses would not be
        ways.append(product_epsilon(law.pmf(), grid.precision, grid.dimension, delta))
    return bound(min(ways))


def _in_a_ball(scale: float, grid: Grid, pure: float, delta: float, *, whole: bool) -> Profile:
    """Bounds for ℓ₁ and ℓ₂: any ε-pure law's, α Σ(s_i/scale)²/2 for shifts s_i that lose s_i/scale each, and the law's.

    The last are for ε at δ: moments with the worst spread of the move. Noise in reals on rounded values tells no more
    than on the grid: a Laplace variable is Lap_Z plus something independent.
    """

    def divergence(order: float) -> float:
        general = response_renyi(pure, order)
        return min(general, order * grid.squared_l2 / (2 * scale**2) * RAISED) if whole else general

    pairs = tuple((order, divergence(order)) for order in ORDERS)
    ways = [response_epsilon(pure, delta), from_rdp(pairs, delta)]
    if whole and grid.rounded and scale <= LONGEST_SCALE:
        ways.append(vector_epsilon(DiscreteLaplace(scale).pmf(), grid, delta))
    return Profile(
        delta=delta,
        pure=bound(pure),
        approximate=bound(min(ways)),
        rdp=pairs,
        rdp_how="bound",
    )

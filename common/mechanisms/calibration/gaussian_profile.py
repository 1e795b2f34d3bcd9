"""What Gaussian noise promises by Rényi order, on the integers exactly and for sums of small shares as well."""

import math
from functools import lru_cache

from distrust.common.bandit.error_law import How
from distrust.common.mechanisms.calibration.gaussian import Grid, approximate, divergences, is_exact
from distrust.common.mechanisms.calibration.gaussian_vectors import renyi, rounded_epsilon
from distrust.common.noise.discrete_gaussian import DiscreteGaussianSum, is_gaussian
from distrust.common.noise.law import LIMIT
from distrust.common.noise.skellam import Skellam
from distrust.common.privacy.hockey_stick import from_rdp, rdp
from distrust.common.privacy.profile import ORDERS, RAISED, Pairs, Profile, bound, curve, exact, filled, spent

Known = tuple[tuple[float, float], ...]

DUAL = 0.5  # variance from which a theta series is added up by Poisson's formula


def sum_profile(share: float, terms: int, grid: Grid, delta: float) -> Profile:
    """`terms` N_Z(0, share) on every coordinate. No ε is pure: the ratio of law and shift grows without end."""
    box = grid.norm == "linf" or grid.dimension == 1
    if not box:
        pairs = _in_a_ball(share, terms, grid)
    elif is_gaussian(share, terms):
        pairs = curve(lambda order: grid.dimension * lattice_renyi(terms * share, grid.precision, order) * RAISED)
    else:
        pairs = law_curve(DiscreteGaussianSum(share, terms), grid)
    epsilon = approximate(share, terms, grid, delta)
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent(epsilon, "exact" if is_exact(share, terms, grid) else "bound"),
        rdp=pairs,
        rdp_how="exact" if box else "bound",
    )


def skellam_profile(law: Skellam, grid: Grid, epsilon: float | None, known: Known, delta: float) -> Profile:
    """Noise `law` on every coordinate, with ε at δ and Rényi pairs as the mechanism's own guarantees know them."""
    box = grid.norm == "linf" or grid.dimension == 1
    ways = [math.inf if epsilon is None else epsilon, *([from_rdp(known, delta)] if known else [])]
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent(min(ways), "exact" if grid.dimension == 1 and epsilon is not None else "bound"),
        rdp=law_curve(law, grid) if box else filled((order, one * RAISED) for order, one in known),
        rdp_how="exact" if box else "bound",
    )


def continuous_profile(variance: float, grid: Grid, delta: float, how: How) -> Profile:
    """N(0, variance) in reals on every coordinate: closed forms by the ℓ₂ sensitivity. `how`: for ℓ∞, as released."""
    inside: How = how if grid.norm == "linf" or grid.dimension == 1 else "bound"
    return Profile(
        delta=delta,
        pure=exact(None),
        approximate=spent(rounded_epsilon(grid, variance, delta), inside),
        rdp=curve(lambda order: renyi(grid, variance, order) * RAISED),
        rdp_how=inside,
    )


def law_curve(law: DiscreteGaussianSum | Skellam, grid: Grid) -> Pairs:
    """Every coordinate moved by g, from the law itself; null where the support that an order needs is too long."""
    margin = math.ceil(15 * law.std) + 60
    fit = [order for order in ORDERS if order * grid.precision + margin <= LIMIT]
    if not fit:
        return tuple((order, None) for order in ORDERS)
    pmf = law.pmf(least=math.ceil(fit[-1] * grid.precision) + margin)
    known = dict(zip(fit, rdp(pmf, grid.precision, fit), strict=True))
    return tuple((order, grid.dimension * known[order] * RAISED if order in known else None) for order in ORDERS)


@lru_cache(maxsize=4096)
def lattice_renyi(variance: float, shift: int, order: float) -> float:
    """Rényi divergence of N_Z(0, v) and its shift s: αs²/(2v) + ln(θ((α-1)s)/θ(0))/(α-1), the second part at most 0.

    θ(f) = Σ_j e^(-(j-f)²/(2v)) has period 1, so that orders with a whole αs have the continuous law's divergence.
    """
    gaussian = order * shift**2 / (2 * variance)
    off = math.fmod((order - 1) * shift, 1.0)
    if off == 0:
        return gaussian
    return gaussian + _log_theta(variance, off) / (order - 1)


def _log_theta(variance: float, off: float) -> float:
    """The second part, times α - 1."""
    if variance >= DUAL:
        decay = [math.exp(-2 * (math.pi * j) ** 2 * variance) for j in range(1, 5)]
        lacks = math.fsum(2 * d * (math.cos(2 * math.pi * j * off) - 1) for j, d in enumerate(decay, 1))
        return math.log1p(lacks / (1 + 2 * math.fsum(decay)))
    sums = [math.fsum(math.exp(-((j - f) ** 2) / (2 * variance)) for j in range(-12, 13)) for f in (off, 0.0)]
    return math.log(sums[0] / sums[1])


def _in_a_ball(share: float, terms: int, grid: Grid) -> Pairs:
    """For ℓ₁ and ℓ₂: αρ with rounding averaged, or what the calibration's own orders know of small shares."""
    if is_gaussian(share, terms):
        return curve(lambda order: renyi(grid, terms * share, order) * RAISED)
    return filled((order, one * RAISED) for order, one in divergences(share, terms, grid))


def bounded(profile: Profile, *notes: str) -> Profile:
    """The same figures as bounds: of something of which what is released is a function."""
    change = {
        "pure": bound(profile.pure.epsilon),
        "approximate": bound(profile.approximate.epsilon),
        "rdp_how": "bound",
        "notes": (*profile.notes, *notes),
    }
    return profile.model_copy(update=change)

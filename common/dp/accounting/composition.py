"""Composes several releases about one client: basic composition, Rényi curves, and privacy loss distributions.

Privacy loss distributions go through dp-accounting. Its accountants ignore the `count` of some events (0.6.0: RDP the
exponential mechanism's, PLD randomized response's), so curves are added and distributions composed here, and no event
is used.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.accounting.profile import response_epsilon
from distrust.common.dp.accounting.techniques.hockey_stick import from_rdp
from distrust.common.dp.noise.law import Pmf
from distrust.common.errors import BadParameter
from distrust.common.extras import losses_of, masses_of

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Part = tuple[Guarantee, int]
"""A guarantee, and how many releases of it one client is in."""

CELLS = 1000
"""Cells of a loss distribution's grid for each ε of one release; rounded upwards, to at most ε/CELLS a release."""

MOST_CELLS = 1 << 20  # of one distribution, and of the composed one about
DEVIATIONS = 16  # of a sum of losses, which hold nearly all of it
LONGEST_SUPPORT = 1 << 17  # entries that are worth their dictionary
WHOLE_STEPS = 1 + 1e-12  # factor on a step, so that ε is a little less than a whole number of steps
ALIKE = 1e-9  # log-probabilities of mirror images, of a symmetric law
CHORDS = 200  # of the δ(ε) of a law that is not symmetric, in one standard deviation of the loss
MOST_CHORDS = 1 << 16  # of a whole curve; a longer curve has a larger step

ADAPTIVE = "sequential composition: a client's releases may depend on each other's results"


@lru_cache(maxsize=1024)
def compose(parts: tuple[Part, ...], delta: float | None = None) -> Guarantee:
    """Return the guarantee of all the releases together, the best that the known bounds give at `delta`.

    delta   target; None: that of basic composition, or the one at which Rényi guarantees are shown.
    Bounds  basic: Σε at Σδ. pure and approximate: the composed loss distribution of the worst pair of laws.
            renyi, and approximate ones that carry a curve: added by order, pure ones taken as randomized response's.
    Returns kind `none` where nothing holds at that δ, such as Rényi guarantees at δ = 0.
    """
    if not parts or any(count < 1 for _, count in parts):
        raise BadParameter("count", [count for _, count in parts], "at least one release, each at least once")
    first = parts[0][0]
    if any(one.kind == "none" or one.epsilon is None for one, _ in parts):
        return without_privacy(first)
    if len(parts) == 1 and parts[0][1] == 1 and delta in (None, first.delta):
        return first
    curve = _added_curve(parts)
    target = own_delta(parts) if delta is None else delta
    epsilon = min(_bounds(parts, curve, target), default=math.inf)
    if math.isinf(epsilon):
        return without_privacy(first)
    without_curve = "approximate" if target > 0 else "pure"
    kind = "renyi" if curve else without_curve
    change = {"kind": kind, "epsilon": epsilon, "delta": target, "rdp": curve, "claimed": None}
    return first.model_copy(update={**change, "assumptions": (*first.assumptions, ADAPTIVE)})


def compose_exactly(pmf: Pmf, shift: int, count: int, delta: float) -> float:
    """Return ε at `delta` of `count` releases of an integer sum with noise `pmf`; one client moves it by `shift`.

    Domain     log-concave noise.
    Exactness  losses are rounded upwards to a grid; the mass that the truncation lost is taken off δ.
    Returns    inf where δ does not suffice.
    Raises     BadParameter for a support that is too long.
    """
    # As the noise is log-concave, the largest shift is the worst pair for every ε and may be composed. Where the noise
    # is not symmetric the shift may go up in one release and down in the next: see `_either_way`.
    if pmf.logs.size > LONGEST_SUPPORT:
        raise BadParameter("support of the noise", pmf.logs.size, f"at most {LONGEST_SUPPORT} entries")
    left = delta - count * pmf.lost
    if left <= 0 or shift >= pmf.logs.size:  # two supports that do not meet: one release already tells the inputs apart
        return math.inf
    if float(np.abs(pmf.logs - pmf.logs[::-1]).max()) > ALIKE:
        return float(_either_way(pmf, shift).self_compose(count).get_epsilon_for_delta(left))
    kept = np.flatnonzero(np.isfinite(pmf.logs))
    lower = {int(pmf.first + i): float(pmf.logs[i]) for i in kept}
    upper = {at + shift: log for at, log in lower.items()}
    step = _loss_step(pmf, shift, count)
    one = losses_of.from_two_probability_mass_functions(
        lower, upper, symmetric=False, value_discretization_interval=step
    )
    return float(one.self_compose(count).get_epsilon_for_delta(left))


def _loss_step(pmf: Pmf, shift: int, count: int) -> float:
    """Return the step of a grid on which one loss, and the sum of `count` of them, have MOST_CELLS.

    Every loss is rounded up to the grid.
    """
    losses = pmf.logs[shift:] - pmf.logs[: pmf.logs.size - shift]
    met = np.isfinite(losses)
    if not met.any():
        return 1.0
    weights = pmf.masses[shift:][met]
    spread = math.sqrt(float(weights @ (losses[met] - np.average(losses[met], weights=weights)) ** 2))
    return max(float(np.ptp(losses[met])), DEVIATIONS * math.sqrt(count) * spread, 1e-6) / MOST_CELLS


def _either_way(pmf: Pmf, shift: int) -> "PLDPmf":
    """Return a loss distribution that is no better than that of a shift up, or down, at any ε.

    Source  Zhu, Dong & Wang 2022; Doroshenko et al. 2022.
    """
    ups, downs = (_curve(logs, shift) for logs in (pmf.logs, pmf.logs[::-1]))
    losses = np.concatenate((ups.losses, downs.losses))
    weights = np.concatenate((ups.masses, downs.masses))
    spread = math.sqrt(float(weights @ (losses - np.average(losses, weights=weights)) ** 2))
    last = float(losses.max(initial=0.0))
    step = max(spread / CHORDS, last / MOST_CHORDS, 1e-9)
    epsilons: NDArray[np.float64] = step * np.arange(math.ceil(last / step) + 1, dtype=np.float64)
    # The larger of the two δ(ε) is convex in e^ε, as each of them is. So it belongs to a pair of laws, which dominates
    # both (Zhu, Dong & Wang 2022). Its chords over a grid of ε, a little above it, do too (Doroshenko et al. 2022).
    deltas = np.minimum(np.maximum(ups.deltas(epsilons), downs.deltas(epsilons)), 1.0)
    negative = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas  # δ(-ε), by exchanging the two laws
    both = np.concatenate((negative[:0:-1], deltas))
    chords = masses_of.create_pmf_pessimistic_connect_dots_fixed_gap
    return chords(step, 1 - epsilons.size, epsilons.size - 1, both)


class _Curve(NamedTuple):
    """A law and its shift upwards: finite losses, the masses of either law there, and the mass of infinite loss."""

    losses: NDArray[np.float64]
    masses: NDArray[np.float64]
    others: NDArray[np.float64]
    infinite: float

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Σ (p - e^ε q)₊ for ε that increase; log-concave laws have losses that fall from the first atom on."""
        above = np.searchsorted(-self.losses, -epsilons, side="left")
        ours, theirs = (np.concatenate(([0.0], np.cumsum(part))) for part in (self.masses, self.others))
        results = self.infinite + ours[above] - np.exp(epsilons) * theirs[above]
        return np.asarray(np.minimum.accumulate(np.maximum(results, self.infinite)), dtype=np.float64)


def _curve(logs: NDArray[np.float64], shift: int) -> _Curve:
    masses, size = np.exp(logs), logs.size
    losses = logs[shift:] - logs[: size - shift]
    return _Curve(losses, masses[shift:], masses[: size - shift], float(masses[:shift].sum()))


def own_delta(parts: Sequence[Part]) -> float:
    """Return the δ at which several releases are shown when none is requested: that of basic composition."""
    shown = [one.delta for one, _ in parts if one.kind == "renyi"]
    rest = sum(count * one.delta for one, count in parts if one.kind != "renyi")
    return min(1.0, max(shown, default=0.0) + rest)


def pure_curve(epsilon: float, orders: Sequence[float]) -> list[float]:
    """Return RDP of an ε-pure mechanism at each order α > 1: ln[(sinh αε - sinh (α-1)ε) / sinh ε] / (α - 1).

    That is the RDP of randomized response, which is the worst. It is computed without overflow.
    """
    return [_response(epsilon, order) for order in orders]


def without_privacy(like: Guarantee) -> Guarantee:
    """Return a guarantee of kind `none`."""
    change = {"kind": "none", "epsilon": None, "delta": 0.0, "rdp": (), "claimed": None}
    return like.model_copy(update=change)


def _response(epsilon: float, order: float) -> float:
    """Return the divergence from the terms p^α (1-p)^(1-α) of both answers, p = 1 / (1 + e^-ε)."""
    likely, rare = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    terms = np.logaddexp(order * likely + (1 - order) * rare, order * rare + (1 - order) * likely)
    return max(0.0, float(terms)) / (order - 1)


def _bounds(parts: Sequence[Part], curve: tuple[tuple[float, float], ...], delta: float) -> Iterator[float]:
    """Return every ε that is known to hold at δ."""
    if sum(count * one.delta for one, count in parts) <= delta * (1 + 1e-12):
        yield sum(count * (one.epsilon or 0.0) for one, count in parts)
    if curve and delta > 0:
        # δ ≤ √(1 - e^-KL), and KL is at most any of the divergences: as `compute_epsilon` of dp-accounting has it
        yield 0.0 if any(delta**2 + math.expm1(-spent) > 0 for _, spent in curve) else from_rdp(curve, delta)
    if delta > 0 and all(one.kind != "renyi" for one, _ in parts):
        yield _worst_pair(parts, delta)


def _added_curve(parts: Sequence[Part]) -> tuple[tuple[float, float], ...]:
    """Return (α, Σ RDP(α)) over the orders that all have; empty where no part has a curve, or one can have none."""
    known = [dict(one.rdp) for one, _ in parts if one.rdp]
    if not known or any(one.kind != "pure" and not one.rdp for one, _ in parts):
        return ()
    orders = [order for order in known[0] if all(order in curve for curve in known)]
    total = [0.0] * len(orders)
    for one, count in parts:
        own = dict(one.rdp) if one.rdp else dict(zip(orders, pure_curve(one.epsilon or 0.0, orders), strict=True))
        total = [spent + count * own[order] for spent, order in zip(total, orders, strict=True)]
    return tuple(zip(orders, total, strict=True))


def _worst_pair(parts: Sequence[Part], delta: float) -> float:
    """Return ε of the composed worst pair of (ε, δ)-close laws, which is optimal (Kairouz, Oh & Viswanath 2015)."""
    (first, count), *others = parts
    if count == 1 and not others:
        # One pair's ε' at δ: δ' + (1 - δ') of randomized response's δ(ε'), δ' its own.
        left = (delta - first.delta) / (1 - first.delta)
        return math.inf if left < 0 else response_epsilon(first.epsilon or 0.0, left)
    spread = math.sqrt(sum(count * (one.epsilon or 0.0) ** 2 for one, count in parts))
    finest = max(1e-9, *(one.epsilon or 0.0 for one, _ in parts)) / CELLS
    # ε is rounded up to whole steps. A whole number of them must not become one more by its last bits.
    step = max(finest, DEVIATIONS * spread / MOST_CELLS) * WHOLE_STEPS
    composed = [_pair(one.epsilon or 0.0, one.delta, step).self_compose(count) for one, count in parts]
    return float(reduce(lambda a, b: a.compose(b), composed).get_epsilon_for_delta(delta))


def _pair(epsilon: float, delta: float, step: float) -> "PrivacyLossDistribution":
    """Return the worst pair of (ε', δ)-close laws, ε' ≥ ε the next whole number of steps.

    Both of its losses, ±ε', lie on the grid: nothing is rounded. It dominates the pair of (ε, δ).
    """
    steps = math.ceil(epsilon / step)
    up, down = (1 / (1 + math.exp(sign * steps * step)) for sign in (-1, 1))
    masses = {steps: (1 - delta) * up, -steps: (1 - delta) * down} if steps else {0: 1 - delta}
    return losses_of.PrivacyLossDistribution.create_from_rounded_probability(masses, delta, step)

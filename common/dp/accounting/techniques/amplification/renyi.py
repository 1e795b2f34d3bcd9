"""Computes Rényi divergences of shuffled messages from bounds of their δ(ε), for every order.

Let H_γ be the hockey stick, δ at ε = ln γ. In both directions of a pair of laws it gives

    e^((α-1) D_α(P‖Q)) = 1 + α(α-1) ∫_1^∞ (γ^(α-2) H_γ(P‖Q) + γ^(-α-1) H_γ(Q‖P)) dγ.

Bounds of δ at finitely many ε are enough, and give an upper bound of D_α.

Source  Sason & Verdú 2016, eq. (80), with f(t) = t^α.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.amplification.blanket import (
    LEAST_EPSILON,
    ROUGH,
    WAYS,
    Way,
    best_way,
    dominated,
    extreme_delta,
    order_slack,
    pair_delta,
)
from distrust.common.dp.accounting.techniques.amplification.clones import antipodal_curve, clones_curve
from distrust.common.dp.accounting.techniques.amplification.randomizers import LARGEST_LOCAL_EPSILON, LocalRandomizer
from distrust.common.dp.accounting.techniques.amplification.vectors import Crowd, crowd_delta

ABOVE_ROUNDING = 1 + 1e-9  # above the rounding of the segments' closed forms
POINTS = 80  # of a curve that is cheap, in each of two spacings
FIRST = 1e-5  # ε of such a curve's first point, in units of its last
WIDE_STRETCH, CLOSE_FLOOR = 1.8, 1e-9  # from one ε to the next, and the δ at which it ends, where each takes more
STRETCH = 1.3  # from one ε to the next where each takes an FFT
LEFT_OUT = 0.03  # of the δ before: mass of extreme values to leave out
BULK = 1e-8  # δ from which on Chernoff's bound is enough
APART, FARTHER = 0.2, 1.0  # of two ε, at most; where δ falls slowly
FALL = 0.25  # nats by which δ falls from one ε to the next there
NO_DIGIT = 1e-5  # of δ: so little may a comparison of pairs add to it
FLOOR = 1e-120  # δ below which the rest of the curve changes no order's divergence
KEPT = 1e-290  # δ down to which one message's own is a number
MOST_PAIRS = 30  # of inputs; more would take too long
FAR = 1.1  # from one ε to the next where only one message's own bound is better than the last δ
END = 2000.0  # ε after which a tail begins at the latest
LOST_DELTAS = np.geomspace(1e-4, 1e-280, 24)  # δ that all the messages may lose on the way to pure ones; falling
TAILS = np.geomspace(1e-2, 1e4, 400)  # orders above α that a tail may be bounded by, less α

PureCurve: TypeAlias = Callable[[Floats, float, int], Floats]
"""Returns bounds of δ(ε) from many ε, ε₀ and the number of users."""


@lru_cache(maxsize=256)
def _pure_renyi(curve: PureCurve, local_epsilon: float, users: int, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return divergences by a curve of δ(ε) of `users` shuffled messages that are ε₀-LDP by themselves.

    Returns  inf for an ε₀ beyond the bound's range.
    """
    if not local_epsilon <= LARGEST_LOCAL_EPSILON:
        return (math.inf,) * len(orders)
    inner = _cheap(local_epsilon)
    deltas = np.append(curve(inner, local_epsilon, users), 0.0)
    return tuple(curve_renyi(np.append(inner, local_epsilon), deltas, order) for order in orders)


clones_renyi = partial(_pure_renyi, clones_curve)
antipodal_renyi = partial(_pure_renyi, antipodal_curve)


def blanket_renyi(
    randomizer: LocalRandomizer, users: int, rho: float, orders: Sequence[float], pure: float = math.inf
) -> list[float]:
    """Return divergences of `users` shuffled messages of one randomizer that is ρ-zCDP by itself.

    pure     its ε₀, if it has one; then ρ is ε₀²/2 at most. The randomizer must leave out less mass than FLOOR.
    Returns  inf for every order where the randomizer has too many inputs.
    """
    last = len(randomizer.masses) - 1
    pairs = [(x, y) for y in range(last, 0, -1) for x in range(y) if not (randomizer.mirrored and x + y > last)]
    if len(pairs) > MOST_PAIRS:
        return [math.inf] * len(orders)
    first = _Shuffled(randomizer, users, pairs[0])
    epsilons, known = _blanket_curve(first, rho)
    deltas, ways = known, [best_way(randomizer, pairs[0], epsilon, users) for epsilon in epsilons]
    for pair in pairs[1:]:
        other = _Shuffled(randomizer, users, pair)
        points = zip(epsilons, known, deltas, ways, strict=True)
        deltas = np.array([other.raised(first, *point) for point in points])
    return _with_tail(epsilons, deltas, rho, orders, pure)


def concentrated_renyi(
    users: int,
    rho: float,
    orders: Sequence[float],
    local_epsilon: Callable[[float], float],
    close: Callable[[float, float], float],
) -> list[float]:
    """Return divergences of `users` shuffled ρ-zCDP messages, each of which is (`local_epsilon`(δ₀), δ₀)-private.

    close   a bound on δ(ε) of all of them from ε and a larger δ, which takes some time.
    Source  Feldman, McMillan & Talwar 2021, Theorem 3.8, beside that bound.
    """
    shares = [(share / users, local_epsilon(share / users)) for share in LOST_DELTAS]
    usable = [(share, local) for share, local in shares if 0 < local <= LARGEST_LOCAL_EPSILON]
    at, known = _falling(close)
    epsilons = np.union1d(at, _cheap(max((local for _, local in usable), default=1.0)))
    place = np.searchsorted(at, epsilons, side="right")
    deltas = np.concatenate(([1.0], known))[place]  # δ falls: that of the next smaller ε
    # Each message is within δ₀ of an ε₀-private one. So δ(ε) is the clones' for ε₀, and (e^ε + 1)(1 + e^(-ε₀)/2) n δ₀
    # more. The least over some δ₀ is taken. The next δ₀ is less, and ε₀ and the clones' δ are larger. So where these
    # alone are above the least, no further δ₀ is looked at, and none at all where the rest alone is.
    hopeful = np.ones(epsilons.size, dtype=bool)
    for share, local in usable:
        lost = (np.exp(epsilons) + 1) * (1 + math.exp(-local) / 2) * users * share
        tried = np.flatnonzero(hopeful & (lost < deltas))
        under = epsilons[tried] < local
        pure = np.zeros(tried.size)
        pure[under] = clones_curve(epsilons[tried[under]], local, users)
        deltas[tried] = np.minimum(deltas[tried], pure + lost[tried])
        hopeful[tried] = pure < deltas[tried]
    return _with_tail(epsilons, deltas, rho, orders)


def crowd_renyi(
    variance: float, crowd: Crowd, orders: Sequence[float], local_epsilon: Callable[[float], float]
) -> list[float]:
    """Return divergences of a crowd's shuffled vectors with N_Z(0, variance); see `concentrated_renyi`."""
    rho = crowd.grid.squared_l2 / (2 * variance)
    return concentrated_renyi(crowd.users, rho, orders, local_epsilon, partial(crowd_delta, variance, crowd))


def _falling(close: Callable[[float, float], float]) -> tuple[Floats, Floats]:
    """Return points (ε, δ) until δ is below CLOSE_FLOOR."""
    epsilons, deltas = [LEAST_EPSILON], [min(1.0, close(LEAST_EPSILON, 0.5))]
    epsilon = max(deltas[0] / 4, 2 * LEAST_EPSILON)
    while deltas[-1] > CLOSE_FLOOR and epsilon < LARGEST_LOCAL_EPSILON:
        epsilons.append(epsilon)
        deltas.append(min(deltas[-1], close(epsilon, deltas[-1])))
        epsilon *= WIDE_STRETCH
    return np.array(epsilons), np.array(deltas)


def curve_renyi(epsilons: Floats, deltas: Floats, order: float, beyond: float = -math.inf) -> float:
    """Return a bound of the Rényi divergence of `order` > 1 of a pair of laws, in both directions.

    epsilons  above 0, increasing; deltas bound δ there, in both directions; 0 is allowed.
    beyond    ln of a bound of α(α-1) times the integral from the last ε on.
    """
    # At γ = 1 H_γ is larger than at the first ε by γ - 1 at most, as its slope is -Q(P > γQ).
    start = min(1.0, float(deltas[0]) + math.expm1(float(epsilons[0])))
    at = np.concatenate(([0.0], epsilons))
    with np.errstate(divide="ignore"):
        logs = np.log(np.minimum.accumulate(np.concatenate(([start], deltas))))
    # H_γ is convex in γ, so it lies below the chord of any two numbers that are above it.
    parts = np.concatenate([_chords(at, logs, power) for power in (order - 1, -order)])
    # t^α - 1 - α(t-1) = α(α-1) ∫ γ^(α-2) ((t-γ)₊ for γ > 1, (γ-t)₊ for γ < 1) dγ; γ → 1/γ in the second part gives the
    # integral that the module's docstring states.
    inside = float(np.logaddexp.reduce(parts)) + math.log(order * (order - 1) * ABOVE_ROUNDING)
    return float(np.logaddexp(0.0, np.logaddexp(inside, beyond))) / (order - 1)


def _chords(at: Floats, logs: Floats, power: float) -> Floats:
    """Return ln ∫ γ^(power-1) (chord of δ) dγ over each segment: first the left ends' parts, then the right ends'."""
    # γ = e^(a+u), 0 ≤ u ≤ h. With I(k) = ∫ e^(ku) du the weights of the ends are e^(power a)/(e^h - 1) times
    # e^h I(power) - I(power+1) and I(power+1) - I(power).
    a, h = at[:-1], np.diff(at)
    top = np.maximum((power + 1) * h, 0.0)  # taken out of both integrals: it may be large
    one, other = _integral(power, h, top), _integral(power + 1, h, top)
    moved = power * a + top - np.log(np.expm1(h))
    with np.errstate(divide="ignore"):
        left, right = (np.log(np.maximum(part, 0.0)) for part in (np.exp(h) * one - other, other - one))
    return np.concatenate((logs[:-1] + left + moved, logs[1:] + right + moved))


def _integral(k: float, h: Floats, top: Floats) -> Floats:
    """Return e^-top ∫ e^(ku) du from 0 to h, k ≠ 0."""
    return np.asarray(-np.expm1(-abs(k) * h) * np.exp(max(k, 0.0) * h - top) / abs(k), dtype=np.float64)


def _cheap(last: float) -> Floats:
    """Return points below `last`, close to each other near 0 and near the end."""
    return np.union1d(np.geomspace(FIRST * last, last, POINTS)[:-1], np.linspace(0, last, POINTS)[1:-1])


@dataclass(frozen=True, slots=True)
class _Shuffled:
    """Messages of `users`, one of whom has either input of a pair. Bounds their δ(ε), the larger of both directions."""

    randomizer: LocalRandomizer
    users: int
    pair: tuple[int, int]

    @property
    def both(self) -> tuple[tuple[int, int], ...]:
        """Return the pair's directions; one where the other is its mirror image."""
        mirrored = self.randomizer.mirrored and sum(self.pair) == len(self.randomizer.masses) - 1
        return (self.pair,) if mirrored else (self.pair, self.pair[::-1])

    def rough(self, epsilon: float, ways: Sequence[Way] = WAYS) -> float:
        """Return a bound that is quick and good in the tail."""
        return max(extreme_delta(self.randomizer, one, epsilon, self.users, ways) for one in self.both)

    def close(self, epsilon: float, left_out: float) -> float:
        """Return a bound by the blanket's convolution; `left_out` is mass that it may leave out, and adds."""
        return max(pair_delta(self.randomizer, one, epsilon, self.users, left_out, fine=ROUGH) for one in self.both)

    def raised(self, first: "_Shuffled", epsilon: float, known: float, delta: float, way: Way) -> float:
        """Return the larger of `delta` and a bound of δ(ε), which is worked for only where it may be larger.

        known  a bound of δ(ε) of the pair `first`, whose best rough one is by `way`.
        """
        if self.rough(epsilon, (way,)) <= delta:
            return delta
        slack = order_slack(self.randomizer, epsilon)
        if delta >= BULK and slack <= NO_DIGIT * known and self._behind(first, epsilon):
            return max(delta, known + slack)
        rough = self.rough(epsilon)
        if rough <= delta or delta < BULK:
            return max(delta, rough)
        return max(delta, min(rough, self.close(epsilon, LEFT_OUT * delta)))

    def _behind(self, first: "_Shuffled", epsilon: float) -> bool:
        """Return whether both directions of this pair are dominated by one of the pair `first`."""
        return all(any(dominated(self.randomizer, one, other, epsilon) for other in first.both) for one in self.both)


def _blanket_curve(shuffled: _Shuffled, rho: float) -> tuple[Floats, Floats]:
    """Return points (ε, δ) of a pair of inputs, from where δ begins to fall to where it is below FLOOR."""

    def at(epsilon: float, before: float) -> float:
        rough = shuffled.rough(epsilon)
        return rough if before < BULK else min(rough, shuffled.close(epsilon, LEFT_OUT * before))

    epsilons, deltas = [LEAST_EPSILON], [at(LEAST_EPSILON, 1e-3)]
    epsilon = max(deltas[0] / 2, 2 * LEAST_EPSILON)
    while deltas[-1] > FLOOR and epsilon < LARGEST_LOCAL_EPSILON and deltas[-1] < _alone(rho, epsilons[-1]):
        epsilons.append(epsilon)
        deltas.append(at(epsilon, deltas[-1]))
        epsilon = min(STRETCH * epsilon, epsilon + _apart(epsilons, deltas))
    return np.array(epsilons), np.array(deltas)


def _apart(epsilons: Sequence[float], deltas: Sequence[float]) -> float:
    """Return how far the next ε may be, by how δ fell before the last one."""
    # Little noise and many clients have a δ that falls by a digit in some nats: its chords are close there.
    fall = math.log(deltas[-2] / deltas[-1]) if 0 < deltas[-1] < deltas[-2] else 0.0
    further = FALL * (epsilons[-1] - epsilons[-2])
    return min(FARTHER, max(APART, further / fall)) if fall > 0 else APART


def _with_tail(
    epsilons: Floats, deltas: Floats, rho: float, orders: Sequence[float], pure: float = math.inf
) -> list[float]:
    """Return divergences by the lesser of a curve and of ρ-zCDP's δ at every ε.

    Beyond the curve's end only ρ-zCDP counts; from `pure` on δ is 0.
    """
    end = max(float(epsilons[-1]) * FAR, min(4 * rho * max(orders), END))
    more = float(epsilons[-1]) * FAR ** np.arange(1, math.ceil(math.log(end / epsilons[-1]) / math.log(FAR)) + 1)
    at = np.concatenate((epsilons, more))
    alone = np.array([_alone(rho, epsilon) for epsilon in at])
    least = np.minimum(alone, np.concatenate((deltas, np.full(more.size, deltas[-1]))))
    if math.isinf(pure):
        at, least = at[least > KEPT], least[least > KEPT]  # a δ that underflows to 0 would leave the rest out
        return [curve_renyi(at, least, order, pair_tail(rho, order, float(at[-1]))) for order in orders]
    under = at < pure
    at, least = np.append(at[under], pure), np.append(least[under], 0.0)
    return [curve_renyi(at, least, order) for order in orders]


def _alone(rho: float, epsilon: float) -> float:
    """Return the bound δ(ε) ≤ K_a e^(-(a-1)ε) of a ρ-zCDP message, the least over orders a."""
    a = 1 + TAILS
    return math.exp(min(0.0, float((_constant(rho, a) - (a - 1) * epsilon).min())))


def pair_tail(rho: float, order: float, epsilon: float) -> float:
    """Return the logarithm of α(α-1) ∫ (γ^(α-2) + γ^(-α-1)) K_a γ^-(a-1) dγ from e^ε on; the least over a > α."""
    a = order + TAILS
    near = (order - a) * epsilon - np.log(a - order)
    far = (1 - order - a) * epsilon - np.log(a + order - 1)
    return math.log(order * (order - 1)) + float((_constant(rho, a) + np.logaddexp(near, far)).min())


def _constant(rho: float, a: Floats) -> Floats:
    """Return ln K_a = (a-1)aρ + (a-1) ln(1 - 1/a) - ln a: Balle et al. 2020, Theorem 21."""
    return np.asarray((a - 1) * (a * rho + np.log1p(-1 / a)) - np.log(a), dtype=np.float64)

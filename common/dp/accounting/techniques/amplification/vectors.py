"""Bounds the privacy of shuffled vectors with Gaussian noise, each of which nearly contains one common law.

The others' messages have laws R_j = N(x_j, v), in the ball around a middle q. No multiple of W = N(q, v) lies below all
of them in many dimensions, but c·W lies below R_j but for a mass η = ∫ (cW - R_j)₊, which depends on |x_j - q| alone.
With P and Q the laws of one client's message for two inputs, and n messages,

    δ(ε) ≤ (1 + η)^(n-1) E[(Σ_{i≤M} L_i)₊]/(nγ) + (n - 1) η (1 + η)^(n-2) (e^ε - 1 + δ₁(ε)),

M ~ Bin(n, γ), γ = c/(1 + η), L = (P - e^ε Q)(w)/W(w), w ~ W, and δ₁ that of one message. The least over c is taken.

Source  The first part is Lemma 5.3 of Balle et al. 2019; the rest is ours. shuffling.md has the proof.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import scipy

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.accounting.techniques.amplification.sums import atoms_delta
from distrust.common.dp.accounting.techniques.gaussian import log_gaussian_delta
from distrust.common.dp.accounting.techniques.gaussian_vectors import BLUR, LATTICE, rounded_log_delta
from distrust.common.dp.accounting.techniques.hockey_stick import NOT_ZERO
from distrust.common.dp.accounting.techniques.searches import least_on_grid, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import Grid

# Of a given δ, for each of: roundings that move one client farther than counted, and values far out.
LOST_TO_EACH = 0.01
ROUNDED_MASSES = 1e-10  # relative, of the cells' masses and means, in ε and in δ
FINE_WEIGHT = 1 / 8  # steps of ln(1/c)
LEAST_WEIGHT = 60.0  # the last ln(1/c)
MOST_COST = 0.8  # of δ, for what c·W has above the others' laws
NEAR_PLACES = 8  # of these steps, at which a search for c begins
LAST_PLACE = math.ceil(LEAST_WEIGHT / FINE_WEIGHT)
LEAST_COST = 1e-4  # with which a bound of δ that is 1 ends it
CUTS = (40, 160)  # of the two coordinates in which W is cut
NODES_A_DOUBLING = 24  # of the atoms that cells are split to
NODE_SIZES = (2.0**-12, 2.0**60)  # least and largest
ROUGHLY = 1.05  # relative accuracy of the search for where to begin
SUM_STEP = 0.1  # of the sum's grid, in deviations
APARTS = (1.0, 0.99, 0.97, 0.935, 0.88, 0.8, 0.68, 0.5, 0.0)  # shares of the farthest pair of inputs
SHIFTS = (0.0, 0.25, 0.5, 1.0)  # shares of the farthest that the middle of such a pair lies off
RELAXED = 0.02  # relative, of the squared length that covers some of these


@dataclass(frozen=True, slots=True)
class FromMiddle:
    """The way from the middle of the ball to a client's vector, rounded by itself; `across` is the diameter."""

    # With w the way before, rounding adds ξ_i to each coordinate, -f or 1 - f with mean 0. S - |w|² is the sum of all
    # 2w_i ξ_i + ξ_i². Its mean is Σ f(1 - f) ≤ D/4. A term has the range |2w_i + 1 - 2f| ≤ 2|w_i| + 1, and the squares
    # of these add up to at most (2|w| + √D)². So Hoeffding's lemma bounds its moments.

    grid: Grid
    across: int

    @property
    def dimension(self) -> int:
        """Return the number of coordinates that have noise."""
        return self.grid.dimension

    @property
    def unrounded(self) -> float:
        """Return the squared ℓ₂ length before rounding."""
        return self.across**2 / 4 * (self.dimension if self.grid.norm == "linf" else 1)

    @property
    def squared_l2(self) -> float:
        """Return a bound on the squared ℓ₂ length after rounding."""
        if self._exact:
            return self.unrounded
        inside = self.across**2 / 4 * self.dimension  # every coordinate stays between the ends of the grid
        return min(inside, (math.sqrt(self.unrounded) + math.sqrt(self.dimension)) ** 2)

    def log_moment(self, rate: float) -> float:
        """Return a bound on ln E[e^(rate · S)], S the squared ℓ₂ length after rounding."""
        mean, ranges = self._moments
        return min(rate * self.squared_l2, rate * mean + rate**2 * ranges / 8)

    def at_most(self, chance: float) -> float:
        """Return what S is at most, but for a probability `chance`."""
        mean, ranges = self._moments
        return min(self.squared_l2, mean + math.sqrt(ranges * -math.log(chance) / 2))

    @property
    def _exact(self) -> bool:
        return self.grid.is_box or not self.grid.rounded

    @property
    def _moments(self) -> tuple[float, float]:
        if self._exact:
            return self.unrounded, 0.0
        root = math.sqrt(self.dimension)
        return self.unrounded + self.dimension / 4, (2 * math.sqrt(self.unrounded) + root) ** 2


@dataclass(frozen=True, slots=True)
class Crowd:
    """Clients whose messages are shuffled: vectors in a ball, any two of which are a move of `grid` apart.

    across  steps of the ball's diameter.
    users   n, honest ones.
    """

    grid: Grid
    across: int
    users: int

    @property
    def from_middle(self) -> FromMiddle:
        """Return a client's way from the middle of the ball."""
        return FromMiddle(self.grid, self.across)


class Inputs(NamedTuple):
    """Two inputs, from the middle, in deviations: (off, one) and (off, -other), in two directions."""

    off: float
    one: float
    other: float


@dataclass(frozen=True)
class _Question:
    """Noise of a variance, a crowd, and ε; `delta` only says what may be left out."""

    variance: float
    crowd: Crowd
    epsilon: float
    delta: float

    @property
    def blur(self) -> float:
        """Return by what exponent noise on the integers may differ from rounded noise in reals."""
        return self.crowd.grid.dimension * BLUR if self.crowd.grid.rounded else 0.0

    @property
    def reals(self) -> float:
        """Return the variance of that noise in reals; see `lattice_log_delta`."""
        return self.variance - LATTICE if self.crowd.grid.rounded else self.variance

    @property
    def inner(self) -> float:
        """Return ε less what noise on the integers may add to it."""
        return self.epsilon - 2 * self.blur

    @property
    def sizes(self) -> tuple[float, float]:
        """Return how far from the middle and from each other two inputs are, in deviations, but for a share of δ."""
        chance = LOST_TO_EACH * self.delta / 3
        radius = math.sqrt(self.crowd.from_middle.at_most(chance) / self.reals)
        return radius, min(2 * radius, math.sqrt(self.crowd.grid.at_most(chance) / self.reals))

    def missing(self, log_weight: float) -> float:
        """Return η for c = e^-`log_weight`."""
        level = log_weight - self.blur
        if level < 0:
            return 1.0
        return math.exp(_log_missing(self.crowd.from_middle, self.reals, level) - log_weight)

    def cost(self, log_weight: float) -> float:
        """Return the second part of the bound; inf where the others' laws lack too much."""
        others, missing = self.crowd.users - 1, self.missing(log_weight)
        if others * missing > 1:
            return math.inf
        alone = math.exp(log_gaussian_delta(self.sizes[1], self.inner))
        return others * missing * (1 + missing) ** others * (math.expm1(self.inner) + alone)

    def hidden(self, pair: Inputs, log_weight: float) -> float:
        """Return the first part of the bound for one pair, and the mass that it leaves out."""
        missing = self.missing(log_weight)
        lost = LOST_TO_EACH * self.delta
        weights, values = _atoms(pair, self.inner, lost)
        if not values.size:
            return 1.0
        weight = math.exp(-log_weight) / (1 + missing)
        found = atoms_delta(weight * weights, values / weight, self.crowd.users, fine=SUM_STEP)
        return (1 + missing) ** (self.crowd.users - 1) * (found * (1 + ROUNDED_MASSES) + lost)

    def total(self, pair: Inputs, log_weight: float) -> float:
        """Return the bound for one pair."""
        cost = self.cost(log_weight)
        if cost >= self.delta:
            return 1.0
        whole = math.exp(self.blur) * (self.hidden(pair, log_weight) + cost) + LOST_TO_EACH * self.delta
        return min(1.0, whole)

    def first_place(self) -> int:
        """Return the least ln(1/c), in steps of FINE_WEIGHT, that may be the best."""
        first, last = 1, LAST_PLACE
        while first < last:  # the cost falls
            middle = (first + last) // 2
            cheap = self.cost(middle * FINE_WEIGHT) <= MOST_COST * self.delta
            first, last = (first, middle) if cheap else (middle + 1, last)
        return first

    def best_weight(self, pair: Inputs) -> tuple[float, float]:
        """Return the least bound for one pair, and the ln(1/c) that gives it."""
        # With c the cost falls, and less is hidden: the bound falls and then rises. Every place is looked at near the
        # first one, and farther out every fourth, with all places around the least of them.
        first = best = self.first_place()
        bound = cache(lambda place: self.total(pair, FINE_WEIGHT * place) if place < LAST_PLACE else 1.0)
        for place in chain(range(first, first + NEAR_PLACES), range(first + NEAR_PLACES, LAST_PLACE, 4)):
            if bound(place) < bound(best):
                best = place
            elif bound(best) < 1:  # it rises
                if place > first:
                    break
            elif self.cost(FINE_WEIGHT * place) <= LEAST_COST:  # no bound, and hardly less to gain
                break
            if bound(place) > 2 * self.delta:
                break
        for step in (2, 1) if best >= first + NEAR_PLACES else ():
            best = min((best, best - step, best + step), key=bound)
        return bound(best), FINE_WEIGHT * best

    def pairs(self) -> list[Inputs]:
        return covering_pairs(*self.sizes)

    def worst(self) -> tuple[float, int, float]:
        """Return the largest bound over all pairs, which pair's, and ln(1/c), the best for the first pair."""
        pairs = self.pairs()
        bound, log_weight = self.best_weight(pairs[0])
        found = [bound, *(self.total(pair, log_weight) for pair in pairs[1:])]
        worst = max(found)
        return worst, found.index(worst), log_weight


@lru_cache(maxsize=4096)
def _log_missing(way: FromMiddle, variance: float, level: float) -> float:
    """Return ln (η/c) at ln(1/c) = `level`, of noise in reals. Every ε of a crowd asks for the same levels."""
    return rounded_log_delta(way, variance, level)


def covering_pairs(radius: float, apart: float) -> list[Inputs]:
    """Return pairs such that one tells at least as much as any pair within a radius and apart; the farthest first.

    Holds  for L, whose law depends on the pair's Gram matrix G. Noise in reals of a larger G can be turned into that of
           a smaller one: L is a conditional mean then, and E[(Σ L_i)₊] is convex.
    """
    # Two more directions make any G larger until both inputs are at the radius, or one of them is and they are `apart`.
    # With half their sum and half their difference for a basis, the first kind has G = diag(r² - s², s²), s ≤ apart/2;
    # the second [[C - |k|a, ka/2], [ka/2, a²/4]], a = apart, C = r² - a²/4, |k| ≤ r - a/2. An interval of s is covered
    # by the least and the largest s in it. An interval of k, w to both sides of k', by k', RELAXED · a²/4 more in the
    # last entry, and wa + w²/RELAXED more in the first.
    apart = max(apart, radius)  # so that the middle of the ball is never beyond both, and L grows along their line
    half = apart / 2
    pairs = [
        Inputs(math.sqrt(max(0.0, radius**2 - (low * half) ** 2)), high * half, high * half)
        for high, low in pairwise(APARTS)
    ]
    far = radius - half
    if far <= 0:
        return pairs
    for low, high in pairwise(SHIFTS):
        k, w = (low + high) / 2 * far, (high - low) / 2 * far
        first = radius**2 - half**2 - k * apart + w * apart + w * w / RELAXED
        s = half * math.sqrt(1 + RELAXED)
        cross = k * half / s
        off = math.sqrt(max(0.0, first - cross * cross))
        pairs += [Inputs(off, s + cross, s - cross), Inputs(off, s - cross, s + cross)]
    return pairs


def crowd_delta(variance: float, crowd: Crowd, epsilon: float, delta: float) -> float:
    """Return a bound on δ(ε) of shuffled messages with that noise, the least that this module has; 1 for none.

    delta  a target, by which the shares that are left out and the searches go.
    """
    question = _Question(variance, crowd, epsilon, delta)
    if not _answers(question):
        return 1.0
    return question.worst()[0]


def crowd_variance(crowd: Crowd, epsilon: float, delta: float, most: float) -> float:
    """Return the least variance whose `crowd_delta` is at most δ, as a snapped number; inf where `most` does not do."""

    def excess(place: int, log_weight: float, variance: float) -> float:
        question = _Question(variance, crowd, epsilon, delta)
        found = question.total(question.pairs()[place], log_weight) if _answers(question) else 1.0
        return math.log(max(found, NOT_ZERO) / delta)

    # Each search is for one pair at one c: the worst pair where the last search ended, and the best c for the farthest.
    size = rough_variance(crowd, epsilon, delta, most)
    searched = False
    while size < most:
        question = _Question(size, crowd, epsilon, delta)
        worst, place, log_weight = question.worst()
        if searched and worst <= delta:
            return size
        found = least_on_grid(partial(excess, place, log_weight), size)
        size = max(found, snap_up(size)) if searched else found
        searched = True
    return most if crowd_delta(most, crowd, epsilon, delta) <= delta else math.inf


def rough_variance(crowd: Crowd, epsilon: float, delta: float, most: float) -> float:
    """Return about the least variance by the farthest pair alone, snapped; inf where `most` does not do."""

    def met(variance: float) -> bool:
        question = _Question(variance, crowd, epsilon, delta)
        return _answers(question) and question.best_weight(question.pairs()[0])[0] <= delta

    if not met(most):
        return math.inf
    low = high = most
    while met(low):
        low, high = low / 4, low
    while high > low * ROUGHLY:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if met(middle) else (middle, high)
    return snap_up(high)


def _answers(question: _Question) -> bool:
    return question.crowd.users > 1 and question.reals > 0 and question.inner > 0


@lru_cache(maxsize=64)
def _atoms(pair: Inputs, epsilon: float, lost: float) -> tuple[Floats, Floats]:
    """Return weights and values, larger in convex order than L is, but for a mass `lost` of P on the largest L.

    There are none where values are too large.
    """
    # L = X·Y, X = e^(ht - h²/2), Y = e^(at - a²/2) - e^(ε - bt - b²/2), of independent normal t.
    far = -float(scipy.special.ndtri(lost / 4))
    factor = math.exp(epsilon - 2 * ROUNDED_MASSES)

    def difference(t: Floats) -> Floats:
        return np.exp(pair.one * t - pair.one**2 / 2) - factor * np.exp(-pair.other * t - pair.other**2 / 2)

    ends = np.linspace(-far - pair.other, far + pair.one, CUTS[1] + 1)
    masses = _between(ends)
    low, high = difference(ends[:-1]), difference(ends[1:])
    mean = (_between(ends - pair.one) - factor * _between(ends + pair.other)) / masses
    # Farther down Y is less, and counts as at the end.
    masses = np.append(masses, scipy.special.ndtr(ends[0]))
    low, high = np.append(low, low[0]), np.append(high, low[0])
    mean = np.clip(np.append(mean, low[-1]), low, high)
    if pair.off > 0:
        steps = np.linspace(-far, far + pair.off, CUTS[0] + 1)
        weights = np.append(_between(steps), scipy.special.ndtr(steps[0]))
        grown = np.exp(pair.off * steps - pair.off**2 / 2)
        least, most = np.append(grown[:-1], 0.0), np.append(grown[1:], grown[0])
        moved = np.append(_between(steps - pair.off), scipy.special.ndtr(steps[0] - pair.off))
        means = np.clip(moved / weights, least, most)
        low, high = (
            np.minimum(np.multiply.outer(least, low), np.multiply.outer(most, low)).ravel(),
            np.maximum(np.multiply.outer(least, high), np.multiply.outer(most, high)).ravel(),
        )
        mean = np.clip(np.multiply.outer(means, mean).ravel(), low, high)
        masses = np.multiply.outer(weights, masses).ravel()
    return _split(masses, low, mean, high)


def _between(ends: Floats) -> Floats:
    """Return the normal law's mass between neighbouring ends, to about twelve digits."""
    left, right = ends[:-1], ends[1:]
    turned = left > 0  # the tail that is smaller
    near, far = np.where(turned, -right, left), np.where(turned, -left, right)
    return np.asarray(scipy.special.ndtr(far) - scipy.special.ndtr(near), dtype=np.float64)


def _split(masses: Floats, low: Floats, mean: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return atoms at fixed nodes: each cell's mass goes to the two that enclose its values, with the cell's mean.

    Where a value is beyond the last node, there are none.
    """
    inner, outer = NODE_SIZES
    half = inner * np.exp2(np.arange(0, NODES_A_DOUBLING * math.log2(outer / inner) + 1) / NODES_A_DOUBLING)
    nodes = np.concatenate((-half[::-1], [0.0], half))
    if not high.max() < outer:
        return nodes[:0], nodes[:0]
    low, mean, high = (np.maximum(values, -outer) for values in (low, mean, high))
    before = np.searchsorted(nodes, low, side="right") - 1
    after = np.searchsorted(nodes, high, side="left")
    up = (mean - nodes[before]) / np.maximum(nodes[after] - nodes[before], inner / 2)
    weights = np.bincount(before, masses * (1 - up), nodes.size) + np.bincount(after, masses * up, nodes.size)
    kept = (weights > 0) & (nodes != 0)
    return weights[kept], nodes[kept]

"""Implements Thompson sampling of arms on noised sums, in batches that double and with estimates of one batch each.

Each client draws a mean N(m_a, v_a) for every arm a, and plays the arm of the largest. With n survivors in the arm's
last batch, whose sum has noise of standard deviation s, and w the `width_scale`,

    m = sum/n,   v = w² (1 + 4s²/n)/n

Batches   of Lazy-DP-TS (Hu & Hegde 2022, Algorithm 2): an arm's estimate is replaced once twice as many new
          clients as it rests on have drawn the arm; older data is dropped.
Posterior of Agrawal & Goyal 2017, N(m, 1/(n + 1)), but for the prior's pull: for s = 0 and w = 1 its variance is four
          times the largest variance of a mean of n rewards in [0, 1]. The noise's own variance is added four times.
Regret    Lazy-DP-TS draws from a Beta law around a mean that it raises by 3 ln(t)/(εn), so that Laplace noise seldom
          leaves it too small. Its bound rests on that; that of Agrawal & Goyal has no noise. Neither covers this
          posterior, which follows any noise's variance, so no bound on the regret is stated.

Two things are computed otherwise than in Lazy-DP-TS, with the same law of the batches' order:

Pulls wait  There a client plays the arm that it draws at once. Here an arm's cohort opens when its draws have filled
            the batch, so that no cohort stays open for long. Draws whose batch never fills are not played: at T pulls
            fewer than 2T + K 2ᶠ were drawn, f the `first_batch`, and an arm has no more pulls than draws.
One draw    Between two estimates arm a is drawn with a fixed probability p_a. If clients come at the times of a Poisson
a batch     process of rate 1, the draws of the arms are independent processes of rates p_a, and arm a's batch of c
            clients is full when its ∫p_a has grown by a Gamma(c) variable. Times do not matter, their order does. So
            each batch draws one variable, from the run's public coins, and p_a is integrated.
"""

import math
from collections.abc import Sequence

import numpy as np

from distrust.common.bandit.error_law import ErrorLaw, Floats
from distrust.common.errors import BadParameter
from distrust.common.extras import special
from distrust.common.randomness import PublicStream, uniforms
from distrust.common.specs.base import event_share
from distrust.common.specs.thompson import ThompsonSpec
from distrust.server.policies.base import Ask, Estimate, Interval, Query, RunFacts
from distrust.server.policies.elimination import MOST_BATCHES, EliminationBase, check_failure, exact_radius

LARGEST_K = 1000
"""Arms of a run, at most: each batch has a round of its own, and services play about 10,000 rounds."""

POSTERIOR_FACTOR = 4.0
"""Posterior variance of Agrawal & Goyal, in variances of the error of a mean of rewards in [0, 1]."""

OUTERMOST = 8.0  # deviations: a normal variable is farther out with probability 1e-15
CELL_WIDTH = 0.5  # width of a cell of the quadrature, in the least deviation of an arm there
LEAST_CHANCE = 1e-290  # chance of an arm that is not drawn in any run: a division by less overflows
CELL_POINTS = 5  # of Gauss and Legendre in a cell


class Thompson(EliminationBase):
    """The policy `thompson`: no arm is dropped, and each round after the first has one cohort.

    digest    public coins: the same digest and estimates give the same batches.
    first     f: the first round gives each arm 2ᶠ clients; an arm's next batch has twice those of its last.
    failure   p: every interval of every round holds with probability above 1 - p. They decide nothing.
    scale     w, above 0.
    Chosen    the arm that is drawn with the largest probability.
    """

    def __init__(self, spec: ThompsonSpec, run: RunFacts) -> None:
        super().__init__(run.arms)
        arms = run.arms
        if arms > LARGEST_K:
            raise BadParameter("arms", arms, f"must be at most {LARGEST_K} with {spec.name}: a round has one arm")
        check_failure(arms, spec.failure, event_share(1, MOST_BATCHES * arms, 1.0))
        self._digest, self._failure, self._scale = run.digest, spec.failure, spec.width_scale
        self._round, self._asked = 1, self._active
        self._sizes = [spec.first_batch] * arms
        self._means, self._deviations = np.zeros(arms), np.ones(arms)
        self._drawn, self._full = np.zeros(arms), np.zeros(arms)  # ∫p since the arm's last batch, and where it is full

    def tell(self, estimates: Sequence[Estimate]) -> None:
        by_arm = self._next().by_arm(estimates)
        fresh = {arm: self._interval(arm, by_arm[arm]) for arm in self._asked}
        self._latest |= fresh
        for arm in self._asked:
            self._read(arm, by_arm[arm])
        chances = win_probabilities(self._means, self._deviations)
        self._chosen = int(chances.argmax())  # the lowest arm on a tie
        self._round, self._asked = self._round + 1, (self._next_full(chances),)

    def _next(self) -> Ask:
        return Ask(self._round, tuple(Query(arm, 2 ** self._sizes[arm]) for arm in self._asked))

    def _interval(self, arm: int, estimate: Estimate) -> Interval:
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        mean = total / survivors
        radius = exact_radius(survivors, law, len(self._asked), self._round, self._failure)
        return Interval(arm, self._round, mean, mean - radius, mean + radius)

    def _read(self, arm: int, estimate: Estimate) -> None:
        """Take an arm's new estimate, and draw when its next batch is full."""
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        self._means[arm] = total / survivors
        self._deviations[arm] = self._scale * posterior_deviation(survivors, law)
        self._sizes[arm] += 1
        self._drawn[arm] = 0.0
        self._full[arm] = _gamma(PublicStream(self._digest, arm, self._sizes[arm]), 2 ** self._sizes[arm])

    def _next_full(self, chances: Floats) -> int:
        """Let clients draw until a batch is full, and return its arm."""
        times = np.full(len(chances), np.inf)
        np.divide(np.maximum(self._full - self._drawn, 0), chances, out=times, where=chances > LEAST_CHANCE)
        arm = int(times.argmin())
        self._drawn += times[arm] * chances
        return arm


def posterior_deviation(survivors: int, law: ErrorLaw) -> float:
    """Return √v for w = 1: of the mean of so many rewards, whose sum has noise of this law."""
    return math.sqrt(POSTERIOR_FACTOR * (0.25 + law.std**2 / survivors) / survivors)


def win_probabilities(means: Floats, deviations: Floats) -> Floats:
    """Return P(X_a is the largest) for independent X_a ~ N(means_a, deviations_a²), shape (K,)."""
    edges = _cells(means, deviations)
    points, weights = np.polynomial.legendre.leggauss(CELL_POINTS)
    half = np.diff(edges)[:, np.newaxis] / 2
    x = (edges[:-1, np.newaxis] + half * (1 + points)).ravel()
    z = (x - means[:, np.newaxis]) / deviations[:, np.newaxis]
    below = special.log_ndtr(z)
    densities = np.exp(below.sum(axis=0) - below - z * z / 2) / deviations[:, np.newaxis]
    chances = densities @ (half * weights).ravel()
    return np.asarray(chances / chances.sum())


def _cells(means: Floats, deviations: Floats) -> Floats:
    """Return the edges of cells that hold the largest X but for 1e-15, each short beside every deviation in it."""
    ends = means + OUTERMOST * deviations
    edges = [float((means - OUTERMOST * deviations).max())]
    while edges[-1] < ends.max():
        edges.append(edges[-1] + CELL_WIDTH * float(deviations[ends > edges[-1]].min()))
    return np.array(edges)


def _gamma(coins: PublicStream, clients: int) -> float:
    """Return a Gamma(clients) variable, by inversion."""
    return float(special.gammaincinv(float(clients), uniforms(coins, 1)[0]))

"""Implements UCB on private estimates, which goes on with one arm at a time.

AdaP-UCB has episodes that forget (Azize & Basu 2022), DP-UCB a stream of batches an arm (Mishra & Thakurta 2015).
"""

import math
from collections.abc import Sequence

import numpy as np

from distrust.common.bandit.error_law import ErrorLaw, Floats
from distrust.common.errors import BadParameter
from distrust.common.specs.base import RoundSize, event_share
from distrust.common.specs.policy import AdapUcbSpec, DpUcbSpec
from distrust.server.policies.base import Ask, Estimate, Interval, PlannedBatches, Query, RunFacts
from distrust.server.policies.elimination import check_failure, exact_radius
from distrust.server.policies.noise_width import LEAST_TAIL

MOST_EPISODES = 30
"""Episodes of one arm after its first, at most: each doubles its clients, and T ≤ 10⁹ is below 2³⁰."""


class UpperBounds(PlannedBatches):
    """Holds the latest interval of each arm. No arm is dropped."""

    def __init__(self, arms: int) -> None:
        self._means, self._counts = np.zeros(arms), np.zeros(arms, dtype=np.int64)
        self._latest: dict[int, Interval] = {}
        self._fresh: tuple[int, ...] = ()  # arms of the last round, ascending
        self._round, self._arm = 1, 0

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(range(len(self._means)))

    @property
    def intervals(self) -> tuple[Interval, ...]:
        return tuple(self._latest[arm] for arm in sorted(self._latest))

    @property
    def latest_intervals(self) -> tuple[Interval, ...]:
        return tuple(self._latest[arm] for arm in self._fresh)

    @property
    def chosen(self) -> int | None:
        """Return the arm of the largest mean; the lowest on a tie."""
        return max(sorted(self._latest), key=lambda arm: self._latest[arm].mean, default=None)

    def _note(self, arm: int, mean: float, radius: float) -> None:
        self._means[arm] = mean
        self._latest[arm] = Interval(arm, self._round, mean, mean - radius, mean + radius)

    def _largest(self, logarithm: float, noise: Floats) -> int:
        """Return the arm of the largest mean + √(logarithm/(2n)) + noise/n; ties go to the lowest."""
        return int(np.argmax(self._means + np.sqrt(logarithm / (2 * self._counts)) + noise / self._counts))


class AdapUcb(UpperBounds):
    """Gives the arm of the largest upper bound to as many new clients as it had so far, one cohort: an episode.

    Round 1 gives every arm to `first` clients, side by side (1 in the paper).

    alpha      α > 3.
    failure    p: every interval of every episode holds with probability > 1 - p. Decisions do not rest on it.
    Forgetting an arm's mean is that of its last episode alone, half of its clients: one client is counted in one sum.
    Bound      mean + √(α ln t/(2n)) + q(t^-α)/n, n the episode's clients and t - 1 those of all arms so far. The noise
               of the sum passes ±q(x) with probability x at most, by its own law. Laplace noise of scale 1/ε has
               q(t^-α) = α ln t/ε, and this is the paper's eq. (7), but for ln 2t in its root: for its
               confidence of t^-α ln t is enough. x is never below LEAST_TAIL.
    Theorem    an expected regret of Σ_a max(32α ln T/Δ_a, 16 q(T^-α)) and a constant an arm, by the steps below, of
               runs in which no sum wraps around and all clients answer. A sum wraps around with probability below p/3:
               with p ≤ 1/T that adds a constant to the regret. The paper's Theorem 7, Σ_a 16α ln T/min(Δ_a, ε) for
               Laplace noise, is of its own index, and is not used.
    Intervals  `exact_radius` around the last episode's mean, with 1 in place of |Φ| and the round's number as b; in
               round 1, of K cohorts, |Φ| = K. The three events of each cohort then sum to 0.99p at most.
    """

    # Regret for noise of any law. Fix t, and one episode of n clients of an arm. They are fresh: their mean lies s =
    # √(α ln t/(2n)) above the true one, or below it, with probability t^-α each (Hoeffding). The sum's noise passes
    # q = q(t^-α) with probability t^-α at most, or LEAST_TAIL. An arm has at most 1 + log₂ t episodes before t. What
    # is known of two arms fails at t with a probability of order t^-α ln t. An episode that begins at t has t clients
    # at most. Summed over t, such episodes cost a constant for α > 2. Fewer than 31K episodes fail at LEAST_TAIL, with
    # 10⁻¹⁸ each, and cost less than 10⁻⁷K for T ≤ 10⁹. Where nothing fails the best arm's bound is at least μ*, and the
    # chosen arm's at most μ_a + 2s + 2q/n. So s or q/n is Δ_a/4 at least: n ≤ max(8α ln T/Δ_a², 4q(T^-α)/Δ_a). The arm
    # had 2n clients, or n after round 1, and has at most 4n after this episode.

    def __init__(self, spec: AdapUcbSpec, run: RunFacts) -> None:
        super().__init__(run.arms)
        check_failure(run.arms, spec.failure, event_share(1, 1 + MOST_EPISODES * run.arms, 1.0))
        self._first, self._alpha, self._failure = 2**spec.first_batch, spec.alpha, spec.failure
        self._played = np.zeros(run.arms, dtype=np.int64)
        self._laws: dict[ErrorLaw, int] = {}  # each law that an episode had, and its place
        self._places = np.zeros(run.arms, dtype=np.int64)  # of the law of each arm's last episode

    def tell(self, estimates: Sequence[Estimate]) -> None:
        ask = self._next()
        by_arm = ask.by_arm(estimates)
        for query in ask.queries:
            assert query.arm is not None
            self._learn(query.arm, query.clients, by_arm[query.arm])
        self._fresh = ask.arms
        self._round += 1
        self._arm = self._largest_bound()

    @property
    def _together(self) -> int:
        """Return how many cohorts the present round has."""
        return len(self._played) if self._round == 1 else 1

    def _next(self) -> Ask:
        if self._round == 1:
            return Ask(1, tuple(Query(arm, self._first) for arm in self.active))
        return Ask(self._round, (Query(self._arm, int(self._played[self._arm])),))

    def _learn(self, arm: int, clients: int, estimate: Estimate) -> None:
        """Take the sum of one episode of so many clients in place of the arm's last one."""
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        self._played[arm] += clients
        self._counts[arm] = survivors
        self._places[arm] = self._laws.setdefault(law, len(self._laws))
        self._note(arm, total / survivors, exact_radius(survivors, law, self._together, self._round, self._failure))

    def _largest_bound(self) -> int:
        """Return the arm of the next episode."""
        logarithm = self._alpha * math.log(1 + int(self._played.sum()))
        each = max(math.exp(-logarithm), LEAST_TAIL)
        laws, (used, places) = list(self._laws), np.unique(self._places, return_inverse=True)
        return self._largest(logarithm, np.array([laws[place].quantile(each) for place in used])[places])


class DpUcb(UpperBounds):
    """Gives `batch` new clients to the arm of the largest upper bound, round by round, after a round for each arm.

    A mechanism that counts streams counts one for each arm: its batches are the arm's cohorts, and the arm's mean rests
    on the sum of all of them, which has the noise of logarithmically many nodes. One client is in one batch of one
    stream, so that an arm's stream has the whole ε. Without privacy the sums are added up.

    batch      B; 1 in the papers.
    alpha      α > 2; 4 is that of UCB1.
    share      p₁ = p/(5KR), R = ⌊T/B⌋: the failure probability of each event. Every interval holds with probability
               > 1 - p. Decisions do not rest on it.
    Bound      S/N + √(α ln t/(2N)) + w(t^-α)/N, S the sum over the arm's N clients, and t those of all arms. The noise
               of any prefix sum passes w(x) = σ√(kL) + hL, L = ln(2/x), with probability x at most: it combines draws
               with the tail (σ, h), Gaussian but for steps of rounding in h, and k `nodes` times the variance of one.
               Without noise and with α = 4 and B = 1 this is UCB1.
    Theorem    an expected regret of Σ_a max(8α ln T/Δ_a, 4w(T^-α)) + B Δ_a and a constant an arm, by the steps below,
               of runs in which no sum wraps around and all clients answer. The theorems of Mishra & Thakurta (2015)
               and Tossou & Dimitrakakis (2016) are of Laplace noise in the nodes, which keeps ε without a δ. They are
               not used.
    Intervals  S/N ± (√(L/(2N)) + w(p₁)/N), L = ln(2/p₁). How often an arm is played follows from the rewards in its
               sum. So the events are counted for all R sums of each of K arms: sampling and noise have 2KR, and the R
               sums that are released, or K whole streams, may wrap around.
    """

    # Regret. Fix t and N. The mean of an arm's first N clients lies s = √(α ln t/(2N)) above the true one, or below it,
    # with probability t^-α each, and its noise passes w with t^-α at most. There are t/B values of N. So what is known
    # of two arms fails at t with a probability of order t^(1-α)/B, and costs B clients. Summed over t = B, 2B, … that
    # is a constant for α > 2. Where nothing fails the chosen arm has Δ_a ≤ 2s + 2w/N, so that s or w/N is Δ_a/4 at
    # least, and N ≤ max(8α ln T/Δ_a², 4w(T^-α)/Δ_a). It is then played by B clients more.

    def __init__(self, spec: DpUcbSpec, run: RunFacts) -> None:
        super().__init__(run.arms)
        if run.horizon < run.arms * spec.batch:
            allowed = f"must be at most {run.horizon // run.arms}, as each of {run.arms} arms has a batch"
            raise BadParameter("policy.batch", spec.batch, allowed)
        check_failure(run.arms, spec.failure, event_share(run.arms * (run.horizon // spec.batch), 1, 1.0))
        self._share = spec.event_probability(RoundSize(run.arms, run.horizon, run.calibration, 1, run.arms))
        self._batch, self._alpha = spec.batch, spec.alpha
        self._sums, self._tails = np.zeros(run.arms), np.zeros((run.arms, 2))

    def tell(self, estimates: Sequence[Estimate]) -> None:
        arm = self._arm
        estimate = self._next().by_arm(estimates)[arm]
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        self._sums[arm] = total if estimate.prefix else self._sums[arm] + total
        self._counts[arm] += survivors
        sigma, h = law.sub_exponential
        self._tails[arm] = sigma * math.sqrt(estimate.nodes), h
        count, logarithm = int(self._counts[arm]), math.log(2 / self._share)
        far = float(_far(self._tails[arm], logarithm))
        self._note(arm, float(self._sums[arm]) / count, math.sqrt(logarithm / (2 * count)) + far / count)
        self._fresh = (arm,)
        self._arm = self._round if self._round < len(self._sums) else self._largest_bound()
        self._round += 1

    def _next(self) -> Ask:
        return Ask(self._round, (Query(self._arm, self._batch),), cumulative=True)

    def _largest_bound(self) -> int:
        """Return the arm of the next round."""
        logarithm = self._alpha * math.log(self._round * self._batch)
        return self._largest(logarithm, _far(self._tails, math.log(2) + logarithm))


def _far(tails: Floats, logarithm: float) -> Floats:
    """Return σ√L + hL for tails (σ, h), shape (…, 2)."""
    return np.asarray(tails[..., 0] * math.sqrt(logarithm) + tails[..., 1] * logarithm)

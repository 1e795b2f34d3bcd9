"""Implements successive elimination (MAB Algorithm 1), DP-SE (its baseline), and all eliminations' base classes.

The half width of a private mean's confidence interval is exact, or the paper's bound.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.specs.base import event_share
from distrust.common.specs.policy import DpSeSpec, SuccessiveEliminationSpec
from distrust.server.policies.base import ArmKey, Ask, Estimate, Interval, PlannedBatches, Query, RunFacts
from distrust.server.policies.noise_width import LEAST_TAIL

Radius = Callable[[int, ErrorLaw, int, int, float], float]
"""(survivors n, noise law of the sum, |Φ| active arms, batch b ≥ 1, p) → half width of the mean's interval."""


MOST_BATCHES = 30
"""Batches of an elimination, at most: batch b has at least 2ᵇ clients an arm, and T ≤ 10⁹ is below 2³⁰."""


def check_failure(arms: int, failure: float, smallest: float | None = None) -> None:
    """Refuse a p whose smallest share is below the least probability for which noise has quantiles.

    smallest  share of p that the least event of a run has; when None that of an elimination's last batch.
    Raises    BadParameter.
    """
    if smallest is None:
        smallest = event_share(arms, MOST_BATCHES, 1.0) / 2  # half of a share, in DP-SE's `paper` calibration
    least = LEAST_TAIL / smallest
    if failure < least:
        allowed = (
            f"must be at least {least:.2g} for {arms} arms: the widths need quantiles of the noise at a share of p"
        )
        raise BadParameter("policy.failure", failure, allowed)


def exact_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """Return β = √(ln(2/p₁)/(2n)) + q/n with p₁ = p₂ = `event_share` and q the noise's exact quantile at p₂.

    Hoeffding for n independent rewards in [0, 1], rounding included: a rounded reward is a reward in [0, 1] with the
    same mean.
    """
    allowed = event_share(arms, batch, failure)
    return math.sqrt(math.log(2 / allowed) / (2 * survivors)) + law.quantile(allowed) / survivors


def paper_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """Return β(b) of MAB Lemma 2, corrected: with L = ln(4|Φ|b²/p), √(L/(2n)) + (σ√L + h·L)/n.

    The paper writes ln(2|Φ|b²/p) in the noise terms, and its union bound then sums to 4.11p. With L in every term it
    sums to 2.47p, inside the 3p that the lemma states.
    """
    sigma, h = law.sub_exponential
    spread = math.log(4 * arms * batch**2 / failure)
    return math.sqrt(spread / (2 * survivors)) + (sigma * math.sqrt(spread) + h * spread) / survivors


def published_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """Return β(b) of MAB Lemma 2 as printed and as in the authors' code: ln(2|Φ|b²/p) in the noise terms.

    (σ, h) are the law's; the ones of the code are those of the `paper` calibration.
    """
    sigma, h = law.sub_exponential
    spread = math.log(2 * arms * batch**2 / failure)
    sampled = math.sqrt((spread + math.log(2)) / (2 * survivors))
    return sampled + (sigma * math.sqrt(spread) + h * spread) / survivors


RADII: dict[Literal["exact", "paper", "published-code"], Radius] = {
    "exact": exact_radius,
    "paper": paper_radius,
    "published-code": published_radius,
}


class EliminationBase(PlannedBatches):
    """Common part of policies with an interval an arm. `tell` of a policy updates `_active`, `_latest`, `_chosen`."""

    def __init__(self, arms: int) -> None:
        self._active = tuple(range(arms))
        self._latest: dict[int, Interval] = {}
        self._chosen: int | None = None

    @property
    def active(self) -> tuple[int, ...]:
        return self._active

    @property
    def intervals(self) -> tuple[Interval, ...]:
        return tuple(self._latest[arm] for arm in sorted(self._latest))

    @property
    def latest_intervals(self) -> tuple[Interval, ...]:
        last = max((interval.batch for interval in self._latest.values()), default=0)
        return tuple(interval for interval in self.intervals if interval.batch == last)

    @property
    def chosen(self) -> int | None:
        return self._chosen


class Elimination(EliminationBase):
    """Gives every active arm to `clients` new clients, and drops arms whose upper bound is below the best lower bound.

    arms   K ≥ 2.
    first  the number of the first batch, at least 1.
    """

    def __init__(self, arms: int, first: int = 1) -> None:
        super().__init__(arms)
        self._batch = first

    def tell(self, estimates: Sequence[Estimate]) -> None:
        by_arm = self._next().by_arm(estimates)
        fresh = {arm: self._interval(arm, by_arm[arm]) for arm in self._active}
        self._latest |= fresh
        best = max(interval.lower for interval in fresh.values())
        self._active = tuple(arm for arm in self._active if fresh[arm].upper >= best)
        self._chosen = max(self._active, key=lambda arm: fresh[arm].mean)  # the lowest arm on a tie
        self._batch += 1

    @property
    @abstractmethod
    def clients(self) -> int:
        """Return the clients of one arm in the next batch."""

    @abstractmethod
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        """Return an arm's estimated mean after this batch, and the half width of its interval."""

    def _next(self) -> Ask:
        return Ask(self._batch, tuple(Query(arm, self.clients) for arm in self._active))

    def _interval(self, arm: int, estimate: Estimate) -> Interval:
        mean, radius = self.read(arm, estimate)
        return Interval(arm, self._batch, mean, mean - radius, mean + radius)


class SuccessiveElimination(Elimination):
    """Batch b gives every active arm to baseᵇ new clients.

    base         2, or another whole number above 1 (MAB Remark 4).
    failure      p: with `exact` radii every interval of every batch holds with probability > 1 - p; the best arm stays.
    constants    `exact` or `paper` radii, or those of the `published-code`, which gives p to every event and so states
                 nothing for all events together.
    Forgetting   an interval rests on its own batch alone: one client is counted in one sum.
    """

    def __init__(self, spec: SuccessiveEliminationSpec, run: RunFacts) -> None:
        super().__init__(run.arms, spec.first_batch)
        check_failure(run.arms, spec.failure)
        self._base, self._failure = spec.growth, spec.failure
        self._radius = RADII[spec.constants or run.calibration]

    @property
    def clients(self) -> int:
        return int(self._base**self._batch)

    @override
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        return total / survivors, self._radius(survivors, law, len(self._active), self._batch, self._failure)


class DpSe(Elimination):
    """DP-SE (Sajed & Sheffet 2019): epochs that halve the gap they look for.

    Epoch e looks for gaps of D = 2⁻ᵉ: ⌊max(32 L₈/D², 8 λ L₄/D)⌋ + 1 new clients an arm, L_c = ln(c|S|e²/p).

    noise    λ ≥ 0: the scale of the Laplace noise that a sum is expected to carry; 1/ε in the paper. It sets lengths
             only: an interval rests on the law of the actual noise.
    failure  p: every interval of every epoch holds with probability > 1 - p.
    exact    `exact_radius`. paper: √(L₈/(2R)) + q/R, q the noise's quantile at p/(4|S|e²); for Laplace's law, which the
             paper has, that is its λL₄.
    The end  the last active arm is played until the horizon.
    """

    def __init__(self, spec: DpSeSpec, run: RunFacts) -> None:
        super().__init__(run.arms)
        check_failure(run.arms, spec.failure)
        self._noise, self._failure, self._paper = run.laplace_scale, spec.failure, run.calibration == "paper"

    @property
    def going_on(self) -> bool:
        return len(self._active) > 1

    @property
    def clients(self) -> int:
        gap = 2.0**-self._batch
        sampling = 32 * math.log(2 / self._each) / gap**2
        return math.floor(max(sampling, 8 * self._noise * math.log(1 / self._each) / gap)) + 1

    @override
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        if not self._paper:
            return total / survivors, exact_radius(survivors, law, len(self._active), self._batch, self._failure)
        sampled = math.sqrt(math.log(2 / self._each) / (2 * survivors))
        return total / survivors, sampled + law.quantile(self._each) / survivors

    def leftover(self, left: int) -> dict[ArmKey, int]:
        """Return the last pulls, shared evenly as an epoch plays the arms in turn; the last active arm gets all."""
        each, more = divmod(left, len(self._active))
        counts = {arm: each + (place < more) for place, arm in enumerate(self._active)}
        return {arm: count for arm, count in counts.items() if count}

    @property
    def _each(self) -> float:
        """Return the paper's p/(4|S|e²): its sampling errors and its noise have one each, 0.83p in all."""
        return self._failure / (4 * len(self._active) * self._batch**2)

"""Implements UCB1: gives one client at a time to the arm of the largest upper bound (Auer et al. 2002). No privacy."""

import math
from collections.abc import Sequence

import numpy as np

from distrust.common.specs.policy import Ucb1Spec
from distrust.server.policies.base import Ask, Estimate, Interval, PlannedBatches, Query, RunFacts


class Ucb1(PlannedBatches):
    """Plays each arm once, in order; then the largest mean + √(2 ln t / n), for t pulls in all and n of the arm.

    Each sum is one client's reward, so this is a baseline without privacy. No arm is dropped.

    Intervals  mean ± √(2 ln t / n), of all arms or of none: before each arm was pulled once, no bound decides anything
               (and √(2 ln 1 / 1) is no width at all).
    """

    def __init__(self, spec: Ucb1Spec, run: RunFacts) -> None:
        del spec  # it holds nothing but the name
        arms = run.arms
        self._sums, self._counts = np.zeros(arms), np.zeros(arms, dtype=np.int64)
        self._rounds = np.zeros(arms, dtype=np.int64)
        self._round, self._pulls, self._arm, self._last = 1, 0, 0, 0

    @property
    def active(self) -> tuple[int, ...]:
        return tuple(range(len(self._sums)))

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Return the intervals at the present t."""
        return tuple(map(self._interval, self.active)) if self._pulls >= len(self._sums) else ()

    @property
    def latest_intervals(self) -> tuple[Interval, ...]:
        """Return the last pull's interval.

        All arms' once each was pulled. The other intervals only grew wider, with t.
        """
        return (self._interval(self._last),) if self._pulls > len(self._sums) else self.intervals

    @property
    def chosen(self) -> int | None:
        """Return the arm of the largest mean."""
        if not self._pulls:
            return None
        return int(np.argmax(np.where(self._counts > 0, self._sums / np.maximum(self._counts, 1), -np.inf)))

    def tell(self, estimates: Sequence[Estimate]) -> None:
        arm = self._arm
        estimate = self._next().by_arm(estimates)[arm]
        self._sums[arm] += estimate.sums[0]
        self._counts[arm] += estimate.counts[0]
        self._rounds[arm] = self._round
        self._pulls += estimate.counts[0]
        self._round += 1
        self._last, self._arm = arm, self._best_bound()

    def _next(self) -> Ask:
        return Ask(self._round, (Query(self._arm, 1),))

    def _best_bound(self) -> int:
        """Return the arm to play next; ties go to the lowest."""
        if self._pulls < len(self._sums):
            return self._pulls
        return int(np.argmax(self._sums / self._counts + np.sqrt(2 * np.log(self._pulls) / self._counts)))

    def _interval(self, arm: int) -> Interval:
        mean, count = float(self._sums[arm] / self._counts[arm]), int(self._counts[arm])
        radius = math.sqrt(2 * math.log(self._pulls) / count)
        return Interval(arm, int(self._rounds[arm]), mean, mean - radius, mean + radius)

"""Explore, then commit: one batch of every arm, then the arm with the best estimate until the horizon."""

from typing import Self

from typing_extensions import override

from distrust.common.specs.policy import ExploreThenCommitSpec
from distrust.server.policies.base import Estimate, RunFacts
from distrust.server.policies.elimination import Elimination, check_failure, exact_radius


class ExploreThenCommit(Elimination):
    """One batch of `explore` clients an arm; arms whose interval is below the best one's are dropped.

    explore  clients of each arm, at least 1.
    failure  p: every interval holds with probability > 1 - p.
    The end  the arm with the highest estimate is played until the horizon.
    """

    def __init__(self, *, arms: int, explore: int = 500, failure: float = 0.1) -> None:
        super().__init__(arms)
        self._arms, self._explore, self._failure = arms, explore, failure

    @classmethod
    def of(cls, spec: ExploreThenCommitSpec, run: RunFacts) -> Self:
        check_failure(run.arms, spec.failure)
        return cls(arms=run.arms, explore=spec.explore, failure=spec.failure)

    @property
    def going_on(self) -> bool:
        return self._chosen is None

    @property
    def clients(self) -> int:
        return self._explore

    @override
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        return total / survivors, exact_radius(survivors, law, self._arms, 1, self._failure)

    def leftover(self, left: int) -> dict[int, int]:
        """Return the last pulls by arm: the chosen arm; before the choice, the unfinished batch, arm after arm."""
        if self._chosen is None:
            return super().leftover(left)
        return {self._chosen: left} if left else {}

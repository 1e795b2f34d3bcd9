"""What the policies of successive elimination share: batches of all active arms, and arms that drop out."""

from abc import abstractmethod
from collections.abc import Sequence

from server.policies.base import Ask, Estimate, Interval, Query
from server.policies.race import Race


class Elimination(Race):
    """Every active arm goes to `clients` new clients; arms whose upper bound is below the best lower bound drop out.

    arms   K ≥ 2.
    first  the number of the first batch, at least 1.
    """

    def __init__(self, arms: int, first: int = 1) -> None:
        super().__init__(arms)
        self._batch = first

    def tell(self, estimates: Sequence[Estimate]) -> None:
        told = {estimate.arm: estimate for estimate in estimates if estimate.arm is not None}
        if len(estimates) != len(told) or sorted(told) != list(self._active):
            raise ValueError("a batch is told whole: one estimate for each active arm")
        fresh = {arm: self._interval(arm, told[arm]) for arm in self._active}
        self._latest |= fresh
        best = max(interval.lower for interval in fresh.values())
        self._active = tuple(arm for arm in self._active if fresh[arm].upper >= best)
        self._chosen = max(self._active, key=lambda arm: fresh[arm].mean)  # the lowest arm on a tie
        self._batch += 1

    def leftover(self, left: int) -> dict[int, int]:
        """The unfinished batch, arm after arm, until the horizon."""
        ask = self._next()
        return ask.spend(ask.queries, left)

    @property
    @abstractmethod
    def clients(self) -> int:
        """An arm's clients in the next batch."""

    @property
    @abstractmethod
    def share(self) -> float:
        """The failure probability of each event of the next batch, as in `Ask`."""

    @abstractmethod
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        """An arm's estimated mean after this batch, and the half width of its interval."""

    def _next(self) -> Ask:
        return Ask(self._batch, tuple(Query(arm, self.clients) for arm in self._active), self.share)

    def _interval(self, arm: int, estimate: Estimate) -> Interval:
        mean, radius = self.read(arm, estimate)
        return Interval(arm, self._batch, mean, mean - radius, mean + radius)

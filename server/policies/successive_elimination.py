"""Successive elimination in batches, each of fresh clients (MAB Algorithm 1, ALGORITHMS 2.1)."""

from collections.abc import Sequence

from server.policies.base import Ask, Estimate, Interval, Query
from server.policies.radius import RADII, Calibration, share


class SuccessiveElimination:
    """Every active arm goes to 2^b new clients; arms whose upper bound is below the best lower bound drop out; b grows.

    arms         K ≥ 2.
    first_batch  the first b ≥ 1.
    failure      p: with `exact` radii every interval of every batch holds with probability > 1 - p; the best arm stays.
    calibration  `exact` or `paper` radii (server.policies.radius).
    Forgetting   an interval rests on its own batch alone: one client is counted in one sum.
    """

    def __init__(self, *, arms: int, first_batch: int, failure: float, calibration: Calibration) -> None:
        self._failure, self._radius = failure, RADII[calibration]
        self._active = tuple(range(arms))
        self._batch = first_batch
        self._latest: dict[int, Interval] = {}
        self._chosen: int | None = None

    @property
    def active(self) -> tuple[int, ...]:
        return self._active

    @property
    def intervals(self) -> tuple[Interval, ...]:
        return tuple(self._latest[arm] for arm in sorted(self._latest))

    @property
    def chosen(self) -> int | None:
        return self._chosen

    def ask(self, left: int) -> Ask | None:
        ask = self._next()
        return ask if ask.size <= left else None

    def tell(self, estimates: Sequence[Estimate]) -> None:
        fresh = {estimate.arm: self._interval(estimate) for estimate in estimates if estimate.arm is not None}
        if len(estimates) != len(fresh) or sorted(fresh) != list(self._active):
            raise ValueError("a batch is told whole: one estimate for each active arm")
        self._latest |= fresh
        best = max(interval.lower for interval in fresh.values())
        self._active = tuple(arm for arm in self._active if fresh[arm].upper >= best)
        self._chosen = max(self._active, key=lambda arm: fresh[arm].mean)  # the lowest arm on a tie
        self._batch += 1

    def leftover(self, left: int) -> dict[int, int]:
        ask = self._next()
        return ask.spend(ask.queries, left)

    def _next(self) -> Ask:
        allowed = share(len(self._active), self._batch, self._failure)
        return Ask(self._batch, tuple(Query(arm, 2**self._batch) for arm in self._active), allowed)

    def _interval(self, estimate: Estimate) -> Interval:
        assert estimate.arm is not None
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        radius = self._radius(survivors, law, len(self._active), self._batch, self._failure)
        mean = total / survivors
        return Interval(estimate.arm, self._batch, mean, mean - radius, mean + radius)

"""Successive elimination in batches, each of fresh clients (MAB Algorithm 1, ALGORITHMS 2.1)."""

from typing import Literal

from server.policies.base import Estimate
from server.policies.elimination import Elimination
from server.policies.radius import RADII, Calibration, share

Constants = Calibration | Literal["published-code"]


class SuccessiveElimination(Elimination):
    """Batch b gives every active arm to baseᵇ new clients.

    base         2, or another whole number above 1 (MAB Remark 4).
    failure      p: with `exact` radii every interval of every batch holds with probability > 1 - p; the best arm stays.
    constants    `exact` or `paper` radii, or those of the `published-code`, where p stands in every event as it is and
                 promises nothing for all of them together (server.policies.radius).
    Forgetting   an interval rests on its own batch alone: one client is counted in one sum.
    """

    def __init__(
        self, *, arms: int, first_batch: int = 1, failure: float = 0.1, constants: Constants = "exact", base: int = 2
    ) -> None:
        super().__init__(arms, first_batch)
        self._base, self._failure = base, failure
        self._radius, self._bare = RADII[constants], constants == "published-code"

    @property
    def clients(self) -> int:
        return int(self._base**self._batch)

    @property
    def share(self) -> float:
        return self._failure if self._bare else share(len(self._active), self._batch, self._failure)

    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:  # noqa: ARG002 - all arms alike
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        return total / survivors, self._radius(survivors, law, len(self._active), self._batch, self._failure)

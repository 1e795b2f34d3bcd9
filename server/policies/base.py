"""The contract of a policy: it asks for sums, and is told how they came out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from common.error_law import ErrorLaw


@dataclass(frozen=True, slots=True)
class Ask:
    """One batch: `clients` fresh clients for each of `arms`.

    share   the failure probability that each single event of this batch may have: an interval's sampling error, its
            noise, a wrapped sum. A policy chooses it so that all events of all batches stay below its own p.
    """

    batch: int
    arms: tuple[int, ...]
    clients: int
    share: float

    @property
    def size(self) -> int:
        """Clients of the whole batch."""
        return self.clients * len(self.arms)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What came out for one arm: an estimate of the sum of `survivors` rewards in [0, 1], and the law of its noise."""

    arm: int
    sum: float
    survivors: int
    law: ErrorLaw


@dataclass(frozen=True, slots=True)
class Interval:
    """An arm's mean reward as the last batch saw it: `lower` ≤ `mean` ≤ `upper`, not clipped to [0, 1]."""

    arm: int
    batch: int
    mean: float
    lower: float
    upper: float


class Policy(Protocol):
    """Asks and is told, in turn. Deterministic: the same answers in any order give the same next question."""

    @property
    def active(self) -> tuple[int, ...]:
        """Arms still in the race, ascending."""
        ...

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """The latest interval of every arm that has one, by arm; an eliminated arm keeps its last."""
        ...

    @property
    def chosen(self) -> int | None:
        """The arm to play from now on: the best estimate among the active; None before the first batch is over."""
        ...

    def ask(self, left: int) -> Ask | None:
        """The next batch, or None when `left` clients cannot complete it. Asking again gives the same answer."""
        ...

    def tell(self, estimates: Sequence[Estimate]) -> None:
        """The whole batch, one estimate for each arm that was asked for, in any order. Raises ValueError otherwise."""
        ...

    def leftover(self, left: int) -> dict[int, int]:
        """How the paper plays the last `left` clients, too few for a batch: arm → clients. They teach nothing."""
        ...

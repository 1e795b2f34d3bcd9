"""Defines the contract of a policy: it requests private sums, and receives their estimates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from distrust.common.bandit.decisions import AssignedArm, Decision
from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.bandit.statistics import Reward, Statistic

ArmKey = int | None

ASSIGNED_ARM: Decision = AssignedArm()
REWARD: Statistic = Reward()


@dataclass(frozen=True, slots=True)
class Query:
    """One private sum: `clients` fresh clients, one cohort. `arm` is what they play; None: the decision says it."""

    arm: ArmKey
    clients: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One batch: its cohorts are open at the same time, under one decision rule and one statistic.

    queries    one cohort each; no arm twice.
    decision   what the clients play: their cohort's arm, or what the decision lists, in a single cohort of all.
    statistic  how their rewards become a vector.
    cumulative whether the policy wants sums over all batches so far, of the query's arm where it has one: a mechanism
               that counts a stream counts one for each arm, or one where arms are None, and releases its prefix sums
               (`Estimate.prefix`). The others release a batch's own sum, and the policy adds.
    """

    batch: int
    queries: tuple[Query, ...]
    decision: Decision = ASSIGNED_ARM
    statistic: Statistic = REWARD
    cumulative: bool = False

    @property
    def arms(self) -> tuple[int, ...]:
        """Return the arms that are played, as far as the server knows them."""
        return tuple(arm for query in self.queries for arm, _ in self.pulls(query) if arm is not None)

    @property
    def size(self) -> int:
        """Return the pulls that the whole batch takes from the horizon."""
        return self.cost(self.queries)

    @property
    def width(self) -> int:
        """Return how many numbers a released cohort's sum has: one a coordinate, or one an assigned action."""
        return len(self.decision.actions) if self.decision.kind == "assigned-action" else self.statistic.dimension

    def pulls(self, query: Query) -> tuple[tuple[ArmKey, int], ...]:
        """Return (arm, pulls) that one cohort takes from the horizon; arm None where only the clients know it."""
        return self.decision.pulls(query.arm, query.clients)

    def cost(self, queries: Sequence[Query]) -> int:
        """Return the pulls that these cohorts take from the horizon."""
        return sum(count for query in queries for _, count in self.pulls(query))

    def by_arm(self, estimates: Sequence["Estimate"]) -> dict[ArmKey, "Estimate"]:
        """Return the estimates of the whole batch by arm. Raises ValueError unless there is one for each query."""
        known = {estimate.arm: estimate for estimate in estimates}
        if len(estimates) != len(known) or known.keys() != {query.arm for query in self.queries}:
            raise ValueError("a batch must be complete: one estimate for each query")
        return known

    def spend(self, queries: Sequence[Query], left: int) -> dict[ArmKey, int]:
        """Return `left` pulls by arm, spent on these cohorts in turn until they are used up."""
        spent: dict[ArmKey, int] = {}
        for arm, count in (pull for query in queries for pull in self.pulls(query)):
            taken = min(count, left)
            left -= taken
            if taken:
                spent[arm] = spent.get(arm, 0) + taken
        return spent


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate that one cohort was released with.

    sums      estimates of sums of clients' values, one a coordinate of the statistic or an assigned action.
    counts    clients that each sum is over.
    laws      the law of the noise in each sum.
    rounding  the bound on a client's rounding error's standard deviation, in data units; it is sub-Gaussian with that.
    joint     one client's coordinates are noised together and then rounded: a combination of the noises with weights c
              has ‖c‖₂ times the law of one. Else they are independent, and what is rounded is the client's value.
    prefix    the sums and their noise are over all batches of the arm so far, of a mechanism that counts a stream.
    nodes     then: the most noise of any prefix sum of the stream, in variances of `laws`; of one node each in a tree.
    clients   n, of whom `counts` answered; 0 where it does not matter.
    whole     the law of the noise if all answer.
    """

    arm: ArmKey
    sums: tuple[float, ...]
    counts: tuple[int, ...]
    laws: tuple[ErrorLaw, ...]
    rounding: float = 0.0
    joint: bool = False
    prefix: bool = False
    nodes: float = 1
    clients: int = 0
    whole: ErrorLaw | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """An arm's mean reward as the last batch saw it: `lower` ≤ `mean` ≤ `upper`, finite, not clipped to its range.

    Raises ArithmeticError for any other: no decision may rest on it.
    """

    arm: int
    batch: int
    mean: float
    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not -math.inf < self.lower <= self.mean <= self.upper < math.inf:  # false for NaN, too
            estimate = f"{self.mean:g} in [{self.lower:g}, {self.upper:g}]"
            raise ArithmeticError(f"arm {self.arm}, batch {self.batch}: the estimate is {estimate}")


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of the run that a policy may know, besides its own spec.

    arms           K.
    horizon        T.
    smallest       least clients of a cohort; a smaller one would never be released.
    calibration    of the run's mechanism.
    laplace_scale  λ ≥ 0 of the Laplace noise that a policy plans its batches for: 1/ε, or 0 without ε.
    digest         of the configuration, public: the coins of a policy that draws its decisions (`PublicStream`), so
                   that a replay from the released sums draws the same.
    """

    arms: int
    horizon: int
    smallest: int
    calibration: Literal["exact", "paper"]
    laplace_scale: float
    digest: bytes = b""


class Policy(Protocol):
    """Called in turn: `ask`, then `tell`. Deterministic: the same estimates in any order give the same next batch."""

    @property
    def active(self) -> tuple[int, ...]:
        """Return the arms that are not dropped, ascending."""
        ...

    @property
    def intervals(self) -> tuple[Interval, ...]:
        """Return the latest interval of every arm that has one, by arm; a dropped arm keeps its last."""
        ...

    @property
    def latest_intervals(self) -> tuple[Interval, ...]:
        """Return the `intervals` that the last `tell` put around an estimate; others are older, or only grew wider."""
        ...

    @property
    def chosen(self) -> int | None:
        """Return the arm to play from now on: the best estimate among the active. None before the first batch ends."""
        ...

    def ask(self, left: int) -> Ask | None:
        """Return the next batch; None when `left` pulls cannot complete it, or when no more is to be learned.

        Asking again gives the same answer. Raises BadParameter when no next batch can be planned.
        """
        ...

    def tell(self, estimates: Sequence[Estimate]) -> None:
        """Take the whole batch, one estimate for each query, in any order. Raises ValueError otherwise."""
        ...

    def leftover(self, left: int) -> dict[ArmKey, int]:
        """Return how the paper plays the last `left` pulls, which no batch takes: arm → pulls. They teach nothing.

        Arm None: each client chooses by the last decision.
        """
        ...


class PolicyClass(Protocol):
    """The class that a spec's POLICY names."""

    def of(self, spec: Any, run: RunFacts) -> Policy:
        """Return the policy of a run before its first batch; `spec` is of the class that names this one.

        Raises BadParameter for numbers that do not go together.
        """
        ...


class MadeOfSpec:
    """Common part of policies that are made of their spec and the facts of their run, and of nothing else."""

    if TYPE_CHECKING:

        def __init__(self, spec: Any, run: RunFacts) -> None: ...

    @classmethod
    def of(cls, spec: Any, run: RunFacts) -> Self:
        """Return the policy before its first batch. Raises BadParameter for numbers that do not go together."""
        return cls(spec, run)


class PlannedBatches(ABC, MadeOfSpec):
    """Common part of policies whose next batch is known before they are asked. The last one may stay unfinished."""

    def ask(self, left: int) -> Ask | None:
        ask = self._next() if self.going_on else None
        return ask if ask is not None and ask.size <= left else None

    def leftover(self, left: int) -> dict[ArmKey, int]:
        """Return the last pulls: the unfinished batch, cohort after cohort, until the horizon."""
        ask = self._next()
        return ask.spend(ask.queries, left)

    @property
    def going_on(self) -> bool:
        """Return whether there is another batch."""
        return True

    @abstractmethod
    def _next(self) -> Ask:
        """Return the next batch, whether or not it fits in the horizon."""


@dataclass(frozen=True)
class StoppedPolicy:
    """Replaces a policy that raised an exception, whose own state may be half written.

    It keeps what the policy knew before, asks for nothing, and refuses estimates.
    """

    active: tuple[int, ...]
    intervals: tuple[Interval, ...] = ()
    chosen: int | None = None
    latest_intervals: tuple[Interval, ...] = ()

    @classmethod
    def instead_of(cls, policy: Policy, active: tuple[int, ...]) -> Self:
        """Return a policy that keeps the intervals, and the choice if it is active.

        It keeps neither if reading them fails.
        """
        try:
            intervals, chosen = policy.intervals, policy.chosen
        except Exception:  # noqa: BLE001 - the policy is broken already, and its exception is reported
            return cls(active)
        return cls(active, intervals, chosen if chosen in active else None)

    def ask(self, left: int) -> Ask | None:
        del left
        return None

    def tell(self, estimates: Sequence[Estimate]) -> None:
        raise ValueError(f"the policy was stopped: {len(estimates)} estimates come too late")

    def leftover(self, left: int) -> dict[ArmKey, int]:
        del left
        return {}

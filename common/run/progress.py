"""Defines a run's state, from server to operator. All of it follows from released sums, so it is public."""

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from distrust.common.bandit.decisions import AssignedArm, Decision
from distrust.common.mechanisms import AnyMechanism
from distrust.common.messages.status import CohortView
from distrust.common.notebook import data_frame
from distrust.common.privacy.guarantee import BudgetSpec, Guarantee
from distrust.common.run.config import RunConfig
from distrust.common.wire import Blob, Identifier, Message, Reason, Version

if TYPE_CHECKING:
    from pandas import DataFrame

RunState = Literal["running", "finished", "cancelled", "failed"]


class ArmView(Message):
    """One arm. `pulls` counts every client that was requested to play it, also in aborted cohorts.

    batch, mean, lower, upper  the arm's latest interval, not clipped to [0, 1]; absent before its first batch is over.
    eliminated                 the round after which the arm was dropped.
    """

    arm: Annotated[int, Field(ge=0)]
    active: bool
    pulls: Annotated[int, Field(ge=0)]
    batch: int | None = None
    mean: float | None = None
    lower: float | None = None
    upper: float | None = None
    eliminated: int | None = None


class Snapshot(Message):
    """State of a run as the learner knows it.

    round       the open round, or the last one.
    aborted     cohorts that were replaced, or that ended the run.
    unfinished  pulls that taught nothing: the horizon ended their batch, or nothing more was asked. They count.
    chosen      the arm with the highest estimate among the active ones after the last finished batch.
    guarantee   the weakest over the rounds so far: each client is in one cohort (parallel composition). (ε, δ) where
                the rounds' own are of several kinds, as when a design shrinks to a single action: see
                server.learner.rounds.
    """

    arms: list[ArmView]
    horizon: int
    pulls: int
    round: int
    aborted: int
    unfinished: int
    chosen: int | None
    finished: bool
    guarantee: Guarantee


class RunView(Message):
    """A run: its configuration, its state, its estimates, and its numbers of clients and cohorts.

    clients   tickets handed out.
    state     failed: a round could not be planned, the server's own code raised an exception, no round was closed, or
              the server that started refuses the stored configuration.
    reason    why the run failed or was cancelled; an exception with its type and round.
    """

    version: Version = 1
    run: Identifier
    state: RunState
    config: RunConfig
    digest: Blob
    snapshot: Snapshot
    clients: int
    cohorts_open: int
    cohorts_released: int
    cohorts_aborted: int
    reason: Reason | None = None

    def frame(self) -> "DataFrame":
        """Return a row an arm as a data frame, with the fields of `ArmView`. Needs pandas."""
        return data_frame(list(ArmView.model_fields), (arm.model_dump() for arm in self.snapshot.arms))


class RunLine(Message):
    """A run in one line."""

    run: Identifier
    state: RunState
    arms: int
    horizon: int
    mechanism: Reason  # its name; the words of a stored run that is refused may be any


class RunList(Message):
    """Runs of a server, in the order of their creation."""

    version: Version = 1
    runs: list[RunLine]


class RoundReport(Message):
    """One round with all its cohorts, replaced ones too. `mechanism` is that of the largest cohort.

    decision   the actions that were played.
    guarantee  the weakest of its cohorts'.
    """

    version: Version = 1
    run: Identifier
    number: int
    batch: int
    decision: Decision = AssignedArm()
    state: Literal["open", "closed", "unfinished"]
    arms: list[int]
    eliminated: list[int]
    minimum: int
    mechanism: AnyMechanism
    guarantee: Guarantee
    cohorts: list[CohortView]


class RoundList(Message):
    """A page of rounds. `next` is the `after` of the following page."""

    version: Version = 1
    run: Identifier
    total: int
    next: int | None
    rounds: list[RoundReport]


class ArmInterval(Message):
    """One arm's confidence interval as a round left it, not clipped: lower ≤ mean ≤ upper, in units of the reward."""

    arm: Annotated[int, Field(ge=0)]
    mean: float
    lower: float
    upper: float


class RoundIntervals(Message):
    """The intervals that one closed round formed.

    pulls      of the horizon that all rounds to this one took.
    intervals  by arm; empty where the policy forms none, or more than the server keeps.
    """

    round: int
    pulls: Annotated[int, Field(ge=0)]
    intervals: list[ArmInterval]


class IntervalList(Message):
    """A page of closed rounds with their intervals. `next` is the `after` of the following page."""

    version: Version = 1
    run: Identifier
    total: int
    next: int | None
    rounds: list[RoundIntervals]


Point = tuple[Annotated[int, Field(ge=0, le=10**9)], Annotated[float, Field(ge=0)]]


class RegretCurve(Message):
    """A run's regret as its driver computed it from true means, which the server does not know.

    curve  (pulls, regret) after each round, cumulated; pulls rise, regret does not fall.
    """

    version: Version = 1
    curve: Annotated[list[Point], Field(min_length=1, max_length=20_000)]

    @model_validator(mode="after")
    def _rises(self) -> Self:
        for (pulls, regret), (later, more) in pairwise(self.curve):
            if later <= pulls or more < regret:
                raise ValueError(f"curve: pulls must rise and regret must not fall, and {later} follows {pulls}")
        return self


class LedgerLine(Message):
    """Cost of one round to the clients that took part in it."""

    round: int
    clients: int
    guarantee: Guarantee


class LedgerClass(Message):
    """Most that a client has spent that took part `contributions` times."""

    contributions: int
    guarantee: Guarantee


class LedgerView(Message):
    """Privacy spent. Rounds have disjoint clients and compose in parallel; one client's own contributions in sequence.

    contributions  R: cohorts that one client may take part in.
    classes        clients by how often they took part: 1, 2, 4, … and as often as any client can have, R times at most.
    total          the most that any client has spent.
    budget         the most that one may; null when none was declared.
    """

    version: Version = 1
    run: Identifier
    composition: Literal["parallel", "sequential"] = "parallel"
    contributions: int = 1
    lines: list[LedgerLine]
    classes: tuple[LedgerClass, ...] = ()
    total: Guarantee
    budget: BudgetSpec | None = None

    def frame(self) -> "DataFrame":
        """Return a row a round as a data frame: its clients, and its guarantee's kind, ε and δ. Needs pandas."""
        promises = ({**line.model_dump(), **line.guarantee.model_dump()} for line in self.lines)
        columns = ("round", "clients", "kind", "epsilon", "delta")
        return data_frame(columns, ({name: row[name] for name in columns} for row in promises))


EventKind = Literal[
    "round-opened",
    "cohort-opened",
    "cohort-released",
    "cohort-aborted",
    "arm-eliminated",
    "finished",
    "cancelled",
    "failed",
]


class RunEvent(Message):
    """Something that happened. Numbers rise; a listener that comes back names the last one it saw."""

    number: Annotated[int, Field(ge=1)]
    run: Identifier
    kind: EventKind
    round: int | None = None
    cohort: str | None = None
    arm: int | None = None
    survivors: int | None = None
    detail: Reason | None = None

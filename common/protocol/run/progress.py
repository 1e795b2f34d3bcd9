"""Defines a run's state, from server to operator. All of it follows from released sums, so it is public."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.decisions import AssignedArm, Decision
from distrust.common.dp.accounting.guarantee import BudgetSpec, ShownGuarantee
from distrust.common.dp.mechanisms import AnyMechanism
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.protocol.messages.status import CohortView
from distrust.common.wire import WIRE, Blob, Identifier, Message, Reason, Version

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


ARMS_HEAD = ("arm", "pulls", "estimate", "confidence interval", "fate")
"""Heads of the columns of `arm_lines`."""


def arm_lines(arms: Iterable[ArmView], chosen: int | None) -> list[tuple[str, ...]]:
    """Return a line of text for each arm: arm, pulls, estimate, interval, fate."""
    return [
        (
            str(arm.arm),
            f"{arm.pulls:,}",
            "" if arm.mean is None else f"{arm.mean:.4f}",
            "" if arm.lower is None or arm.upper is None else f"[{arm.lower:.4f}, {arm.upper:.4f}]",
            _fate(arm, chosen),
        )
        for arm in arms
    ]


def _fate(arm: ArmView, chosen: int | None) -> str:
    if arm.arm == chosen:
        return "chosen"
    return "active" if arm.active else f"dropped after round {arm.eliminated}"


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
    guarantee: ShownGuarantee


def promise_facts(guarantee: ShownGuarantee) -> list[tuple[str, str]]:
    """Return a guarantee, what is left of it, and all that it assumes, as facts of a card."""
    shown = [("guarantee", guarantee.line()), ("alone", guarantee.left_line())]
    return [*shown, *(("assumes", assumption) for assumption in guarantee.assumptions)]


Seconds = Annotated[float | None, Field(description="since the epoch", exclude_if=lambda value: value is None)]


class RunLine(Message):
    """A run in one line. A run that began with a program of before has no times."""

    run: Identifier
    state: RunState
    arms: int
    horizon: int
    mechanism: Reason  # its name; the words of a stored run that is refused may be any
    started: Seconds = None
    ended: Seconds = None


class RoundReport(Message):
    """One round with all its cohorts, replaced ones too. `mechanism` is that of the largest cohort.

    config     digest of the run's configuration, 32 bytes.
    run_id     the run's id, 16 bytes: both give the run's digest R, by which intermediaries know its cohorts.
    decision   the actions that were played.
    guarantee  the weakest of its cohorts'.
    """

    version: Version = WIRE
    run: Identifier
    config: Blob
    run_id: Blob
    number: int
    batch: int
    decision: Decision = AssignedArm()
    state: Literal["open", "closed", "unfinished"]
    arms: list[int]
    eliminated: list[int]
    minimum: int
    mechanism: AnyMechanism
    guarantee: ShownGuarantee
    cohorts: list[CohortView]


class RoundList(Message):
    """A page of rounds. `next` is the `after` of the following page."""

    version: Version = WIRE
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

    version: Version = WIRE
    run: Identifier
    total: int
    next: int | None
    rounds: list[RoundIntervals]


Point = tuple[Annotated[int, Field(ge=0, le=10**9)], Annotated[float, Field(ge=0)]]


class RegretCurve(Message):
    """A run's regret as its driver computed it from true means, which the server does not know.

    curve  (pulls, regret) after each round, cumulated; pulls rise, regret does not fall.
    """

    version: Version = WIRE
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
    guarantee: ShownGuarantee


class LedgerClass(Message):
    """Most that a client has spent that took part `contributions` times."""

    contributions: int
    guarantee: ShownGuarantee


class LedgerView(Shown, Message):
    """Privacy spent. Rounds have disjoint clients and compose in parallel; one client's own contributions in sequence.

    contributions  R: cohorts that one client may take part in.
    classes        clients by how often they took part: 1, 2, 4, … and as often as any client can have, R times at most.
    total          the most that any client has spent.
    budget         the most that one may; null when none was declared.
    frame()        a row a round: its clients, and its guarantee's kind, ε and δ.
    """

    TABLES: ClassVar[tuple[str, ...]] = ("rounds",)

    version: Version = WIRE
    run: Identifier
    composition: Literal["parallel", "sequential"] = "parallel"
    contributions: int = 1
    lines: list[LedgerLine]
    classes: tuple[LedgerClass, ...] = ()
    total: ShownGuarantee
    budget: BudgetSpec | None = None

    @override
    def _table(self, name: str) -> NamedRows:
        rows = ({**line.model_dump(), **line.guarantee.columns()} for line in self.lines)
        return ("round", "clients", "kind", "epsilon", "delta", "epsilon_alone"), rows

    @override
    def _line(self) -> str:
        return f"of {self.run}: {len(self.lines)} rounds, at most {self.total.figures()} for a client"

    @override
    def _cards(self) -> list[Card]:
        """Return the most that a client has spent, by how often it took part, and each round's cost."""
        budget = "none declared"
        if self.budget is not None:
            budget = f"ε = {self.budget.epsilon:g}, δ = {self.budget.delta:g}"
        spent = (
            (f"spent, {kind.contributions} ×", f"{kind.guarantee.both()} for a client that came so often")
            for kind in self.classes
        )
        rows = [(str(line.round), f"{line.clients:,}", line.guarantee.both()) for line in self.lines]
        table = HtmlTable(("round", "clients", "cost"), rows, words=("cost",))
        return [Card(f"ledger of {self.run}", [("budget", budget), *spent, *promise_facts(self.total)], [table])]


Line = TypeVar("Line", RunLine, RoundReport)


class Listed(Shown, list[Line]):
    """A list of runs or of rounds.

    frame()  a row a run with the fields of `RunLine`, or a row a cohort with its round.
    """

    TABLES = ("rows",)

    @override
    def _table(self, name: str) -> NamedRows:
        rows = [row for line in self for row in _rows(line)]
        return list(rows[0]) if rows else [], rows

    @override
    def _line(self) -> str:
        named = [*map(_name, self[:LISTED]), *(["…"] if len(self) > LISTED else [])]
        return f"of {len(self)}{': ' if named else ''}{', '.join(named)}"

    @override
    def _cards(self) -> list[Card]:
        """Return a line a run, or a line a round."""
        heads, words, lines = _cells(self)
        return [Card(f"{len(self)} in all", tables=[HtmlTable(heads, lines, words)] if lines else [])]


LISTED = 3  # runs or rounds that one line names


def _name(line: RunLine | RoundReport) -> str:
    return line.run if isinstance(line, RunLine) else f"round {line.number}"


def _rows(line: RunLine | RoundReport) -> list[dict[str, Any]]:
    if isinstance(line, RunLine):
        return [line.model_dump()]
    return [{"round": line.number, "batch": line.batch, **cohort.model_dump()} for cohort in line.cohorts]


def _cells(lines: Sequence[RunLine | RoundReport]) -> tuple[Sequence[str], Sequence[str], list[tuple[str, ...]]]:
    """Return heads, those of them whose cells are words, and a line of text for each run or round."""
    runs: list[tuple[str, ...]] = [
        (line.run, line.state, line.mechanism, f"{line.arms:,}", f"{line.horizon:,}")
        for line in lines
        if isinstance(line, RunLine)
    ]
    if runs:
        return ("run", "state", "mechanism", "arms", "horizon"), ("run", "state", "mechanism"), runs
    rounds: list[tuple[str, ...]] = [
        (
            str(line.number),
            line.state,
            str(len(line.arms)),
            f"{sum(cohort.clients for cohort in line.cohorts):,}",
            f"{sum(cohort.state == 'released' for cohort in line.cohorts)} of {len(line.cohorts)}",
            line.guarantee.both(),
        )
        for line in lines
        if isinstance(line, RoundReport)
    ]
    heads = ("round", "state", "arms", "clients", "cohorts released", "guarantee")
    return heads, ("state", "guarantee"), rounds


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

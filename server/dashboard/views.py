"""Describes runs for the pages: contexts of the templates, made of the messages that the API serves to everyone."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.dp.calculator.compare import stronger
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import RunFailed, WrongCohort
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import CohortView, StatementList
from distrust.common.protocol.run.listing import RunList, RunView
from distrust.common.protocol.run.progress import (
    ArmView,
    IntervalList,
    LedgerView,
    RegretCurve,
    RoundIntervals,
    RoundList,
    RoundReport,
    RunLine,
)
from distrust.common.protocol.run.round import RoundView
from distrust.server.dashboard import charts
from distrust.server.dashboard.charts import Bar, Line
from distrust.server.learner.learner import MOST_FORMED

RUNS = 25  # on one page of the list
ROUNDS = 20  # newest rounds on a run's page
MANY_ARMS = 1000  # from here on a run's page shows one round: each arm is a cohort of it
ARMS = 60  # lines of the table of arms
COHORTS = 40  # cohorts of one round that are listed
PARAMETERS = 12  # rows and columns of θ̂
INTERVALS = 1000  # rounds in one question


class Runs(Protocol):
    """The public side of the server's runs, as pages read it. Raises WrongCohort for what is not here."""

    def runs(self) -> RunList: ...
    def view(self, run: str) -> RunView: ...
    def rounds(self, run: str, after: int, limit: int) -> RoundList: ...
    def round_report(self, run: str, number: int) -> RoundReport: ...
    def round_view(self, run: str) -> RoundView: ...
    def intervals(self, run: str, after: int, limit: int) -> IntervalList: ...
    def ledger(self, run: str) -> LedgerView: ...
    def regret(self, run: str) -> RegretCurve: ...
    def newest_event(self, run: str) -> float: ...
    def statements(self, run: str, cohort: str) -> StatementList: ...
    def cohort_terms(self, run: str, cohort: str) -> tuple[Cohort, Mechanism]: ...
    def collected(self, run: str, cohort: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run in the list. `view` is None for one that cannot be read; left: arms that are not dropped."""

    line: RunLine
    state: str
    view: RunView | None = None
    left: int = 0


def runs_context(reader: Runs, before: int | None = None) -> dict[str, Any]:
    """Return the context of the list: the newest runs, or those before number `before` (from 1, in creation order)."""
    listed = reader.runs()
    lines = listed.runs
    end = len(lines) if before is None else min(before - 1, len(lines))
    start = max(0, end - RUNS)
    shown = [_listed(reader, line) for line in reversed(lines[start:end])]
    return {
        "runs": shown,
        "older": start + 1 if start else None,
        "pruned": [one.line() for one in reversed(listed.pruned)][:RUNS] if before is None else [],
        "running": any(one.state == "running" for one in shown),
        "comparable": [one.line.run for one in shown if one.view is not None] if len(shown) > 1 else [],
    }


def _listed(reader: Runs, line: RunLine) -> ListedRun:
    try:
        view = reader.view(line.run)
    except RunFailed:  # its stored configuration cannot be read
        return ListedRun(line, line.state)
    return ListedRun(line, view.state, view, sum(arm.active for arm in view.snapshot.arms))


def run_context(reader: Runs, run: str) -> dict[str, Any]:
    """Return the context of a run's page. Raises WrongCohort, RunFailed for a run that cannot be read."""
    told = reader.newest_event(run)  # first: what happens from now on is news
    view = reader.view(run)
    many = view.config.arms > MANY_ARMS
    rounds = _newest_rounds(reader, view, 1 if many else ROUNDS)
    closed = all_intervals(reader, run)
    newest = rounds[0] if rounds else None
    waiting = _waiting(reader, view, newest)
    return {
        "view": view,
        "told": int(told) if math.isfinite(told) else 0,
        "intervals": _bars(closed, view.snapshot.arms, view.snapshot.chosen),
        "arms": _shown_arms(view.snapshot.arms, view.snapshot.chosen),
        "rounds": rounds,
        "newest": newest,
        "live": [
            LiveCohort(cohort, known_stage(reader, cohort, message), message.minimum, message.channel.quorum)
            for cohort, message in waiting[:COHORTS]
        ],
        "waiting": len(waiting),
        "aborted": [(one, cohort) for one in rounds for cohort in one.cohorts if cohort.state == "aborted"][:COHORTS],
        "parameters": _parameters(newest),
        "ledger": _or_none(lambda: reader.ledger(run)),
        "regret": _or_none(lambda: reader.regret(run)),
        "closed": len(closed),
        "most": {"arms": ARMS, "cohorts": COHORTS, "intervals": MOST_FORMED},
    }


def compare_context(reader: Runs, names: Sequence[str]) -> dict[str, Any]:
    """Return the context of a comparison of two runs, with the names of all. Raises WrongCohort, RunFailed."""
    known = [line.run for line in reversed(reader.runs().runs)]
    compared = [_compared(reader, name) for name in names]
    kinds = ("first", "second")
    widths = [
        Line(one["view"].run, kind, one["widths"]) for one, kind in zip(compared, kinds, strict=False) if one["widths"]
    ]
    regrets = [
        Line(one["view"].run, kind, [(0, 0.0), *one["regret"].curve])
        for one, kind in zip(compared, kinds, strict=False)
        if one["regret"]
    ]
    promises = [one["view"].snapshot.guarantee for one in compared]
    order = stronger(*promises) if len(promises) == 2 else ""
    return {"known": known, "compared": compared, "order": order, "widths": widths, "regrets": regrets}


def preselected(known: Sequence[str], names: Sequence[str | None]) -> list[str | None]:
    """Return two runs for the form: those that are named, and in the place of one that is not, another known one."""
    chosen = list(names)
    for place, name in enumerate(chosen):
        if not name:
            chosen[place] = next((one for one in known if one not in chosen), None)
    return chosen


def _compared(reader: Runs, run: str) -> dict[str, Any]:
    view = reader.view(run)
    rounds = _newest_rounds(reader, view, 1)
    closed = all_intervals(reader, run)
    alive = {arm.arm for arm in view.snapshot.arms if arm.active}
    widths = [
        (cohort.pulls, max(held))
        for cohort in closed
        if (held := [interval.upper - interval.lower for interval in cohort.intervals if interval.arm in alive])
    ]
    best = next((arm for arm in view.snapshot.arms if arm.arm == view.snapshot.chosen), None)
    return {
        "view": view,
        "best": best,
        "left": len(alive),
        "newest": rounds[0] if rounds else None,
        "widths": widths,
        "regret": _or_none(lambda: reader.regret(run)),
    }


def all_intervals(reader: Runs, run: str) -> list[RoundIntervals]:
    """Return the closed rounds with the intervals that they formed; none for a run that cannot be played again."""
    intervals: list[RoundIntervals] = []
    after: int | None = 0
    try:
        while after is not None:
            listed = reader.intervals(run, after, INTERVALS)
            intervals += listed.rounds
            after = listed.next
    except RunFailed:
        return []
    return intervals


def _newest_rounds(reader: Runs, view: RunView, count: int) -> list[RoundReport]:
    """Return the newest rounds, newest first; none for a run that cannot be played again."""
    try:
        return reader.rounds(view.run, max(0, view.snapshot.round - count), count).rounds[::-1]
    except RunFailed:
        return []


def _bars(closed: Iterable[RoundIntervals], arms: Sequence[ArmView], chosen: int | None) -> list[tuple[int, list[Bar]]]:
    """Return each round's intervals as bars, coloured by what became of the arm. Rounds without any are left out."""
    return [
        (
            cohort.round,
            [
                Bar(
                    interval.arm,
                    interval.lower,
                    interval.mean,
                    interval.upper,
                    charts.fate(arms[interval.arm], chosen),
                    last=arms[interval.arm].eliminated == cohort.round,
                )
                for interval in cohort.intervals
            ],
        )
        for cohort in closed
        if cohort.intervals
    ]


def _shown_arms(arms: Sequence[ArmView], chosen: int | None) -> list[ArmView]:
    """Return all arms, or the ARMS with the largest estimates and the chosen one, ascending."""
    if len(arms) <= ARMS:
        return list(arms)
    ranked = sorted(arms, key=lambda arm: (arm.arm != chosen, arm.mean is None, -(arm.mean or 0.0)))
    return sorted(ranked[:ARMS], key=lambda arm: arm.arm)


@dataclass(frozen=True, slots=True)
class LiveCohort:
    """A cohort of the open round. `stage` is what the server knows of it; threshold: t of k shares, when masked."""

    cohort: CohortView
    stage: str
    minimum: int
    threshold: str


def _waiting(reader: Runs, view: RunView, newest: RoundReport | None) -> list[tuple[CohortView, Cohort]]:
    """Return the cohorts of the open round that have no outcome."""
    if view.state != "running" or newest is None:
        return []
    open_round = reader.round_view(view.run).round
    messages = {one.cohort.cohort: one.cohort for one in open_round.assignments} if open_round else {}
    return [(cohort, messages[cohort.cohort]) for cohort in newest.cohorts if cohort.cohort in messages]


def known_stage(reader: Runs, cohort: CohortView, message: Cohort) -> str:
    """Return a cohort's stage as far as the server knows it: of a masked cohort, by the aggregator's statements."""
    if cohort.state == "planned":
        return "waits for clients"
    if message.via == "shuffler":
        return "report"
    stated = reader.statements(message.run, cohort.cohort).statements
    return stated[-1].stage if stated else "keys or shares"


def _parameters(newest: RoundReport | None) -> dict[str, Any] | None:
    """Return θ̂ and β of the newest round, where clients choose by them."""
    decision = None if newest is None else newest.decision
    if not isinstance(decision, ContextualChoice):
        return None
    rows = [row[:PARAMETERS] for row in decision.theta[:PARAMETERS]]
    return {
        "rows": rows,
        "shared": len(decision.theta) == 1,
        "hidden": len(decision.theta) > len(rows) or len(decision.theta[0]) > len(rows[0]),
        "beta": decision.beta,
        "only": decision.only,
    }


def _or_none(ask: Callable[[], Any]) -> Any:
    """Return an answer, or None where the run has none."""
    try:
        return ask()
    except (WrongCohort, RunFailed):
        return None

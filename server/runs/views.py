"""Describes runs, rounds and ledgers as messages, for watchers of a run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import accumulate
from typing import Literal

from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.errors import RunFailed, WrongCohort
from distrust.common.protocol.run.progress import (
    ArmInterval,
    IntervalList,
    LedgerLine,
    LedgerView,
    RegretCurve,
    RoundIntervals,
    RoundList,
    RoundReport,
    RunEvent,
    RunLine,
    RunState,
    RunView,
)
from distrust.server.learner.rounds import RoundRecord, round_guarantee, spent_by_all
from distrust.server.policies.base import Query
from distrust.server.reading.transcript import cohort_view
from distrust.server.runs.active_run import ActiveRun
from distrust.server.storage.keeping import StoredRun
from distrust.server.storage.rows import CohortRow, UnreadRun
from distrust.server.storage.store import Store


def run_view(active: ActiveRun, store: Store) -> RunView:
    """Return configuration, state, estimates, and the number of clients."""
    with active.lock:
        snapshot = active.snapshot()  # first: reading the learner again may show that the run is over
        counts = store.cohort_counts(active.config.run)
        cohorts = {state: counts.get(state, (0, 0))[0] for state in ("open", "released", "aborted")}
        return RunView(
            run=active.config.run,
            state=active.state,
            config=active.config,
            digest=active.digest,
            run_id=active.identity.run_id,
            snapshot=snapshot,
            clients=sum(granted for _, granted in counts.values()),
            cohorts_open=cohorts["open"],
            cohorts_released=cohorts["released"],
            cohorts_aborted=cohorts["aborted"],
            reason=active.reason,
        )


def run_line(active: ActiveRun) -> RunLine:
    """Return a run in one line."""
    config = active.config
    return RunLine(
        run=config.run, state=active.state, arms=config.arms, horizon=config.horizon, mechanism=config.mechanism.name
    )


def with_times(line: RunLine, stored: Mapping[str, StoredRun]) -> RunLine:
    """Return a line with the times at which its run began and ended."""
    run = stored.get(line.run)
    return line if run is None else line.model_copy(update={"started": run.started, "ended": run.ended})


def spent(active: ActiveRun | None) -> ShownGuarantee | None:
    """Return the most that a client has spent in a run; None for a stored one that is refused today."""
    try:
        return None if active is None else ledger_view(active).total
    except RunFailed:
        return None


def unread_line(unread: UnreadRun) -> RunLine:
    """Return in one line a stored run whose configuration cannot be read, as far as its words tell."""
    words = unread.words
    arms, horizon = (value if isinstance(value := words.get(key), int) else 0 for key in ("arms", "horizon"))
    mechanism = words.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, dict) else None
    state: RunState = "cancelled" if unread.state == "cancelled" else "failed"
    return RunLine(run=unread.run, state=state, arms=arms, horizon=horizon, mechanism=str(name or "unknown"))


def round_report(
    active: ActiveRun, store: Store, record: RoundRecord, rows: dict[str, CohortRow] | None = None
) -> RoundReport:
    """Return one round with all its cohorts, replaced ones too. rows: the opened ones, where they are known."""
    if rows is None:
        rows = store.cohorts(active.config.run, record.number)
    return RoundReport(
        run=active.config.run,
        config=active.digest,
        run_id=active.identity.run_id,
        number=record.number,
        batch=record.ask.batch,
        decision=record.ask.decision,
        state=_round_state(active, record),
        arms=list(record.ask.arms),
        eliminated=list(record.eliminated),
        minimum=record.minimum,
        mechanism=record.mechanism,
        guarantee=round_guarantee(active.config, record),
        cohorts=[cohort_view(record, plan, rows.get(plan.cohort), store) for plan in record.cohorts],
    )


def round_list(active: ActiveRun, store: Store, after: int, limit: int) -> RoundList:
    """Return rounds `after` + 1 … `after` + `limit`."""
    with active.lock:
        rounds = active.learner.rounds
        rows = store.cohorts(active.config.run, after + 1, after + limit)
        page = [round_report(active, store, record, rows) for record in rounds[after : after + limit]]
        following = after + limit if after + limit < len(rounds) else None
        return RoundList(run=active.config.run, total=len(rounds), next=following, rounds=page)


def interval_list(active: ActiveRun, after: int, limit: int) -> IntervalList:
    """Return the intervals of closed rounds, of rounds `after` + 1 … `after` + `limit`."""
    with active.lock:
        rounds = active.learner.rounds
        pulls = list(accumulate(_pulls(record) for record in rounds[: after + limit]))
        page = [
            RoundIntervals(
                round=record.number,
                pulls=spent,
                intervals=[
                    ArmInterval(arm=one.arm, mean=one.mean, lower=one.lower, upper=one.upper) for one in record.formed
                ],
            )
            for record, spent in zip(rounds[after : after + limit], pulls[after:], strict=True)
            if len(record.released) == len(record.ask.queries)
        ]
        following = after + limit if after + limit < len(rounds) else None
        return IntervalList(run=active.config.run, total=len(rounds), next=following, rounds=page)


def _pulls(record: RoundRecord) -> int:
    return record.ask.cost([Query(one.arm, one.clients) for one in record.cohorts])


def ledger_view(active: ActiveRun) -> LedgerView:
    """Return the cost of each round to its clients, and the total."""
    with active.lock:
        lines = [
            LedgerLine(round=record.number, clients=record.clients, guarantee=round_guarantee(active.config, record))
            for record in active.learner.rounds
        ]
        config, classes = active.config, spent_by_all(active.config, active.learner.rounds)
    return LedgerView(
        run=config.run,
        composition="parallel" if config.contributions == 1 else "sequential",
        contributions=config.contributions,
        lines=lines,
        classes=classes,
        total=classes[-1].guarantee,
        budget=config.budget,
    )


def _round_state(active: ActiveRun, record: RoundRecord) -> Literal["open", "closed", "unfinished"]:
    if len(record.released) == len(record.ask.queries):
        return "closed"
    return "open" if active.state == "running" else "unfinished"


class RunReader(ABC):
    """The part of a server's service that changes nothing."""

    store: Store

    @abstractmethod
    def active_run(self, run: str) -> ActiveRun:
        """Return a run."""

    def rounds(self, run: str, after: int, limit: int) -> RoundList:
        return round_list(self.active_run(run), self.store, after, limit)

    def round_report(self, run: str, number: int) -> RoundReport:
        """Return one round. Raises WrongCohort for one that has not begun."""
        active = self.active_run(run)
        with active.lock:
            if not 1 <= number <= len(active.learner.rounds):
                raise WrongCohort(f"round {number} of run {run} has not begun")
            return round_report(active, self.store, active.learner.rounds[number - 1])

    def ledger(self, run: str) -> LedgerView:
        return ledger_view(self.active_run(run))

    def intervals(self, run: str, after: int, limit: int) -> IntervalList:
        return interval_list(self.active_run(run), after, limit)

    def regret(self, run: str) -> RegretCurve:
        """Return the regret curve that a driver posted. Raises WrongCohort where none did."""
        posted = self.store.regret(self.active_run(run).config.run)
        if posted is None:
            raise WrongCohort(f"no driver posted the regret of run {run}")
        return posted

    def events(self, run: str, after: int, limit: int = 500) -> tuple[list[RunEvent], bool]:
        """Return the events after number `after`, and whether there will be no others.

        A state is changed after its event is committed. So the state is read first, and no lock is held: a listener
        who reads a long past keeps no client waiting.
        """
        over = self.active_run(run).state != "running"
        fresh = self.store.events(run, after, limit)
        return fresh, over and len(fresh) < limit

    def newest_event(self, run: str) -> float:
        """Return the newest event's number, or infinity when there will be no others."""
        return self.store.newest_event(run) if self.active_run(run).state == "running" else math.inf

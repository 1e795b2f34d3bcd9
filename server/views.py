"""A live run as messages for people and programs that watch it."""

from typing import Literal

from distrust.common.run.progress import (
    CohortState,
    CohortView,
    LedgerLine,
    LedgerView,
    RoundList,
    RoundReport,
    RunLine,
    RunView,
)
from distrust.server.learner.ledger import classes, spent
from distrust.server.learner.ledger import ledger as book
from distrust.server.learner.outcome import Lost
from distrust.server.learner.rounds import CohortPlan, RoundRecord
from distrust.server.runs.active import LiveRun
from distrust.server.store import CohortRow, Store, UnreadRun


def run_view(live: LiveRun, store: Store) -> RunView:
    """Configuration, state, what was learned, and how much it took."""
    with live.lock:
        counts = store.cohort_counts(live.config.run)
        cohorts = {state: counts.get(state, (0, 0))[0] for state in ("open", "released", "aborted")}
        return RunView(
            run=live.config.run,
            state=live.state,
            config=live.config,
            digest=live.digest,
            snapshot=live.snapshot(),
            clients=sum(granted for _, granted in counts.values()),
            cohorts_open=cohorts["open"],
            cohorts_released=cohorts["released"],
            cohorts_aborted=cohorts["aborted"],
            reason=live.reason,
        )


def run_line(live: LiveRun) -> RunLine:
    """A run in one line."""
    config = live.config
    return RunLine(
        run=config.run, state=live.state, arms=config.arms, horizon=config.horizon, mechanism=config.mechanism.name
    )


def unread_line(unread: UnreadRun) -> RunLine:
    """A stored run whose configuration cannot be read, in one line: what its words say of it."""
    words = unread.words
    arms, horizon = (value if isinstance(value := words.get(key), int) else 0 for key in ("arms", "horizon"))
    mechanism = words.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, dict) else None
    return RunLine(run=unread.run, state="failed", arms=arms, horizon=horizon, mechanism=str(name or "unknown"))


def round_report(live: LiveRun, store: Store, record: RoundRecord) -> RoundReport:
    """One round with all its cohorts, replaced ones too."""
    rows = store.cohorts(live.config.run, record.number)
    return RoundReport(
        run=live.config.run,
        number=record.number,
        batch=record.ask.batch,
        decision=record.ask.decision,
        state=_round_state(live, record),
        arms=list(record.ask.arms),
        eliminated=list(record.eliminated),
        minimum=record.minimum,
        mechanism=record.mechanism,
        guarantee=spent(live.config, record),
        cohorts=[_cohort(record, plan, rows.get(plan.cohort), store) for plan in record.cohorts],
    )


def round_list(live: LiveRun, store: Store, after: int, limit: int) -> RoundList:
    """Rounds `after` + 1 … `after` + `limit`."""
    with live.lock:
        rounds = live.learner.rounds
        page = [round_report(live, store, record) for record in rounds[after : after + limit]]
        following = after + limit if after + limit < len(rounds) else None
        return RoundList(run=live.config.run, total=len(rounds), next=following, rounds=page)


def ledger(live: LiveRun) -> LedgerView:
    """What each round cost its clients."""
    with live.lock:
        lines = [
            LedgerLine(round=record.number, clients=record.clients, guarantee=spent(live.config, record))
            for record in live.learner.rounds
        ]
        kept = book(live.config, live.learner.rounds)
    return LedgerView(
        run=live.config.run,
        composition="parallel" if kept.contributions == 1 else "sequential",
        contributions=kept.contributions,
        lines=lines,
        classes=classes(kept),
        total=kept.total,
        budget=kept.budget,
    )


def _round_state(live: LiveRun, record: RoundRecord) -> Literal["open", "closed", "unfinished"]:
    if len(record.released) == len(record.ask.queries):
        return "closed"
    return "open" if live.state == "running" else "unfinished"


def _cohort(record: RoundRecord, plan: CohortPlan, row: CohortRow | None, store: Store) -> CohortView:
    state: CohortState = "planned" if row is None else row.state
    released = record.released.get(plan.arm) if state == "released" else None
    return CohortView(
        cohort=plan.cohort,
        arm=plan.arm,
        attempt=plan.attempt,
        clients=plan.clients,
        granted=0 if row is None else row.granted,
        state=state,
        survivors=released.survivors if released else None,
        lost=row.lost if row is not None else None,
        estimate=released.sum if released else None,
        counts=released.counts if released else None,
        liars=released.liars if released else [],
        disputes=released.disputes if released else 0,
        reason=_reason(plan.cohort, store) if state == "aborted" else None,
    )


def _reason(cohort: str, store: Store) -> str | None:
    outcome = store.outcome(cohort)
    return outcome.reason if isinstance(outcome, Lost) else None

"""Reads runs for those who watch them: their state, rounds, costs, events, and what each party said of a cohort."""

import math
from itertools import accumulate
from typing import Literal

from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import WrongCohort
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes
from distrust.common.protocol.messages.status import RecordList, StatementList, Transcript
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunList, RunView
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
)
from distrust.common.protocol.run.round import RoundView
from distrust.server.learner.rounds import RoundRecord, round_guarantee, spent_by_all
from distrust.server.policies.base import Query
from distrust.server.reading.transcript import cohort_transcript, cohort_view
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.admission import OPERATOR, Caller
from distrust.server.runs.service import Service
from distrust.server.storage.rows import CohortRow, UnreadRun


class Reader:
    """What is read of the runs of one server. Changes nothing. Methods raise as `KnownRuns.active_run`."""

    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.store

    def runs(self) -> RunList:
        """Return all runs, oldest first; after them those whose stored configuration cannot be read; pruned ones."""
        stored = self._service.keeping.stored()
        known, unread, pruned = self._service.known()
        lines = [*map(_line, known), *map(_unread_line, unread)]
        timed = [
            line.model_copy(update={"started": run.started, "ended": run.ended}) if run else line
            for line, run in ((line, stored.get(line.run)) for line in lines)
        ]
        return RunList(runs=timed, pruned=pruned)

    def view(self, run: str) -> RunView:
        """Return configuration, state, estimates, and the number of clients."""
        active = self._service.active_run(run)
        with active.lock:
            snapshot = active.snapshot()  # first: reading the learner again may show that the run is over
            counts = self._store.cohort_counts(run)
            cohorts = {state: counts.get(state, (0, 0))[0] for state in ("open", "released", "aborted")}
            return RunView(
                run=run,
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

    def config(self, run: str) -> RunConfig:
        return self._service.active_run(run).config

    def round_view(self, run: str) -> RoundView:
        """Return the open round, or that there will be none."""
        active = self._service.active_run(run)
        with active.lock:
            return active.view()

    def standing(self, run: str, caller: Caller = OPERATOR) -> tuple[float, RoundView]:
        """Return the newest round's number, or infinity when slots are free or the run is over; and the open round.

        A fleet that knows an earlier round asks for the round again. `caller`: for whom slots must be free.
        """
        active = self._service.active_run(run)
        with active.lock:
            view = active.view()
            over = active.state != "running"
            free = over or self._service.issuer.grantable(active, caller)
            return math.inf if free else len(active.learner.rounds), view

    def cached_standing(self, run: str, caller: Caller = OPERATOR) -> tuple[float, RoundView] | None:
        """Return what `standing` does; None where that waits for another thread or reads the database."""
        active = self._service.active_run(run)
        if not active.lock.acquire(blocking=False):
            return None
        try:
            return self.standing(run, caller) if active.in_memory else None
        finally:
            active.lock.release()

    def rounds(self, run: str, after: int, limit: int) -> RoundList:
        """Return rounds `after` + 1 … `after` + `limit`."""
        active = self._service.active_run(run)
        with active.lock:
            rounds = active.learner.rounds
            rows = self._store.cohorts(run, after + 1, after + limit)
            page = [self._report(active, record, rows) for record in rounds[after : after + limit]]
            following = after + limit if after + limit < len(rounds) else None
            return RoundList(run=run, total=len(rounds), next=following, rounds=page)

    def round_report(self, run: str, number: int) -> RoundReport:
        """Return one round. Raises WrongCohort for one that has not begun."""
        active = self._service.active_run(run)
        with active.lock:
            if not 1 <= number <= len(active.learner.rounds):
                raise WrongCohort(f"round {number} of run {run} has not begun")
            return self._report(active, active.learner.rounds[number - 1], self._store.cohorts(run, number))

    def _report(self, active: ActiveRun, record: RoundRecord, rows: dict[str, CohortRow]) -> RoundReport:
        """Return one round with all its cohorts, replaced ones too. rows: the opened ones."""
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
            cohorts=[cohort_view(record, plan, rows.get(plan.cohort), self._store) for plan in record.cohorts],
        )

    def intervals(self, run: str, after: int, limit: int) -> IntervalList:
        """Return the intervals of closed rounds, of rounds `after` + 1 … `after` + `limit`."""
        active = self._service.active_run(run)
        with active.lock:
            rounds = active.learner.rounds
            pulls = list(accumulate(_pulls(record) for record in rounds[: after + limit]))
            page = [
                RoundIntervals(
                    round=record.number,
                    pulls=spent,
                    intervals=[
                        ArmInterval(arm=interval.arm, mean=interval.mean, lower=interval.lower, upper=interval.upper)
                        for interval in record.latest_intervals
                    ],
                )
                for record, spent in zip(rounds[after : after + limit], pulls[after:], strict=True)
                if _round_state(active, record) == "closed"
            ]
            following = after + limit if after + limit < len(rounds) else None
            return IntervalList(run=run, total=len(rounds), next=following, rounds=page)

    def ledger(self, run: str) -> LedgerView:
        """Return the cost of each round to its clients, and the total."""
        active = self._service.active_run(run)
        with active.lock:
            config, rounds = active.config, active.learner.rounds
            lines = [
                LedgerLine(round=record.number, clients=record.clients, guarantee=round_guarantee(config, record))
                for record in rounds
            ]
            classes = spent_by_all(config, rounds)
        return LedgerView(
            run=run,
            composition="parallel" if config.contributions == 1 else "sequential",
            contributions=config.contributions,
            lines=lines,
            classes=classes,
            total=classes[-1].guarantee,
            budget=config.budget,
        )

    def regret(self, run: str) -> RegretCurve:
        """Return the regret curve that a driver posted. Raises WrongCohort where none did."""
        posted = self._store.regret(self._service.active_run(run).config.run)
        if posted is None:
            raise WrongCohort(f"no driver posted the regret of run {run}")
        return posted

    def events(self, run: str, after: int, limit: int = 500) -> tuple[list[RunEvent], bool]:
        """Return the events after number `after`, and whether there will be no others.

        A state is changed after its event is committed. So the state is read first, and no lock is held: a listener
        who reads a long past keeps no client waiting.
        """
        over = self._service.active_run(run).state != "running"
        fresh = self._store.events(run, after, limit)
        return fresh, over and len(fresh) < limit

    def newest_event(self, run: str) -> float:
        """Return the newest event's number, or infinity when there will be no others."""
        return self._store.newest_event(run) if self._service.active_run(run).state == "running" else math.inf

    def key_hashes(self, run: str, cohort: str) -> KeyHashes:
        """Return the hashes of a masked cohort's keys, which came with its ticket requests, by slot.

        Raises WrongCohort, WrongStage.
        """
        masked = self._service.opened(run, cohort).via == "aggregator"
        return KeyHashes(cohort=cohort, hashes=self._store.key_hashes(cohort) if masked else b"")

    def statements(self, run: str, cohort: str) -> StatementList:
        """Return a cohort's statements; `over` once it has ended. Raises WrongCohort, WrongStage."""
        over = self._over(self._service.opened(run, cohort))
        return StatementList(cohort=cohort, statements=self._store.statements(cohort), over=over)

    def records(self, run: str, cohort: str) -> RecordList:
        """Return the list of the records of a cohort whose clients give receipts. Raises WrongCohort, WrongStage."""
        message = self._service.opened(run, cohort)
        return self._service.receipts.listed(message, over=self._over(message))

    def _over(self, cohort: Cohort) -> bool:
        ended = self._store.outcome(cohort.cohort) is not None
        return ended or self._service.active_run(cohort.run).state != "running"

    def collected(self, run: str, cohort: str) -> bool:
        """Return whether a cohort's batch is stored, whatever came of it."""
        return self._store.has_batch(self._service.opened(run, cohort).cohort)

    def cohort_terms(self, run: str, cohort: str) -> tuple[Cohort, Mechanism]:
        """Return a cohort as it was opened, and its mechanism: all of it is public.

        Raises WrongCohort, WrongStage while it is not open.
        """
        message = self._service.opened(run, cohort)
        return message, self._service.active_run(run).learner.rounds[message.round - 1].mechanisms[message.clients]

    def transcript(self, run: str, cohort: str, after: int, limit: int, each: int | None = None) -> Transcript:
        """Return a page of this server's transcript of a cohort, with `each` as an intermediary's.

        Raises WrongCohort, WrongStage while it is not open.
        """
        message, mechanism = self.cohort_terms(run, cohort)
        active = self._service.active_run(run)
        keys, seeded = active.keys, active.config.unsafe is not None
        seal = None if keys is None else keys.seal
        return cohort_transcript(
            self._store, seal, message, mechanism, seeded=seeded, after=after, limit=limit, each=each
        )


def _line(active: ActiveRun) -> RunLine:
    """Return a run in one line."""
    config = active.config
    return RunLine(
        run=config.run, state=active.state, arms=config.arms, horizon=config.horizon, mechanism=config.mechanism.name
    )


def _unread_line(unread: UnreadRun) -> RunLine:
    """Return in one line a stored run whose configuration cannot be read, as far as its words tell."""
    words = unread.words
    arms, horizon = (value if isinstance(value := words.get(key), int) else 0 for key in ("arms", "horizon"))
    mechanism = words.get("mechanism")
    name = mechanism.get("name") if isinstance(mechanism, dict) else None
    state: RunState = "cancelled" if unread.state == "cancelled" else "failed"
    return RunLine(run=unread.run, state=state, arms=arms, horizon=horizon, mechanism=str(name or "unknown"))


def _pulls(record: RoundRecord) -> int:
    return record.ask.cost([Query(cohort.arm, cohort.clients) for cohort in record.cohorts])


def _round_state(active: ActiveRun, record: RoundRecord) -> Literal["open", "closed", "unfinished"]:
    if len(record.released) == len(record.ask.queries):
        return "closed"
    return "open" if active.state == "running" else "unfinished"

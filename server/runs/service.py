"""Decides for the server what moves a run on: it begins once, its cohorts are opened and settled, it ends."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from distrust.common.errors import BadMessage, Conflict, RunFailed
from distrust.common.protocol.intermediary.deadlines import Clock
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.status import StatementList
from distrust.common.protocol.messages.upload import Receipts, UploadAnswer
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import (
    RegretCurve,
)
from distrust.common.protocol.run.round import TicketAnswer
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.wire import Via
from distrust.server.learner.learner import Learner
from distrust.server.learner.run_config import check_crowds, check_for_services
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.admission import OPERATOR, Admission, Caller
from distrust.server.runs.deliveries import Deliveries, unknown_statements
from distrust.server.runs.known_runs import KnownRuns
from distrust.server.runs.receipts import ReceiptBook
from distrust.server.runs.settlement import Serving, Settlement
from distrust.server.runs.ticket_issuer import TicketIssuer
from distrust.server.runs.waiting_places import WaitingPlace
from distrust.server.storage.keys import KeyFolder
from distrust.server.storage.rows import RunRow
from distrust.server.storage.store import EndState, Store

_log = structlog.get_logger("distrust.server")

WINDOW = 8192
"""Default number of clients in flight in one run; see server.runs.ticket_issuer."""


class Service(KnownRuns):
    """Moves all runs of one server on. Safe to use from many threads. Knows no HTTP.

    notify     called with a run's name after every commit that its watchers may wait for.
    admission  who gets tickets; every caller, unless it is told otherwise.
    """

    def __init__(
        self,
        database: Database,
        keys: KeyFolder,
        notify: Callable[[str], None] = lambda _run: None,
        window: int = WINDOW,
        admission: Admission | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(Store(database, clock), keys, notify)
        self.issuer = TicketIssuer(self.store, window, admission or Admission())
        self.receipts = ReceiptBook(self.store)
        self._settlement = Settlement(self.store, self.receipts)
        self._deliveries = Deliveries(self.store)

    def create(self, config: RunConfig) -> bool:
        """Start a run. Return whether it is new. Idempotent: the same configuration is the same run.

        Raises BadParameter for a run that cannot be started, Conflict for a taken name.
        """
        with self._lock:
            known = self._runs.get(config.run)
            if config.run in self._unread:
                raise Conflict(f"run {config.run} exists with a stored configuration that is refused")
            if known is None:
                self._runs[config.run] = self._begin(config)
            if self._runs[config.run].digest != config.digest():
                raise Conflict(f"run {config.run} exists with another configuration; parameters never change")
        return known is None

    def cancel(self, run: str, reason: str) -> None:
        """Stop a run: no more tickets, no more releases. A run that is over stays as it is."""
        if not self.cancel_unread(run, reason):
            self._stop(run, "cancelled", reason)

    def uncompared(self, run: str) -> set[Via]:
        """Return the intermediaries whose deliveries must be compared before this run hands out tickets."""
        return self._deliveries.uncompared(self.active_run(run))

    def compare(self, run: str, via: Via, after: int, listed: Sequence[bytes]) -> None:
        """Compare what an intermediary lists behind position `after`. An unknown delivery fails the run: RunFailed."""
        with self._ended_by_a_fault(run):
            self._deliveries.compare(self.active_run(run), via, after, listed)

    def fail(self, run: str, run_digest: bytes, reason: str) -> None:
        """End the run with digest R, whose intermediary has told what does not fit this server's database.

        A run that was pruned may have left its name to another one, which stays as it is.
        """
        self._stop(run, "failed", reason, run_digest)

    @contextmanager
    def _ended_by_a_fault(self, run: str) -> Iterator[None]:
        """End the run as failed where the block raises RunFailed."""
        try:
            yield
        except RunFailed as error:
            self._stop(run, "failed", error.detail)
            raise

    @repeated
    def _stop(self, run: str, state: EndState, reason: str, run_digest: bytes | None = None) -> None:
        """Commit the end of a run that is still running, and tell its watchers. run_digest: R, if no other is meant."""
        active = self.active_run(run)
        if run_digest not in {None, active.run_digest}:
            return
        with active.lock:
            if active.round() is not None:
                try:
                    with self.store.writing() as writing:
                        writing.end(run, active.config.intermediary.keep_seconds, state, reason)
                    active.end(state, reason)
                    if state == "failed":
                        _log.error("run_failed", run=run, why=reason)
                except Exception:
                    active.forget_cached()
                    if active.round() is not None:  # else only the confirmation was lost
                        raise
        self._notify(run)

    def advance(
        self,
        run: str,
        request: TicketRequest,
        opened: Cohort | None = None,
        caller: Caller = OPERATOR,
        others: Sequence[Caller] = (),
    ) -> tuple[Cohort | TicketAnswer, bool]:
        """Return the cohort that must be opened before this request can be served in full, or else its tickets.

        There are none while no slot is free. Return also whether this call recorded that `opened` is open: the cohort
        that the last call returned, which its intermediary has opened by now. `others`: callers of the other requests
        that want slots now.
        """
        got = self.issuer.grant(self.active_run(run), request, opened, caller, others)
        step = self.issuer.signed(got) if got.missing is None else got.missing
        recorded = got.fresh is not None
        if recorded or got.filled:  # who has its share of a cohort that is full now may begin the next one
            self._notify(run)
        return step, recorded

    def stated(self, cohort: Cohort) -> int:
        """Return how many of a cohort's statements are published. Raises as `opened`."""
        return len(self.store.statements(self.opened(cohort.run, cohort.cohort).cohort))

    def collect_for_receipts(self, cohort: Cohort, answer: BatchAnswer) -> BatchAnswer:
        """Store a batch that was collected, so that clients see its records. See server.runs.receipts."""
        stored = self.receipts.collect(self.active_run(cohort.run), cohort, answer)
        self._notify(cohort.run)
        return stored

    def take_receipts(self, run: str, receipts: Receipts) -> UploadAnswer:
        """Commit receipts, and return how many. Raises WrongCohort, WrongStage, BadMessage; see receipts.py."""
        return self.receipts.take(self.active_run(run), self.opened(run, receipts.cohort), receipts)

    def receipts_complete(self, cohort: Cohort, survivors: int) -> bool:
        return self.receipts.complete(self.active_run(cohort.run), cohort, survivors)

    @repeated
    def publish(self, cohort: Cohort, after: int, listed: StatementList) -> None:
        """Commit the aggregator's statements from position `after` on, once. Clients read them from then on.

        Raises Conflict for a second statement of a stage: the aggregator contradicts itself. Raises BadMessage for
        another cohort's list, stages out of order and digests of a wrong size, RunFailed for a run that is over. Then
        none of the list is committed.
        """
        if listed.cohort != cohort.cohort:
            raise BadMessage(f"the aggregator's statements are of cohort {listed.cohort}, not of {cohort.cohort}")
        if not listed.statements:
            return
        with self.unpruned(cohort.run) as active:
            if active.state != "running" or active.run_digest != cohort.run_digest:
                raise RunFailed(f"run {cohort.run} is over: the statements of {cohort.cohort} are not kept")
            fresh = unknown_statements(cohort, self.store.statements(cohort.cohort), after, listed.statements)
            with self.store.writing() as writing:
                for one in fresh:
                    writing.statement(cohort.cohort, one)
        self._notify(cohort.run)

    def filling(self, run: str) -> list[Cohort]:
        """Return the open cohorts of a run that have slots without a ticket."""
        active = self.active_run(run)
        with active.lock:
            rows = active.rows()
            opened = ((cohort, rows.get(cohort.cohort)) for cohort in active.pending())
            return [cohort for cohort, row in opened if row is not None and row.granted < row.clients]

    def waiting_for(self, run: str) -> list[Cohort]:
        """Return the cohorts that are open at their intermediary and have no outcome yet."""
        active = self.active_run(run)
        with active.lock:
            rows = self.store.cohorts(run, len(active.learner.rounds))
            return [cohort for cohort in active.pending() if cohort.cohort in rows]

    def recorded(self, cohort: Cohort) -> bool | None:
        """Return whether the store has a cohort as opened; None for one that is no longer waited for."""
        active = self.active_run(cohort.run)
        with active.lock:
            return cohort.cohort in self.store.cohorts(cohort.run, cohort.round) if cohort in active.pending() else None

    def settle(
        self, cohort: Cohort, answer: BatchAnswer, places: Sequence[WaitingPlace] = ()
    ) -> tuple[bool, Cohort | None]:
        """Settle a cohort with an intermediary's last answer, and serve requests that wait, `places`, with its outcome.

        Return whether it is settled now, and the run's next cohort if it was begun. Its intermediary must open that
        one, and has just answered: so these tickets do not wait until it has. A request that gets none here is answered
        as if it came now.

        Outcome and tickets are one transaction. If it fails, or only its confirmation is lost, no request has an
        answer, and the next cohort may be recorded all the same: `waiting_for` names it then.

        Raises NotComparedError while deliveries before this batch are not compared; RunFailed where the intermediary
        has released what this server does not know; BadMessage for a batch that is not numbered.
        """
        active = self.active_run(cohort.run)
        with self._ended_by_a_fault(cohort.run):
            self._deliveries.confirm(active, cohort, answer)
        serving = Serving(self.issuer, active, places)
        try:
            settled = self._settlement.settle(active, cohort, answer, serving)
            return settled, serving.answer() if settled else None
        except BaseException:
            serving.give_up()
            raise
        finally:
            self._notify(cohort.run)

    @repeated
    def keep_regret(self, run: str, regret: RegretCurve) -> RegretCurve:
        """Store a driver's regret curve in place of an earlier one. No policy reads it. Raises WrongCohort."""
        with self.unpruned(run), self.store.writing() as writing:
            writing.regret(run, regret)
        return regret

    @repeated
    def _begin(self, config: RunConfig) -> ActiveRun:
        """Commit a run and return it. If the store has a run of that name already, return that one."""
        check_for_services(config)
        learner = Learner(config)
        check_crowds(config, learner.rounds[0].mechanism)
        try:
            return ActiveRun.begin(config, learner, self.store, self._keys)
        except Exception:  # of this commit, or of one before, the confirmation may be all that was lost
            for row in self.store.runs():
                if isinstance(row, RunRow) and row.config.run == config.run:
                    return ActiveRun.from_store(row, self.store, self._keys)
            raise

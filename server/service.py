"""What the server decides: runs are created once, served from their committed outcomes, watched, cancelled."""

import math
import threading
from collections.abc import Callable

import structlog

from distrust.common.database import Database
from distrust.common.errors import BadMessage, Conflict, RunFailed, WrongCohort, WrongStage
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort, KeyHashes, TicketAnswer, TicketRequest
from distrust.common.messages.status import STATED, STATEMENT, Statement, StatementList, Transcript
from distrust.common.run.config import RunConfig
from distrust.common.run.progress import LedgerView, RoundList, RoundReport, RunEvent, RunList, RunView
from distrust.common.run.round import RoundView
from distrust.server import transcript, views
from distrust.server.keys import Keys
from distrust.server.learner.learner import Learner
from distrust.server.run_config import check_for_services
from distrust.server.runs.active import LiveRun
from distrust.server.runs.settlement import Settlement
from distrust.server.store import Store, UnreadRun
from distrust.server.ticket_issuer import TicketIssuer

_log = structlog.get_logger("distrust.server")

WINDOW = 8192
"""Clients in flight in one run; see server.ticket_issuer."""


class Service:
    """All the runs of one server. Safe to use from many threads; HTTP is somebody else's business.

    ring  called with a run's name after every commit that its watchers may wait for.
    """

    def __init__(
        self, database: Database, keys: Keys, ring: Callable[[str], None] = lambda _run: None, window: int = WINDOW
    ) -> None:
        self.store = Store(database)
        self._keys, self._ring = keys, ring
        self._desk = TicketIssuer(self.store, keys.ticket, window)
        self._settlement = Settlement(self.store, keys.seal)
        self._lock = threading.Lock()
        self._lives: dict[str, LiveRun] = {}
        self._unread: dict[str, UnreadRun] = {}
        for row in self.store.runs():
            if isinstance(row, UnreadRun):
                _log.error("run_refused", run=row.run, why=row.why)
                self._unread[row.run] = row
            else:
                self._lives[row.config.run] = LiveRun.from_store(row, self.store, keys.public)

    def create(self, config: RunConfig) -> tuple[RunView, bool]:
        """Start a run; the same configuration again is the same run. Whether it is new comes second.

        Raises BadParameter for a run that cannot be started, Conflict for a taken name.
        """
        with self._lock:
            known = self._lives.get(config.run)
            if config.run in self._unread:
                raise Conflict(f"run {config.run} exists with a stored configuration that is refused")
            if known is None:
                self._begin(config)
            elif known.digest != config.digest():
                raise Conflict(f"run {config.run} exists with another configuration; parameters never change")
        return self.view(config.run), known is None

    def runs(self) -> RunList:
        """All runs, oldest first; after them those whose stored configuration cannot be read."""
        lines = [views.run_line(live) for live in list(self._lives.values())]
        return RunList(runs=[*lines, *map(views.unread_line, self._unread.values())])

    def live(self, run: str) -> LiveRun:
        """Raises WrongCohort for a run that is not here, RunFailed for one whose configuration cannot be read."""
        unread = self._unread.get(run)
        if unread is not None:
            raise RunFailed(f"run {run} failed: its stored configuration is refused: {unread.why}")
        found = self._lives.get(run)
        if found is None:
            raise WrongCohort(f"run {run} is not known here")
        return found

    def running(self) -> list[LiveRun]:
        """Runs that still want clients."""
        return [live for live in list(self._lives.values()) if live.state == "running"]

    def view(self, run: str) -> RunView:
        return views.run_view(self.live(run), self.store)

    def cancel(self, run: str, reason: str) -> RunView:
        """Stop a run: no more tickets, nothing more is released. A run that is over stays as it is."""
        live = self.live(run)
        with live.lock:
            if live.state == "running":
                with self.store.writing() as writing:
                    writing.state(run, "cancelled", reason)
                    writing.event(run, kind="cancelled", detail=reason)
                live.state, live.reason = "cancelled", reason
        self._ring(run)
        return self.view(run)

    def round_view(self, run: str) -> RoundView:
        """The open round, or that there will be none."""
        live = self.live(run)
        with live.lock:
            return live.view()

    def newest_round(self, run: str) -> float:
        """Return the newest round's number, or infinity when tickets are to be had or the run is over.

        A fleet that knows an earlier round than that looks again.
        """
        live = self.live(run)
        with live.lock:
            over = live.state != "running"
            return math.inf if over or self._desk.grantable(live) else len(live.learner.rounds)

    def to_open(self, run: str, request: TicketRequest) -> Cohort | None:
        """The cohort that S must have before this request can be served in full."""
        return self._desk.next_to_open(self.live(run), request)

    def opened(self, cohort: Cohort) -> bool:
        """S has this cohort now; whether that is news."""
        news = self._desk.opened(self.live(cohort.run), cohort)
        self._ring(cohort.run)
        return news

    def grant(self, run: str, request: TicketRequest) -> TicketAnswer:
        """Tickets; empty while nothing is to be had."""
        return self._desk.grant(self.live(run), request)

    def key_hashes(self, run: str, cohort: str) -> KeyHashes:
        """What a cohort's clients said of their keys. Raises WrongCohort."""
        return self._desk.key_hashes(self._opened(run, cohort))

    def statements(self, run: str, cohort: str) -> StatementList:
        """Return a cohort's statements; `over` once it has ended. Raises WrongCohort."""
        message = self._opened(run, cohort)
        over = self.store.outcome(message.cohort) is not None or self.live(run).state != "running"
        return StatementList(cohort=cohort, statements=self.store.statements(cohort), over=over)

    def publish(self, cohort: Cohort, after: int, found: StatementList) -> None:
        """Commit what the aggregator stated, from position `after` on, once: clients read it from then on.

        Raises Conflict for a stage that has a statement already: the aggregator told two stories. Raises BadMessage for
        another cohort's list, stages out of order and digests of a wrong size. Then none of the list is committed.
        """
        if found.cohort != cohort.cohort:
            raise BadMessage(f"the aggregator's statements are of cohort {found.cohort}, not of {cohort.cohort}")
        if not found.statements:
            return
        with self.live(cohort.run).lock:
            news = _news(cohort, self.store.statements(cohort.cohort), after, found.statements)
            with self.store.writing() as writing:
                for one in news:
                    writing.statement(cohort.cohort, one)
        self._ring(cohort.run)

    def waiting_for(self, run: str) -> list[Cohort]:
        """Cohorts that are open at S and have no outcome yet."""
        live = self.live(run)
        with live.lock:
            rows = self.store.cohorts(run, len(live.learner.rounds))
            return [cohort for cohort in live.pending() if cohort.cohort in rows]

    def settle(self, cohort: Cohort, answer: BatchAnswer) -> bool:
        """S's last word on a cohort; whether it was news."""
        news = self._settlement.settle(self.live(cohort.run), cohort, answer)
        self._ring(cohort.run)
        return news

    def rounds(self, run: str, after: int, limit: int) -> RoundList:
        return views.round_list(self.live(run), self.store, after, limit)

    def round_report(self, run: str, number: int) -> RoundReport:
        """One round. Raises WrongCohort for one that has not begun."""
        live = self.live(run)
        with live.lock:
            if not 1 <= number <= len(live.learner.rounds):
                raise WrongCohort(f"round {number} of run {run} has not begun")
            return views.round_report(live, self.store, live.learner.rounds[number - 1])

    def ledger(self, run: str) -> LedgerView:
        return views.ledger(self.live(run))

    def events(self, run: str, after: int, limit: int = 500) -> tuple[list[RunEvent], bool]:
        """Events above number `after`, and whether there will be no others."""
        live = self.live(run)
        with live.lock:
            found = self.store.events(run, after, limit)
            return found, live.state != "running" and len(found) < limit

    def newest_event(self, run: str) -> float:
        """Return the newest event's number, or infinity when there will be no others."""
        live = self.live(run)
        with live.lock:
            return self.store.newest_event(run) if live.state == "running" else math.inf

    def transcript(self, run: str, cohort: str, after: int, limit: int) -> Transcript:
        """What this server saw of a cohort. Raises WrongCohort, WrongStage while it is not open at S."""
        live = self.live(run)
        message = self._opened(run, cohort)
        mechanism = live.learner.rounds[message.round - 1].mechanisms[message.clients]
        seeded = live.config.unsafe is not None
        page = transcript.page
        return page(self.store, self._keys.seal, message, mechanism, seeded=seeded, after=after, limit=limit)

    def _opened(self, run: str, cohort: str) -> Cohort:
        """A cohort that S has. Raises WrongCohort, WrongStage while it is not open at S."""
        live = self.live(run)
        message = self.store.cohort_message(cohort)
        if message is None or message.run != run:
            planned = any(one.cohort == cohort for one in live.pending())
            raise WrongStage(f"cohort {cohort} is not open yet") if planned else WrongCohort(f"no cohort {cohort} here")
        return message

    def _begin(self, config: RunConfig) -> None:
        check_for_services(config)
        live = LiveRun(config, Learner(config), self.store, self._keys.public)
        live.round()  # a graph that cannot be built is refused here, and not in front of the first client
        with self.store.writing() as writing:
            writing.run(config)
            writing.event(config.run, kind="round-opened", round=1)
        self._lives[config.run] = live


def _news(cohort: Cohort, known: list[Statement], after: int, stated: list[Statement]) -> list[Statement]:
    """Return the statements from position `after` on that are not known yet. Raises Conflict, BadMessage."""
    whole = known[:after]
    for one in stated:
        place = len(whole)
        told = f"the aggregator stated stage {one.stage} of cohort {cohort.cohort}"
        if len(one.digest) != STATEMENT:
            raise BadMessage(f"{told} with a digest of {len(one.digest)} bytes, not {STATEMENT}")
        if one.stage in {before.stage for before in whole}:
            raise Conflict(f"{told} twice")
        if one.stage != STATED[place]:
            raise BadMessage(f"{told} out of order: stage {STATED[place]} comes first")
        if place < len(known) and one != known[place]:
            raise Conflict(f"{told} twice, and differed")
        whole.append(one)
    return whole[len(known) :]

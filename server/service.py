"""What the server decides: runs are created once, served from their committed outcomes, watched, cancelled."""

import threading
from collections.abc import Callable

from common.database import Database
from common.errors import Conflict, WrongCohort, WrongStage
from common.messages.batch import BatchAnswer
from common.messages.cohort import Cohort
from common.messages.progress import Event, Ledger, RoundList, RoundReport, RunList, RunView
from common.messages.round import RoundView
from common.messages.run import RunConfig
from common.messages.ticket import TicketAnswer, TicketRequest
from common.messages.transcript import Transcript
from server import reports, transcript
from server.checks import check_for_services
from server.desk import Desk
from server.keys import Keys
from server.learner import Learner
from server.live import LiveRun
from server.settling import Settlement
from server.store import Store

WINDOW = 8192
"""Clients in flight in one run; see server.desk."""


class Service:
    """All the runs of one server. Safe to use from many threads; HTTP is somebody else's business.

    ring  called with a run's name after every commit that its watchers may wait for.
    """

    def __init__(
        self, database: Database, keys: Keys, ring: Callable[[str], None] = lambda _run: None, window: int = WINDOW
    ) -> None:
        self.store = Store(database)
        self._keys, self._ring = keys, ring
        self._desk = Desk(self.store, keys.ticket, window)
        self._settlement = Settlement(self.store, keys.seal)
        self._lock = threading.Lock()
        self._lives: dict[str, LiveRun] = {}
        for row in self.store.runs():
            live = LiveRun.from_store(row.config, self.store, keys.public)
            live.state, live.reason = row.state, row.reason
            self._lives[row.config.run] = live

    def create(self, config: RunConfig) -> tuple[RunView, bool]:
        """Start a run; the same configuration again is the same run. Whether it is new comes second.

        Raises BadParameter for a run that cannot be started, Conflict for a taken name.
        """
        with self._lock:
            known = self._lives.get(config.run)
            if known is None:
                self._begin(config)
            elif known.digest != config.digest():
                raise Conflict(f"run {config.run} exists with another configuration; parameters never change")
        return self.view(config.run), known is None

    def runs(self) -> RunList:
        """All runs, oldest first."""
        return RunList(runs=[reports.run_line(live) for live in list(self._lives.values())])

    def live(self, run: str) -> LiveRun:
        """Raises WrongCohort for a run that is not here."""
        found = self._lives.get(run)
        if found is None:
            raise WrongCohort(f"run {run} is not known here")
        return found

    def running(self) -> list[LiveRun]:
        """Runs that still want clients."""
        return [live for live in list(self._lives.values()) if live.state == "running"]

    def view(self, run: str) -> RunView:
        return reports.run_view(self.live(run), self.store)

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

    def worth_asking(self, run: str, after: int) -> bool:
        """Whether somebody who knows round `after` should look again: another round, tickets to be had, or the end."""
        live = self.live(run)
        with live.lock:
            return live.state != "running" or len(live.learner.rounds) > after or self._desk.grantable(live)

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
        return reports.round_list(self.live(run), self.store, after, limit)

    def round_report(self, run: str, number: int) -> RoundReport:
        """One round. Raises WrongCohort for one that has not begun."""
        live = self.live(run)
        with live.lock:
            if not 1 <= number <= len(live.learner.rounds):
                raise WrongCohort(f"round {number} of run {run} has not begun")
            return reports.round_report(live, self.store, live.learner.rounds[number - 1])

    def ledger(self, run: str) -> Ledger:
        return reports.ledger(self.live(run))

    def events(self, run: str, after: int, limit: int = 500) -> tuple[list[Event], bool]:
        """Events above number `after`, and whether there will be no others."""
        live = self.live(run)
        with live.lock:
            found = self.store.events(run, after, limit)
            return found, live.state != "running" and len(found) < limit

    def transcript(self, run: str, cohort: str, after: int, limit: int) -> Transcript:
        """What this server saw of a cohort. Raises WrongCohort, WrongStage while it is not open at S."""
        live = self.live(run)
        message = self.store.cohort_message(cohort)
        if message is None or message.run != run:
            planned = any(one.cohort == cohort for one in live.pending())
            raise WrongStage(f"cohort {cohort} is not open yet") if planned else WrongCohort(f"no cohort {cohort} here")
        mechanism = live.learner.rounds[message.round - 1].mechanisms[message.clients]
        seeded = live.config.unsafe is not None
        page = transcript.page
        return page(self.store, self._keys.seal, message, mechanism, seeded=seeded, after=after, limit=limit)

    def _begin(self, config: RunConfig) -> None:
        check_for_services(config)
        live = LiveRun(config, Learner(config), self.store, self._keys.public)
        live.round()  # a graph that cannot be built is refused here, and not in front of the first client
        with self.store.writing() as writing:
            writing.run(config)
            writing.event(config.run, kind="round-opened", round=1)
        self._lives[config.run] = live

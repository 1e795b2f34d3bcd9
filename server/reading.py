"""Reads a server's runs for their watchers: rounds, costs, intervals, events."""

import math
from abc import ABC, abstractmethod

from distrust.common.errors import WrongCohort
from distrust.common.run.progress import (
    IntervalList,
    LedgerView,
    RegretCurve,
    RoundList,
    RoundReport,
    RunEvent,
)
from distrust.server import views
from distrust.server.active_run import ActiveRun
from distrust.server.store import Store


class RunReader(ABC):
    """The part of a server's service that changes nothing."""

    store: Store

    @abstractmethod
    def active_run(self, run: str) -> ActiveRun:
        """Return a run."""

    def rounds(self, run: str, after: int, limit: int) -> RoundList:
        return views.round_list(self.active_run(run), self.store, after, limit)

    def round_report(self, run: str, number: int) -> RoundReport:
        """Return one round. Raises WrongCohort for one that has not begun."""
        active = self.active_run(run)
        with active.lock:
            if not 1 <= number <= len(active.learner.rounds):
                raise WrongCohort(f"round {number} of run {run} has not begun")
            return views.round_report(active, self.store, active.learner.rounds[number - 1])

    def ledger(self, run: str) -> LedgerView:
        return views.ledger_view(self.active_run(run))

    def intervals(self, run: str, after: int, limit: int) -> IntervalList:
        return views.interval_list(self.active_run(run), after, limit)

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

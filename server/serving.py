"""Serves the requests that wait for tickets as a cohort is settled: their slots are committed with its outcome.

A settlement plans what each request gets, writes it into the transaction of the outcome, and answers once that is
committed. A fault of the plan costs no outcome: the request makes its call again, and meets its error there.

Log event: `tickets_delayed`, when tickets could not be granted or signed with an outcome.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import structlog

from distrust.common.errors import BadMessage, Conflict, ForeignToken, NotAdmitted, WrongStage
from distrust.common.messages.cohort import Cohort
from distrust.server.active_run import ActiveRun
from distrust.server.rows import CohortRow
from distrust.server.store import Writing
from distrust.server.ticket_issuer import Granted, TicketIssuer
from distrust.server.waiting_places import WaitingPlace

_log = structlog.get_logger("distrust.server")

MOST_SERVED = 512
"""Slots after which a settlement serves no more requests: each takes a signature of 30 µs."""

SERVING_SECONDS = 0.05
"""Seconds after which a settlement plans for no more requests: for each it looks into the database."""


class Serving:
    """What the settlement of one cohort grants to `places`, requests of its run that wait.

    rows  the open round's cohorts once it is committed.
    """

    def __init__(self, issuer: TicketIssuer, active: ActiveRun, places: Sequence[WaitingPlace]) -> None:
        self._issuer, self._active, self._places = issuer, active, places
        self.rows: dict[str, CohortRow] = {}
        self._grants: dict[str, Granted] = {}  # by the name of the request
        self._spent = Counter[str | None]()  # slots by caller
        self._served: list[tuple[WaitingPlace, Granted]] = []  # requests whose answers are the grants
        self._others: list[WaitingPlace] = []  # requests that make their call again

    @contextmanager
    def planned(self, rows: dict[str, CohortRow]) -> Iterator[None]:
        """Plan with tickets of the next cohort, if none of the open ones, `rows`, has a slot. Hold quotas to the end.

        The caller holds the run's lock, and the run is as it will be once the outcome is committed. A request that
        needs another cohort besides gets no answer here, and neither do those behind MOST_SERVED slots or
        SERVING_SECONDS: the cohort must be opened soon.
        """
        self.rows, self._served, self._others = rows, [], []  # a try before may have failed
        self._grants.clear()
        self._spent.clear()
        with ExitStack() as held:
            if self._places:
                self._plan(held)
            yield

    def _plan(self, held: ExitStack) -> None:
        following, end = self._issuer.following(self._active, self.rows), time.monotonic() + SERVING_SECONDS
        if following is None:
            return
        slots = 0
        for place in self._places:
            if place.served:
                continue
            try:
                got = self._decided(place, following, held)
            except (BadMessage, Conflict, WrongStage, NotAdmitted, ForeignToken):
                self._others.append(place)
                continue
            except Exception:  # noqa: BLE001  the outcome stands
                _log.exception("tickets_delayed", run=self._active.config.run)
                self._others.append(place)
                break
            self.rows = got.rows
            self._grants[place.request.request] = got
            if got.missing is not None or got.full:
                break
            if not got.grants:  # this caller has its share
                continue
            self._served.append((place, got))
            self._spent[got.caller.id] += sum(grant.count for grant in got.granted)
            slots += sum(grant.count for grant in got.grants)
            if slots >= MOST_SERVED or time.monotonic() >= end:
                break

    def _decided(self, place: WaitingPlace, following: Cohort, held: ExitStack) -> Granted:
        """Return what a request gets besides those before it. Raises as `TicketIssuer.advance`."""
        request, caller = place.request, self._issuer.admission.again(place.caller)
        if request.request in self._grants:  # another caller's; what that one gets is not stored yet
            raise Conflict(f"ticket request {request.request} is made twice at once")
        if caller.quota is not None:
            held.enter_context(self._issuer.spending)
        done = {place, *(served for served, _ in self._served)}
        others = [other.caller for other in self._places if other not in done and other.answer is None]
        spent = self._spent[caller.id]
        return self._issuer.decided(
            self._active, self.rows, request, following, caller=caller, others=others, spent=spent
        )

    def write(self, writing: Writing) -> None:
        """Add what was planned to the transaction of the outcome."""
        if self._grants:
            self._issuer.write(writing, self._active, list(self._grants.values()))

    def answer(self) -> Cohort | None:
        """Answer the requests, once all is committed. Return the next cohort if it was begun.

        Signing takes a while: the caller holds the run's lock no more.
        """
        for place, got in self._served:
            try:
                place.answer = self._issuer.signed(got)
            except Exception:  # noqa: BLE001  its slots are committed, and so is the next cohort
                _log.exception("tickets_delayed", run=self._active.config.run)
            place.served = True
        for place in self._others:
            place.served = True
        return next((got.fresh for got in self._grants.values() if got.fresh is not None), None)

    def give_up(self) -> None:
        """Answer none, after an error: it is not known whether their slots are committed. Each makes its call again."""
        for place in [*self._others, *(place for place, _ in self._served)]:
            place.served = True

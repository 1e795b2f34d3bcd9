"""Holds the requests that want slots of a run now, and serves those that wait as a cohort is settled.

Their slots are committed with the cohort's outcome. A settlement plans what each request gets, writes it into the
transaction of the outcome, and answers once that is committed. A fault of the plan costs no outcome: the request makes
its call again, and meets its error there.

Log event: `tickets_delayed`, when tickets could not be granted or signed with an outcome.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import structlog

from distrust.common.errors import BadMessage, Conflict, ForeignToken, NotAdmitted, WrongStage
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.admission import OPERATOR, Caller
from distrust.server.runs.ticket_issuer import Granted, TicketIssuer
from distrust.server.storage.rows import CohortRow
from distrust.server.storage.store import Writing

_log = structlog.get_logger("distrust.server")

MOST_SERVED = 512
"""Slots after which a settlement serves no more requests: each takes a signature of 30 µs."""

SERVING_SECONDS = 0.05
"""Seconds after which a settlement plans for no more requests: for each it looks into the database."""


@dataclass(slots=True, eq=False)
class WaitingPlace:
    """A request that waits for tickets, and the answer of the settlement that served it.

    served  whether its wait is over: it was served or refused, has left, or was made again. Without an answer the
            request is made once more, which finds the tickets that it may have got, or meets its error.
    """

    request: TicketRequest
    caller: Caller = OPERATOR
    answer: TicketAnswer | None = None
    served: bool = False

    def leave(self) -> TicketAnswer | None:
        """Be served no more from now on. Return the answer, if there is one."""
        self.served = True
        return self.answer


class WaitingPlaces:
    """The requests of all runs that want slots. Used on the event loop alone."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[WaitingPlace]] = {}  # by run, the longest first
        self._asking: dict[str, list[Caller]] = {}  # by run: whose requests are being answered

    @contextmanager
    def waiting(self, run: str, request: TicketRequest, caller: Caller = OPERATOR) -> Iterator[WaitingPlace]:
        """Have settlements of the run's cohorts serve this request. Its place shows the answer once there is one.

        An earlier call of the caller with the request's id is served no more: it was given up, or is sent twice.
        """
        place = WaitingPlace(request, caller)
        places = self._waiting.setdefault(run, [])
        for other in places:
            if (other.request.request, other.caller.id) == (request.request, caller.id):
                other.leave()
        places.append(place)
        try:
            yield place
        finally:
            place.leave()  # a settlement that is under way may know it
            places.remove(place)
            if not places:
                self._waiting.pop(run, None)

    @contextmanager
    def asking(self, run: str, caller: Caller) -> Iterator[None]:
        """Count a caller among those that want slots now, while its request is answered."""
        asking = self._asking.setdefault(run, [])
        asking.append(caller)
        try:
            yield
        finally:
            asking.remove(caller)
            if not asking:
                self._asking.pop(run, None)

    def unserved(self, run: str) -> list[WaitingPlace]:
        """Return the places of the requests that wait, the longest first."""
        return [place for place in self._waiting.get(run, ()) if not place.served]

    def unanswered(self, run: str) -> list[WaitingPlace]:
        """Return the places that have no answer, also those that were left a moment ago and ask once more."""
        return [place for place in self._waiting.get(run, ()) if place.answer is None]

    def others(self, run: str, caller: Caller) -> list[Caller]:
        """Return whose requests want slots of a run now, besides one request of this caller that is being answered."""
        asking = list(self._asking.get(run, ()))
        asking.remove(caller)
        return asking + [place.caller for place in self.unserved(run)]


class Serving:
    """Plans, writes and gives the tickets that waiting requests, `places`, get as one cohort of their run is settled.

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
            tried = bool(self._grants or self._others)  # one request is planned in any case
            if slots >= MOST_SERVED or (tried and time.monotonic() >= end):
                break
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

    def _decided(self, place: WaitingPlace, following: Cohort, held: ExitStack) -> Granted:
        """Return what a request gets besides those before it. Raises as `TicketIssuer.grant`."""
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

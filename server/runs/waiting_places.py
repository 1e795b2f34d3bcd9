"""Holds the requests that want slots of a run now. Some wait until a cohort is settled: see `settlement`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.runs.admission import OPERATOR, Caller


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

"""The ticket desk: slots in cohort order, each handed out once, the same ones to the same request."""

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from common.errors import Conflict, WrongCohort, WrongStage
from common.messages.cohort import Cohort
from common.messages.ticket import Grant, TicketAnswer, TicketRequest
from server.live import LiveRun
from server.store import CohortRow, GrantRow, Store
from server.tickets import sign


@dataclass(frozen=True, slots=True)
class Slots:
    """Consecutive slots of one cohort."""

    cohort: str
    first: int
    count: int


class Desk:
    """Hands out tickets.

    window  clients with tickets in cohorts that have not ended, from which on no further cohort is begun: what S has to
            hold stays bounded. A cohort that is larger than the window goes alone.
    """

    def __init__(self, store: Store, key: Ed25519PrivateKey, window: int) -> None:
        self._store, self._key, self._window = store, key, window

    def next_to_open(self, live: LiveRun, request: TicketRequest) -> Cohort | None:
        """The cohort that must be opened at S before this request can be served in full; None: serve it now."""
        with live.lock:
            if live.state != "running" or self._store.grants(live.config.run, request.request):
                return None
            return self._cohort_to_open(live, request)

    def opened(self, live: LiveRun, cohort: Cohort) -> bool:
        """Remember that S has this cohort, unless it is not wanted any more; whether that is news."""
        with live.lock:
            wanted = live.state == "running" and cohort in live.pending()
            if not wanted or cohort.cohort in self._rows(live):
                return False
            with self._store.writing() as writing:
                writing.cohort(cohort)
                writing.event(live.config.run, kind="cohort-opened", round=cohort.round, cohort=cohort.cohort)
            return True

    def grant(self, live: LiveRun, request: TicketRequest) -> TicketAnswer:
        """Tickets from the open cohorts. Raises WrongStage for a round that is over, Conflict for a changed request."""
        with live.lock:
            slots = self._granted(live, request) or self._assign(live, request)
        return TicketAnswer(grants=[self._sign(one) for one in slots])

    def grantable(self, live: LiveRun) -> bool:
        """Whether a request would be served now."""
        with live.lock:
            rows = self._rows(live)
            pending = live.pending()
            return bool(_free(pending, rows, 1)) or self._may_begin(pending, rows)

    def _granted(self, live: LiveRun, request: TicketRequest) -> list[Slots]:
        before = self._store.grants(live.config.run, request.request)
        if any((row.round, row.want) != (request.round, request.want) for row in before):
            raise Conflict(f"ticket request {request.request} was made before, for another round or count")
        return [_slots(row) for row in before]

    def _assign(self, live: LiveRun, request: TicketRequest) -> list[Slots]:
        _check_open(live, request)
        slots = _free(live.pending(), self._rows(live), request.want)
        if slots:
            with self._store.writing() as writing:
                for one in slots:
                    writing.grant(live.config.run, request, one.cohort, one.first, one.count)
        return slots

    def _cohort_to_open(self, live: LiveRun, request: TicketRequest) -> Cohort | None:
        _check_open(live, request)
        rows, pending = self._rows(live), live.pending()
        free = sum(one.count for one in _free(pending, rows, request.want))
        if free >= request.want or not self._may_begin(pending, rows):
            return None
        return next(cohort for cohort in pending if cohort.cohort not in rows)

    def _may_begin(self, pending: Sequence[Cohort], rows: dict[str, CohortRow]) -> bool:
        """Whether there is a cohort to begin, and little enough in flight; free slots count as in flight."""
        in_flight = sum(cohort.clients for cohort in pending if cohort.cohort in rows)
        return any(cohort.cohort not in rows for cohort in pending) and in_flight < self._window

    def _rows(self, live: LiveRun) -> dict[str, CohortRow]:
        number = len(live.learner.rounds)
        return self._store.cohorts(live.config.run, number)

    def _sign(self, slots: Slots) -> Grant:
        cohort = self._store.cohort_message(slots.cohort)
        if cohort is None:
            raise WrongCohort(f"cohort {slots.cohort} was never opened")
        return sign(self._key, cohort, slots.first, slots.count)


def _check_open(live: LiveRun, request: TicketRequest) -> None:
    open_round = live.round()
    if open_round is None:
        raise WrongStage(f"run {live.config.run} is {live.state}: no more tickets")
    if request.round != open_round.number:
        raise WrongStage(f"round = {request.round}: round {open_round.number} is open")


def _free(pending: Sequence[Cohort], rows: dict[str, CohortRow], want: int) -> list[Slots]:
    """Up to `want` slots without a ticket, in cohort order."""
    slots: list[Slots] = []
    for cohort in pending:
        row = rows.get(cohort.cohort)
        count = 0 if row is None else min(want, row.clients - row.granted)
        if row is not None and count:
            slots.append(Slots(cohort.cohort, row.granted, count))
            want -= count
    return slots


def _slots(row: GrantRow) -> Slots:
    return Slots(row.cohort, row.first, row.count)

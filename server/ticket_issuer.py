"""Issues participation tickets. Idempotent: repeating a request returns the same slots.

A ticket is an Ed25519 signature of configuration, run, round, cohort, slot, and the hash of the slot's keys. Slots are
handed out in cohort order, each once.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distrust.common.crypto.keys import KEY_HASH
from distrust.common.errors import BadMessage, Conflict, WrongCohort, WrongStage
from distrust.common.messages.cohort import Cohort, Grant, KeyHashes, TicketRequest, ticket_text
from distrust.common.run.round import RoundView, TicketAnswer
from distrust.server.active_run import ActiveRun
from distrust.server.store import CohortRow, GrantRow, Store

_log = structlog.get_logger("distrust.server")

MOST_GRANTED = 4096
"""Slots that one request gets at most: a fleet's largest block. Bounds the signatures that a caller may cause."""

MOST_SERVED = 512
"""Slots after which a settlement serves no more requests: each takes a signature of 30 µs."""

SERVING_SECONDS = 0.05
"""Seconds after which a settlement serves no more requests: each takes a commit."""


@dataclass(slots=True, eq=False)
class WaitingPlace:
    """A request that waits for tickets, and the answer of the settlement that served it.

    served  whether its wait is over: it was served or refused, has left, or was made again. Without an answer the
            request is made once more, which finds the tickets that it may have got, or meets its error.
    """

    request: TicketRequest
    answer: TicketAnswer | None = None
    served: bool = False

    def leave(self) -> TicketAnswer | None:
        """Be served no more from now on. Return the answer, if there is one."""
        self.served = True
        return self.answer


class _Granted(NamedTuple):
    """What a request got: a cohort that must be opened before, or slots of pending cohorts; the round, if it wants it.

    recorded  whether the cohort that was opened, or will be, was recorded with it.
    """

    missing: Cohort | None
    grants: list[GrantRow]
    pending: list[Cohort]
    view: RoundView | None
    recorded: bool


class Begun(NamedTuple):
    """A cohort that was recorded before its intermediary was asked to open it.

    in_doubt  whether the commit that records it may have failed.
    """

    cohort: Cohort
    in_doubt: bool


def sign(key: Ed25519PrivateKey, cohort: Cohort, first: int, count: int, keys: bytes = b"") -> Grant:
    """Return tickets for slots first … first + count - 1. Intermediaries verify them without asking the server.

    keys  in secure aggregation the hashes of the slots' keys, 32 bytes each; else empty.
    Ed25519 is deterministic: a repeated request gets the same bytes.
    """
    hashes = [keys[KEY_HASH * i : KEY_HASH * (i + 1)] for i in range(count)]
    texts = (ticket_text(cohort, slot, own) for slot, own in enumerate(hashes, start=first))
    return Grant(cohort=cohort.cohort, first=first, count=count, signatures=b"".join(map(key.sign, texts)))


class TicketIssuer:
    """Issues the tickets of all runs.

    window  no further cohort is begun while so many clients are in cohorts that have not ended: this bounds what the
            intermediaries hold. A cohort that is larger than the window goes alone.
    """

    def __init__(self, store: Store, key: Ed25519PrivateKey, window: int) -> None:
        self._store, self._key, self._window = store, key, window

    def advance(
        self, active: ActiveRun, request: TicketRequest, opened: Cohort | None = None
    ) -> tuple[Cohort | TicketAnswer, bool]:
        """Return the cohort that must be opened before this request can be served in full, or else its tickets.

        opened  the cohort that the last call returned. Its intermediary has opened it by now.

        Return also whether `opened` was recorded. It is not if that was known, or if the cohort is no longer needed.
        The record and the grants are one transaction. A request that names no round gets none of a run that is over.
        Raises WrongStage for a round that is over, Conflict for a changed request.
        """
        got = self._grant(active, request, opened)
        return (self._signed(got) if got.missing is None else got.missing), got.recorded

    def serve(self, active: ActiveRun, places: Sequence[WaitingPlace]) -> Begun | None:
        """Answer waiting requests with tickets of the next cohort, if none of those that are open has a slot.

        Return that cohort if it was begun. A request that needs another cohort besides, or is refused, gets no answer
        here, and neither do those behind MOST_SERVED slots or SERVING_SECONDS: the cohort must be opened soon.
        """
        following = self._following(active) if places else None
        if following is None:
            return None
        begun, slots, end = False, 0, time.monotonic() + SERVING_SECONDS
        for place in places:
            if place.served:
                continue
            try:
                got = self._grant(active, place.request, following)
                begun = begun or got.recorded
                if got.missing is not None or not got.grants:
                    break
                place.answer = self._signed(got)
                place.served = True
            except (BadMessage, Conflict, WrongStage):  # before anything was committed
                place.served = True
                continue
            except Exception:  # noqa: BLE001  the outcome stands
                _log.exception("tickets_delayed", run=active.config.run)
                place.served = True
                return Begun(following, in_doubt=not begun)
            slots += sum(grant.count for grant in got.grants)
            if slots >= MOST_SERVED or time.monotonic() >= end:
                break
        return Begun(following, in_doubt=False) if begun else None

    def _grant(self, active: ActiveRun, request: TicketRequest, opened: Cohort | None) -> _Granted:
        """Commit grants for a request, and the record of `opened`, as `advance` and `serve` need it."""
        with active.lock:
            rows, pending = active.rows(), active.pending()
            wanted = opened is not None and active.state == "running" and opened in pending
            fresh = opened if wanted and opened is not None and opened.cohort not in rows else None
            if fresh is not None:
                rows[fresh.cohort] = CohortRow(fresh.cohort, fresh.round, fresh.clients, 0, "open", None)
            grants, missing = self._granted(active, request), None
            repeated = bool(grants)
            if not repeated and _is_open(active, request):
                _check_keys(pending, request)
                grants = _free(pending, rows, request)
                if opened is None or fresh is not None:  # else the run moved on meanwhile: grant what there is
                    missing = self._missing(pending, rows, grants, request)
            granted = [] if repeated or missing is not None else grants
            self._commit(active, request, fresh, granted)
            active.keep_rows(_with_grants(rows, granted))
            view = None if request.round else active.view()
        return _Granted(missing, grants, pending, view, fresh is not None)

    def _signed(self, got: _Granted) -> TicketAnswer:
        """Return the tickets. Signing many takes a while, so the run's lock is not held."""
        known = {cohort.cohort: cohort for cohort in got.pending}
        return TicketAnswer(grants=[self._sign(one, known.get(one.cohort)) for one in got.grants], view=got.view)

    def _following(self, active: ActiveRun) -> Cohort | None:
        with active.lock:
            rows, pending = active.rows(), active.pending()
            if _any_free(pending, rows) or not self._may_begin(pending, rows):
                return None
            return next(cohort for cohort in pending if cohort.cohort not in rows)

    def key_hashes(self, cohort: Cohort) -> KeyHashes:
        """Return the hashes of the clients' keys that came with their ticket requests, slot by slot."""
        rows = sorted(self._store.cohort_grants(cohort.cohort), key=lambda row: row.first)
        rows = rows if cohort.via == "aggregator" else []
        return KeyHashes(cohort=cohort.cohort, hashes=b"".join(row.key_hashes for row in rows))

    def grantable(self, active: ActiveRun) -> bool:
        """Return whether a request would get a slot now."""
        with active.lock:
            rows, pending = active.rows(), active.pending()
            return _any_free(pending, rows) or self._may_begin(pending, rows)

    def _granted(self, active: ActiveRun, request: TicketRequest) -> list[GrantRow]:
        before = self._store.grants(active.config.run, request.request)
        same = all(row.want == request.want and request.round in {0, row.round} for row in before)
        if not same or not request.keys.startswith(b"".join(row.key_hashes for row in before)):
            raise Conflict(f"ticket request {request.request} was made before, for another round, count or keys")
        return before

    def _commit(self, active: ActiveRun, request: TicketRequest, fresh: Cohort | None, grants: list[GrantRow]) -> None:
        if fresh is None and not grants:
            return
        try:
            with self._store.writing() as writing:
                if fresh is not None:
                    writing.cohort(fresh)
                    writing.event(active.config.run, kind="cohort-opened", round=fresh.round, cohort=fresh.cohort)
                for one in grants:
                    writing.grant(active.config.run, request, one)
        except BaseException:
            active.forget_rows()
            raise

    def _missing(
        self, pending: Sequence[Cohort], rows: dict[str, CohortRow], grants: list[GrantRow], request: TicketRequest
    ) -> Cohort | None:
        free = sum(one.count for one in grants)
        if free >= min(request.want, MOST_GRANTED) or not self._may_begin(pending, rows):
            return None
        return next(cohort for cohort in pending if cohort.cohort not in rows)

    def _may_begin(self, pending: Sequence[Cohort], rows: dict[str, CohortRow]) -> bool:
        """Return whether a cohort is left to begin and the window allows it; free slots count as in flight."""
        in_flight = sum(cohort.clients for cohort in pending if cohort.cohort in rows)
        return any(cohort.cohort not in rows for cohort in pending) and in_flight < self._window

    def _sign(self, grant: GrantRow, pending: Cohort | None) -> Grant:
        """Sign a grant. `pending` is its cohort, unless that has an outcome."""
        cohort = pending or self._store.cohort_message(grant.cohort)
        if cohort is None:
            raise WrongCohort(f"cohort {grant.cohort} was never opened")
        keys = grant.key_hashes if cohort.via == "aggregator" else b""  # the shuffler never sees a receipt's hash
        return sign(self._key, cohort, grant.first, grant.count, keys)


def _is_open(active: ActiveRun, request: TicketRequest) -> bool:
    """Return whether a round is open. Raises WrongStage for a request that names another one."""
    open_round = active.round()
    if open_round is None and request.round:
        raise WrongStage(f"run {active.config.run} is {active.state}: no more tickets")
    if open_round is not None and request.round not in {0, open_round.number}:
        raise WrongStage(f"round = {request.round}: round {open_round.number} is open")
    return open_round is not None


def _check_keys(pending: Sequence[Cohort], request: TicketRequest) -> None:
    """Refuse a request without the hashes of its clients' keys, or of the secrets of their receipts.

    The server must have them before an intermediary sees a message of these clients.
    """
    whole, wanted = KEY_HASH * request.want, any(cohort.hashed for cohort in pending)
    sizes = {whole} if wanted else {0, whole}  # cohorts of one in a run whose others give receipts need none
    if len(request.keys) not in sizes:
        what = f"{KEY_HASH} for each client that wants a slot" if wanted else "none for these cohorts"
        raise BadMessage(f"keys: {len(request.keys)} bytes, expected {whole if wanted else 0}, {what}")


def _any_free(pending: Sequence[Cohort], rows: dict[str, CohortRow]) -> bool:
    """Return whether an open cohort has slots without a ticket."""
    return any(rows[one.cohort].granted < one.clients for one in pending if one.cohort in rows)


def _with_grants(rows: dict[str, CohortRow], grants: Sequence[GrantRow]) -> dict[str, CohortRow]:
    """Return the rows with the slots of these grants handed out."""
    changed = {one.cohort: replace(rows[one.cohort], granted=one.first + one.count) for one in grants}
    return rows | changed


def _free(pending: Sequence[Cohort], rows: dict[str, CohortRow], request: TicketRequest) -> list[GrantRow]:
    """Return grants of slots without a ticket, in cohort order, with their clients' key hashes.

    At most `request.want` and MOST_GRANTED slots: a fleet that wants more asks again.
    """
    grants: list[GrantRow] = []
    taken, most = 0, min(request.want, MOST_GRANTED)
    for cohort in pending:
        row = rows.get(cohort.cohort)
        count = 0 if row is None else min(most - taken, row.clients - row.granted)
        if row is not None and count:
            keys = request.keys[KEY_HASH * taken : KEY_HASH * (taken + count)]
            grants.append(GrantRow(cohort.round, request.want, cohort.cohort, row.granted, count, keys))
            taken += count
    return grants

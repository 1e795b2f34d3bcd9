"""Issues participation tickets. Idempotent: repeating a request returns the same slots, until the run is over.

A ticket is an Ed25519 signature of R, run, round, cohort and slot, and in secure aggregation of the hash of the slot's
keys. Slots are handed out in cohort order, each once.

Several callers that want slots of a cohort get equal shares of them, by turns. The requests of one participation token
count as one caller. A caller with a limit gets no more of a cohort than `Caller.most`, over all its requests.
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distrust.common.errors import (
    BadMessage,
    Conflict,
    ExhaustedToken,
    WrongCohort,
    WrongStage,
)
from distrust.common.protocol.crypto.keys import KEY_HASH
from distrust.common.protocol.messages.cohort import Cohort, Grant, TicketRequest, ticket_text
from distrust.common.protocol.run.round import RoundView, TicketAnswer
from distrust.common.protocol.storage.database_faults import repeated
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.admission import OPERATOR, Admission, Caller
from distrust.server.storage.keys import Keys
from distrust.server.storage.rows import CohortRow, GrantRow
from distrust.server.storage.store import Store, Writing

_UNGRANTED = 512  # requests of a run of which the server remembers that they have got no slots

MOST_GRANTED = 4096
"""Slots that one request gets at most: a fleet's largest block. Bounds the signatures that a caller may cause."""


class Granted(NamedTuple):
    """The answer to a request, not signed yet: a cohort that must be opened before, or slots of pending cohorts.

    view     the open round, for a request that names none.
    fresh    the cohort that is recorded with it: it was opened, or will be.
    granted  those of `grants` that are new.
    rows     the open round's cohorts after it.
    full     whether no open cohort had a slot for any caller.
    filled   whether this request takes the last one: a caller that has its share may begin the next cohort.
    keys     of the run, which sign the tickets; None once it is over. Then none are granted.
    """

    request: TicketRequest
    caller: Caller
    missing: Cohort | None
    fresh: Cohort | None
    grants: list[GrantRow]
    granted: list[GrantRow]
    rows: dict[str, CohortRow]
    pending: list[Cohort]
    view: RoundView | None
    full: bool
    filled: bool
    keys: Keys | None


class _Share(NamedTuple):
    """How many slots of an open cohort a caller gets now. `participant`: its id, if its slots are counted."""

    row: CohortRow
    most: int
    participant: str | None


def sign(key: Ed25519PrivateKey, cohort: Cohort, first: int, count: int, keys: bytes = b"") -> Grant:
    """Return tickets for slots first … first + count - 1. Intermediaries verify them without asking the server.

    keys  in secure aggregation the hashes of the slots' keys, 32 bytes each; else empty.
    Ed25519 is deterministic: a repeated request gets the same bytes.
    """
    hashes = [keys[KEY_HASH * i : KEY_HASH * (i + 1)] for i in range(count)]
    texts = (ticket_text(cohort, slot, own) for slot, own in enumerate(hashes, start=first))
    return Grant(cohort=cohort.cohort, first=first, count=count, signatures=b"".join(map(key.sign, texts)))


class TicketIssuer:
    """Issues the tickets of all runs. Requests that wait as a cohort is settled get theirs by `settlement`.

    admission  looks again whether a caller that may have waited still gets slots.
    window    no further cohort is begun while so many clients are in cohorts that have not ended: this bounds what the
            intermediaries hold. A cohort that is larger than the window goes alone.
    spending  is held from the look at a quota until its slots are committed: its owner may ask in two runs at once.
    """

    def __init__(self, store: Store, window: int, admission: Admission) -> None:
        self.admission, self.spending = admission, threading.RLock()
        self._store, self._window = store, window

    @repeated
    def grant(
        self,
        active: ActiveRun,
        request: TicketRequest,
        opened: Cohort | None,
        caller: Caller,
        others: Sequence[Caller],
    ) -> Granted:
        """Commit grants for a request, and the record of `opened`, in one transaction.

        opened  the cohort that the last call returned as `missing`. Its intermediary has opened it by now. It is not
                recorded if that was known, or if the cohort is no longer needed.
        others  callers of the other requests that want slots now.

        A request that names no round gets none of a run that is over. Raises WrongStage for a round that is over,
        Conflict for a changed request; NotAdmitted, ForeignToken for a caller that gets no slots any more.
        """
        caller = self.admission.again(caller)
        with active.lock, nullcontext() if caller.quota is None else self.spending:
            got = self.decided(active, active.rows(), request, opened, caller=caller, others=others)
            if got.fresh is not None or got.granted:
                try:
                    with self._store.writing() as writing:
                        self.write(writing, active, [got])
                except BaseException:
                    active.forget_rows()
                    raise
            active.keep_rows(got.rows)
            return got

    def decided(
        self,
        active: ActiveRun,
        rows: dict[str, CohortRow],
        request: TicketRequest,
        opened: Cohort | None,
        *,
        caller: Caller,
        others: Sequence[Caller],
        spent: int = 0,
    ) -> Granted:
        """Return what a request gets once it is committed. Nothing is changed here.

        rows    the open round's cohorts, by name.
        caller  as the operator's list has it now.
        spent   slots of the caller's quota that are granted in the same transaction.
        """
        pending, keys = active.pending(), active.keys
        wanted = opened is not None and active.state == "running" and opened in pending
        fresh = opened if wanted and opened is not None and opened.cohort not in rows else None
        if fresh is not None:
            rows = rows | {fresh.cohort: CohortRow(fresh.cohort, fresh.round, fresh.clients, 0, "open", None)}
        grants, missing = self._granted(active, request, caller), None
        grants = grants if keys is not None else []  # no ticket of a run that is over is of use
        repeated_, full = bool(grants), False
        if not repeated_ and _is_open(active, request):
            _check_keys(pending, request)
            most, full = self._most(caller, request, spent), not _any_free(pending, rows)
            grants = _free(_shares(active, pending, rows, caller, others), request, most)
            if opened is None or fresh is not None:  # else the run moved on meanwhile: grant what there is
                missing = self._missing(pending, rows, grants, most)
        granted = [] if repeated_ or missing is not None else grants
        rows = _with_grants(rows, granted)
        view = None if request.round else active.view()
        filled = bool(granted) and not _any_free(pending, rows)
        return Granted(request, caller, missing, fresh, grants, granted, rows, pending, view, full, filled, keys)

    def write(self, writing: Writing, active: ActiveRun, several: Sequence[Granted]) -> None:
        """Add to a transaction what several requests get, each decided on the rows that the one before it left."""
        run, fresh = active.config.run, {one.fresh.cohort for one in several if one.fresh is not None}
        for one in several:
            active.ungranted.pop(one.request.request, None)  # before the commit, whose confirmation may be lost
            if one.fresh is not None:
                opened, granted = one.fresh, several[-1].rows[one.fresh.cohort].granted
                writing.cohort(opened, granted)
                writing.event(run, kind="cohort-opened", round=opened.round, cohort=opened.cohort)
            for grant in one.granted:
                writing.grant(run, one.request, grant)
                if grant.cohort not in fresh:
                    writing.granted(grant.cohort, grant.first + grant.count)
            if one.caller.quota is not None and one.caller.id is not None and one.granted:
                writing.spend(one.caller.id, sum(grant.count for grant in one.granted))

    def signed(self, got: Granted) -> TicketAnswer:
        """Return the tickets. Signing many takes a while, so the run's lock is not held."""
        known = {cohort.cohort: cohort for cohort in got.pending}
        grants = [] if got.keys is None else [self._sign(got.keys, one, known.get(one.cohort)) for one in got.grants]
        return TicketAnswer(grants=grants, view=got.view)

    def following(self, active: ActiveRun, rows: dict[str, CohortRow]) -> Cohort | None:
        """Return the next cohort to begin, if none of those that are open, `rows`, has a slot without a ticket."""
        pending = active.pending()
        if _any_free(pending, rows) or not self._may_begin(pending, rows):
            return None
        return next(cohort for cohort in pending if cohort.cohort not in rows)

    def grantable(self, active: ActiveRun, caller: Caller = OPERATOR) -> bool:
        """Return whether a request of this caller would get a slot now, as far as its share goes."""
        with active.lock:
            rows, pending = active.rows(), active.pending()
            if _any_free(pending, rows):
                return any(share.most for share in _shares(active, pending, rows, caller, ()))
            return self._may_begin(pending, rows)

    def _granted(self, active: ActiveRun, request: TicketRequest, caller: Caller) -> list[GrantRow]:
        """Return what a request got before. A request that waits was looked up as it came: only `write` changes it."""
        if request.request in active.ungranted:
            return []
        before = self._store.grants(active.config.run, request.request)
        same = all(row.want == request.want and request.round in {0, row.round} for row in before)
        same = same and all(row.participant in {None, caller.id} for row in before)
        if not same or not request.keys.startswith(b"".join(row.key_hashes for row in before)):
            raise Conflict(f"ticket request {request.request} was made before, for another round, count or keys")
        if not before:
            active.ungranted[request.request] = None
            while len(active.ungranted) > _UNGRANTED:
                del active.ungranted[next(iter(active.ungranted))]
        return before

    def _most(self, caller: Caller, request: TicketRequest, spent: int) -> int:
        """Return how many slots this request gets at most. Raises ExhaustedToken for a quota that is used up."""
        most = min(request.want, MOST_GRANTED)
        if caller.quota is None or caller.id is None:
            return most
        left = caller.quota - self._store.spent(caller.id) - spent
        if left <= 0:
            raise ExhaustedToken(f"{caller.name} has had all {caller.quota} slots of its quota")
        return min(most, left)

    def _missing(
        self, pending: Sequence[Cohort], rows: dict[str, CohortRow], grants: list[GrantRow], most: int
    ) -> Cohort | None:
        """Return the next cohort to begin for a request that gets `most` slots; None where none is needed."""
        if sum(grant.count for grant in grants) >= most or not self._may_begin(pending, rows):
            return None
        if _any_free(pending, _with_grants(rows, grants)):  # for other callers: cohorts fill one after another
            return None
        return next(cohort for cohort in pending if cohort.cohort not in rows)

    def _may_begin(self, pending: Sequence[Cohort], rows: dict[str, CohortRow]) -> bool:
        """Return whether a cohort is left to begin and the window allows it; free slots count as in flight."""
        in_flight = sum(cohort.clients for cohort in pending if cohort.cohort in rows)
        return any(cohort.cohort not in rows for cohort in pending) and in_flight < self._window

    def _sign(self, keys: Keys, grant: GrantRow, pending: Cohort | None) -> Grant:
        """Sign a grant. `pending` is its cohort, unless that has an outcome."""
        cohort = pending or self._store.cohort_message(grant.cohort)
        if cohort is None:
            raise WrongCohort(f"cohort {grant.cohort} was never opened")
        hashes = grant.key_hashes if cohort.via == "aggregator" else b""  # the shuffler never sees a receipt's hash
        return sign(keys.ticket, cohort, grant.first, grant.count, hashes)


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
    return any(rows[cohort.cohort].granted < cohort.clients for cohort in pending if cohort.cohort in rows)


def _with_grants(rows: dict[str, CohortRow], grants: Sequence[GrantRow]) -> dict[str, CohortRow]:
    """Return the rows with the slots of these grants handed out."""
    changed = {}
    for grant in grants:
        row = rows[grant.cohort]
        taken = dict(row.taken)
        if grant.participant is not None:
            taken[grant.participant] = taken.get(grant.participant, 0) + grant.count
        changed[grant.cohort] = replace(row, granted=grant.first + grant.count, taken=taken)
    return rows | changed


def _shares(
    active: ActiveRun, pending: Sequence[Cohort], rows: dict[str, CohortRow], caller: Caller, others: Sequence[Caller]
) -> list[_Share]:
    """Return open cohorts that have free slots, and how many of them this caller gets while others want some, too."""
    named = {other.id: other for other in others if other.id not in {None, caller.id}}
    turns = [*named.values(), *(other for other in others if other.id is None)]
    shares = []
    for cohort in pending:
        row = rows.get(cohort.cohort)
        if row is None or row.granted == row.clients:
            continue
        crowd = active.learner.rounds[-1].mechanisms[cohort.clients].counts_on_others
        colluders = active.config.intermediary.corrupt if crowd else None
        wanting = 1 + sum(_left(row, other, colluders) > 0 for other in turns)
        fair = -(-(row.clients - row.granted) // wanting)
        noted = caller.is_noted(row.clients, colluders)
        shares.append(_Share(row, min(fair, _left(row, caller, colluders)), caller.id if noted else None))
    return shares


def _left(row: CohortRow, caller: Caller, colluders: float | None) -> int:
    """Return how many more slots of a cohort the limits of a caller allow. `colluders` as `Caller.most` takes them."""
    taken = 0 if caller.id is None else row.taken.get(caller.id, 0)
    return max(0, caller.most(row.clients, colluders) - taken)


def _free(shares: Sequence[_Share], request: TicketRequest, most: int) -> list[GrantRow]:
    """Return grants of slots without a ticket, in cohort order, with their clients' key hashes.

    most  slots in all: a fleet that wants more asks again.
    """
    grants: list[GrantRow] = []
    taken = 0
    for row, share, participant in shares:
        count = min(most - taken, share)
        if count:
            keys = request.keys[KEY_HASH * taken : KEY_HASH * (taken + count)]
            grants.append(GrantRow(row.round, request.want, row.cohort, row.granted, count, keys, participant))
            taken += count
    return grants

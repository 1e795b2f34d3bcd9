"""Settles cohorts: turns the intermediaries' answers into outcomes, and commits each before the learner moves on.

Requests for tickets that wait get slots with the outcome: a settlement plans what each gets, writes it into the
transaction of the outcome, and answers once that is committed. A fault of the plan costs no outcome: the request makes
its call again, and meets its error there.

Log event: `tickets_delayed`, when tickets could not be granted or signed with an outcome.
"""

import hashlib
import hmac
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from distrust.common.dp.mechanisms import Mechanism
from distrust.common.dp.mechanisms.families.streams import StoredBatch
from distrust.common.errors import (
    BadMessage,
    Conflict,
    ForeignToken,
    NotAdmitted,
    TooSmall,
    WrongCohort,
    WrongStage,
    describe_error,
)
from distrust.common.protocol.crypto.context import cohort_digest, encode
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.randomness import KeyedStream, Stream, UnsafeSeededStream
from distrust.server.learner.analyzer import analyze, content_sums
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from distrust.server.policies.base import ArmKey
from distrust.server.runs.active_run import ActiveRun, CountedStream
from distrust.server.runs.receipts import ReceiptBook
from distrust.server.runs.ticket_issuer import Granted, TicketIssuer
from distrust.server.runs.waiting_places import WaitingPlace
from distrust.server.storage.keys import Keys
from distrust.server.storage.rows import CohortRow
from distrust.server.storage.store import Store, Writing, unread

_log = structlog.get_logger("distrust.server")

MOST_SERVED = 512
"""Slots after which a settlement serves no more requests: each takes a signature of 30 µs."""

SERVING_SECONDS = 0.05
"""Seconds after which a settlement plans for no more requests: for each it looks into the database."""


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


def analyzer_stream(  # noqa: PLR0917  the parts of the label
    config: RunConfig,
    secret: bytes,
    cohort: Cohort,
    totals: NDArray[np.uint64],
    survivors: NDArray[np.int64],
    past: bytes = b"",
) -> Stream:
    """Return the analyzer's source of noise: a PRF of the run's secret at the cohort, its totals mod m and survivors.

    secret  `Keys.noise`. In a run that is named unsafe the noise follows from the run's seed.
    past    of a batch of a stream: `CountedStream.past` before it.

    The same totals of a cohort have the same noise whenever they are analyzed. So a server that was restored from a
    copy of its database releases what it has released before, and no second estimate with other noise. Records in
    another order, or other words of the intermediary beside them, are no other totals. Other totals of the same cohort
    have independent noise. A stream releases sums of several batches' noise. Were that of a batch the same behind
    other earlier batches, it would cancel between the two releases.
    """
    if config.unsafe is not None:
        return UnsafeSeededStream(config.unsafe.noise_seed, config.run, cohort.cohort, "analyzer")
    return KeyedStream(hmac.digest(secret, _history(past, cohort, totals, survivors), "sha256"))


def _history(past: bytes, cohort: Cohort, totals: NDArray[np.uint64], survivors: NDArray[np.int64]) -> bytes:
    """Return the digest of a cohort's totals, and of the batches of its stream before it."""
    batch = totals.astype("<u8").tobytes(), survivors.astype("<i8").tobytes()
    return hashlib.sha256(encode("distrust analyzer noise v3", past, cohort_digest(cohort), *batch)).digest()


class Settlement:
    """Turns the intermediaries' answers into outcomes. A cohort is settled once."""

    def __init__(self, store: Store, receipts: ReceiptBook) -> None:
        self._store, self._receipts = store, receipts

    @repeated
    def settle(self, active: ActiveRun, cohort: Cohort, answer: BatchAnswer, serving: Serving) -> bool:
        """Commit an intermediary's last answer on a cohort. Return False if the cohort is no longer waited for.

        serving  requests that wait: what they get is part of the transaction. The caller answers them afterwards.

        Nothing is used before it is committed. The analysis runs without the run's lock: if another call settles the
        cohort meanwhile, this estimate is dropped, and its noise with it.
        """
        keys = active.keys
        if keys is None:  # the run is over
            return False
        outcome, stream = self._outcome(active, keys, cohort, answer)
        with active.lock:
            if active.state != "running" or cohort not in active.pending():
                return False
            try:
                self._commit(active, cohort, outcome, answer, serving)
            except BaseException:
                active.forget_cached()
                raise
            if stream is not None:
                active.streams[stream.arm] = stream
            return True

    def _outcome(
        self, active: ActiveRun, keys: Keys, cohort: Cohort, answer: BatchAnswer
    ) -> tuple[ReleasedCohort | LostCohort, CountedStream | None]:
        """Return a cohort's outcome, and where the mechanism counts a stream the state after it."""
        if answer.batch is None or answer.state != "released":
            reason = answer.reason or "the intermediary gave no reason"
            return LostCohort(cohort=cohort.cohort, reason=reason), None
        if cohort.receipts:
            refusal = self._receipts.refusal(active, cohort, answer)
            if refusal is not None:
                return LostCohort(cohort=cohort.cohort, reason=refusal), None
        record = active.learner.rounds[cohort.round - 1]
        mechanism = record.mechanisms[cohort.clients]
        noise_of = partial(analyzer_stream, active.config, keys.noise, cohort)
        before = counter = after = None
        try:
            if record.ask.cumulative and mechanism.takes_batches:
                arm = next(one.arm for one in record.cohorts if one.cohort == cohort.cohort)
                before = active.streams.get(arm) or self._restored(active, keys, mechanism, arm)
                counter = before.counter
                noise_of = partial(noise_of, past=before.past)
            opener = partial(open_record, keys.seal, cohort)
            found = analyze(mechanism, cohort, answer.batch, noise_of, opener, counter)
            if before is not None and found.after is not None:
                past = _history(before.past, cohort, found.totals, found.counts)
                after = CountedStream(before.arm, found.after, past)
            released = ReleasedCohort(
                cohort=cohort.cohort,
                sum=found.sums.tolist(),
                survivors=int(found.counts.sum()),
                counts=found.counts.tolist() if cohort.channel.assigns else None,
                liars=[] if cohort.via == "shuffler" else answer.batch.liars,  # only sums show who lied
                disputes=0 if cohort.via == "shuffler" else answer.batch.disputes,
            )
        except (BadMessage, TooSmall) as error:
            return LostCohort(cohort=cohort.cohort, reason=f"refused: {error.detail}"), None
        except Exception as error:  # noqa: BLE001 - another try would raise it again: the run ends, nothing is released
            return _faulted(cohort, "the analyzer raised", error), None
        return released, after

    def _restored(self, active: ActiveRun, keys: Keys, mechanism: Mechanism, arm: ArmKey) -> CountedStream:
        """Return an arm's stream after the committed outcomes, from the stored batches and what was released."""
        counted = [record for record in active.learner.rounds if record.ask.cumulative]
        own = {one.cohort for record in counted for one in record.cohorts if one.arm == arm}
        begun = any(arm in record.released for record in counted)  # else no outcome need be read
        batches, past = [], b""
        for outcome in self._store.outcomes(active.config.run) if begun else ():
            if isinstance(outcome, ReleasedCohort) and outcome.cohort in own:
                cohort, answer = self._store.cohort_message(outcome.cohort), self._store.batch(outcome.cohort)
                assert cohort is not None
                assert answer is not None
                assert answer.batch is not None
                opener = partial(open_record, keys.seal, cohort)
                total, survivors = content_sums(mechanism, cohort, answer.batch, opener)
                stream = analyzer_stream(active.config, keys.noise, cohort, total, survivors, past)
                batches.append(StoredBatch(total, int(survivors[0]), np.array(outcome.sum), stream))
                past = _history(past, cohort, total, survivors)
        return CountedStream(arm, mechanism.counter().restored(batches), past)

    def _commit(
        self,
        active: ActiveRun,
        cohort: Cohort,
        outcome: ReleasedCohort | LostCohort,
        answer: BatchAnswer,
        serving: Serving,
    ) -> None:
        learner, number, rows = active.learner, len(active.learner.rounds), active.rows()
        row = rows.get(cohort.cohort)
        try:
            learner.absorb(outcome)
        except (BadMessage, WrongCohort) as error:  # the analyzer has checked the same: one of the two is wrong
            outcome = _faulted(cohort, "the learner refused it", error)
            learner.absorb(outcome)
        active.plan_next(learner)
        named = self._receipts.named(active, cohort) if cohort.receipts else None
        rows = rows if len(learner.rounds) == number else {}  # cohorts are opened once their round is committed
        with serving.planned(rows), self._store.writing() as writing:
            if row is None:  # it ended before its first ticket
                writing.cohort(cohort)
            if answer.batch is not None and not cohort.receipts:  # else it was stored as it was listed
                writing.batch(answer)
            writing.outcome(cohort, outcome, answer, noted=row is not None and bool(row.taken))
            _announce(writing, active.config.run, cohort, outcome, named, unread(outcome, answer))
            _announce_progress(writing, active.config.run, learner, number)
            if learner.finished:
                keep, arm = active.config.intermediary.keep_seconds, learner.policy.chosen
                writing.end(active.config.run, keep, "failed" if learner.fault else "finished", learner.fault, arm)
            serving.write(writing)
        if learner.error is not None:
            _log.error("run_failed", run=active.config.run, why=learner.fault, exc_info=learner.error)
        active.keep_rows(serving.rows)
        active.changed()


def _faulted(cohort: Cohort, where: str, error: Exception) -> LostCohort:
    """Return an outcome that ends the run: the server's own code failed on this cohort."""
    _log.error("cohort_faulted", cohort=cohort.cohort, why=describe_error(error), exc_info=error)
    return LostCohort(cohort=cohort.cohort, reason=f"{where}: {describe_error(error)}", fault=True)


def _announce(  # noqa: PLR0917  what an event and a log line say
    writing: Writing, run: str, cohort: Cohort, outcome: ReleasedCohort | LostCohort, named: str | None, unread_: int
) -> None:
    """Record a cohort's end.

    named    that the shuffler did not deliver, which need not forbid a release.
    unread_  how many records did not count.
    """
    number, name = cohort.round, cohort.cohort
    if named is not None:
        _log.error("records_missing", run=run, cohort=name, why=named)
    if unread_:
        _log.warning("records_unread", run=run, cohort=name, records=unread_)
    if isinstance(outcome, ReleasedCohort):
        bad = f"records that do not open, or hold no vector, and count as lost: {unread_}" if unread_ else None
        detail = "; ".join(filter(None, (named, bad))) or None
        writing.event(run, "cohort-released", round=number, cohort=name, survivors=outcome.survivors, detail=detail)
    else:
        writing.event(run, "cohort-aborted", round=number, cohort=name, detail=outcome.reason)


def _announce_progress(writing: Writing, run: str, learner: Learner, number: int) -> None:
    """Record the events that this outcome caused: eliminations of round `number`, another round."""
    moved = len(learner.rounds) > number or learner.finished
    for arm in learner.rounds[number - 1].eliminated if moved else ():
        writing.event(run, kind="arm-eliminated", round=number, arm=arm)
    if len(learner.rounds) > number:
        writing.event(run, kind="round-opened", round=len(learner.rounds))

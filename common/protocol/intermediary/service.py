"""Serves a cohort at either intermediary: opens it, takes each client's message once, hands out one batch.

A party's own class adds only how messages are checked and mixed.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar, Literal

from sqlalchemy import Connection

from distrust.common.errors import Aborted, BadMessage, Conflict, Gone, ProtocolError, WrongStage
from distrust.common.protocol.intermediary import store
from distrust.common.protocol.intermediary.deadlines import MIXING, Clock
from distrust.common.protocol.intermediary.intake import Fault, Intake, admitted, check_cohort, known_slots, ticketed
from distrust.common.protocol.intermediary.stages import StageMachine, silence
from distrust.common.protocol.intermediary.store import PlacedMessage, Span, State
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import COHORT_DIGEST, Cohort, name_in
from distrust.common.protocol.messages.status import (
    CohortEntry,
    CohortList,
    CohortStage,
    DeliveryList,
    PrunedRun,
    Settled,
    StageView,
    Transcript,
    TranscriptEntry,
)
from distrust.common.protocol.messages.upload import Item, Leaving, Upload, UploadAnswer
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.storage.database_faults import repeated
from distrust.common.wire import utc

REMEMBERED, SHORT_TERMS = 128, 64 * 1024
"""Cohorts in memory, so that clients can compare them quickly; a cohort with longer terms, in characters, is not."""


class Intermediary(StageMachine):
    """A shuffler or an aggregator, without its way of mixing messages."""

    party: ClassVar[Literal["shuffler", "aggregator"]]

    at_once: ClassVar[int] = 0
    """Messages of one upload that are checked in the transaction that takes them. Others wait for it meanwhile."""

    def __init__(self, database: Database, clock: Clock, notify: Callable[[str], None] = silence) -> None:
        super().__init__(database, clock, notify)
        self._committed: dict[str, Cohort] = {}  # cohorts that were opened lately

    @abstractmethod
    def _fault(self, tx: Connection, state: State, span: Span) -> Fault:
        """Return the check of a body in the open stage, for slots of the span."""

    @abstractmethod
    def _transcript_entry(self, state: State, stage: str, slot: int, body: bytes) -> TranscriptEntry:
        """Return a stored message as this party could read it; its number is filled in later."""

    def _opening(self, tx: Connection, state: State) -> None:
        """Store this party's own decisions about a new cohort, which are made once."""

    def _mark(self, _state: State, _item: Item) -> bytes | None:
        """Return the value that must be unique in the cohort besides the slot, or None."""
        return None

    def _keys_of(self, _item: Item) -> bytes:
        """Return the hash of the keys that a slot's first message brings, which its ticket is for."""
        return b""

    @abstractmethod
    def view(self, address: str) -> StageView:
        """Return the cohort's stage, and the data that clients need in it. Raises WrongCohort."""

    @repeated
    def open(self, cohort: Cohort) -> Cohort:
        """Open a cohort and return it. Idempotent.

        While no client has sent a message or left, opening it again starts its first deadline again.
        Raises BadParameter; Conflict when it is open with other contents; Aborted for one that ended without a release;
        Gone for a pruned run.
        """
        check_cohort(cohort, self.party)
        with self._database.transaction() as tx:
            store.one_opening(tx, cohort.run_digest)  # its row, which would be locked, may not be there
            store.check_not_pruned(tx, cohort.run_digest)
            known = store.find_cohort(tx, cohort.address, lock=True)
            if known is None:
                self._opening(tx, store.add_cohort(tx, cohort, self.stages[0], self._first_deadline(cohort)))
            elif known.cohort != cohort:
                raise Conflict(f"cohort {cohort.cohort} is open already, and differs", cohort=cohort.cohort)
            else:
                known = self._renewed(tx, self._advance_late(tx, known))
        self._remember(cohort)
        if known is not None:
            self._changed(known)
            if known.stage == "aborted":  # its tickets would be worth nothing: the server must issue none
                raise self._shut(known, self.stages[0])
        return cohort

    def settle(self, run_digest: bytes, settled: Settled) -> Settled:
        """Note which cohorts of a run the server collects no more, and return them. Idempotent."""
        self.keeper.settle(run_digest, settled.cohorts)
        return settled

    def prune(self, run_digest: bytes) -> PrunedRun:
        """Delete all that is here of a run, and return that it is gone. Idempotent. See `Keeper.prune`."""
        try:
            since = self.keeper.prune(run_digest)
        finally:  # half way, too: its cohorts are over
            with self._guard:
                known = [own for own in {*self._committed, *self._released} if own.startswith(run_digest.hex())]
            for address in known:
                self._forget(address)
                self._notify(address)
        self.scrub()
        return PrunedRun(run_digest=run_digest, pruned=since)

    def _forget(self, address: str) -> None:
        super()._forget(address)
        with self._guard:
            self._committed.pop(address, None)

    def _remember(self, cohort: Cohort) -> None:
        if len(cohort.terms) <= SHORT_TERMS:
            with self._guard:
                self._committed[cohort.address] = cohort
                while len(self._committed) > REMEMBERED:
                    del self._committed[next(iter(self._committed))]

    def terms(self, address: str) -> Cohort:
        """Return the cohort as the server opened it here; it never changes. Raises WrongCohort."""
        return self.settled(address).cohort

    def known_terms(self, address: str) -> Cohort | None:
        """Return the cohort if this process committed it lately. It does not read the database."""
        return self._committed.get(address)

    def cohorts(
        self, *, only_open: bool = False, run: str | None = None, cohort: str | None = None, limit: int | None = None
    ) -> CohortList:
        """Return cohorts and where each stands, oldest first.

        only_open  leave out what is over.
        run        of this run alone.
        cohort     this one alone.
        limit      the oldest ones only.
        """
        over = ("done", "aborted") if only_open else ()
        with self._database.reading() as tx:
            states = store.every(tx, over, run=run, cohort=cohort, limit=limit)
            return CohortList(cohorts=[self._entry(tx, state) for state in states])

    @repeated
    def receive(self, address: str, stage: str, upload: Upload) -> UploadAnswer:
        """Take many clients' messages of one stage. Return how many, once they are committed, and the refused ones.

        Raises WrongCohort, Aborted; BadMessage for an upload of another cohort or stage than it was sent to; Conflict
        when its clients agreed to another cohort of this name; WrongStage when the stage is not open, and no message of
        the upload was taken before.
        """
        name = name_in(address)
        if (upload.cohort, upload.stage) != (name, stage):
            raise BadMessage(f"an upload for {upload.cohort}, stage {upload.stage}, was sent to {name}, stage {stage}")
        if len(upload.digest) != COHORT_DIGEST:
            raise BadMessage(f"digest: {len(upload.digest)} bytes, expected {COHORT_DIGEST}")
        done = self._received_at_once(address, stage, upload) if len(upload.items) <= self.at_once else None
        if done is None:
            intake = self._screened(address, stage, upload)
            with self._database.transaction() as tx:
                done = self._received(tx, store.need(tx, address, lock=True), stage, intake)
        intake, state, late = done
        self._changed(state)
        if late and not intake.accepted:
            raise self._shut(state, stage)
        return intake.answer()

    def _received_at_once(self, address: str, stage: str, upload: Upload) -> tuple[Intake, State, bool] | None:
        """Check and take an upload's few messages in one transaction. None: they are not for a stage that is open."""
        intake = Intake(list(upload.items))
        with self._database.transaction() as tx:
            state = store.need(tx, address, lock=True)
            if upload.digest != state.digest or state.stage != stage:
                return None
            for check in self._checks(tx, state, stage, intake):
                intake.reject_if(check)
            return self._received(tx, state, stage, intake)

    def _received(self, tx: Connection, state: State, stage: str, intake: Intake) -> tuple[Intake, State, bool]:
        """Take checked messages. Return them, the state after them, and whether any came too late."""
        state = self._advance_late(tx, state)
        late = self._take(tx, state, stage, intake) or state.stage == "aborted"
        return intake, self._progressed(tx, state) if intake.accepted else self._advance(tx, state), late

    @repeated
    def leave(self, address: str, leaving: Leaving) -> UploadAnswer:
        """Note clients that leave, and return how many: their stage no longer waits for them.

        Once no stage is open, nothing is stored. Raises WrongCohort, BadMessage.
        """
        if leaving.cohort != name_in(address):
            raise BadMessage(f"a departure from {leaving.cohort} was sent to {name_in(address)}")
        state = self.settled(address)
        intake = Intake(list(ticketed(leaving.slots, leaving.tickets, leaving.keys)))
        self._admit(state, intake, lambda item: item.body)
        with self._database.transaction() as tx:
            state = self._advance(tx, store.need(tx, address, lock=True))
            if state.stage in self.stages:  # a cohort that is over waits for no client, and may be scrubbed already
                gone = store.departed(tx, state.number)
                store.add_departures(tx, state.number, [item.slot for item in intake.items if item.slot not in gone])
            state = self._progressed(tx, state) if intake.items else self._advance(tx, state)
        self._changed(state)
        intake.accepted = len(intake.items)
        return intake.answer()

    def batch(self, address: str) -> BatchAnswer | bytes:
        """Return the released BatchAnswer as JSON, always the same bytes, or why there is none.

        Raises WrongCohort; Gone for a batch that was scrubbed after the server had committed its outcome: a server that
        asks for it has forgotten this.
        """
        state = self.settled(address)
        if state.stage == "aborted":
            return BatchAnswer(cohort=state.name, state="aborted", reason=state.reason, lost=state.cohort.clients)
        waiting = BatchAnswer(cohort=state.name, state="waiting")
        if state.stage != "done":
            return waiting
        with self._database.reading() as tx:
            batch = store.statement(tx, state.number, store.BATCH)
        if batch is None and state.scrubbed is not None:
            why = "was settled by the server, and scrubbed here"
            raise Gone(f"cohort {state.name}: its batch {why} at {utc(state.scrubbed)}", cohort=state.name)
        return batch or waiting

    def delivered(self, run_digest: bytes, after: int, limit: int) -> DeliveryList:
        """Return the batches that were released of a run, from position `after` on, `limit` at most.

        The list is empty for an unknown run. It outlives every message, so that a server which was restored from an old
        copy finds what it has forgotten. Raises Gone for a pruned run.
        """
        with self._database.reading() as tx:
            store.check_not_pruned(tx, run_digest)
            count, digests = store.delivered(tx, run_digest, after, limit)
        return DeliveryList(count=count, digests=b"".join(digests))

    def transcript(
        self, address: str, after: int, limit: int, each: int | None = None, client: int | None = None
    ) -> Transcript:
        """Return a page of the cohort's messages in the order of arrival, from position `after` on.

        each    the first so many of each stage and direction alone; None: every message.
        client  with `each`: a slot, all of whose messages are shown, too.
        Raises  WrongCohort.
        """
        self.settled(address)
        with self._database.reading() as tx:
            state = store.need(tx, address)
            total = store.count(tx, state.number)
            if each is None:
                rows = store.message_page(tx, state.number, after, limit + 1)
            else:
                rows = store.message_sample(tx, state.number, each, client=client, after=after, limit=limit + 1)
        following = rows[limit][0] if len(rows) > limit else None
        entries = self._numbered(state, rows[:limit])
        scrubbed = state.scrubbed
        return Transcript(
            party=self.party, cohort=state.name, total=total, next=following, messages=entries, scrubbed=scrubbed
        )

    def stored_sample(self, address: str, most: int) -> tuple[int, list[TranscriptEntry], float | None]:
        """Return the number of a cohort's messages, of each stage and direction the first `most`, and `State.scrubbed`.

        It reads what is stored as it stands: no deadline is looked at, and nothing is written. Raises WrongCohort.
        """
        with self._database.reading() as tx:
            state = store.need(tx, address)
            total, rows = store.count(tx, state.number), store.message_sample(tx, state.number, most)
        return total, self._numbered(state, rows), state.scrubbed

    def _numbered(self, state: State, rows: Collection[PlacedMessage]) -> list[TranscriptEntry]:
        entries = ((place, self._transcript_entry(state, stage, slot, body)) for place, stage, slot, body in rows)
        return [entry.model_copy(update={"number": place}) for place, entry in entries]

    def _screened(self, address: str, stage: str, upload: Upload) -> Intake:
        """Return the upload without the items that are refused independently of earlier uploads.

        Raises WrongCohort; Conflict for an upload of another cohort of this name, before any item is looked at;
        Aborted, WrongStage for a stage that is not open yet.
        """
        intake, checks = Intake(list(upload.items)), None
        with self._database.reading() as tx:
            state = store.need(tx, address)
            if upload.digest != state.digest:
                why = f"the clients agreed to another cohort {state.name} than the one that is open here"
                raise Conflict(why, cohort=state.name)
            if state.stage == stage:
                checks = self._checks(tx, state, stage, intake)
        if checks is None:
            state = self.settled(address)  # a deadline that has passed may have opened the stage
            if state.stage == "aborted" or self._position(stage) > self._position(state.stage):
                raise self._shut(state, stage)
            with self._database.reading() as tx:
                checks = self._checks(tx, state, stage, intake)
        for check in checks:
            intake.reject_if(check)
        return intake

    def _checks(self, tx: Connection, state: State, stage: str, intake: Intake) -> list[Fault]:
        """Refuse slots that do not exist. Return the checks of the other items: tickets, and bodies of an open stage.

        The checks take no look at the database, and may take a while.
        """
        intake.reject_if(known_slots(state.cohort))
        if state.scrubbed is not None:  # the tickets, too: only a repeat fits a digest of ticket and body
            return []
        stored = store.stored_tickets(tx, state.number, self.stages[0], intake.span())
        tickets = admitted(state.cohort, stored, self._keys_of)
        return [tickets, self._fault(tx, state, intake.span())] if stage == state.stage else [tickets]

    def _admit(self, state: State, intake: Intake, keys_of: Callable[[Item], bytes] = lambda _item: b"") -> None:
        """Refuse slots that do not exist, and wrong tickets."""
        intake.reject_if(known_slots(state.cohort))
        with self._database.reading() as tx:
            stored = store.stored_tickets(tx, state.number, self.stages[0], intake.span())
        intake.reject_if(admitted(state.cohort, stored, keys_of))

    def _take(self, tx: Connection, state: State, stage: str, intake: Intake) -> bool:
        """Commit new items, count repeats, refuse the rest. Return whether any item came too late."""
        stored, departed = store.sent(tx, state.number, stage, intake.span())
        intake.accept_repeats(stored)
        if state.scrubbed is None:  # else no ticket was checked: no stranger may learn which slots have sent
            intake.refuse_changed(stored)
        closed = stage != state.stage
        late = closed and bool(intake.items)
        if late:
            intake.reject_if(lambda _item: self._shut(state, stage))
        intake.require_members(departed, None if closed else self._members(tx, state))

        def mark(item: Item) -> bytes | None:
            return self._mark(state, item)

        others = state.cohort.clients > 1  # else no other slot can have used a mark
        wanted = [own_mark for item in intake.items if others and (own_mark := mark(item))]
        intake.require_unique(store.marks(tx, state.number, wanted), mark)
        store.add_messages(tx, intake.rows(state.number, stage, mark, keep_ticket=stage == self.stages[0]))
        intake.accepted += len(intake.items)
        return late

    def _shut(self, state: State, stage: str) -> ProtocolError:
        """Return why a message of this stage cannot be taken now."""
        if state.stage == "aborted":
            return Aborted(f"cohort {state.name} was aborted: {state.reason}", cohort=state.name)
        shown = self._shown(state)
        return WrongStage(
            f"cohort {state.name} is in stage {shown}: {stage} is not open", cohort=state.name, stage=shown
        )

    def _shown(self, state: State) -> CohortStage:
        """Return the stage as clients know it: while the batch is computed, the last one."""
        return self.stages[-1] if state.stage == MIXING else state.stage

    def _entry(self, tx: Connection, state: State) -> CohortEntry:
        cohort, shown = state.cohort, self._shown(state)
        answered = store.count_answers(tx, state.number, shown) if shown in self.stages else None
        alive = seconds = None
        if state.stage in self.stages and state.since is not None:
            alive = self._alive(tx, state)
            now = self._clock.now()
            end = state.since if now < state.since else state.since + cohort.stage_seconds
            seconds = max(0.0, end - now)
        return CohortEntry(
            cohort=state.name,
            run=cohort.run,
            run_digest=cohort.run_digest,
            round=cohort.round,
            clients=cohort.clients,
            stage=shown,
            answered=answered,
            alive=alive,
            seconds_left=seconds,
        )

    def _alive(self, tx: Connection, state: State) -> int:
        """Return how many slots the open stage counts on: its members that have not left."""
        members, left = self._members(tx, state), store.departed(tx, state.number)
        return state.cohort.clients - len(left) if members is None else len(set(members) - left)

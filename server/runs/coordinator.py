"""Drives the runs: opens cohorts at their intermediary when clients want tickets, collects batches, settles them."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

import structlog

from distrust.common.errors import (
    Aborted,
    BadMessage,
    BadParameter,
    Conflict,
    Gone,
    ProtocolError,
    RunFailed,
    Unauthorized,
    Unavailable,
    WrongCohort,
)
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import COHORT_DIGEST, Cohort, TicketRequest
from distrust.common.protocol.messages.upload import Receipts, UploadAnswer
from distrust.common.protocol.run.round import TicketAnswer
from distrust.common.wire import INTERMEDIARIES, Via
from distrust.server.runs.admission import OPERATOR, Caller
from distrust.server.runs.deliveries import NotComparedError, misnumbered
from distrust.server.runs.intermediaries import Intermediaries
from distrust.server.runs.service import Service
from distrust.server.runs.waiting_places import WaitingPlace, WaitingPlaces

_log = structlog.get_logger("distrust.server")

RETRY_PAUSE_SECONDS = 2.0
"""Pause after an intermediary was unreachable, or refused for a reason that an operator can mend."""

RENEWAL_SECONDS = 5.0
"""Seconds after which a cohort is opened again before more of its tickets are handed out: a fourth of FIRST_SECONDS."""

PAUSE_SECONDS = 0.1
"""Pause between two long polls."""


_Step: TypeAlias = tuple[Cohort | TicketAnswer, bool]
"""Answer of `Service.advance`: the next cohort to open or the tickets, and whether it recorded the opened cohort."""


def _aborted(cohort: Cohort, error: ProtocolError) -> BatchAnswer:
    return BatchAnswer(cohort=cohort.cohort, state="aborted", reason=f"{error.code}: {error.detail}")


class RunCoordinator:
    """Runs one collector task for each open cohort, and one ticket request at a time for each run.

    Cohorts of a run open in order, so its ticket requests hold a lock. A cohort that may have been recorded has a
    collector, also when the commit's confirmation is lost, or the request's task is cancelled.

    A cohort is open at its intermediary before its first tickets leave the server, with one exception. Requests that
    wait as a cohort is settled get their tickets with its outcome, while the next cohort's collector opens it. Others
    may get its other slots meanwhile.

    retry   seconds between two attempts to reach an intermediary.
    sleep   waits so many seconds.
    """

    def __init__(
        self,
        service: Service,
        intermediaries: Intermediaries,
        retry: float = RETRY_PAUSE_SECONDS,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._service, self._intermediaries, self._retry, self._sleep = service, intermediaries, retry, sleep
        self._collectors: dict[str, asyncio.Task[None]] = {}
        self._ticket_locks: dict[str, asyncio.Lock] = {}
        self._comparing: dict[str, asyncio.Lock] = {}
        self._receipted: dict[str, asyncio.Event] = {}  # by cohort whose receipts are waited for: set as some arrive
        self._recording: set[asyncio.Future[Any]] = set()  # calls that may record a cohort or an outcome
        self.places = WaitingPlaces()
        self._opened: dict[str, dict[str, tuple[Cohort, float]]] = {}  # by run and cohort: when it was opened last

    async def start(self) -> None:
        """Collect every cohort that was open when the server stopped, and compare what was delivered meanwhile."""
        for active in self._service.running():
            if await asyncio.to_thread(self._service.uncompared, active.config.run):
                self._spawn(f"compare {active.config.run}", self._compare_past(active.config.run))
            for cohort in await asyncio.to_thread(self._service.waiting_for, active.config.run):
                self._watch(cohort)

    async def stop(self) -> None:
        """Stop collecting. Nothing is lost: the intermediaries keep what they have."""
        await asyncio.gather(*self._recording, return_exceptions=True)
        tasks = list(self._collectors.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._recording, return_exceptions=True)  # threads are not cancelled

    async def tickets(self, run: str, request: TicketRequest, caller: Caller = OPERATOR) -> TicketAnswer:
        """Open the cohorts that the request needs, and return its tickets. Raises Unavailable without them.

        A cohort that ended before its first ticket is replaced. Raises Aborted for a second one in the same request.
        """
        self._service.active_run(run)  # an unknown run gets no lock
        with suppress(RunFailed):  # then the answer shows the run's end
            await self._compare_all(run)
        with self.places.asking(run, caller):
            async with self._ticket_locks.setdefault(run, asyncio.Lock()):
                return await self._granted(run, request, caller)

    async def _granted(self, run: str, request: TicketRequest, caller: Caller) -> TicketAnswer:
        """Return the tickets of a request that holds the run's lock. See `tickets`."""
        await self._renew(run)
        step, _ = await self._advance(run, request, caller)
        discarded = False
        while isinstance(step, Cohort):
            cohort = step
            try:
                await self._open(cohort)
            except Aborted as error:
                if discarded:
                    raise
                discarded = True  # at most one a request: each costs the horizon a cohort's pulls
                await asyncio.to_thread(self._service.settle, cohort, _aborted(cohort, error))
                step, _ = await self._advance(run, request, caller)
                continue
            step, _ = await self._advance(run, request, caller, cohort)
        return step

    async def _open(self, cohort: Cohort) -> None:
        """Open a cohort, or start its first deadline again. Raises Aborted, and Unavailable for a refused token."""
        self._note_opening(cohort)
        try:
            await self._intermediaries.open(cohort)
        except Gone as error:
            raise await self._gone(cohort.run, cohort.run_digest, cohort.via, error) from error
        except Unauthorized as error:  # of this server: its caller's own token was accepted
            raise Unavailable(f"the {cohort.via} refuses this server's token: {error.detail}") from error

    async def _gone(self, run: str, run_digest: bytes, via: Via, error: Gone) -> RunFailed:
        """End a run of which its intermediary has deleted what this server asks for, and return why.

        It deletes only what a later state of this server has settled or pruned.
        """
        why = f"the {via} deleted what this server asks for ({error.detail}): its database is an old copy"
        await asyncio.to_thread(self._service.fail, run, run_digest, why)
        return RunFailed(why)

    def _note_opening(self, cohort: Cohort) -> None:
        self._opened.setdefault(cohort.run, {})[cohort.cohort] = cohort, time.monotonic()

    async def _renew(self, run: str) -> None:
        """Start the first deadline of cohorts again of which more tickets may be handed out now.

        While no client has sent anything, the intermediary counts from the last opening.
        """
        opened, late = self._opened.get(run, {}), time.monotonic() - RENEWAL_SECONDS
        old = [cohort for cohort, since in opened.values() if since < late]
        filling = await asyncio.to_thread(self._service.filling, run) if old else []
        for cohort in old:
            if cohort not in filling:
                del opened[cohort.cohort]
                continue
            try:
                await self._open(cohort)
            except Aborted as error:
                await asyncio.to_thread(self._service.settle, cohort, _aborted(cohort, error))
            except Unavailable as error:  # its tickets are good all the same
                _log.warning("renewal_failed", cohort=cohort.cohort, code=error.code, why=error.detail)

    async def _compare_past(self, run: str) -> None:
        """Compare the run's deliveries after a start, until its intermediaries have answered."""
        while True:
            try:
                await self._compare_all(run)
            except RunFailed:
                self.forget(run)
                return
            except ProtocolError as error:
                _log.warning("comparison_retry", run=run, code=error.code, why=error.detail)
                await self._sleep(self._retry)
            else:
                return

    async def _compare_all(self, run: str) -> None:
        """Compare the lists that this process has not seen yet. Raises RunFailed, and what a call raises."""
        if len(self._service.active_run(run).delivered) < len(INTERMEDIARIES):
            for via in await asyncio.to_thread(self._service.uncompared, run):
                await self._compare(run, via)

    async def _compare(self, run: str, via: Via) -> None:
        """Compare the rest of an intermediary's list. Raises RunFailed, and what a call raises."""
        active = self._service.active_run(run)
        async with self._comparing.setdefault(f"{run} {via}", asyncio.Lock()):
            after, listed, count = len(active.delivered.get(via, ())), list[bytes](), math.inf
            most = await asyncio.to_thread(self._service.store.count_cohorts, run, via)  # all that it can have released
            while after + len(listed) < min(count, most + 1):
                try:
                    page = await self._intermediaries.delivered(active.run_digest, via, after + len(listed))
                except Gone as error:
                    raise await self._gone(run, active.run_digest, via, error) from error
                if len(page.digests) % COHORT_DIGEST:
                    raise BadMessage(f"the {via} lists deliveries of run {run} in {len(page.digests)} bytes")
                fresh = [page.digests[at : at + COHORT_DIGEST] for at in range(0, len(page.digests), COHORT_DIGEST)]
                listed, count = [*listed, *fresh], page.count
                if not fresh and after + len(listed) < count:
                    raise BadMessage(f"the {via} counts {count} deliveries of run {run}, and lists {len(listed)}")
            await asyncio.to_thread(self._service.compare, run, via, after, listed)

    async def _advance(self, run: str, request: TicketRequest, caller: Caller, opened: Cohort | None = None) -> _Step:
        """Call the service's `advance` in a thread. If it may have recorded `opened`, this cohort gets a collector.

        A call that may record goes on when its caller is cancelled.
        """
        others = self.places.others(run, caller)
        call = partial(copy_context().run, self._service.advance, run, request, opened, caller, others)
        advancing: asyncio.Future[_Step] = asyncio.get_running_loop().run_in_executor(None, call)
        if opened is None:
            return await advancing
        self._recording.add(advancing)
        advancing.add_done_callback(partial(self._watch_if_recorded, opened))
        return await asyncio.shield(advancing)

    def _watch_if_recorded(self, cohort: Cohort, advanced: asyncio.Future[_Step]) -> None:
        """Watch a cohort that the call has recorded. After an error the collector looks whether it has."""
        self._recording.discard(advanced)
        if advanced.cancelled():  # before it began
            return
        failed = advanced.exception() is not None
        if failed or advanced.result()[1]:
            self._watch(cohort, opened=True, in_doubt=failed)

    def forget(self, run: str) -> None:
        """Stop collecting for a run that is over."""
        self._opened.pop(run, None)
        prefix = f"{run}."
        for name, task in list(self._collectors.items()):
            if name.startswith(prefix) and name[len(prefix) :].count(".") == 2:
                task.cancel()

    def _watch(self, cohort: Cohort, *, opened: bool = False, in_doubt: bool = False) -> None:
        if cohort.cohort in self._collectors:
            return
        collecting = self._collect(cohort, opened=opened, in_doubt=in_doubt)
        self._spawn(cohort.cohort, collecting)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends by itself, or as the server stops."""
        task = asyncio.create_task(work, name=name)
        self._collectors[name] = task
        task.add_done_callback(lambda _done: self._collectors.pop(name, None))

    async def _collect(self, cohort: Cohort, *, opened: bool, in_doubt: bool) -> None:
        """Collect until the cohort's outcome is committed; the intermediary and the disk may fail meanwhile.

        opened    whether this process has opened the cohort at its intermediary.
        in_doubt  whether the commit that records the cohort may have failed. Then the cohort is not collected before
                  it is read from the store: without a record it has no tickets, and a later request may record it.

        After an error the outcome itself may be committed, and its confirmation lost. The store tells that, too.
        """
        alone = False
        while True:
            try:
                if in_doubt:
                    recorded = await asyncio.to_thread(self._service.recorded, cohort)
                    if recorded is None:  # cohorts may have been recorded with its outcome
                        for one in await asyncio.to_thread(self._service.waiting_for, cohort.run):
                            self._note_opening(one)
                            self._watch(one)
                        return
                    in_doubt = not recorded
                if in_doubt:
                    await self._sleep(self._retry)
                    continue
                # After a restart it is opened again: the intermediary may have missed the call.
                if await self._collect_once(cohort, opening=not opened, alone=alone):
                    return
                opened, alone = True, False
                await self._sleep(min(PAUSE_SECONDS, self._retry))  # the intermediary may answer `waiting` at once
                continue
            except (RunFailed, Gone):  # committed, and no cohort of the run is waited for any more
                self.forget(cohort.run)
                return
            except ProtocolError as error:
                _log.warning("collection_retry", cohort=cohort.cohort, code=error.code, why=error.detail)
            except Exception:  # noqa: BLE001  a bug of ours must not end the run unseen
                _log.exception("collection_retry", cohort=cohort.cohort)
            in_doubt = alone = True
            await self._sleep(self._retry)

    async def _collect_once(self, cohort: Cohort, *, opening: bool, alone: bool) -> bool:
        """Ask the intermediary once, and settle the cohort with a last answer. Return whether there was one.

        After a batch, requests that wait are served: the intermediary works, and will open the next cohort, too.

        alone  serve none: what they get must not keep the outcome from being committed again and again.
        """
        answer = await self._final_answer(cohort, opening=opening)
        if answer is None:
            return False
        if answer.batch is not None and cohort.receipts:
            try:
                answer = await self._with_receipts(cohort, answer, answer.batch.survivors)
            except BadMessage as error:
                answer = _aborted(cohort, error)
        places = [] if alone or answer.batch is None else self.places.unanswered(cohort.run)
        try:
            begun = await self._settle(cohort, answer, places)
        except NotComparedError:
            await self._compare(cohort.run, cohort.via)
            try:
                begun = await self._settle(cohort, answer, places)
            except NotComparedError:  # it numbers the batch behind the end of its list
                why = misnumbered(self._service.active_run(cohort.run), cohort, answer)
                await asyncio.to_thread(self._service.fail, cohort.run, cohort.run_digest, why)
                return True
        except BadMessage as error:
            begun = await self._settle(cohort, _aborted(cohort, error), [])
        if begun is not None:
            self._note_opening(begun)
            self._watch(begun)
        return True

    async def _with_receipts(self, cohort: Cohort, answer: BatchAnswer, survivors: int) -> BatchAnswer:
        """Return the batch once its clients have given their receipts, or their time is over.

        After a restart their time begins again. Raises BadMessage for a batch that cannot be listed.
        """
        arrived = self._receipted.setdefault(cohort.cohort, asyncio.Event())
        deadline = asyncio.ensure_future(self._sleep(cohort.stage_seconds))
        try:
            stored = await asyncio.to_thread(self._service.collect_for_receipts, cohort, answer)
            while True:
                arrived.clear()
                if deadline.done() or await asyncio.to_thread(self._service.receipts_complete, cohort, survivors):
                    return stored
                more = asyncio.ensure_future(arrived.wait())
                try:
                    await asyncio.wait({more, deadline}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    more.cancel()
        finally:
            deadline.cancel()
            self._receipted.pop(cohort.cohort, None)

    async def receipts(self, run: str, receipts: Receipts) -> UploadAnswer:
        """Commit receipts, and settle their cohort when it waits for no others. Raises as `Service.take_receipts`."""
        answer = await asyncio.to_thread(self._service.take_receipts, run, receipts)
        if receipts.cohort in self._receipted:
            self._receipted[receipts.cohort].set()
        return answer

    async def _settle(self, cohort: Cohort, answer: BatchAnswer, places: Sequence[WaitingPlace]) -> Cohort | None:
        """Settle in a thread, and return the next cohort if it was begun. Goes on when its caller is cancelled."""
        settling = asyncio.ensure_future(asyncio.to_thread(self._service.settle, cohort, answer, places))
        self._recording.add(settling)
        settling.add_done_callback(self._recording.discard)
        return (await asyncio.shield(settling))[1]

    async def _final_answer(self, cohort: Cohort, *, opening: bool) -> BatchAnswer | None:
        """Return the intermediary's last answer; None: ask again. A cohort that it cannot release counts as aborted.

        opening  open the cohort there before.
        """
        try:
            if cohort.via == "aggregator":
                if opening:
                    with suppress(Aborted):  # its last answer says so, too
                        await self._intermediaries.open(cohort)
                await self._relay(cohort)
                opening = False
            answer = await self._intermediaries.collect(cohort, opening=opening)
        except (WrongCohort, Conflict, Aborted, BadMessage, BadParameter) as error:
            return _aborted(cohort, error)
        except Gone as error:
            raise await self._gone(cohort.run, cohort.run_digest, cohort.via, error) from error
        return None if answer.state == "waiting" else answer

    async def _relay(self, cohort: Cohort) -> None:
        """Publish the aggregator's statements, stage by stage, until the cohort is over. Clients wait for them."""
        over = False
        while not over:
            after = await asyncio.to_thread(self._service.stated, cohort)
            listed = await self._intermediaries.statements(cohort, after)
            await asyncio.to_thread(self._service.publish, cohort, after, listed)
            over = listed.over
            if not listed.statements and not over:
                await self._sleep(min(PAUSE_SECONDS, self._retry))  # the aggregator may answer at once

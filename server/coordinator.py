"""Drives the runs: opens cohorts at their intermediary when clients want tickets, collects batches, settles them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import structlog

from distrust.common.errors import Aborted, BadMessage, Conflict, ProtocolError, WrongCohort, describe_error
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort, TicketAnswer, TicketRequest
from distrust.common.messages.status import StatementList
from distrust.server.service import Service

_log = structlog.get_logger("distrust.server")

RETRY_PAUSE_SECONDS = 2.0
"""Pause after an intermediary was unreachable, or refused for a reason that an operator can mend."""

PAUSE_SECONDS = 0.1
"""Pause between two long polls."""

FRESH = 0.25
"""Part of `stage_seconds` after which a cohort that was opened ahead is opened again before its first ticket.

Its intermediary aborts a cohort without any message 2 · stage_seconds after it was opened last.
"""


class Intermediaries(Protocol):
    """The two intermediaries, as the server calls them. Every call is idempotent. Raises ProtocolError."""

    async def open(self, cohort: Cohort) -> None:
        """Open the cohort at its intermediary. Without any message its first deadline starts again.

        Raises Aborted for a cohort that has ended without a release.
        """
        ...

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        """Return the aggregator's statements of a masked cohort from position `after` on; may wait for more."""
        ...

    async def collect(self, cohort: Cohort) -> BatchAnswer:
        """Return the batch, or why there is none; may wait before it answers `waiting`."""
        ...


_Step: TypeAlias = tuple[Cohort | TicketAnswer, bool]
"""Answer of `Service.advance`: the next cohort to open or the tickets, and whether it recorded the opened cohort."""


class _Ahead(NamedTuple):
    """A run's next cohort that is opened ahead, since when (monotonic seconds), and whether that succeeded."""

    cohort: Cohort
    began: float
    opening: asyncio.Task[bool]


def _aborted(cohort: Cohort, error: ProtocolError) -> BatchAnswer:
    return BatchAnswer(cohort=cohort.cohort, state="aborted", reason=f"{error.code}: {error.detail}")


class RunCoordinator:
    """Runs one collector task for each open cohort, and one ticket request at a time for each run.

    Cohorts of a run open in order, so its ticket requests hold a lock. A cohort that may have been recorded has a
    collector, also when the commit's confirmation is lost, or the request's task is cancelled.

    While clients wait for the next round, its first cohort is opened as soon as the last outcome is committed: the call
    travels while they fetch and check the round. It is recorded with the first tickets, as every cohort is. When they
    come late it is opened again before that. If it has ended by then, it is settled as lost and gets no ticket.

    retry    seconds between two attempts to reach an intermediary.
    awaited  returns whether clients wait for a run's next round.
    now      a monotonic clock, in seconds.
    sleep    waits so many seconds of that clock.
    """

    def __init__(
        self,
        service: Service,
        intermediaries: Intermediaries,
        retry: float = RETRY_PAUSE_SECONDS,
        awaited: Callable[[str], bool] = lambda _run: False,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._service, self._intermediaries, self._retry, self._awaited = service, intermediaries, retry, awaited
        self._now, self._sleep = now, sleep
        self._collectors: dict[str, asyncio.Task[None]] = {}
        self._ticket_locks: dict[str, asyncio.Lock] = {}
        self._recording: set[asyncio.Future[_Step]] = set()  # calls of `advance` that may record a cohort
        self._ahead: dict[str, _Ahead] = {}  # by run

    async def start(self) -> None:
        """Collect every cohort that was open when the server stopped."""
        for active in self._service.running():
            for cohort in await asyncio.to_thread(self._service.waiting_for, active.config.run):
                self._watch(cohort)

    async def stop(self) -> None:
        """Stop collecting. Nothing is lost: the intermediaries keep what they have."""
        await asyncio.gather(*self._recording, return_exceptions=True)
        tasks = [*self._collectors.values(), *(ahead.opening for ahead in self._ahead.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def tickets(self, run: str, request: TicketRequest) -> TicketAnswer:
        """Open the cohorts that the request needs, and return its tickets. Raises Unavailable without them.

        A cohort that ended before its first ticket is replaced. Raises Aborted for a second one in the same request.
        """
        self._service.active_run(run)  # an unknown run gets no lock
        async with self._ticket_locks.setdefault(run, asyncio.Lock()):
            opened = await self._opened_ahead(run)
            step, recorded = await self._advance(run, request, opened)
            if opened is not None:
                self._ahead.pop(run, None)
                if not recorded:  # an earlier request needed it already: this one may need another cohort
                    step, _ = await self._advance(run, request)
            discarded = False
            while isinstance(step, Cohort):
                cohort = step
                try:
                    await self._intermediaries.open(cohort)
                except Aborted as error:
                    if discarded:
                        raise
                    discarded = True  # at most one a request: each costs the horizon a cohort's pulls
                    await asyncio.to_thread(self._service.settle, cohort, _aborted(cohort, error))
                    step, _ = await self._advance(run, request)
                    continue
                step, _ = await self._advance(run, request, cohort)
            return step

    async def _advance(self, run: str, request: TicketRequest, opened: Cohort | None = None) -> _Step:
        """Call the service's `advance` in a thread. If it may have recorded `opened`, this cohort gets a collector.

        A call that may record goes on when its caller is cancelled.
        """
        call = partial(copy_context().run, self._service.advance, run, request, opened)
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
        """Stop collecting for a run that was cancelled."""
        self._ahead.pop(run, None)
        prefix = f"{run}."
        for name, task in list(self._collectors.items()):
            if name.startswith(prefix) and name[len(prefix) :].count(".") == 2:
                task.cancel()

    def _watch(self, cohort: Cohort, *, opened: bool = False, in_doubt: bool = False) -> None:
        if cohort.cohort in self._collectors:
            return
        collecting = self._collect(cohort, opened=opened, in_doubt=in_doubt)
        task = asyncio.create_task(collecting, name=f"collect {cohort.cohort}")
        self._collectors[cohort.cohort] = task
        task.add_done_callback(lambda _done: self._collectors.pop(cohort.cohort, None))

    async def _collect(self, cohort: Cohort, *, opened: bool, in_doubt: bool) -> None:
        """Collect until the cohort's outcome is committed; the intermediary and the disk may fail meanwhile.

        opened    whether this process has opened the cohort at its intermediary.
        in_doubt  whether the commit that records the cohort may have failed. Then the cohort is not collected before
                  it is read from the store: without a record it has no tickets, and a later request may record it.
        """
        while True:
            try:
                if in_doubt:
                    recorded = await asyncio.to_thread(self._service.recorded, cohort)
                    if recorded is None:
                        return
                    in_doubt = not recorded
                if in_doubt:
                    await self._sleep(self._retry)
                    continue
                if not opened:
                    with suppress(Aborted):  # the intermediary's last answer says so too
                        await self._intermediaries.open(cohort)  # again after a restart: it may have missed the call
                    opened = True
                if await self._settled(cohort):
                    return
                await self._sleep(min(PAUSE_SECONDS, self._retry))  # the intermediary may answer `waiting` at once
            except ProtocolError as error:
                _log.warning("collection_retry", cohort=cohort.cohort, code=error.code, why=error.detail)
                await self._sleep(self._retry)
            except Exception:  # noqa: BLE001  a bug of ours must not end the run unseen
                _log.exception("collection_retry", cohort=cohort.cohort)
                await self._sleep(self._retry)

    async def _settled(self, cohort: Cohort) -> bool:
        """Ask the intermediary once, and settle the cohort with a last answer. Return whether there was one."""
        answer = await self._last_word(cohort)
        if answer is None:
            return False
        awaited = self._awaited(cohort.run)  # before the outcome answers those that wait
        following = await asyncio.to_thread(self._settle, cohort, answer)
        self._open_ahead(cohort.run, following if awaited else None)
        return True

    def _settle(self, cohort: Cohort, answer: BatchAnswer) -> Cohort | None:
        """Settle a cohort. Return the one that must be opened next."""
        self._service.settle(cohort, answer)
        return self._service.following(cohort.run)

    def _open_ahead(self, run: str, cohort: Cohort | None) -> None:
        """Begin to open a run's next cohort, unless that has begun. None: forget what was opened ahead."""
        known = self._ahead.pop(run, None)
        if cohort is None:
            return
        if known is None or known.cohort != cohort:
            began = self._now()
            known = _Ahead(cohort, began, asyncio.create_task(self._open(cohort), name=f"open {cohort.cohort}"))
        self._ahead[run] = known

    async def _open(self, cohort: Cohort) -> bool:
        """Return whether the cohort was opened. If not, the request that needs it opens it, and gets the error."""
        try:
            await self._intermediaries.open(cohort)
        except Exception as error:  # noqa: BLE001  whatever it is, that request meets it too
            _log.info("cohort_unopened", cohort=cohort.cohort, why=describe_error(error))
            return False
        return True

    async def _opened_ahead(self, run: str) -> Cohort | None:
        """Return the run's cohort that was opened ahead, once it is open. None: open the next one, perhaps again."""
        if run not in self._ahead:
            return None
        ahead = self._ahead[run]
        if not await asyncio.shield(ahead.opening):
            return None
        if self._now() - ahead.began > FRESH * ahead.cohort.stage_seconds:  # it may end before its clients' messages
            self._ahead.pop(run, None)
            return None
        return ahead.cohort

    async def _last_word(self, cohort: Cohort) -> BatchAnswer | None:
        """Return the intermediary's last answer; None: ask again. A cohort that it cannot release counts as aborted."""
        try:
            if cohort.via == "aggregator":
                await self._relay(cohort)
            answer = await self._intermediaries.collect(cohort)
        except (WrongCohort, Conflict, Aborted, BadMessage) as error:
            return _aborted(cohort, error)
        return None if answer.state == "waiting" else answer

    async def _relay(self, cohort: Cohort) -> None:
        """Publish the aggregator's statements, stage by stage, until the cohort is over. Clients wait for them."""
        over = False
        while not over:
            known = await asyncio.to_thread(self._service.statements, cohort.run, cohort.cohort)
            after = len(known.statements)
            listed = await self._intermediaries.statements(cohort, after)
            await asyncio.to_thread(self._service.publish, cohort, after, listed)
            over = listed.over
            if not listed.statements and not over:
                await self._sleep(min(PAUSE_SECONDS, self._retry))  # the aggregator may answer at once

"""Drives the runs: opens cohorts at their intermediary when clients want tickets, collects batches, settles them."""

import asyncio
from typing import Protocol

import structlog

from distrust.common.errors import Aborted, BadMessage, Conflict, ProtocolError, WrongCohort
from distrust.common.messages.batch import BatchAnswer
from distrust.common.messages.cohort import Cohort, TicketAnswer, TicketRequest
from distrust.common.messages.status import StatementList
from distrust.server.service import Service

_log = structlog.get_logger("distrust.server")

RETRY_SECONDS = 2.0
"""Pause after an intermediary was unreachable, or refused for a reason that an operator can mend."""

PAUSE_SECONDS = 0.1
"""Pause between two long polls."""


class Intermediaries(Protocol):
    """The two intermediaries, as the server calls them. Every call is idempotent. Raises ProtocolError."""

    async def open(self, cohort: Cohort) -> None:
        """Open the cohort at its intermediary."""
        ...

    async def statements(self, cohort: Cohort, after: int) -> StatementList:
        """Return the aggregator's statements of a masked cohort from position `after` on; may wait for more."""
        ...

    async def collect(self, cohort: Cohort) -> BatchAnswer:
        """Return the batch, or why there is none; may wait before it answers `waiting`."""
        ...


class RunCoordinator:
    """Runs one collector task for each open cohort, and one ticket request at a time for each run.

    Cohorts of a run open in order, so its ticket requests hold a lock.

    retry  seconds between two attempts to reach an intermediary.
    """

    def __init__(self, service: Service, intermediaries: Intermediaries, retry: float = RETRY_SECONDS) -> None:
        self._service, self._intermediaries, self._retry = service, intermediaries, retry
        self._collectors: dict[str, asyncio.Task[None]] = {}
        self._ticket_locks: dict[str, asyncio.Lock] = {}

    async def start(self) -> None:
        """Collect every cohort that was open when the server stopped."""
        for active in self._service.running():
            for cohort in await asyncio.to_thread(self._service.waiting_for, active.config.run):
                self._watch(cohort)

    async def stop(self) -> None:
        """Stop collecting. Nothing is lost: the intermediaries keep what they have."""
        tasks = list(self._collectors.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def tickets(self, run: str, request: TicketRequest) -> TicketAnswer:
        """Open the cohorts that the request needs, and return its tickets. Raises Unavailable without them."""
        self._service.active_run(run)  # an unknown run gets no lock
        async with self._ticket_locks.setdefault(run, asyncio.Lock()):
            step, _ = await asyncio.to_thread(self._service.advance, run, request)
            while isinstance(step, Cohort):
                cohort = step
                await self._intermediaries.open(cohort)
                step, recorded = await asyncio.to_thread(self._service.advance, run, request, cohort)
                if recorded:
                    self._watch(cohort, opened=True)
            return step

    def forget(self, run: str) -> None:
        """Stop collecting for a run that was cancelled."""
        prefix = f"{run}."
        for name, task in list(self._collectors.items()):
            if name.startswith(prefix) and name[len(prefix) :].count(".") == 2:
                task.cancel()

    def _watch(self, cohort: Cohort, *, opened: bool = False) -> None:
        task = asyncio.create_task(self._collect(cohort, opened=opened), name=f"collect {cohort.cohort}")
        self._collectors[cohort.cohort] = task
        task.add_done_callback(lambda _done: self._collectors.pop(cohort.cohort, None))

    async def _collect(self, cohort: Cohort, *, opened: bool) -> None:
        """Collect until the cohort's outcome is committed; the intermediary and the disk may fail meanwhile.

        opened  whether this process has opened the cohort at its intermediary.
        """
        while True:
            try:
                if not opened:
                    await self._intermediaries.open(cohort)  # again after a restart: it may have missed the call
                    opened = True
                if await self._settled(cohort):
                    return
                await asyncio.sleep(min(PAUSE_SECONDS, self._retry))  # the intermediary may answer `waiting` at once
            except ProtocolError as error:
                _log.warning("collection_retry", cohort=cohort.cohort, code=error.code, why=error.detail)
                await asyncio.sleep(self._retry)
            except Exception:  # noqa: BLE001  a bug of ours must not end the run unseen
                _log.exception("collection_retry", cohort=cohort.cohort)
                await asyncio.sleep(self._retry)

    async def _settled(self, cohort: Cohort) -> bool:
        """Ask the intermediary once, and settle the cohort with a last answer. Return whether there was one."""
        answer = await self._last_word(cohort)
        if answer is not None:
            await asyncio.to_thread(self._service.settle, cohort, answer)
        return answer is not None

    async def _last_word(self, cohort: Cohort) -> BatchAnswer | None:
        """Return the intermediary's last answer; None: ask again. A cohort that it cannot release counts as aborted."""
        try:
            if cohort.via == "aggregator":
                await self._relay(cohort)
            answer = await self._intermediaries.collect(cohort)
        except (WrongCohort, Conflict, Aborted, BadMessage) as error:
            return BatchAnswer(cohort=cohort.cohort, state="aborted", reason=f"{error.code}: {error.detail}")
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
                await asyncio.sleep(min(PAUSE_SECONDS, self._retry))  # the aggregator may answer at once

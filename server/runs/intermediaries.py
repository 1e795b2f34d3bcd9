"""Defines the intermediaries as the server calls them, and tells them what is over.

Log event: `housekeeping_delayed`, when an intermediary or the disk was away; the next turn tries again.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from distrust.common.errors import ProtocolError
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import DeliveryList, StatementList
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.wire import INTERMEDIARIES, Via
from distrust.server.runs.known_runs import KnownRuns

TURN_SECONDS = 1.0
"""Pause between two turns."""

_log = structlog.get_logger("distrust.server")


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

    async def delivered(self, run_digest: bytes, via: Via, after: int) -> DeliveryList:
        """Return what an intermediary has released of the run with digest R, from position `after` on."""
        ...

    async def collect(self, cohort: Cohort, *, opening: bool) -> BatchAnswer:
        """Return the batch, or why there is none; may wait before it answers `waiting`. `opening`: open it before."""
        ...

    async def settle(self, run_digest: bytes, via: Via, cohorts: Sequence[str]) -> None:
        """Tell an intermediary that these cohorts of the run with digest R are collected no more."""
        ...

    async def prune(self, run_digest: bytes, via: Via) -> None:
        """Have an intermediary delete all that it has of the run with digest R."""
        ...


class Housekeeper:
    """Runs beside the coordinator. Every step may be repeated, and a restart goes on."""

    def __init__(self, runs: KnownRuns, intermediaries: Intermediaries) -> None:
        self._runs, self._intermediaries = runs, intermediaries

    async def keep_house(self) -> None:
        """Take turns until it is cancelled."""
        while True:
            try:
                await self.turn()
            except Exception as error:  # noqa: BLE001  a full disk must not keep batches for good
                _log.warning("housekeeping_delayed", why=str(error), exc_info=not isinstance(error, ProtocolError))
            await asyncio.sleep(TURN_SECONDS)

    async def turn(self) -> None:
        """Scrub what is due, and tell what is over. An intermediary that is away keeps nothing else waiting."""
        await asyncio.to_thread(self._scrub)
        for fault in await asyncio.gather(*map(self._tell, INTERMEDIARIES), return_exceptions=True):
            if fault is not None:
                raise fault

    async def _tell(self, via: Via) -> None:
        """Tell one intermediary which cohorts are over. The first fault ends its part of a turn."""
        for run, cohorts in (await asyncio.to_thread(self._runs.keeping.untold, via)).items():
            stored = await asyncio.to_thread(self._runs.keeping.stored, run)
            if run in stored:  # else it was pruned just now
                await self._intermediaries.settle(stored[run].run_digest, via, cohorts)
                await asyncio.to_thread(self._runs.keeping.told, cohorts)

    async def prune(self, run: str) -> Tombstone:
        """Delete what a finished run left: at both intermediaries first, then here. Return what is left.

        Idempotent; after an error the same call goes on. The intermediaries are asked again for a run that was pruned:
        one that was restored from an older copy has it again. Raises Conflict for a running one, WrongCohort,
        Unavailable.
        """
        known = await asyncio.to_thread(self._runs.pruned, run)
        digest = known.run_digest if known is not None else await asyncio.to_thread(self._runs.prunable, run)
        for via in INTERMEDIARIES:
            await self._intermediaries.prune(digest, via)
        if known is not None:
            return known
        tombstone = await asyncio.to_thread(self._runs.prune, run, digest)
        await asyncio.to_thread(self._scrub)  # what was deleted is in SQLite's log until then
        return tombstone

    def _scrub(self) -> None:
        """Scrub the batches that are due. A restart reads those of open streams again."""
        self._runs.keeping.scrub(self._runs.needed())

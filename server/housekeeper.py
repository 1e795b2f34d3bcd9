"""Tells intermediaries which cohorts are over, scrubs batches, and prunes runs at all three services.

Log event: `housekeeping_delayed`, when an intermediary or the disk was away; the next turn tries again.
"""

import asyncio

import structlog

from distrust.common.errors import ProtocolError
from distrust.common.run.listing import Tombstone
from distrust.server.intermediaries import Intermediaries
from distrust.server.service import Service

TURN_SECONDS = 1.0
"""Pause between two turns."""

_log = structlog.get_logger("distrust.server")


class Housekeeper:
    """Runs beside the coordinator. Every step may be repeated, and a restart goes on."""

    def __init__(self, service: Service, intermediaries: Intermediaries) -> None:
        self._service, self._intermediaries = service, intermediaries

    async def keep_house(self) -> None:
        """Take turns until it is cancelled."""
        while True:
            try:
                await self.turn()
            except Exception as error:  # noqa: BLE001  a full disk must not keep batches for good
                _log.warning("housekeeping_delayed", why=str(error), exc_info=not isinstance(error, ProtocolError))
            await asyncio.sleep(TURN_SECONDS)

    async def turn(self) -> None:
        """Tell what is over, and scrub what is due. An intermediary that is away keeps nothing else waiting."""
        fault: ProtocolError | None = None
        for (run, via), cohorts in (await asyncio.to_thread(self._service.keeping.untold)).items():
            stored = await asyncio.to_thread(self._service.keeping.stored, run)
            try:
                if run in stored:  # else it was pruned just now
                    await self._intermediaries.settle(stored[run].run_digest, via, cohorts)
                    await asyncio.to_thread(self._service.keeping.told, cohorts)
            except ProtocolError as error:
                fault = error
        await asyncio.to_thread(self._scrub)
        if fault is not None:
            raise fault

    async def prune(self, run: str) -> Tombstone:
        """Delete what a finished run left: at its intermediaries first, then here. Return what is left.

        Idempotent; after an error the same call goes on. Raises Conflict for a running one, WrongCohort, Unavailable.
        """
        known = await asyncio.to_thread(self._service.pruned, run)
        if known is not None:
            return known
        digest, parties = await asyncio.to_thread(self._service.prunable, run)
        for via in sorted(parties):
            await self._intermediaries.prune(digest, via)
        tombstone = await asyncio.to_thread(self._service.prune, run)
        await asyncio.to_thread(self._scrub)  # what was deleted is in SQLite's log until then
        return tombstone

    def _scrub(self) -> None:
        """Scrub the batches that are due. Those of a stream are read again after a restart, while their run goes on."""
        running = [active.config for active in self._service.running()]
        self._service.keeping.scrub([config.run for config in running if config.mechanism.batches is not None])

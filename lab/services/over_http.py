"""Plays a run over the real services: creates it, lets fleets play it, and watches it to its end."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from distrust.common.errors import Conflict, ProtocolError, Refused, RunFailed, Unavailable
from distrust.common.protocol.messages.status import CohortList
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import RegretCurve, RoundReport
from distrust.common.protocol.web.client import Http, Patience, Peer
from distrust.lab.play.progress import Progress, Standings
from distrust.lab.play.result import Result, Wire, most_common
from distrust.lab.play.run_file import RunFile
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.services.replay import finished, result_of
from distrust.lab.stack.stack import Urls

LOOK_SECONDS = 0.5  # between two looks at a run and its fleets
PATIENCE = Patience(first=0.25, longest=5.0, total=60.0)
LAST_WORDS_SECONDS = 30.0  # for fleets to notice that the run is over


@dataclass
class HttpRun:
    """One run file over running services.

    fleets  the processes that play it; None when fleets play it that this process did not start.
    alive   called at every look; raises when a service of the local stack has died.
    post_regret  whether the server gets the regret curve, for readers of its pages. It tells about the true means.
    """

    file: RunFile
    urls: Urls
    fleets: Fleets | None
    progress: Progress
    alive: Callable[[], None] = lambda: None
    post_regret: bool = False

    async def run(self) -> Result:
        """Create the run, or join it, watch it to its end, and return the result.

        Raises RunFailed when it fails or is cancelled, Unavailable when a service or every fleet is gone.
        """
        async with Http(PATIENCE) as http:
            self._server = http.peer(self.urls.server, self.urls.token)
            self._parties = {
                "aggregator": http.peer(self.urls.aggregator, self.urls.token),
                "shuffler": http.peer(self.urls.shuffler, self.urls.token),
            }
            view = await create(self._server, self.file)
            if view.state != "running" and self.fleets is None:  # a watcher that comes late gets the result
                return await result_of(self._server, self.file, finished(view))
            if view.state != "running":
                why = "give this one another name (key run, option --name)"
                raise Conflict(f"run {view.run} is {view.state} already; {why}")
            began = time.perf_counter()
            with self.fleets or contextlib.nullcontext():
                view = await self._watched()
                seconds = time.perf_counter() - began
                wire = await self._wire()
            result = await result_of(self._server, self.file, view, seconds=seconds, wire=wire)
            if self.post_regret:
                regret = RegretCurve(curve=result.regret.curve)
                await self._server.put(f"/v1/runs/{view.run}/regret", regret, RegretCurve)
            return result

    async def _watched(self) -> RunView:
        """Return the run's view once it is over. An error carries the reasons of clients that refused."""
        try:
            return await self._watch()
        except RunFailed as error:
            raise RunFailed(error.detail + _why(await self._wire())) from error
        except Unavailable as error:
            wire = None if self.fleets is None else self.fleets.wire()  # fleets may go on: no waiting for their reports
            raise Unavailable(error.detail + _why(wire)) from error

    async def _watch(self) -> RunView:
        """Return the run's view once it is over."""
        with self.progress.running():
            while True:
                deserted = self.fleets is not None and not self.fleets.running  # looked at first
                view = await self._server.get(f"/v1/runs/{self.file.config.run}", RunView)
                await self._show(view)
                if view.state != "running":
                    return finished(view)
                self._check(deserted=deserted)
                await asyncio.sleep(LOOK_SECONDS)

    def _check(self, *, deserted: bool) -> None:
        self.alive()
        if self.fleets is not None:
            self.fleets.check()
        if deserted:
            raise Unavailable("every fleet has ended, and the run has not")

    async def _show(self, view: RunView) -> None:
        report = await self._server.get(f"/v1/runs/{view.run}/rounds/{max(1, view.snapshot.round)}", RoundReport)
        self.progress.show(view, report, await _standings(self._parties[report.mechanism.via]))

    async def _wire(self) -> Wire | None:
        """Return the fleets' counts, once they have noticed that the run is over."""
        if self.fleets is None:
            return None
        await asyncio.to_thread(self.fleets.wait, LAST_WORDS_SECONDS)
        return self.fleets.wire()


async def _standings(party: Peer) -> Standings:
    """Return the open cohorts' states at an intermediary; empty if it fails, because this is for display only."""
    with contextlib.suppress(ProtocolError):
        return {entry.cohort: entry for entry in (await party.get("/v1/cohorts", CohortList, {"open": "true"})).cohorts}
    return {}


def _why(wire: Wire | None) -> str:
    """Return clients' reasons for refusing, as the rest of an error's line; empty when none refused."""
    refusals = {} if wire is None else wire.refusals
    reasons = [(why.removeprefix(f"{Refused.code}: "), clients) for why, clients in most_common(refusals)]
    return "".join(f"; {clients:,} clients refused: {why}" for why, clients in reasons)


async def create(server: Peer, file: RunFile) -> RunView:
    """Create a run at the server, and return it; the same run again is the one that is there already."""
    try:
        return await server.post("/v1/runs", file.config, RunView)
    except ProtocolError as error:
        missing = [extension.name for extension in file.extensions if repr(extension.name) in error.detail]
        if missing:
            raise Unavailable(f"the server cannot use {', '.join(missing)}: {error.detail}") from error
        raise

"""A run over the real services: create it, let fleets play it, watch it, and add up what came out."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import Conflict, ProtocolError, Unavailable
from common.messages.listing import CohortList
from common.messages.progress import Ledger, RoundList, RoundReport, RunView
from common.web.client import Http, Patience, Peer
from lab.fleets import Fleets
from lab.progress import Progress, Standings
from lab.replay import replayed
from lab.result import Result, Wire, from_report, summarize
from lab.run_file import RunFile
from lab.stack import Urls

LOOK_SECONDS = 0.5
PATIENCE = Patience(first=0.25, longest=5.0, total=60.0)
LAST_WORDS_SECONDS = 30.0  # for fleets to notice that the run is over


@dataclass
class Play:
    """One run file over running services.

    fleets  the processes that play it; None when somebody else's fleets do.
    alive   called at every look; raises when a service of ours has died.
    """

    file: RunFile
    urls: Urls
    fleets: Fleets | None
    progress: Progress
    alive: Callable[[], None] = lambda: None

    async def run(self) -> Result:
        """Create the run, or join it where it stands, and see it to its end. Raises when it fails or is cancelled."""
        async with Http(PATIENCE) as http:
            self._server = http.peer(self.urls.server, self.urls.token)
            self._parties = {
                "aggregator": http.peer(self.urls.aggregator, self.urls.token),
                "shuffler": http.peer(self.urls.shuffler, self.urls.token),
            }
            await self._create()
            began = time.perf_counter()
            with self.fleets or contextlib.nullcontext():
                view = await self._watch()
                seconds = time.perf_counter() - began
                wire = await self._wire()
            reports = await all_rounds(self._server, view.run)
            rounds, events = [from_report(report) for report in reports], replayed(self.file, reports, view.snapshot)
            spent = (await self._server.get(f"/v1/runs/{view.run}/ledger", Ledger)).classes
            return summarize(self.file, "http", view.snapshot, rounds, events, spent=spent, seconds=seconds, wire=wire)

    async def _create(self) -> None:
        view = await self._server.post("/v1/runs", self.file.config, RunView)
        if view.state != "running":
            raise Conflict(f"run {view.run} is {view.state} already; give this one another name: --name")

    async def _watch(self) -> RunView:
        """Look until the run is over."""
        with self.progress.shown():
            while True:
                deserted = self.fleets is not None and not self.fleets.running  # looked at first
                view = await self._server.get(f"/v1/runs/{self.file.config.run}", RunView)
                await self._show(view)
                if view.state != "running":
                    return _finished(view)
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
        """What the fleets counted, once they have noticed that the run is over."""
        if self.fleets is None:
            return None
        await asyncio.to_thread(self.fleets.wait, LAST_WORDS_SECONDS)
        return self.fleets.wire()


async def all_rounds(server: Peer, run: str) -> list[RoundReport]:
    """Every round of a run, page by page."""
    rounds: list[RoundReport] = []
    after: int | None = 0
    while after is not None:
        page = await server.get(f"/v1/runs/{run}/rounds", RoundList, {"after": after})
        rounds += page.rounds
        after = page.next
    return rounds


async def _standings(party: Peer) -> Standings:
    """Where S is with its open cohorts; nothing when it cannot say, for this is only shown."""
    with contextlib.suppress(ProtocolError):
        return {entry.cohort: entry for entry in (await party.get("/v1/cohorts", CohortList, {"open": "true"})).cohorts}
    return {}


def _finished(view: RunView) -> RunView:
    if view.state == "finished":
        return view
    raise Unavailable(f"run {view.run} {view.state}: {view.reason}")

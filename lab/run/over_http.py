"""A run over the real services: create it, let fleets play it, watch it, and add up what came out."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from distrust.common.errors import Conflict, ProtocolError, Refused, RunFailed, Unavailable
from distrust.common.messages.status import CohortList
from distrust.common.run.progress import LedgerView, RoundList, RoundReport, RunView
from distrust.common.web.client import Http, Patience, Peer
from distrust.lab.run.fleet_processes import Fleets
from distrust.lab.run.progress import Progress, Standings
from distrust.lab.run.replay import replayed
from distrust.lab.run.result import Result, Wire, from_report, summarize
from distrust.lab.run.result_table import most
from distrust.lab.run.run_file import RunFile
from distrust.lab.stack.stack import Urls

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
        """Create the run, or join it where it stands, and see it to its end.

        Raises RunFailed when it fails or is cancelled, Unavailable when a service or every fleet is gone.
        """
        async with Http(PATIENCE) as http:
            self._server = http.peer(self.urls.server, self.urls.token)
            self._parties = {
                "aggregator": http.peer(self.urls.aggregator, self.urls.token),
                "shuffler": http.peer(self.urls.shuffler, self.urls.token),
            }
            await self._create()
            began = time.perf_counter()
            with self.fleets or contextlib.nullcontext():
                view = await self._seen_to_its_end()
                seconds = time.perf_counter() - began
                wire = await self._wire()
            reports = await all_rounds(self._server, view.run)
            rounds, events = [from_report(report) for report in reports], replayed(self.file, reports, view.snapshot)
            spent = (await self._server.get(f"/v1/runs/{view.run}/ledger", LedgerView)).classes
            return summarize(self.file, "http", view.snapshot, rounds, events, spent=spent, seconds=seconds, wire=wire)

    async def _create(self) -> None:
        try:
            view = await self._server.post("/v1/runs", self.file.config, RunView)
        except ProtocolError as error:
            missing = [one.name for one in self.file.extensions if repr(one.name) in error.detail]
            if missing:
                raise Unavailable(f"the server cannot use {', '.join(missing)}: {error.detail}") from error
            raise
        if view.state != "running":
            raise Conflict(f"run {view.run} is {view.state} already; give this one another name: --name")

    async def _seen_to_its_end(self) -> RunView:
        """Look until the run is over. What it fails with carries the reasons of clients that refused."""
        try:
            return await self._watch()
        except RunFailed as error:
            raise RunFailed(error.detail + _why(await self._wire())) from error
        except Unavailable as error:
            told = None if self.fleets is None else self.fleets.wire()  # other fleets may go on: nothing to wait for
            raise Unavailable(error.detail + _why(told)) from error

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


def _why(wire: Wire | None) -> str:
    """Return why clients refused, as more of an error's line; nothing when none did."""
    refusals = {} if wire is None else wire.refusals
    told = [(why.removeprefix(f"{Refused.code}: "), clients) for why, clients in most(refusals)]
    return "".join(f"; {clients:,} clients refused: {why}" for why, clients in told)


def _finished(view: RunView) -> RunView:
    if view.state == "finished":
        return view
    how = "was cancelled" if view.state == "cancelled" else "failed"
    raise RunFailed(f"run {view.run} {how}: {view.reason}")

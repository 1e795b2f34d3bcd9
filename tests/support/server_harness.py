"""A server's logic and its coordinator on a database file; intermediaries and clients in memory; no HTTP."""

import asyncio
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distrust.common.errors import WrongStage
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import TicketAnswer
from distrust.server.reading.reader import Reader
from distrust.server.runs.coordinator import RunCoordinator
from distrust.server.runs.service import Service
from distrust.server.storage.keys import KeyFolder, Keys
from distrust.server.storage.store import open_database
from tests.support.in_memory_intermediaries import InMemoryClients, InMemoryIntermediaries

REWARDS = [[0.0, 0.25], [0.5, 0.5], [1.0, 0.75]]
MECHANISMS: list[dict[str, Any]] = [
    {"name": "distributed-polya", "epsilon": 2.0},
    {"name": "distributed-skellam", "epsilon": 2.0},
    {"name": "central-laplace-discrete", "epsilon": 2.0, "via": "aggregator"},
    {"name": "local-laplace-discrete", "epsilon": 2.0, "via": "shuffler"},
    {"name": "shuffled-binomial", "epsilon": 2.0, "delta": 1e-3, "precision": 4},
    {"name": "identity"},
]


def config(run: str = "demo", **changes: Any) -> RunConfig:
    whole: dict[str, Any] = {
        "run": run,
        "arms": 3,
        "horizon": 800,
        "mechanism": {"name": "distributed-polya", "epsilon": 2.0},
        "policy": {"first_batch": 5},
        "unsafe": {"noise_seed": 1},
    }
    return RunConfig.model_validate(whole | changes)


def key_folder(path: Path) -> KeyFolder:
    """Return the keys of a server whose database is in this folder."""
    folder = KeyFolder(path / "server.keys")
    folder.make(())
    return folder


def noted_keys(tap: pytest.MonkeyPatch) -> dict[bytes, Keys]:
    """Return by R the keys that servers write from now on, also after they are destroyed."""
    noted, write = dict[bytes, Keys](), KeyFolder.write

    def noting(self: KeyFolder, run_digest: bytes, keys: Keys) -> None:
        noted[run_digest] = keys
        write(self, run_digest, keys)

    tap.setattr(KeyFolder, "write", noting)
    return noted


class ServerHarness:
    """A server's logic on a database file, with intermediaries in memory. A test may stop it and build it again."""

    def __init__(self, path: Path, intermediaries: InMemoryIntermediaries, window: int = 8192) -> None:
        self.intermediaries, self.rung = intermediaries, list[str]()
        self.database = open_database(f"sqlite:///{path}/server.sqlite3")
        self.keys = key_folder(path)
        self.service = Service(self.database, self.keys, self.rung.append, window)
        self.reader = Reader(self.service)
        self.coordinator = RunCoordinator(self.service, intermediaries, retry=0.001)

    async def ask(
        self, run: str, want: int = 64, request: str | None = None, number: int | None = None
    ) -> TicketAnswer:
        number = number or len(self.service.active_run(run).learner.rounds)
        masked = any(cohort.via == "aggregator" for cohort in self.service.active_run(run).pending())
        name, keys = request or secrets.token_hex(16), bytes(32 * want) if masked else b""
        wanted = TicketRequest(request=name, round=number, want=want, keys=keys)
        return await self.coordinator.tickets(run, wanted)

    async def wait(self, run: str, want: int = 64, request: str | None = None) -> TicketAnswer:
        """Request tickets of whichever round is open, and wait as the route does. Return them, or the run's end."""
        masked = self.service.active_run(run).config.mechanism.name.startswith("distributed")
        keys = bytes(32 * want) if masked else b""
        wanted = TicketRequest(request=request or secrets.token_hex(16), round=0, want=want, keys=keys)
        rung, answer = len(self.rung), await self.coordinator.tickets(run, wanted)
        with self.coordinator.places.waiting(run, wanted) as place:
            while not answer.grants and answer.view is not None and answer.view.round is not None:
                while len(self.rung) == rung:  # noqa: ASYNC110  the harness has no event for it
                    await asyncio.sleep(0.001)
                rung = len(self.rung)
                if place.served or self.reader.standing(run)[0] == math.inf:
                    answer = place.leave() or await self.coordinator.tickets(run, wanted)
            return answer

    def waiting(self, run: str) -> int:
        """Return how many requests wait for tickets."""
        return len(self.coordinator.places._waiting.get(run, []))

    async def play_waiting(self, run: str, clients: InMemoryClients) -> RunView:
        """Serve clients that wait for each round's tickets, until the run is over."""
        while (tickets := await self.wait(run)).view is not None and tickets.view.round is not None:
            await self.until_open(tickets)
            clients.answer(tickets.view.round, tickets)
            await asyncio.sleep(0.001)
        return self.reader.view(run)

    async def until_open(self, tickets: TicketAnswer) -> None:
        """Wait until the tickets' cohorts are open, as clients do whose messages are faster."""
        while not {one.cohort for one in tickets.grants} <= self.intermediaries.held.keys():  # noqa: ASYNC110  no event
            await asyncio.sleep(0.001)

    async def play(self, run: str, clients: InMemoryClients, until: int = 10**9) -> RunView:
        """Serve clients until the run is over, or round `until` is open."""
        while True:
            view = self.reader.round_view(run)
            if view.round is None or view.round.number >= until:
                return self.reader.view(run)
            with suppress(WrongStage):  # the next round may have opened since `round_view`
                tickets = await self.ask(run)
                round_ = self.reader.round_view(run).round
                if tickets.grants and round_ is not None:  # an outcome may have ended the run meanwhile
                    clients.answer(round_, tickets)
            await asyncio.sleep(0.001)

    async def stop(self) -> None:
        await self.coordinator.stop()
        self.database.close()


def serve(harness: ServerHarness, run: str, clients: InMemoryClients, until: int = 10**9) -> RunView:
    async def whole() -> RunView:
        try:
            return await asyncio.wait_for(harness.play(run, clients, until), 240)
        finally:
            await harness.coordinator.stop()

    return asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110  the harness has no event for it
            await asyncio.sleep(0.001)


async def fill_first_round(harness: ServerHarness) -> Callable[[], int]:
    """Create a run, and play its first round but for the last cohort's messages. Return what sends them."""
    harness.service.create(config())
    clients = InMemoryClients(harness.intermediaries, REWARDS)
    round_ = harness.reader.round_view("demo").round
    assert round_ is not None
    *grants, last = (await harness.ask("demo", 96)).grants
    clients.answer(round_, TicketAnswer(grants=grants))
    await until(lambda: len(harness.service.store.outcomes("demo")) == len(grants))
    return lambda: clients.answer(round_, TicketAnswer(grants=[last]))


async def play_first_round(harness: ServerHarness) -> None:
    """Play the first round, and wait until its outcomes are committed."""
    (await fill_first_round(harness))()
    await until(lambda: len(harness.service.active_run("demo").learner.rounds) == 2)


def unnamed(view: RunView) -> RunView:
    """Return a view without the run's random id, in which two runs of one configuration differ."""
    return view.model_copy(update={"run_id": b""})


def slots(answer: TicketAnswer) -> list[tuple[str, int, int]]:
    return [(grant.cohort, grant.first, grant.count) for grant in answer.grants]

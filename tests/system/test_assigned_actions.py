"""Tests that assigned actions have the in-process driver's sums over real processes, if clients leave or die too."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from secrets import token_bytes

import numpy as np
import pytest
from rich.console import Console

from distrust.client.cohort.departures import NEVER
from distrust.client.cohort.protocols import ShuffleProtocol
from distrust.client.cohort.randomizer import CohortRandomizer, World
from distrust.client.cohort.session import CohortSession, Worker
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import Uploader
from distrust.client.cohort.user import Own, User, granted, own_hash
from distrust.client.transport.http import Addresses, HttpTransport, patience, token_proof
from distrust.common.protocol.crypto.receipts import RECEIPT_SECRET
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import RoundReport
from distrust.common.protocol.run.round import Round
from distrust.common.protocol.web.client import Http
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile
from distrust.lab.services.outline import Wanted
from distrust.lab.services.transcripts import gather, print_party_views
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from tests.support.forked import forking
from tests.support.http_runs import learned, over_http, seeded_run

pytestmark = pytest.mark.slow

MECHANISMS = {
    "shuffled-laplace": "epsilon = 1.0\ndelta = 1e-3",
    "shuffled-sphere": "epsilon = 1.0\ndelta = 1e-3",
    "central-laplace-discrete": "epsilon = 5.0",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with forking(), Stack(DataDir(Path(tmp_path_factory.mktemp("stack"))), 0) as running:
        yield running


def run_file(name: str, mechanism: str, horizon: int = 1500, more: str = "") -> RunFile:
    """Return a run of shuffled actions, whose clients leave at every stage."""
    return seeded_run(
        name,
        horizon=horizon,
        policy=f'name = "almost-free"\nmodel = "shuffled"\n{more}',
        mechanism=f'name = "{mechanism}"\n{MECHANISMS[mechanism]}',
        world='name = "linear-sphere"\narms = 6',
    )


@pytest.mark.parametrize("core_set", [True, False], ids=["core-set", "no-core-set"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.few(1)
def test_shuffled_actions_give_the_same_sums_in_process_and_over_http(
    stack: Stack, mechanism: str, *, core_set: bool
) -> None:
    reports = str(core_set).lower()
    file = run_file(f"dealt-{mechanism}-{reports}", mechanism, more=f"core_set = {reports}")
    here, there = in_process.run(file), over_http(stack, file)
    assert learned(there) == learned(here)
    assert len(here.rounds) >= 5
    for record in here.rounds:
        assert record.decision.kind == "assigned-action"
        assert (record.cohorts[0].arm, record.cohorts[0].clients) == (None, sum(record.decision.times))
    last = here.rounds[-1].cohorts[0]
    assert last.survivors is not None
    assert 0 < last.survivors < last.clients


def test_the_shuffler_is_killed_between_the_play_and_the_report(stack: Stack) -> None:
    """Its clients ask again and get the same plays. The round's sums are those of the in-process driver."""
    file = run_file("killed", "shuffled-laplace", more="core_set = false")
    report = asyncio.run(_first_round(file, stack))
    here = in_process.run(RunFile(file.config, file.environment, file.fleet.model_copy(update={"dropout": 0.0})))
    assert (report.cohorts[0].state, report.cohorts[0].lost) == ("released", 0)
    assert report.cohorts[0].estimate == here.rounds[0].cohorts[0].estimate


async def _first_round(file: RunFile, stack: Stack) -> RoundReport:
    """Play all clients of the first round with a kill of the shuffler in between, and return the server's report."""
    assert file.config.unsafe is not None
    assert file.environment.seed is not None
    addresses = Addresses(stack.urls.server, stack.urls.shuffler, stack.urls.aggregator)
    world = World(file.world(), file.environment.seed, file.config.unsafe.noise_seed)
    async with Http(patience(30)) as http:
        operator = http.peer(stack.urls.server, stack.urls.token)
        await operator.post("/v1/runs", file.config, RunView)
        transport = HttpTransport(http, addresses, file.config.run, token_proof(stack.urls.participation or ""))
        round_ = (await transport.round(0, 10)).round
        assert round_ is not None
        users = await _users(round_, transport)
        with Worker() as worker:
            sessions = [_session(round_, world, transport, worker) for _ in range(2)]
            await sessions[0].join(users, full=False)
            items = await sessions[0].begin(users, asyncio.sleep(0))
            before = await sessions[0].uploader.request_actions(sessions[0].cohort, users)
            await sessions[0].open(items[:5])
            stack.restart("shuffler")  # in this thread: a service lives no longer than the thread that started it
            again = await sessions[1].uploader.request_actions(sessions[1].cohort, users[5:])
            assert again == {user.slot: before[user.slot] for user in users[5:]}
            await sessions[1].join(users[5:], full=False)
            await sessions[1].open(await sessions[1].begin(users[5:], asyncio.sleep(0)))
            await asyncio.gather(*(session.follow() for session in sessions))
        path = f"/v1/runs/{file.config.run}/rounds/1"
        for _ in range(300):
            report = await operator.get(path, RoundReport)
            if report.cohorts[0].state != "open":
                break
            await asyncio.sleep(0.1)
        await operator.delete(f"/v1/runs/{file.config.run}", RunView)
        return report


async def _users(round_: Round, transport: HttpTransport) -> list[User]:
    clients = round_.assignments[0].cohort.clients
    own: list[Own] = [token_bytes(RECEIPT_SECRET) for _ in range(clients)]
    hashes = b"".join(map(own_hash, own))
    answer = await transport.tickets(TicketRequest(request="0" * 32, round=1, want=clients, keys=hashes), 0.0)
    assert [(grant.first, grant.count) for grant in answer.grants] == [(0, clients)]
    return granted(answer.grants[0], np.full(clients, NEVER), own)


def _session(round_: Round, world: World, transport: HttpTransport, worker: Worker) -> CohortSession:
    protocol = ShuffleProtocol(CohortRandomizer(round_, round_.assignments[0], world))
    return CohortSession(round_.assignments[0].cohort, protocol, Uploader(transport, FleetStats()), worker, 512)


def test_inspect_shows_who_plays_what_to_the_shuffler_alone(stack: Stack) -> None:
    """The shuffler's transcript names each client with its action. The server's has records by action, no client."""
    file = run_file("looked-at", "central-laplace-discrete", horizon=200)
    over_http(stack, file)
    (sight,) = asyncio.run(gather(stack.urls, Wanted("looked-at", 1, None, 1000)))
    reports = [seen for seen in sight.by_intermediary.messages if seen.stage == "report"]
    assert {seen.view["action"] for seen in reports} <= set(range(file.config.arms))
    assert all(seen.peer.startswith("client ") for seen in reports)
    assert not [seen for seen in sight.by_server.messages if "action" in seen.view or "client" in seen.peer]
    (batch,) = [seen for seen in sight.by_server.messages if seen.stage == "batch"]
    assert isinstance(batch.view["by_action"], list)
    assert sum(map(int, batch.view["by_action"])) == len(reports)
    text = io.StringIO()
    print_party_views([sight], Console(file=text, width=400, color_system=None))
    assert "order" in text.getvalue()
    assert "by action" in text.getvalue()

"""Tests of services that forget: a restored server, and a shuffler without its database, ask the same clients again.

No service can notice: the server's copy has no trace of the cohort, and the shuffler lists no delivery. The clients
can: their file has the slots that they held. Over real services, without sockets.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.cohort.randomizer import World
from distrust.client.environments import build_environment, read_spec
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.fleet.memory import Memory
from distrust.client.transport.http import Addresses, HttpTransport, patience, token_proof
from distrust.common.errors import Refused
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.web.client import Http
from tests.support.asgi import OverHttpx
from tests.support.recording import PARTICIPATION, PARTIES, TOKEN, Exchange, RecordingTransport, services

CLIENTS = 32
CONFIG = RunConfig.model_validate(
    {
        "run": "run",
        "arms": 2,
        "horizon": 2 * CLIENTS,
        "policy": {"name": "successive-elimination", "first_batch": 5},
        "mechanism": {"name": "local-laplace-discrete", "epsilon": 1.0, "via": "shuffler"},
        "intermediary": {"dropout": 0.1, "minimum": 16},
    }
)
WORLD = World(build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": 5})), 5)


async def _created(databases: dict[str, Path]) -> None:
    async with services(databases, []) as (_, operator):
        await operator.peer("http://server", TOKEN).post("/v1/runs", CONFIG, RunView)


async def _played(databases: dict[str, Path], exchanges: list[Exchange], memory: Memory) -> Fleet:
    """Let a fleet serve the run as long as it does, and return it."""
    async with services(databases, exchanges) as (apps, _):
        wire = RecordingTransport("fleet", apps, exchanges)
        addresses = Addresses(*(f"http://{party}" for party in PARTIES))
        http = Http(patience(20), sender=OverHttpx(wire))
        transport = HttpTransport(http, addresses, "run", token_proof(PARTICIPATION))
        fleet = Fleet(transport, WORLD, PrivacyRequirements(), FleetOptions(block=2 * CLIENTS), memory)
        await asyncio.wait_for(fleet.serve(), 60)
        return fleet


def _reports(exchanges: list[Exchange]) -> int:
    return sum(exchange.url.path.endswith("/reports") and exchange.caller == "fleet" for exchange in exchanges)


def test_clients_are_not_released_a_second_time_after_server_and_shuffler_went_back(tmp_path: Path) -> None:
    """Clients that forget are: all 64 report again, and their run finishes a second time. Those with a file refuse.

    The copy has the key file of the run, which was open: without it nothing would open a second time.
    """
    databases = {name: tmp_path / f"{name}.sqlite3" for name in PARTIES}
    file, copy = tmp_path / "clients.sqlite3", tmp_path / "copy"
    asyncio.run(_created(databases))
    keys = "server.sqlite3.keys"
    shutil.copytree(tmp_path / keys, copy / keys)
    # With its log: a thread that ends late may keep SQLite from taking the log into the file.
    copied = [shutil.copy(path, copy) for path in tmp_path.glob("server.sqlite3*") if path.is_file()]

    def go_back() -> None:
        shutil.rmtree(tmp_path / keys)
        for path in [*tmp_path.glob("server.sqlite3*"), *tmp_path.glob("shuffler.sqlite3*")]:
            path.unlink()
        shutil.copytree(copy / keys, tmp_path / keys)
        for path in copied:
            shutil.copy(path, tmp_path)

    first, second, third = ([] for _ in range(3))
    fleet = asyncio.run(_played(databases, first, Memory(file)))
    assert (fleet.stats.clients["served"], _reports(first)) == (2 * CLIENTS, 2)
    go_back()
    forgetting = asyncio.run(_played(databases, second, Memory()))
    assert (forgetting.stats.clients["served"], _reports(second)) == (2 * CLIENTS, 2)
    go_back()
    with pytest.raises(Refused, match=r"slots 0 to 31 of cohort run\.1\.[01]\.1 a second time: each client takes part"):
        asyncio.run(_played(databases, third, Memory(file)))
    assert _reports(third) == 0

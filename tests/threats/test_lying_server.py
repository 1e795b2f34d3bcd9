"""Tests of a server that tells one fleet another round: each field, on each channel.

The server lies over HTTP to one fleet alone. That fleet refuses before it sends a message, its reason names the field,
and an honest fleet finishes the run. Sealed reports may be sent, and the shuffler refuses them unread. `plain` changes
one field to another legal value. `consistent` also fits the cohort's channel and terms to it, so that the round agrees
with itself.
"""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from distrust.client.cohort.randomizer import World
from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.contextual import GeneralizedLinear
from distrust.client.fleet.fleet import FleetOptions
from distrust.common.errors import Conflict, ProtocolError
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import RoundView
from distrust.common.protocol.web.client import Peer
from distrust.common.specs.contextual import ContextualPolicySpec
from tests.support.limits import lenient
from tests.support.picked import picked
from tests.support.recording import PARTIES, SEED, TOKEN, Exchange, RecordingTransport, Tamper, fleet_over, services
from tests.support.server_lies import (
    ACTIONS,
    CHANNEL,
    FIRST,
    UNREADABLE,
    EarlyRounds,
    Path_,
    field_of,
    leaves,
    lie,
    lie_of_config,
    names,
    names_of_config,
    tampered_view,
)

pytestmark = pytest.mark.slow

WEIGHTS = [1.0, 0.5]
MULTI = {"parameters": "multi", "link": "logistic", "weights": WEIGHTS}
ELIMINATION = {"name": "successive-elimination", "first_batch": 5}
CHANNELS: dict[str, dict[str, Any]] = {
    "masked": {"mechanism": {"name": "distributed-polya"}, "policy": ELIMINATION},
    "masked-rdp": {"mechanism": {"name": "distributed-skellam", "delta": 1e-3}, "policy": ELIMINATION},
    "sealed": {"mechanism": {"name": "local-laplace-discrete", "via": "shuffler"}, "policy": ELIMINATION},
    "bits": {"mechanism": {"name": "shuffled-binomial", "delta": 1e-3}, "policy": ELIMINATION},
    "assigned": {
        "mechanism": {"name": "shuffled-laplace", "delta": 1e-3, "precision": 1000},
        "policy": {"name": "almost-free", "model": "shuffled", "actions": ACTIONS},
    },
    "contexts-masked": {
        "mechanism": {"name": "distributed-discrete-gaussian", "delta": 1e-3},
        "policy": {"name": "linucb", "features": 2, "batch": 24},
    },
    "contexts-bits": {
        "mechanism": {"name": "shuffled-binomial", "delta": 1e-3},
        "policy": {"name": "linucb", "features": 2, "batch": 24},
    },
    "contexts-alone": {
        "mechanism": {"name": "local-gaussian", "delta": 1e-3, "via": "shuffler"},
        "policy": {"name": "ldp-gloc", "features": 2},
        "intermediary": {"minimum": 1},
        "horizon": 6,
        "first": 2,
    },
    "contexts-blocks": {
        "mechanism": {"name": "local-sphere", "via": "shuffler"},
        "policy": {"name": "ldp-sgd", "features": 2, "batch": 5, "warm_up": 2, "margin": 0.1, **MULTI},
        "intermediary": {"minimum": 2, "dropout": 0.25},
        "horizon": 20,
        "first": 3,
    },
}
"""The fields of a run on each channel. `first`: the round that a lie is about; honest clients play those before."""
WORLD = World(build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": SEED})), SEED)
CONTEXTS = {"name": "glm-sphere", "arms": 2, "dimension": 2, "seed": SEED}
KEY_OF = {
    "masked": "modulus",
    "masked-rdp": "dimension",
    "sealed": "server_key",
    "bits": "width",
    "assigned": "server_key",
    "contexts-masked": "modulus",
    "contexts-bits": "labels",
    "contexts-alone": "server_key",
    "contexts-blocks": "server_key",
}
"""A field of each channel."""

FIXED: dict[str, set[Path_]] = {
    "contexts-masked": {("policy", "parameters"), ("policy", "link")},
    "contexts-bits": {("policy", "parameters"), ("policy", "link")},
    "contexts-blocks": {("policy", "parameters")},
}
"""Fields of a configuration with a single legal value: any lie about them is unreadable."""

SEALED = {"local-laplace-discrete", "local-gaussian", "local-sphere"}
"""Mechanisms of the runs above whose clients send sealed reports."""

PATIENCE = 60.0  # seconds; only a fleet that plays on takes so long
FEW = 3  # channels on which a kind of lie is told; CI tells it on all
LONGEST_BLOCK = 100  # a block that no cohort fills

EACH_INTERMEDIARY = ("masked", "sealed", "bits", "assigned", "contexts-alone")
"""A channel of each way in which an intermediary takes messages, and one with cohorts of one client."""


def config(channel: str, name: str = "run") -> RunConfig:
    more = CHANNELS[channel]
    return RunConfig.model_validate(
        {
            "run": name,
            "arms": 2,
            "horizon": more.get("horizon", 64),
            "policy": more["policy"],
            "mechanism": {"epsilon": 1.0, **more["mechanism"]},
            "intermediary": more.get("intermediary", {"dropout": 0.1, "corrupt": 0.1, "minimum": 20}),
        }
    )


def world(run: RunConfig) -> World:
    """Return the clients' world: arms, or contexts with the parameters and range of rewards of the run's policy."""
    policy = run.policy
    if not isinstance(policy, ContextualPolicySpec):
        return WORLD
    contexts = build_environment(read_spec({**CONTEXTS, "parameters": policy.parameters, "link": policy.link}))
    assert isinstance(contexts, GeneralizedLinear)
    weights = None if policy.weights is None else tuple(policy.weights)
    return World(replace(contexts, rewards=(0.0, 1.0), weights=weights), SEED)


async def begun(apps: Any, server: Peer, exchanges: list[Exchange], channel: str, name: str = "run") -> RunConfig:
    """Create a run; honest clients play the rounds before the one that a lie is about."""
    run, first = config(channel, name), CHANNELS[channel].get("first", 1)
    await server.post("/v1/runs", run, RunView)

    if first > 1:
        wire = EarlyRounds(first, apps, exchanges)
        fleet = fleet_over(world(run), lenient(), FleetOptions(block=24), run, wire)
        assert await asyncio.wait_for(fleet.serve(), 240) == "finished"
    return run


def sent(exchanges: list[Exchange], caller: str, *, kept: bool = False) -> list[str]:
    """Return the last parts of the paths to which a fleet sent. Tickets and departures tell nothing of a client.

    kept  leave out what the intermediary refused because clients agreed to another cohort.
    """
    posts = [one for one in exchanges if (one.caller, one.method) == (caller, "POST") and one.callee != "server"]
    posts = [post for post in posts if not (kept and json.loads(post.answer).get("type") == Conflict("").urn)]
    return [one.url.path.rpartition("/")[2] for one in posts if not one.url.path.endswith("/departures")]


async def refusal(apps: Any, exchanges: list[Exchange], run: RunConfig, tamper: Tamper, block: int = 1) -> str:
    """Let a fleet play with tampered answers, and return its reason to refuse.

    It must not have sent anything, or only sealed reports that the shuffler has refused.

    block  at 1 clients compare their cohort before they send.
    """
    caller = f"lied to in {run.run}"
    wire = RecordingTransport(caller, apps, exchanges, tamper)
    fleet = fleet_over(world(run), lenient(), FleetOptions(block=block), run, wire)
    try:
        await asyncio.wait_for(fleet.serve(), PATIENCE)
    except ProtocolError as error:
        assert sent(exchanges, caller, kept=True) == [], run.run
        by_upload = block > 1 and run.mechanism.name in SEALED and "was told" in error.detail
        assert (sent(exchanges, caller) != []) == by_upload, run.run
        return f"{error.code}: {error.detail}"
    except TimeoutError:
        return "plays on, waiting"
    return "plays on"


def lying_round(path: Path_, *, whole: bool, where: Sequence[str] = ("round", "tickets")) -> Tamper:
    """Return a tamper of the round, as it is told before the first tickets, with tickets, or both."""
    return lambda url, raw: tampered_view(
        url, raw, lambda view: json.loads(lie(json.dumps(view).encode(), path, whole=whole)), where=where
    )


async def all_lies(folder: Path, channel: str, *, whole: bool) -> dict[Path_, str]:
    """Change each field of the round in turn, and return the fleet's reasons to refuse.

    A fleet that got tickets has changed its run, and the next one plays another run.
    """
    exchanges: list[Exchange] = []
    reasons: dict[Path_, str] = {}
    async with services({name: folder / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
        server = operator.peer("http://server", TOKEN)
        run = await begun(apps, server, exchanges, channel)
        view = json.loads((await server.get("/v1/runs/run/round", RoundView)).model_dump_json())
        paths = [path for path, _ in leaves(view) if path[0] == "round" and not (whole and path[-1] == "terms")]
        for number, path in enumerate([*paths, ("config",)]):
            if granted(exchanges, f"lied to in {run.run}"):
                run = await begun(apps, server, exchanges, channel, f"run-{number}")
            reasons[path] = await refusal(apps, exchanges, run, lying_round(path, whole=whole), LONGEST_BLOCK)
    return reasons


@pytest.mark.parametrize("whole", [False, True], ids=["plain", "consistent"])
@pytest.mark.parametrize("channel", picked(list(CHANNELS), FEW, "lies of rounds"))
def test_a_client_that_is_told_another_round_refuses_before_it_sends_and_names_the_field(
    channel: str, *, whole: bool, tmp_path: Path
) -> None:
    reasons = asyncio.run(all_lies(tmp_path, channel, whole=whole))
    assert len(reasons) > 25
    assert {path: why for path, why in reasons.items() if not names(why, path)} == {}
    unreadable = {field_of(path) for path, why in reasons.items() if not why.startswith("refused: ")}
    assert unreadable <= UNREADABLE


async def lies_of_config(folder: Path, channel: str) -> dict[Path_, str]:
    """Change each field of the configuration in turn, in a run of its own, and return the reasons to refuse."""
    exchanges: list[Exchange] = []
    reasons = {}
    async with services({name: folder / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
        paths = [path for path, _ in leaves(json.loads(config(channel).model_dump_json()))]
        for number, path in enumerate(paths):
            run = config(channel, f"run-{number}")
            await operator.peer("http://server", TOKEN).post("/v1/runs", run, RunView)
            tamper = partial(lie_of_config, path=path, run=run, whole=False)
            reasons[path] = await refusal(apps, exchanges, run, tamper, LONGEST_BLOCK)
    return reasons


@pytest.mark.parametrize("channel", picked(list(CHANNELS), FEW, "lies of configurations"))
def test_a_client_that_is_told_another_configuration_refuses(channel: str, tmp_path: Path) -> None:
    """Each parameter of run and policy counts: the configuration's digest is in the round and in each cohort."""
    reasons = asyncio.run(lies_of_config(tmp_path, channel))
    assert len(reasons) > 15
    assert {path: why for path, why in reasons.items() if not names_of_config(why, path)} == {}
    unreadable = {path for path, why in reasons.items() if not why.startswith("refused: ")}
    assert unreadable == {("version",), *FIXED.get(channel, ())}


@pytest.mark.parametrize("channel", ["masked", "assigned"])
def test_a_client_that_is_told_another_run_finds_no_cohort_and_sends_nothing(
    channel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client gets another configuration with digests that fit: it refuses, or no intermediary has its cohort."""
    monkeypatch.setattr("distrust.client.transport.http.OPENING_SECONDS", 0.05)
    exchanges: list[Exchange] = []

    async def play() -> None:
        async with services({name: tmp_path / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
            run = config(channel)
            await operator.peer("http://server", TOKEN).post("/v1/runs", run, RunView)
            tamper = partial(lie_of_config, path=("horizon",), run=run, whole=True)
            wire = RecordingTransport("told", apps, exchanges, tamper)
            fleet = fleet_over(world(run), lenient(), FleetOptions(block=LONGEST_BLOCK), run, wire)
            with suppress(TimeoutError, ProtocolError):
                await asyncio.wait_for(fleet.serve(), 3)

    asyncio.run(play())
    assert [exchange for exchange in exchanges if exchange.caller == "told"]
    assert sent(exchanges, "told", kept=True) == []


ONE_OF_EACH_KIND: dict[str, Path_] = {
    "round": ("round", "number"),
    "cohort": (*FIRST, "cohort", "minimum"),
    "mechanism": ("round", "mechanism", "epsilon"),
    "statistic": ("round", "statistic", "kind"),
    "decision": ("round", "decision", "kind"),
    "rates": ("round", "dropout"),
}


def granted(exchanges: list[Exchange], caller: str) -> int:
    """Return the number of tickets that a fleet took."""
    answers = [one.answer for one in exchanges if one.caller == caller and one.url.path.endswith("/tickets")]
    return sum(grant["count"] for raw in answers for grant in json.loads(raw)["grants"])


def noticed(tamper: Tamper, read: asyncio.Event) -> Tamper:
    """Return a tamper that also sets the event as the fleet gets an answer to its request for tickets."""

    def both(url: httpx.URL, raw: bytes) -> bytes:
        if url.path.endswith("/tickets"):
            read.set()
        return tamper(url, raw)

    return both


async def honest_run(apps: Any, exchanges: list[Exchange], run: RunConfig) -> None:
    """Let a fleet play the run with true answers, and assert that it finishes and none of its clients refuses."""
    wire = RecordingTransport("honest", apps, exchanges)
    fleet = fleet_over(world(run), lenient(), FleetOptions(block=8), run, wire)
    assert await asyncio.wait_for(fleet.serve(), 240) == "finished"
    assert fleet.stats.reasons == {}
    assert sent(exchanges, "honest")


async def nothing_is_lost(server: Peer, database: Path, run: RunConfig, given_back: int) -> None:
    """Assert that the run finished, and that every slot is in a sum, except those of tickets given back.

    If the ticket of a cohort of one client is given back, the cohort is aborted and replaced.
    """
    view = await server.get(f"/v1/runs/{run.run}", RunView)
    alone = isinstance(run.policy, ContextualPolicySpec) and run.policy.sequential
    assert (view.cohorts_aborted, view.state) == (given_back if alone else 0, "finished")
    with closing(sqlite3.connect(database)) as connection:
        bodies = connection.execute("SELECT body FROM outcomes").fetchall()
    outcomes = [json.loads(body) for (body,) in bodies]
    survivors = [outcome["survivors"] for outcome in outcomes if outcome["kind"] == "released"]
    assert len(survivors) == view.cohorts_released > 0
    assert sum(survivors) == view.clients - given_back


@pytest.mark.parametrize("channel", EACH_INTERMEDIARY)
def test_a_lie_of_each_kind_costs_the_shuffler_the_aggregator_and_all_other_clients_nothing(
    channel: str, tmp_path: Path
) -> None:
    """The server lies to one fleet after another, and none takes a ticket. Then an honest fleet plays all slots."""

    async def attack() -> dict[str, str]:
        exchanges: list[Exchange] = []
        async with services({name: tmp_path / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
            server = operator.peer("http://server", TOKEN)
            run = await begun(apps, server, exchanges, channel)
            reasons = {
                kind: await refusal(apps, exchanges, run, lying_round(path, whole=True))
                for kind, path in ONE_OF_EACH_KIND.items()
            }
            assert granted(exchanges, f"lied to in {run.run}") == 0
            await honest_run(apps, exchanges, run)
            await nothing_is_lost(server, tmp_path / "server.sqlite3", run, 0)
        return reasons

    reasons = asyncio.run(attack())
    assert {kind: why for kind, why in reasons.items() if not names(why, ONE_OF_EACH_KIND[kind])} == {}
    assert all(why.startswith("refused: ") for why in reasons.values())


@pytest.mark.parametrize("channel", EACH_INTERMEDIARY)
def test_a_client_that_is_told_another_round_with_its_ticket_gives_the_ticket_back(
    channel: str, tmp_path: Path
) -> None:
    """The round was true as long as the client had no ticket. Its slot is lost, and no other client waits for it."""
    path = ONE_OF_EACH_KIND["mechanism"]

    async def attack() -> str:
        exchanges: list[Exchange] = []
        async with services({name: tmp_path / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
            server = operator.peer("http://server", TOKEN)
            run = await begun(apps, server, exchanges, channel)
            why = await refusal(apps, exchanges, run, lying_round(path, whole=True, where=["tickets"]))
            assert granted(exchanges, f"lied to in {run.run}") == 1
            await honest_run(apps, exchanges, run)
            await nothing_is_lost(server, tmp_path / "server.sqlite3", run, 1)
        return why

    assert asyncio.run(attack()).endswith("is not what users have agreed to: its round has changed")


@pytest.mark.parametrize(
    ("channel", "field"),
    picked([(channel, field) for channel in CHANNELS for field in ("ticket_key", "channel")], FEW, "lies at once"),
)
def test_of_two_fleets_at_once_the_one_that_is_lied_to_loses_its_tickets_only(
    channel: str, field: str, tmp_path: Path
) -> None:
    """It may hold a ticket when it finds the lie, and gives it back. The other fleet is in its cohorts and finishes."""
    path: Path_ = (*FIRST, "cohort", "ticket_key") if field == "ticket_key" else (*CHANNEL, KEY_OF[channel])

    async def attack() -> str:
        exchanges: list[Exchange] = []
        async with services({name: tmp_path / f"{name}.sqlite3" for name in PARTIES}, exchanges) as (apps, operator):
            server = operator.peer("http://server", TOKEN)
            run = await begun(apps, server, exchanges, channel)
            caller, read = f"lied to in {run.run}", asyncio.Event()
            tamper, block = noticed(lying_round(path, whole=True), read), 2 if channel == "contexts-alone" else 1
            lied = asyncio.create_task(refusal(apps, exchanges, run, tamper, block))
            await asyncio.wait([lied, asyncio.create_task(read.wait())], return_when=asyncio.FIRST_COMPLETED)
            await honest_run(apps, exchanges, run)
            await nothing_is_lost(server, tmp_path / "server.sqlite3", run, granted(exchanges, caller))
            assert granted(exchanges, caller) == (1 if "was told" in await lied else 0)
        return await lied

    why = asyncio.run(attack())
    assert why.startswith("refused: ")
    assert names(why, path), why

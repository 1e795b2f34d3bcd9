"""A whole run recorded in one process: three services, two fleets, HTTP without sockets, each request and answer.

A `Recording` holds all that one party has: each cell of its database, and each request and answer that it took part in,
with JSON opened and base64 decoded. Tests search it.
"""

import asyncio
import json
import sqlite3
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from numpy.typing import NDArray

import distrust.aggregator.app
import distrust.server.app
import distrust.shuffler.app
from distrust.aggregator.app import AggregatorSettings
from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.cohort.randomizer import CohortRandomizer, World
from distrust.client.cohort.secagg import Secrets
from distrust.client.environments import AnyWorld, Environment, build_environment, read_spec
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.transport.http import Addresses, HttpTransport, patience, token_proof
from distrust.common.errors import WrongCohort
from distrust.common.modular import pack
from distrust.common.protocol.intermediary.deadlines import Clock, SystemClock
from distrust.common.protocol.messages.admission import Participant, ParticipantList, token_id
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, cohort_address
from distrust.common.protocol.messages.status import CohortList, Transcript
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.web.client import Http
from distrust.server.intermediary import PATIENCE, HttpIntermediaries
from distrust.server.learner.rounds import OUTCOME_JSON, LostCohort, ReleasedCohort
from distrust.server.settings import ServerSettings
from distrust.server.storage.keys import Keys
from distrust.shuffler.app import ShufflerSettings
from tests.support.asgi import OverHttpx
from tests.support.limits import lenient
from tests.support.server_harness import noted_keys
from tests.support.stored_values import opened, values_of

TOKEN, INSPECTOR = "open sesame, says the operator", "only looking, says the inspector"
PARTICIPATION = "let me in, says the fleet"
SEED = 7_301_964_528_173_045_519
USUAL = lenient()
OPTIONS = FleetOptions(block=8)
PARTIES = ("server", "shuffler", "aggregator")


@dataclass(frozen=True)
class Exchange:
    """One request and its answer."""

    caller: str
    callee: str
    method: str
    url: httpx.URL
    headers: Mapping[str, str]
    body: bytes
    answer: bytes


Tamper = Callable[[httpx.URL, bytes], bytes]


class JumpingClock(SystemClock):
    """The machine's clock, which jumps `seconds` ahead once clients have sent `messages` messages of a stage.

    Let `seconds` be the stage's length, and `messages` the clients that will answer. Then the deadline passes as soon
    as all of these have answered. So the stage is long enough for a slow machine, and no test waits for its end.
    """

    def __init__(self, exchanges: list[Exchange], stage: str, messages: int, seconds: float) -> None:
        super().__init__()
        self._exchanges, self._stage, self._messages, self._seconds = exchanges, stage, messages, seconds
        self._jumped = False

    def now(self) -> float:
        self._jumped = self._jumped or self._accepted() >= self._messages
        return super().now() + self._seconds * self._jumped

    def _accepted(self) -> int:
        """Return how many slots of all cohorts have a message in the stage."""
        slots: set[tuple[str, int]] = set()
        for one in self._exchanges:
            if one.method == "POST" and one.url.path.endswith(f"/{self._stage}"):
                refused = {item["slot"] for item in json.loads(one.answer).get("refused", ())}
                sent = {item["slot"] for item in json.loads(one.body)["items"]}
                slots |= {(one.url.path, slot) for slot in sent - refused}
        return len(slots)


class RecordingTransport(httpx.AsyncBaseTransport):
    """One caller's transport to all services, which records each request and answer.

    tamper   changes the answers that this caller gets, so that a party lies to this caller alone.
    """

    def __init__(
        self,
        caller: str,
        apps: Mapping[str, FastAPI],
        exchanges: list[Exchange],
        tamper: Tamper = lambda _url, raw: raw,
    ) -> None:
        self._caller, self._exchanges, self._tamper = caller, exchanges, tamper
        self._ways = {name: httpx.ASGITransport(app, raise_app_exceptions=False) for name, app in apps.items()}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        host = request.url.host
        answer = await self._ways[host].handle_async_request(request)
        content = self._tamper(request.url, await answer.aread())
        self._exchanges.append(
            Exchange(self._caller, host, request.method, request.url, dict(request.headers), body, content)
        )
        headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return httpx.Response(answer.status_code, headers=headers, content=content)


@dataclass
class Truth:
    """The values that only clients know: rewards, messages before they are hidden, seeds and keys.

    rewards  by cohort, one a slot; one for each position where actions are assigned.
    rows     messages by cohort and slot.
    plays    the position of each slot, by cohort, where actions are assigned.
    """

    rewards: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    rows: dict[str, dict[int, NDArray[np.uint64]]] = field(default_factory=lambda: defaultdict(dict))
    plays: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    payloads: set[bytes] = field(default_factory=set)
    moduli: dict[str, int] = field(default_factory=dict)
    secrets: set[bytes] = field(default_factory=set)


@dataclass
class RecordedRun:
    """A finished run: the clients' values, all requests and answers, and the services' databases."""

    truth: Truth
    exchanges: list[Exchange]
    databases: dict[str, Path]
    environment: Environment
    views: dict[str, RunView]
    transcripts: dict[str, bytes]  # by party: what its operator is shown of all cohorts
    keys: dict[bytes, Keys] = field(default_factory=dict)  # by R: what the server's key files had

    def between(self, caller: str, callee: str) -> list[Exchange]:
        """Return the exchanges in which a caller whose name begins with `caller` asked `callee`."""
        return [one for one in self.exchanges if one.caller.startswith(caller) and one.callee == callee]

    def rows(self, party: str, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of an SQL query on a party's database."""
        connection = sqlite3.connect(self.databases[party])
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def cohorts(self, run: str) -> list[Cohort]:
        """Return a run's cohorts, as the server opened them."""
        rows = self.rows("server", f"SELECT message FROM cohorts WHERE run = '{run}' ORDER BY cohort")
        return [Cohort.model_validate_json(text) for (text,) in rows]

    def batch(self, cohort: str) -> BatchAnswer:
        """Return a cohort's batch, as the server collected it."""
        ((text,),) = self.rows("server", f"SELECT body FROM batches WHERE cohort = '{cohort}'")
        return BatchAnswer.model_validate_json(text)

    def outcomes(self) -> list[ReleasedCohort | LostCohort]:
        """Return the outcome that the server committed of each cohort."""
        return [OUTCOME_JSON.validate_json(text) for (text,) in self.rows("server", "SELECT body FROM outcomes")]

    def bodies(self, party: str, cohort: Cohort, stage: str) -> dict[int, bytes]:
        """Return the bodies that clients sent to an intermediary in a stage, by slot, in the order of arrival."""
        number = f"SELECT number FROM cohorts WHERE cohort = '{cohort.cohort}'"
        where = f"cohort = ({number}) AND stage = '{stage}' AND slot >= 0"
        return dict(self.rows(party, f"SELECT slot, body FROM messages WHERE {where} ORDER BY number"))


APART = b"\xff" * 4
"""Separates the parts of a recording. No payload begins with it, for no modulus fills all bytes of its payload."""


class Recording:
    """All bytes that a party has: the cells of its database, and its requests and answers."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._all = APART.join(parts)

    @classmethod
    def of(cls, recorded: RecordedRun, party: str) -> Self:
        parts = list(values_of(recorded.databases[party]))
        for one in recorded.exchanges:
            if party in (one.caller, one.callee):
                parts += [str(one.url).encode(), repr(one.headers).encode(), *opened(one.body), *opened(one.answer)]
        return cls(parts)

    def holds(self, needle: bytes) -> bool:
        return needle in self._all

    def holds_number(self, value: float) -> bool:
        """Return True if the recording has a number as text, or as a double in either byte order."""
        return any(map(self.holds, (repr(value).encode(), struct.pack("<d", value), struct.pack(">d", value))))

    def reads(self, heads: Sequence[bytes], payloads: set[bytes]) -> bool:
        """Return True if one of the payloads follows more than half of these heads. It follows all if none is sealed.

        Payloads may be two bytes long. By chance a ciphertext begins like one of them at most once in 100 reports. Half
        of 20 or more ciphertexts do so with probability below 1e-12.
        """
        assert len(heads) >= 20
        assert not any(APART.startswith(payload) for payload in payloads)  # a head may be the end of a part
        assert len(payloads) < 2 ** (8 * min(map(len, payloads))) / 100
        return sum(any(self.holds(head + payload) for payload in payloads) for head in heads) > len(heads) / 2


def keys(tree: object) -> set[str]:
    """Return the names of all fields in a JSON document, at any depth."""
    if isinstance(tree, Mapping):
        return set(tree) | {name for value in tree.values() for name in keys(value)}
    if isinstance(tree, list):
        return {name for value in tree for name in keys(value)}
    return set()


def record_run(
    folder: Path,
    configs: Sequence[RunConfig],
    dropout: float,
    tap: pytest.MonkeyPatch,
    *,
    exchanges: list[Exchange] | None = None,
    requirements: PrivacyRequirements = USUAL,
    options: FleetOptions = OPTIONS,
    clock: Clock | None = None,
    world: AnyWorld | None = None,
    noise_seed: int | None = None,
) -> RecordedRun:
    """Play all runs at once to their ends, and return the recording. Users have these `requirements`.

    exchanges  takes the requests and answers, also of a run that fails.
    clock      of the intermediaries; None: the machine's.
    world      of the clients; None: two arms with Gaussian rewards. `environment` of the result is always these arms.
    noise_seed of the clients; None: each draws its noise from the operating system.
    """
    truth, exchanges, private = Truth(), [] if exchanges is None else exchanges, noted_keys(tap)
    environment = build_environment(read_spec({"name": "gaussian-easy", "arms": 2, "seed": SEED}))
    _listen(truth, tap)
    databases = {name: folder / f"{name}.sqlite3" for name in PARTIES}
    fleet = partial(
        fleet_over, World(world or environment, SEED, noise_seed), requirements, replace(options, dropout=dropout)
    )
    views, transcripts = asyncio.run(_record(databases, configs, exchanges, fleet, clock))
    return RecordedRun(truth, exchanges, databases, environment, views, transcripts, private)


def _listen(truth: Truth, tap: pytest.MonkeyPatch) -> None:
    """Copy rewards, messages, seeds and keys from inside the clients into `truth`. No request carries the copies."""
    rows, begin = CohortRandomizer.rows, Secrets.__init__

    def noted_rows(self: CohortRandomizer, slots: Sequence[int]) -> NDArray[np.uint64]:
        result = rows(self, slots)
        name = self.assignment.cohort.cohort
        truth.rewards[name] = self._vectors[:, 0]
        truth.rows[name] |= dict(zip(slots, result, strict=True))
        truth.plays[name] |= {} if self._order is None else {slot: int(self._order[slot]) for slot in slots}
        truth.moduli[name] = self.mechanism.modulus
        truth.payloads |= {pack(row, self.round.mechanism.modulus) for row in result}
        return result

    def noted_secrets(self: Secrets) -> None:
        begin(self)
        pairs = (self.mask_pair, self.channel_pair)
        truth.secrets.update(pair.private_bytes_raw() for pair in pairs if pair is not None)
        truth.secrets.update((bytes(self.mask_seed), bytes(self.self_seed)))

    tap.setattr(CohortRandomizer, "rows", noted_rows)
    tap.setattr(Secrets, "__init__", noted_secrets)


async def _record(
    databases: dict[str, Path],
    configs: Sequence[RunConfig],
    exchanges: list[Exchange],
    fleet: Callable[..., Fleet],
    clock: Clock | None,
) -> tuple[dict[str, RunView], dict[str, bytes]]:
    async with services(databases, exchanges, clock) as (apps, operator):
        peer = operator.peer("http://server", TOKEN)
        for config in configs:
            await peer.post("/v1/runs", config, RunView)
        wires = [(config, RecordingTransport(f"fleet {n}", apps, exchanges)) for config in configs for n in (1, 2)]
        fleets = [fleet(config, wire) for config, wire in wires]
        ends = set(await asyncio.wait_for(asyncio.gather(*(fleet.serve() for fleet in fleets)), 240))
        assert ends <= {"finished", "failed"}  # failed: nothing was measured
        views = {config.run: await peer.get(f"/v1/runs/{config.run}", RunView) for config in configs}
        return views, {party: await _transcripts(operator, party, configs) for party in PARTIES}


@asynccontextmanager
async def services(
    databases: Mapping[str, Path], exchanges: list[Exchange], clock: Clock | None = None
) -> AsyncIterator[tuple[dict[str, FastAPI], Http]]:
    """Yield the three services on these database files, and the operator's client, whose requests are not recorded."""
    apps: dict[str, FastAPI] = {}
    own = {name: {"database": f"sqlite:///{path}"} for name, path in databases.items()}
    folder = databases["server"].parent
    (folder / "token").write_text(TOKEN)
    (folder / "inspector").write_text(INSPECTOR)
    fleet = Participant(name="fleet", kind="token", id=token_id(PARTICIPATION), own=True)
    (folder / "participants").write_text(ParticipantList(participants=(fleet,)).model_dump_json())
    token = {"operator_token_file": folder / "token"}
    looking = {**token, "inspector_token_file": folder / "inspector"}
    apps["shuffler"] = distrust.shuffler.app.shuffler_app(ShufflerSettings(**own["shuffler"], **looking), clock)
    apps["aggregator"] = distrust.aggregator.app.aggregator_app(
        AggregatorSettings(**own["aggregator"], **looking), clock
    )
    http = Http(PATIENCE, sender=OverHttpx(RecordingTransport("server", apps, exchanges)))
    both = HttpIntermediaries("http://shuffler", "http://aggregator", lambda: TOKEN, http)
    admitted = {**token, "participants_file": folder / "participants"}
    apps["server"] = distrust.server.app.server_app(ServerSettings(**own["server"], **admitted), both)
    async with AsyncExitStack() as stack:
        for app in apps.values():
            await stack.enter_async_context(app.router.lifespan_context(app))
        yield apps, Http(sender=OverHttpx(RecordingTransport("operator", apps, [])))


async def _transcripts(operator: Http, party: str, configs: Sequence[RunConfig]) -> bytes:
    """Return the transcript's pages of every cohort that the party knows."""
    peer, pages = operator.peer(f"http://{party}", TOKEN if party == "server" else INSPECTOR), []
    for config in configs:
        names = [f"{config.run}.1.{arm}.1" for arm in range(config.arms)]
        if party == "server":
            paths = [f"/v1/runs/{config.run}/cohorts/{name}/messages" for name in names]
        else:
            listed = (await operator.peer(f"http://{party}", TOKEN).get("/v1/cohorts", CohortList)).cohorts
            known = [cohort_address(one.run_digest, one.cohort) for one in listed if one.cohort in names]
            paths = [f"/v1/cohorts/{address}/messages" for address in known]
        for path in paths:
            with suppress(WrongCohort):  # each intermediary knows its own
                pages.append((await peer.get(path, Transcript, {"limit": 1000})).model_dump_json().encode())
    return b"\n".join(pages)


def fleet_over(
    world: World, requirements: PrivacyRequirements, options: FleetOptions, config: RunConfig, wire: RecordingTransport
) -> Fleet:
    """Return a fleet of one run, over a transport of its own."""
    addresses = Addresses(*(f"http://{party}" for party in PARTIES))
    proof = token_proof(PARTICIPATION)
    transport = HttpTransport(Http(patience(20), sender=OverHttpx(wire)), addresses, config.run, proof)
    return Fleet(transport, world, requirements, options)


__all__ = [
    "PARTICIPATION",
    "PARTIES",
    "SEED",
    "TOKEN",
    "Exchange",
    "JumpingClock",
    "RecordedRun",
    "Recording",
    "RecordingTransport",
    "Truth",
    "fleet_over",
    "keys",
    "record_run",
    "services",
]

"""One fleet process without a server: the fleet's sessions, uploader and protocols on cohorts that are open already."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.stage import PATIENCE
from distrust.client.cohort.departures import NEVER, STAGES
from distrust.client.cohort.protocols import SecAggProtocol
from distrust.client.cohort.secagg import Secrets
from distrust.client.cohort.session import CohortSession, Worker
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import Uploader
from distrust.client.cohort.user import User, granted
from distrust.client.transport.http import Addresses, HttpTransport
from distrust.common.modular import Vector, sum_rows
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.keys import KEY_HASH, key_hash
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes
from distrust.common.protocol.messages.status import StatementList
from distrust.common.protocol.web.client import Http
from distrust.server.runs.ticket_issuer import sign

BLOCK = 512
MASKED = STAGES.index("masked")


@dataclass(frozen=True, slots=True)
class Part:
    """The slots of one cohort that one process plays. They are consecutive; some leave between shares and vector.

    ticket_key  the private Ed25519 key, raw: the process signs its own tickets, as it makes its own keys.
    """

    cohort: Cohort
    first: int
    count: int
    leaving: frozenset[int]
    ticket_key: bytes


class _BenchmarkAsServer(HttpTransport):
    """The fleet's transport. It has key hashes and statements from the aggregator, because no server is measured."""

    def __init__(self, http: Http, url: str, token: str) -> None:
        super().__init__(http, Addresses(url, url, url), "benchmark")
        self._operator = http.peer(url, token)

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        view = await self.stage(cohort, "keys", None, 0.0)
        roster = Roster(cohort, view.members, view.roster or b"")
        hashes = [key_hash(roster.keys_of(s)) if s in roster else bytes(KEY_HASH) for s in range(cohort.clients)]
        return KeyHashes(cohort=cohort.cohort, hashes=b"".join(hashes))

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        query: dict[str, str | int | float] = {"after": after, "wait": wait}
        return await self._operator.get(f"/v1/cohorts/{cohort.address}/statements", StatementList, query)


@dataclass(frozen=True, slots=True)
class Played:
    """CPU seconds of the process for all its parts, bytes on the wire both ways, sum of the vectors of each part."""

    seconds: float
    wire: int
    sums: list[Vector]


def warm_up() -> None:
    """Do nothing. The first call imports this module in a fresh process, before the clock starts."""


def play(url: str, token: str, parts: Sequence[Part], dropout: float, corrupt: float) -> Played:
    """Play all parts, two cohorts at a time as a fleet does, and return their cost without that of signing tickets."""
    rows = [_rows(part) for part in parts]
    start = time.process_time()
    keys = [[Secrets() for _ in range(part.count)] for part in parts]
    made = time.process_time() - start
    users = [_users(part, own) for part, own in zip(parts, keys, strict=True)]
    start = time.process_time()
    jobs = list(zip(parts, users, rows, strict=True))
    wire = asyncio.run(_play(url, token, jobs, {"dropout": dropout, "corrupt": corrupt}))
    seconds = made + time.process_time() - start
    return Played(seconds, wire, [_sum(part, own) for part, own in zip(parts, rows, strict=True)])


def _users(part: Part, keys: Sequence[Secrets]) -> list[User]:
    leaves = np.full(part.cohort.clients, NEVER, dtype=np.int64)
    leaves[list(part.leaving)] = MASKED
    hashes = b"".join(key_hash(own.public) for own in keys)
    signer = Ed25519PrivateKey.from_private_bytes(part.ticket_key)
    return granted(sign(signer, part.cohort, part.first, part.count, hashes), leaves, keys)


Job = tuple[Part, list[User], Vector]


async def _play(url: str, token: str, jobs: Sequence[Job], rates: dict[str, float]) -> int:
    in_flight, worker = asyncio.Semaphore(2), Worker()
    async with Http(PATIENCE) as http:
        uploader = Uploader(_BenchmarkAsServer(http, url, token), FleetStats())

        async def one(part: Part, users: list[User], rows: Vector) -> None:
            async with in_flight:
                await _one(CohortSession(part.cohort, _protocol(part, rows, rates), uploader, worker, BLOCK), users)

        await asyncio.gather(*(one(*job) for job in jobs))
        return http.sent + http.received


async def _one(session: CohortSession, users: Sequence[User]) -> None:
    noted = asyncio.get_running_loop().create_future()
    noted.set_result(None)  # no memory of past runs is measured
    for start in range(0, len(users), BLOCK):
        block = users[start : start + BLOCK]
        await session.join(block, full=True)
        await session.open(await session.begin(block, noted))
    await session.follow()


def _protocol(part: Part, rows: Vector, rates: dict[str, float]) -> SecAggProtocol:
    """Return the fleet's protocol on given vectors of any dimension, without a mechanism and the cost of its noise."""
    first = part.first
    randomizer = SimpleNamespace(
        assignment=SimpleNamespace(cohort=part.cohort),
        round=SimpleNamespace(**rates),
        mechanism=SimpleNamespace(floor=1),
        rows=lambda slots: rows[np.array(slots) - first],
    )
    return SecAggProtocol(cast("Any", randomizer), 1)


def _rows(part: Part) -> Vector:
    channel = masking(part.cohort)
    rng = np.random.default_rng(part.first)
    return rng.integers(0, channel.modulus, (part.count, channel.dimension)).astype(np.uint64)


def _sum(part: Part, rows: Vector) -> Vector:
    stay = [i for i in range(part.count) if part.first + i not in part.leaving]
    return sum_rows(rows[stay], masking(part.cohort).modulus)

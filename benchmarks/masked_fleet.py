"""One fleet process without a server: the fleet's own crew, courier and scripts on cohorts that others opened."""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.stage import PATIENCE
from client.courier import Courier
from client.crew import Crew
from client.departures import NEVER, STAGES
from client.masking import Masking
from client.sender import Addresses, Sender
from client.tally import Tally
from client.user import User, granted
from common.crypto.graph import masking
from common.messages.cohort import Cohort
from common.messages.ticket import Grant
from common.modular import Vector, total
from common.web.client import Http

BLOCK = 512
MASKED = STAGES.index("masked")


@dataclass(frozen=True, slots=True)
class Part:
    """What one process plays of one cohort: consecutive slots, of which some leave between shares and vector."""

    cohort: Cohort
    grant: Grant
    leaving: frozenset[int]


@dataclass(frozen=True, slots=True)
class Played:
    """CPU seconds of the process for all its parts, bytes on the wire both ways, sum of the vectors of each part."""

    seconds: float
    wire: int
    sums: list[Vector]


def warm_up() -> None:
    """Import everything before the clock starts."""


def play(url: str, parts: Sequence[Part], dropout: float, corrupt: float) -> Played:
    """All parts, two cohorts at a time, as a fleet would have them in flight."""
    rows = [_rows(part) for part in parts]
    start = time.process_time()
    wire = asyncio.run(_play(url, list(zip(parts, rows, strict=True)), {"dropout": dropout, "corrupt": corrupt}))
    seconds = time.process_time() - start
    return Played(seconds, wire, [_sum(part, own) for part, own in zip(parts, rows, strict=True)])


async def _play(url: str, parts: Sequence[tuple[Part, Vector]], rates: dict[str, float]) -> int:
    in_flight, worker = asyncio.Semaphore(2), ThreadPoolExecutor(1, "messages")
    async with Http(PATIENCE) as http:
        courier = Courier(Sender(http, Addresses(url, url, url), "benchmark"), Tally())

        async def one(part: Part, rows: Vector) -> None:
            async with in_flight:
                await _one(Crew(part.cohort, _script(part, rows, rates), courier, worker, BLOCK), part)

        await asyncio.gather(*(one(part, rows) for part, rows in parts))
        return http.sent + http.received


async def _one(crew: Crew, part: Part) -> None:
    leaves = np.full(part.cohort.clients, NEVER, dtype=np.int64)
    leaves[list(part.leaving)] = MASKED
    users: list[User] = granted(part.grant, leaves)
    for start in range(0, len(users), BLOCK):
        await crew.open(await crew.begin(users[start : start + BLOCK]))
    await crew.follow()


def _script(part: Part, rows: Vector, rates: dict[str, float]) -> Masking:
    """The fleet's script on given vectors: any dimension, no mechanism, no noise to pay for."""
    first = part.grant.first
    given = SimpleNamespace(
        assignment=SimpleNamespace(cohort=part.cohort),
        round=SimpleNamespace(**rates),
        mechanism=SimpleNamespace(floor=1),
        rows=lambda slots: rows[np.array(slots) - first],
    )
    return Masking(cast("Any", given), 1)


def _rows(part: Part) -> Vector:
    channel = masking(part.cohort)
    rng = np.random.default_rng(part.grant.first)
    return rng.integers(0, channel.modulus, (part.grant.count, channel.dimension)).astype(np.uint64)


def _sum(part: Part, rows: Vector) -> Vector:
    stay = [i for i in range(part.grant.count) if part.grant.first + i not in part.leaving]
    return total(rows[stay], masking(part.cohort).modulus)

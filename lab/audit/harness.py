"""Both S at their addresses, and cohorts of real clients that come by, one after another or a few at once."""

import asyncio
import math
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from distrust.client.fleet.departures import NEVER
from distrust.client.fleet.session import CohortSession
from distrust.client.fleet.stats import FleetStats
from distrust.client.fleet.uploader import Uploader
from distrust.client.fleet.user import User, granted
from distrust.client.http_transport import Addresses, HttpTransport
from distrust.client.protocols.secagg import SecAggProtocol
from distrust.client.protocols.shuffle import ShuffleProtocol
from distrust.client.randomizer import Randomizer, World
from distrust.client.secagg.secrets import Secrets
from distrust.common.bandit.decisions import AssignedArm
from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.crypto.agree import key_hash
from distrust.common.crypto.seal import open_record
from distrust.common.errors import Unavailable
from distrust.common.mechanisms import Mechanism, MechanismSpec
from distrust.common.messages.batch import Batch
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.round import Round
from distrust.common.messages.run import IntermediarySpec, RunConfig
from distrust.common.messages.stage import StatementList
from distrust.common.messages.ticket import KeyHashes
from distrust.common.modular import Vector, unpack_rows
from distrust.common.randomness import Stream
from distrust.common.web.client import Http
from distrust.lab.stack.stack import Urls
from distrust.server.active_run import round_message
from distrust.server.analyzer import check_count, content_sum, open_all
from distrust.server.intermediary import HttpIntermediaries
from distrust.server.keys import Keys, new_keys
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.ticket_issuer import sign

AT_ONCE = 8  # cohorts in flight
STAGE_SECONDS = 60.0
BLOCK = 512


@dataclass(frozen=True, slots=True)
class Rewards:
    """An environment whose clients hold what they are told."""

    values: NDArray[np.float64]
    name: str = "audit"
    arms: int = 2
    best: int = 0

    @property
    def means(self) -> NDArray[np.float64]:
        return np.full(self.arms, self.values.mean())

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """The first `count` values, whatever the arm."""
        del arm, stream
        return self.values[:count]


class _AuditorAsServer(HttpTransport):
    """The clients' transport: the auditor publishes key hashes and statements, where a server would.

    hashes  by cohort, 32 bytes a slot.
    """

    def __init__(self, http: Http, addresses: Addresses, run: str, parties: HttpIntermediaries) -> None:
        super().__init__(http, addresses, run)
        self._parties = parties
        self.hashes: dict[str, bytes] = {}

    async def key_hashes(self, cohort: Cohort) -> KeyHashes:
        return KeyHashes(cohort=cohort.cohort, hashes=self.hashes[cohort.cohort])

    async def statements(self, cohort: Cohort, after: int, wait: float) -> StatementList:
        del wait
        return await self._parties.statements(cohort, after)


@dataclass
class CohortHarness:
    """Where cohorts of `mechanism.clients` play, and all but the first `survivors` leave.

    apart  whether a batch of sealed records is given record by record; else added up as the analyzer does.
    """

    mechanism: Mechanism
    survivors: int
    urls: Urls
    http: Http
    worker: Executor
    apart: bool = False
    keys: Keys = field(default_factory=new_keys)
    name: str = field(default_factory=lambda: f"audit-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        self._config = self._configured()
        addresses = Addresses(self.urls.server, self.urls.shuffler, self.urls.aggregator)
        self._parties = HttpIntermediaries(self.urls.shuffler, self.urls.aggregator, self.urls.token, self.http)
        self._transport = _AuditorAsServer(self.http, addresses, self.name, self._parties)
        self._courier = Uploader(self._transport, FleetStats())
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def cohort(self, name: str, values: NDArray[np.float64]) -> Vector:
        """What S handed over of clients with these vectors, shape (n, D): one row, or the survivors'.

        Raises Unavailable when the cohort comes to nothing.
        """
        async with self._turns:
            asked = self._round(f"{self.name}.{name}")
            cohort = asked.assignments[0].cohort
            await self._parties.open(cohort)
            await self._play(asked, values)
            return self._content(cohort, await self._collect(cohort))

    async def _play(self, asked: Round, values: NDArray[np.float64]) -> None:
        """Everybody joins; those that are to be lost leave before they have said anything."""
        assignment = asked.assignments[0]
        rewards = values[:, 0] if isinstance(asked.statistic, Reward) else values
        randomizer = Randomizer(asked, assignment, World(Rewards(rewards), seed=0))
        masked = assignment.cohort.via == "aggregator"
        script = SecAggProtocol(randomizer, 1) if masked else ShuffleProtocol(randomizer)
        crew = CohortSession(assignment.cohort, script, self._courier, self.worker, BLOCK)
        users = self._users(assignment.cohort)
        await crew.join(users)
        await crew.open(await crew.begin(users))
        await crew.follow()

    def _users(self, cohort: Cohort) -> Sequence[User]:
        leaves = np.full(cohort.clients, NEVER, dtype=np.int64)
        leaves[self.survivors :] = 0
        masked = cohort.via == "aggregator"
        own = [Secrets() for _ in range(cohort.clients)] if masked else []
        hashes = self._transport.hashes[cohort.cohort] = b"".join(key_hash(keys.public) for keys in own)
        return granted(sign(self.keys.ticket, cohort, 0, cohort.clients, hashes), leaves, own)

    async def _collect(self, cohort: Cohort) -> Batch:
        answer = await self._parties.collect(cohort)
        while answer.state == "waiting":
            answer = await self._parties.collect(cohort)
        if answer.batch is None:
            raise Unavailable(f"cohort {cohort.cohort} was aborted: {answer.reason}")
        return answer.batch

    def _content(self, cohort: Cohort, batch: Batch) -> Vector:
        check_count(cohort, batch)
        opener = partial(open_record, self.keys.seal, cohort)
        if self.apart and batch.content.kind == "records" and cohort.channel.kind == "sealed":
            payloads = open_all(cohort.channel, batch.content, batch.survivors, opener)
            return unpack_rows(payloads, self.mechanism.modulus, self.mechanism.dimension)
        return content_sum(self.mechanism, cohort, batch, opener).reshape(1, -1)

    def _round(self, cohort: str) -> Round:
        mechanism = self.mechanism
        planned = CohortPlan(cohort, 0, mechanism.clients, 1, self.survivors, mechanism)
        plan = RoundPlan(1, 1, AssignedArm(), self._statistic, mechanism, self.survivors, (planned,))
        return round_message(self._config, plan, self.keys.public)

    @property
    def _statistic(self) -> Statistic:
        if self.mechanism.dimension == 1:
            return Reward()
        bound = max(abs(self.mechanism.low), abs(self.mechanism.high))
        return BoundedVector(dimension=self.mechanism.dimension, norm=self.mechanism.norm, bound=bound)

    def _configured(self) -> RunConfig:
        """Only its digest and its rates are used: the mechanism is there already."""
        clients = self.mechanism.clients
        lost = clients - self.survivors
        rate = min(math.nextafter(0.5, 0), (lost + 0.5) / clients) if lost else 0.0
        spec = IntermediarySpec(dropout=rate, corrupt=0.0, minimum=self.survivors, stage_seconds=STAGE_SECONDS)
        return RunConfig(
            run=self.name,
            arms=2,
            horizon=2 * clients + 2,
            mechanism=MechanismSpec(name="identity"),
            intermediary=spec,
        )

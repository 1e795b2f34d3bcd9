"""Both S at their addresses, and cohorts of real clients that come by, one after another or a few at once."""

import asyncio
import math
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from client.courier import Courier
from client.crew import Crew
from client.departures import NEVER
from client.masking import Masking
from client.randomizer import Randomizer, World
from client.reporting import Reporting
from client.sender import Addresses, Sender
from client.tally import Tally
from client.user import User, granted
from common.crypto.seal import open_record
from common.decisions import AssignedArm
from common.errors import Unavailable
from common.mechanisms import AnyMechanism, Mechanism, MechanismSpec
from common.messages.batch import Batch
from common.messages.cohort import Cohort
from common.messages.round import Round
from common.messages.run import IntermediarySpec, RunConfig
from common.modular import Vector, unpack_rows
from common.randomness import Stream
from common.statistics import BoundedVector, Reward, Statistic
from common.web.client import Http
from lab.stack import Urls
from server.analyzer import check_count, content_sum, open_all
from server.cohorts import round_message
from server.intermediary import HttpIntermediaries
from server.keys import Keys, fresh
from server.rounds import CohortPlan, RoundPlan
from server.tickets import sign

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


@dataclass
class Street:
    """Where cohorts of `mechanism.clients` play, and all but the first `survivors` leave.

    apart  whether a batch of sealed records is given record by record; else added up as the analyzer does.
    """

    mechanism: Mechanism
    survivors: int
    urls: Urls
    http: Http
    worker: Executor
    apart: bool = False
    keys: Keys = field(default_factory=fresh)
    name: str = field(default_factory=lambda: f"audit-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        self._config = self._configured()
        addresses = Addresses(self.urls.server, self.urls.shuffler, self.urls.aggregator)
        self._courier = Courier(Sender(self.http, addresses, self.name), Tally())
        self._parties = HttpIntermediaries(self.urls.shuffler, self.urls.aggregator, self.urls.token, self.http)
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
        script = Masking(randomizer, 1) if masked else Reporting(randomizer)
        crew = Crew(assignment.cohort, script, self._courier, self.worker, BLOCK)
        await crew.open(await crew.begin(self._users(assignment.cohort)))
        await crew.follow()

    def _users(self, cohort: Cohort) -> Sequence[User]:
        leaves = np.full(cohort.clients, NEVER, dtype=np.int64)
        leaves[self.survivors :] = 0
        return granted(sign(self.keys.ticket, cohort, 0, cohort.clients), leaves)

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
        known = cast("AnyMechanism", mechanism)  # or a broken one of its kind
        planned = CohortPlan(cohort, 0, mechanism.clients, 1, self.survivors, known)
        plan = RoundPlan(1, 1, AssignedArm(), self._statistic, known, self.survivors, (planned,))
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

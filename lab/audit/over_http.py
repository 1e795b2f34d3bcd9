"""The same two worlds over the real services: cohorts opened at S, real clients, batches collected over HTTP.

The auditor stands where the server stands: its own keys sign tickets and open records. Clients are the fleet's own
(`client.crew`), each with noise from the operating system; the batch goes through the analyzer's own code.
"""

import asyncio
import math
import secrets
from concurrent.futures import Executor, ThreadPoolExecutor
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
from client.user import granted
from common.crypto.seal import open_record
from common.decisions import AssignedArm
from common.errors import BadParameter, TooSmall, Unavailable
from common.mechanisms import AnyMechanism, Mechanism, MechanismSpec
from common.messages.batch import Batch
from common.messages.cohort import Cohort
from common.messages.round import Round
from common.messages.run import IntermediarySpec, RunConfig
from common.modular import Vector, unpack_rows
from common.randomness import Stream, SystemStream
from common.statistics import Reward
from common.web.client import Http
from lab.audit.finding import ALARM, Finding, judge
from lab.audit.trials import Setting, seen
from lab.stack import Urls
from server.analyzer import check_count, content_sum, open_all
from server.cohorts import round_message
from server.intermediary import HttpIntermediaries
from server.keys import Keys, fresh
from server.rounds import CohortPlan, RoundPlan
from server.tickets import sign

AT_ONCE = 8  # cohorts in flight
STAGE_SECONDS = 30.0


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
    """Both S at `urls`, and one setting to audit there. One coordinate only.

    A cohort is one trial, but for a `message` view through the shuffler, where every record is one.
    """

    setting: Setting
    urls: Urls
    http: Http
    worker: Executor
    keys: Keys = field(default_factory=fresh)
    name: str = field(default_factory=lambda: f"audit-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        _check(self.setting)
        self._config = self._configured(self.setting.mechanism)
        addresses = Addresses(self.urls.server, self.urls.shuffler, self.urls.aggregator)
        self._courier = Courier(Sender(self.http, addresses, self.name), Tally())
        self._parties = HttpIntermediaries(self.urls.shuffler, self.urls.aggregator, self.urls.token, self.http)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def outcomes(self, world: int, trials: int) -> NDArray[np.float64]:
        """At least `trials` numbers as `lab.audit.trials` gives them."""
        each = self.setting.survivors if self.setting.view == "message" else 1
        names = range(-(-trials // each))
        parts = await asyncio.gather(*(self._trial(world, number) for number in names))
        return np.concatenate(parts)

    async def _trial(self, world: int, number: int) -> NDArray[np.float64]:
        async with self._turns:
            asked = self._round(f"{self.name}.{world}.{number}")
            cohort = asked.assignments[0].cohort
            await self._parties.open(cohort)
            await self._play(asked, world)
            batch = await self._collect(cohort)
        return seen(self.setting, self._content(cohort, batch), SystemStream())

    async def _play(self, asked: Round, world: int) -> None:
        """Everybody joins; those that are to be lost leave before they have said anything."""
        assignment = asked.assignments[0]
        randomizer = Randomizer(asked, assignment, World(Rewards(self._values(world)), seed=0))
        masked = assignment.cohort.via == "aggregator"
        script = Masking(randomizer, 1) if masked else Reporting(randomizer)
        leaves = np.full(assignment.cohort.clients, NEVER, dtype=np.int64)
        leaves[self.setting.survivors :] = 0
        crew = Crew(assignment.cohort, script, self._courier, self.worker, 512)
        await crew.open(await crew.begin(granted(sign(self.keys.ticket, assignment.cohort, 0, len(leaves)), leaves)))
        await crew.follow()

    def _values(self, world: int) -> NDArray[np.float64]:
        mechanism = self.setting.mechanism
        extreme = mechanism.high if world else mechanism.low
        values = np.full(mechanism.clients, extreme if self.setting.view == "message" else mechanism.low)
        values[0] = extreme
        return values

    async def _collect(self, cohort: Cohort) -> Batch:
        answer = await self._parties.collect(cohort)
        while answer.state == "waiting":
            answer = await self._parties.collect(cohort)
        if answer.batch is None:
            raise Unavailable(f"cohort {cohort.cohort} was aborted: {answer.reason}")
        return answer.batch

    def _content(self, cohort: Cohort, batch: Batch) -> Vector:
        """What S handed over: every record, shape (records, 1), or the sum, shape (1, 1)."""
        check_count(cohort, batch)
        opener = partial(open_record, self.keys.seal, cohort)
        if self.setting.view == "message" and batch.content.kind == "records" and cohort.channel.kind == "sealed":
            payloads = open_all(cohort.channel, batch.content, batch.survivors, opener)
            return unpack_rows(payloads, self.setting.mechanism.modulus, 1)
        return content_sum(self.setting.mechanism, cohort, batch, opener).reshape(1, 1)

    def _round(self, cohort: str) -> Round:
        mechanism = self.setting.mechanism
        known, least = cast("AnyMechanism", mechanism), self.setting.survivors  # or a broken one of its kind
        planned = CohortPlan(cohort, 0, mechanism.clients, 1, least, known)
        plan = RoundPlan(1, 1, AssignedArm(), Reward(), known, least, (planned,))
        return round_message(self._config, plan, self.keys.public)

    def _configured(self, mechanism: Mechanism) -> RunConfig:
        """Only its digest and its rates are used: the mechanism is there already."""
        lost = mechanism.clients - self.setting.survivors
        rate = min(math.nextafter(0.5, 0), (lost + 0.5) / mechanism.clients) if lost else 0.0
        spec = IntermediarySpec(dropout=rate, corrupt=0.0, minimum=self.setting.survivors, stage_seconds=STAGE_SECONDS)
        return RunConfig(
            run=self.name,
            arms=2,
            horizon=2 * mechanism.clients + 2,
            mechanism=MechanismSpec(name="identity"),
            intermediary=spec,
        )


def _check(setting: Setting) -> None:
    """Refuse what cannot be staged over HTTP."""
    mechanism = setting.mechanism
    if setting.survivors < mechanism.floor:
        raise TooSmall(setting.survivors, mechanism.floor)  # real clients would refuse to unmask, one deadline later
    if mechanism.dimension != 1:
        raise BadParameter("dimension", mechanism.dimension, "an audit over HTTP takes one coordinate")
    if 2 * setting.survivors <= mechanism.clients:
        allowed = f"must be more than half of clients = {mechanism.clients} over HTTP"
        raise BadParameter("survivors", setting.survivors, allowed)
    if setting.colluders:
        raise BadParameter("colluders", setting.colluders, "must be 0 over HTTP: S hands over the whole sum")
    if setting.view == "message" and mechanism.via == "aggregator":
        raise BadParameter("mechanism.via", "aggregator", "a single message is seen via shuffler only")


async def audit_over_http(setting: Setting, urls: Urls, *, trials: int, alarm: float = ALARM) -> Finding:
    """Run both worlds at running services, and judge. The same test as in process, with fewer trials."""
    async with Http() as http:
        with ThreadPoolExecutor(1, "audit") as worker:
            street = Street(setting, urls, http, worker)
            worlds = [await street.outcomes(world, trials) for world in (0, 1)]
    return judge(setting, worlds[0], worlds[1], alarm=alarm, transport="http")

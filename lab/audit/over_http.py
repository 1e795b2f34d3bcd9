"""Runs both worlds of an audit over the real services: cohorts at the intermediaries, clients, batches over HTTP.

The auditor takes the server's place: its own keys sign tickets and open records. The clients are the fleet's own, each
with noise from the operating system. `CohortHarness` plays the cohorts, a few at once. The batch goes through the
analyzer's own code.

One cohort carries many trials. Where a single message is looked at, every record is a trial. Where all coordinates
have noise of their own, a message holds many replicas of the mechanism (`lab.audit.observation`). The cohorts
themselves are independent, and there are dozens of them.
"""

import asyncio
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from distrust.client.cohort.departures import NEVER
from distrust.client.cohort.protocols import SecAggProtocol, ShuffleProtocol
from distrust.client.cohort.randomizer import CohortRandomizer, World
from distrust.client.cohort.secagg import Secrets
from distrust.client.cohort.session import CohortSession, Worker
from distrust.client.cohort.stats import FleetStats
from distrust.client.cohort.uploader import Uploader
from distrust.client.cohort.user import User, granted
from distrust.client.transport.http import Addresses, HttpTransport
from distrust.common.bandit.decisions import AssignedArm
from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.central.additive import UnsafeIdentity
from distrust.common.errors import BadMessage, BadParameter, Unavailable
from distrust.common.modular import Vector
from distrust.common.protocol.channels.base import BatchReader
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.receipts import ABSENT, record_list
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort, KeyHashes
from distrust.common.protocol.messages.status import RecordList, StatementList
from distrust.common.protocol.messages.upload import Receipts, UploadAnswer
from distrust.common.protocol.run.config import IntermediarySpec, RunConfig
from distrust.common.protocol.run.round import Round
from distrust.common.protocol.web.client import Http
from distrust.common.randomness import Stream, SystemStream
from distrust.lab.audit.observation import evidence, most_replicas, observed, replicated
from distrust.lab.audit.query import USUAL_TRIALS
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import ALARM, Finding, check_trials, judge_worlds
from distrust.lab.stack.stack import Urls
from distrust.server.intermediary import HttpIntermediaries
from distrust.server.learner.analyzer import check_count, content_sums
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.runs.active_run import round_message
from distrust.server.runs.ticket_issuer import sign
from distrust.server.storage.keys import Keys, new_keys

AT_ONCE = 8  # cohorts in flight
STAGE_SECONDS = 60.0  # for a stage of a cohort; then its clients count as lost
BLOCK = 512  # clients of one upload

COHORTS = 32
"""Cohorts of each world, at least, where there are as many trials."""

USUAL_COHORTS = 250  # of each world, unless the caller says how many trials: about a minute
MESSAGE_BITS = 1 << 20  # of a client


@dataclass(frozen=True, slots=True)
class Rewards:
    """An environment whose clients hold given values."""

    values: NDArray[np.float64]
    name: str = "audit"
    arms: int = 2
    best: int = 0

    @property
    def means(self) -> NDArray[np.float64]:
        return np.full(self.arms, self.values.mean())

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return the first `count` values, for every arm."""
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

    async def records(self, cohort: Cohort, wait: float) -> RecordList:
        del wait
        answer = await self._parties.collect(cohort, opening=False)
        hashes = b"" if answer.batch is None else record_list(cohort, answer.batch)
        return RecordList(cohort=cohort.cohort, hashes=hashes, over=answer.state == "aborted")

    async def give_receipts(self, cohort: Cohort, receipts: Receipts) -> UploadAnswer:
        if ABSENT in receipts.answers:
            raise BadMessage(f"cohort {cohort.cohort}: the shuffler did not deliver all records that it took")
        return UploadAnswer(accepted=len(receipts.slots), refused=[])


@dataclass
class CohortHarness:
    """Cohorts of `mechanism.clients` clients, of which all but the first `survivors` leave.

    apart  whether a batch of sealed records is returned record by record; else its sum, by the analyzer's code.
    """

    mechanism: Mechanism
    survivors: int
    urls: Urls
    http: Http
    worker: Worker
    apart: bool = False
    keys: Keys = field(default_factory=new_keys)
    name: str = field(default_factory=lambda: f"audit-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        self._config = self._configured()
        addresses = Addresses(self.urls.server, self.urls.shuffler, self.urls.aggregator)
        self._parties = HttpIntermediaries(self.urls.shuffler, self.urls.aggregator, lambda: self.urls.token, self.http)
        self._transport = _AuditorAsServer(self.http, addresses, self.name, self._parties)
        self._uploader = Uploader(self._transport, FleetStats())
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def cohort(self, name: str, values: NDArray[np.float64]) -> Vector:
        """Return the intermediary's output for clients with these vectors, shape (n, D).

        That is one row, or a row for each survivor. Raises Unavailable when the cohort is aborted.
        """
        async with self._turns:
            round_ = self._round(f"{self.name}.{name}")
            cohort = round_.assignments[0].cohort
            await self._parties.open(cohort)
            await self._play(round_, values)
            return self._content(cohort, await self._collect(cohort))

    async def _play(self, round_: Round, values: NDArray[np.float64]) -> None:
        """Let all clients join; those that are to be lost leave before they send anything."""
        assignment = round_.assignments[0]
        rewards = values[:, 0] if isinstance(round_.statistic, Reward) else values
        randomizer = CohortRandomizer(round_, assignment, World(Rewards(rewards), seed=0))
        masked = assignment.cohort.via == "aggregator"
        protocol = SecAggProtocol(randomizer, 1) if masked else ShuffleProtocol(randomizer)
        session = CohortSession(assignment.cohort, protocol, self._uploader, self.worker, BLOCK)
        users = self._users(assignment.cohort)
        await session.join(users, full=True)
        noted = asyncio.ensure_future(asyncio.sleep(0))  # an audit's clients have no memory
        await session.open(await session.begin(users, noted))
        await session.follow()

    def _users(self, cohort: Cohort) -> Sequence[User]:
        leaves = np.full(cohort.clients, NEVER, dtype=np.int64)
        leaves[self.survivors :] = 0
        masked = cohort.via == "aggregator"
        own = [Secrets() for _ in range(cohort.clients)] if masked else []
        hashes = self._transport.hashes[cohort.cohort] = b"".join(key_hash(keys.public) for keys in own)
        return granted(sign(self.keys.ticket, cohort, 0, cohort.clients, hashes), leaves, own)

    async def _collect(self, cohort: Cohort) -> Batch:
        answer = await self._parties.collect(cohort, opening=False)
        while answer.state == "waiting":
            answer = await self._parties.collect(cohort, opening=False)
        if answer.batch is None:
            raise Unavailable(f"cohort {cohort.cohort} was aborted: {answer.reason}")
        return answer.batch

    def _content(self, cohort: Cohort, batch: Batch) -> Vector:
        check_count(cohort, batch)
        opener = partial(open_record, self.keys.seal, cohort)
        if self.apart:
            reader = BatchReader(self.mechanism.modulus, self.mechanism.dimension, opener)
            (group,) = cohort.channel.open(batch.content, batch.survivors, reader)
            return group.rows
        return content_sums(self.mechanism, cohort, batch, opener)[0].reshape(1, -1)

    def _round(self, cohort: str) -> Round:
        mechanism = self.mechanism
        planned = CohortPlan(
            cohort=cohort,
            arm=0,
            clients=mechanism.clients,
            attempt=1,
            minimum=self.survivors,
            mechanism=mechanism,
        )
        plan = RoundPlan(
            number=1,
            batch=1,
            decision=AssignedArm(),
            statistic=self._statistic,
            mechanism=mechanism,
            minimum=self.survivors,
            cohorts=(planned,),
        )
        return round_message(self._config, self._config.digest(), plan, self.keys.public)

    @property
    def _statistic(self) -> Statistic:
        if self.mechanism.dimension == 1:
            return Reward()
        bound = max(abs(self.mechanism.low), abs(self.mechanism.high))
        return BoundedVector(dimension=self.mechanism.dimension, norm=self.mechanism.norm, bound=bound)

    def _configured(self) -> RunConfig:
        """Return a configuration of which only the digest and the rates are used: the mechanism is there already."""
        clients = self.mechanism.clients
        lost = clients - self.survivors
        rate = min(math.nextafter(0.5, 0), (lost + 0.5) / clients) if lost else 0.0
        spec = IntermediarySpec(dropout=rate, corrupt=0.0, minimum=self.survivors, stage_seconds=STAGE_SECONDS)
        return RunConfig(
            run=self.name,
            arms=2,
            horizon=2 * clients + 2,
            mechanism=MechanismSpec(name=UnsafeIdentity.known_as()),
            intermediary=spec,
        )


@dataclass(frozen=True)
class Staged:
    """A setting and the services that it is played over.

    A trial is `setting.batches` cohorts, one after another in a stream; `replicas` trials share them.
    """

    setting: Setting
    harness: CohortHarness
    replicas: int
    name: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def each(self) -> int:
        """Return the trials that a cohort, or a stream of cohorts, gives."""
        return self.replicas * _records(self.setting)

    def cohorts(self, trials: int) -> int:
        """Return the cohorts, or streams of cohorts, that so many trials take."""
        return -(-trials // self.each)

    async def outcomes(self, world: int, trials: int) -> NDArray[np.float64]:
        """Return the evidence of `trials` trials of this world, as `lab.audit.in_process.outcomes` does."""
        runs = range(self.cohorts(trials))
        parts = await asyncio.gather(*(self._run(world, number) for number in runs))
        return np.concatenate(parts)[:trials]

    async def _run(self, world: int, number: int) -> NDArray[np.float64]:
        """Return the evidence of one cohort, or of the cohorts of one stream, whose first has the differing client."""
        batches = range(self.setting.batches)
        name = f"{self.name}.{world}.{number}"
        cohorts = [self.harness.cohort(f"{name}.{batch}", self._values(0 if batch else world)) for batch in batches]
        contents = self._by_trial(np.stack(await asyncio.gather(*cohorts)))
        return evidence(self.setting, observed(self.setting, contents, SystemStream()))

    def _by_trial(self, handed: Vector) -> Vector:
        """Return the intermediary's rows, (batches, rows, replicas · D), as (batches, trials, messages, D)."""
        batches, rows, width = handed.shape
        apart = handed.reshape(batches, rows, self.replicas, width // self.replicas)
        if self.setting.view == "message":
            return apart.reshape(batches, rows * self.replicas, 1, -1)
        return apart.transpose(0, 2, 1, 3)

    def _values(self, world: int) -> NDArray[np.float64]:
        """Return all clients' vectors, shape (n, replicas · D). Where single messages count, all clients differ."""
        setting = self.setting
        values = np.tile(setting.others, (setting.mechanism.clients, 1))
        values[: None if setting.view == "message" else 1] = setting.ends[world]
        return np.tile(values, (1, self.replicas))


def staged(setting: Setting, urls: Urls, http: Http, worker: Worker, trials: int) -> Staged:
    """Return a setting ready to play. Raises TooSmall or BadParameter where it cannot be played over HTTP."""
    _check(setting)
    replicas = replicas_for(setting, trials)
    apart = setting.view in {"message", "records"}
    harness = CohortHarness(replicated(setting.mechanism, replicas), setting.survivors, urls, http, worker, apart=apart)
    return Staged(setting, harness, replicas)


def replicas_for(setting: Setting, trials: int) -> int:
    """Return how many replicas a message holds: few enough for `COHORTS` cohorts, and for a message's length."""
    wanted = min(trials // (COHORTS * _records(setting)), MESSAGE_BITS // setting.mechanism.bits)
    return max(1, min(wanted, most_replicas(setting.mechanism)))


def usual_trials(setting: Setting) -> int:
    """Return the trials of each world that take about a minute at most."""
    return min(USUAL_TRIALS, USUAL_COHORTS * _records(setting) * replicas_for(setting, USUAL_TRIALS))


def _records(setting: Setting) -> int:
    """Return how many messages of a cohort are trials of their own."""
    return setting.survivors if setting.view == "message" else 1


def _check(setting: Setting) -> None:
    """Refuse an audit that cannot be played over HTTP."""
    mechanism = setting.mechanism
    setting.check()  # below the floor real clients would refuse to unmask, one deadline later
    if 2 * setting.survivors <= mechanism.clients:
        allowed = f"must be more than half of n = {mechanism.clients} over HTTP"
        raise BadParameter("survivors", setting.survivors, allowed)
    if setting.colluders:
        allowed = "must be 0 over HTTP: the intermediary hands over the whole sum"
        raise BadParameter("colluders", setting.colluders, allowed)


async def audit_over_http(setting: Setting, urls: Urls, *, trials: int, alarm: float = ALARM) -> Finding:
    """Run both worlds over running services, and return the finding of the same test as in process."""
    check_trials(setting, trials, alarm)
    async with Http() as http:
        with Worker() as worker:
            stage = staged(setting, urls, http, worker, trials)
            worlds = [await stage.outcomes(world, trials) for world in (0, 1)]
    finding = judge_worlds(setting, worlds[0], worlds[1], alarm=alarm)
    return finding.model_copy(update={"cohorts": stage.cohorts(trials) * setting.batches})

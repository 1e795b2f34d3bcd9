"""Run both worlds of an audit over the real services: cohorts at the intermediaries, clients, batches over HTTP.

The auditor takes the server's place: its own keys sign tickets and open records. The clients are the fleet's own, each
with noise from the operating system. The batch goes through the analyzer's own code.

One cohort carries many trials. Where a single message is looked at, every record is a trial. Where all coordinates
have noise of their own, a message holds many replicas of the mechanism (`lab.audit.observation`). The cohorts
themselves are independent, and there are dozens of them.
"""

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.modular import Vector
from distrust.common.randomness import SystemStream
from distrust.common.web.client import Http
from distrust.lab.audit.harness import CohortHarness
from distrust.lab.audit.observation import evidence, most_replicas, observed, replicated
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import ALARM, Finding, check_trials, judge_worlds
from distrust.lab.stack.stack import Urls

COHORTS = 32
"""Cohorts of each world, at least, where there are as many trials."""

USUAL_COHORTS = 250
USUAL_TRIALS = 10_000
MESSAGE_BITS = 1 << 20  # of a client


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
        """Play one cohort, or the cohorts of one stream; the differing client is in the first of them."""
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


def staged(setting: Setting, urls: Urls, http: Http, worker: ThreadPoolExecutor, trials: int) -> Staged:
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
    """Refuse what cannot be played over HTTP."""
    mechanism = setting.mechanism
    setting.check()  # below the floor real clients would refuse to unmask, one deadline later
    if 2 * setting.survivors <= mechanism.clients:
        allowed = f"must be more than half of clients = {mechanism.clients} over HTTP"
        raise BadParameter("survivors", setting.survivors, allowed)
    if setting.colluders:
        raise BadParameter("colluders", setting.colluders, "must be 0 over HTTP: S hands over the whole sum")


async def audit_over_http(setting: Setting, urls: Urls, *, trials: int, alarm: float = ALARM) -> Finding:
    """Run both worlds over running services and test the claim, by the same test as in process."""
    check_trials(setting, trials, alarm)
    async with Http() as http:
        with ThreadPoolExecutor(1, "audit") as worker:
            stage = staged(setting, urls, http, worker, trials)
            worlds = [await stage.outcomes(world, trials) for world in (0, 1)]
    finding = judge_worlds(setting, worlds[0], worlds[1], alarm=alarm)
    return finding.model_copy(update={"cohorts": stage.cohorts(trials) * setting.batches})

"""The same two worlds over the real services: cohorts opened at S, real clients, batches collected over HTTP.

The auditor stands where the server stands: its own keys sign tickets and open records. Clients are the fleet's own
(`client.session`), each with noise from the operating system; the batch goes through the analyzer's own code.

One cohort carries many trials: every record is one where a single message is looked at, and where all coordinates have
noise of their own a message holds many copies of the mechanism side by side (`lab.audit.replicas`). The cohorts
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
from distrust.lab.audit.evidence import evidence
from distrust.lab.audit.finding import ALARM, Finding, check_trials, judge
from distrust.lab.audit.harness import CohortHarness
from distrust.lab.audit.observation import shown
from distrust.lab.audit.replicas import in_lanes, most_lanes
from distrust.lab.audit.setting import Setting
from distrust.lab.stack.stack import Urls

COHORTS = 32
"""Cohorts of each world, at least, where there are as many trials."""

USUAL_COHORTS = 250
USUAL_TRIALS = 10_000
MESSAGE_BITS = 1 << 20  # of a client


@dataclass(frozen=True)
class Staged:
    """A setting and the street that it is played on.

    A trial is `setting.batches` cohorts, one after another in a stream; `lanes` trials share them.
    """

    setting: Setting
    street: CohortHarness
    lanes: int
    name: str = field(default_factory=lambda: secrets.token_hex(6))

    @property
    def each(self) -> int:
        """Trials that a cohort, or a stream of them, gives."""
        return self.lanes * _records(self.setting)

    def cohorts(self, trials: int) -> int:
        """Cohorts, or streams of them, for so many trials."""
        return -(-trials // self.each)

    async def outcomes(self, world: int, trials: int) -> NDArray[np.float64]:
        """As `lab.audit.trials.outcomes`, from cohorts of this world."""
        runs = range(self.cohorts(trials))
        parts = await asyncio.gather(*(self._run(world, number) for number in runs))
        return np.concatenate(parts)[:trials]

    async def _run(self, world: int, number: int) -> NDArray[np.float64]:
        """One cohort, or the cohorts of one stream; the differing client is in the first of them."""
        batches = range(self.setting.batches)
        name = f"{self.name}.{world}.{number}"
        cohorts = [self.street.cohort(f"{name}.{batch}", self._values(0 if batch else world)) for batch in batches]
        contents = self._by_trial(np.stack(await asyncio.gather(*cohorts)))
        return evidence(self.setting, shown(self.setting, contents, SystemStream()))

    def _by_trial(self, handed: Vector) -> Vector:
        """Rows of S, shape (batches, rows, lanes · D), to shape (batches, trials, messages, D)."""
        batches, rows, width = handed.shape
        apart = handed.reshape(batches, rows, self.lanes, width // self.lanes)
        if self.setting.view == "message":
            return apart.reshape(batches, rows * self.lanes, 1, -1)
        return apart.transpose(0, 2, 1, 3)

    def _values(self, world: int) -> NDArray[np.float64]:
        """Everybody's vector, shape (n, lanes · D); where single messages are looked at, all are the differing one."""
        setting = self.setting
        values = np.tile(setting.others, (setting.mechanism.clients, 1))
        values[: None if setting.view == "message" else 1] = setting.ends[world]
        return np.tile(values, (1, self.lanes))


def staged(setting: Setting, urls: Urls, http: Http, worker: ThreadPoolExecutor, trials: int) -> Staged:
    """Ready to play. Raises TooSmall or BadParameter for what cannot be staged."""
    _check(setting)
    lanes = lanes_for(setting, trials)
    apart = setting.view in {"message", "records"}
    street = CohortHarness(in_lanes(setting.mechanism, lanes), setting.survivors, urls, http, worker, apart=apart)
    return Staged(setting, street, lanes)


def lanes_for(setting: Setting, trials: int) -> int:
    """Copies of the mechanism in a message: few enough for `COHORTS` cohorts, and no message too long."""
    wanted = min(trials // (COHORTS * _records(setting)), MESSAGE_BITS // setting.mechanism.bits)
    return max(1, min(wanted, most_lanes(setting.mechanism)))


def usual_trials(setting: Setting) -> int:
    """Trials of each world that take a minute at most or so."""
    return min(USUAL_TRIALS, USUAL_COHORTS * _records(setting) * lanes_for(setting, USUAL_TRIALS))


def _records(setting: Setting) -> int:
    """Messages of a cohort that are trials of their own."""
    return setting.survivors if setting.view == "message" else 1


def _check(setting: Setting) -> None:
    """Refuse what cannot be staged over HTTP."""
    mechanism = setting.mechanism
    setting.check()  # below the floor real clients would refuse to unmask, one deadline later
    if 2 * setting.survivors <= mechanism.clients:
        allowed = f"must be more than half of clients = {mechanism.clients} over HTTP"
        raise BadParameter("survivors", setting.survivors, allowed)
    if setting.colluders:
        raise BadParameter("colluders", setting.colluders, "must be 0 over HTTP: S hands over the whole sum")


async def audit_over_http(setting: Setting, urls: Urls, *, trials: int, alarm: float = ALARM) -> Finding:
    """Run both worlds at running services, and judge. The same test as in process."""
    check_trials(setting, trials, alarm)
    async with Http() as http:
        with ThreadPoolExecutor(1, "audit") as worker:
            stage = staged(setting, urls, http, worker, trials)
            worlds = [await stage.outcomes(world, trials) for world in (0, 1)]
    found = judge(setting, worlds[0], worlds[1], alarm=alarm)
    return found.model_copy(update={"cohorts": stage.cohorts(trials) * setting.batches})

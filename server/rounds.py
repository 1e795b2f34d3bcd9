"""A round as the learner plans it: one cohort of fresh clients for every arm, all under one mechanism."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from common.guarantee import Guarantee
from common.mechanisms import AnyMechanism, plan
from common.messages.run import IntermediarySpec, RunConfig
from common.statistics import Statistic
from server.outcome import Released
from server.policies import Ask


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """`clients` fresh clients play `arm`; `attempt` counts from 1, each replacement is one more."""

    cohort: str
    arm: int
    clients: int
    attempt: int


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What is to be done now. `cohorts` are those without an outcome; `minimum` is the least survivors of each."""

    number: int
    batch: int
    mechanism: AnyMechanism
    minimum: int
    cohorts: tuple[CohortPlan, ...]


@dataclass
class RoundRecord:
    """A round as it stands or ended: every cohort of every attempt, the sums by arm, the arms dropped after it.

    Only the learner writes in it.
    """

    number: int
    ask: Ask
    mechanism: AnyMechanism
    minimum: int
    cohorts: tuple[CohortPlan, ...] = ()
    released: dict[int, Released] = field(default_factory=dict)
    eliminated: tuple[int, ...] = ()

    @cached_property
    def guarantee(self) -> Guarantee:
        """The mechanism's, at its floor of honest survivors."""
        return self.mechanism.guarantee()

    @property
    def clients(self) -> int:
        """Everybody who was asked in this round."""
        return sum(cohort.clients for cohort in self.cohorts)

    @property
    def attempts(self) -> int:
        """Waves so far."""
        return max((cohort.attempt for cohort in self.cohorts), default=0)


def least_survivors(clients: int, spec: IntermediarySpec) -> int:
    """The least number that may answer: n - ⌊d·n⌋, never below the run's minimum (server.checks keeps that below n)."""
    return max(clients - math.floor(spec.dropout * clients), spec.minimum)


def noise_floor(clients: int, spec: IntermediarySpec) -> int:
    """t: honest survivors that the noise is calibrated to, at least 1."""
    return max(1, least_survivors(clients, spec) - math.floor(spec.corrupt * clients))


def begin(config: RunConfig, number: int, ask: Ask, statistic: Statistic) -> RoundRecord:
    """Plan a round's mechanism. Raises BadParameter when it cannot be calibrated to such a cohort."""
    spec = config.intermediary
    least = least_survivors(ask.clients, spec)
    floor = noise_floor(ask.clients, spec)
    mechanism = plan(
        config.mechanism, clients=ask.clients, least=least, floor=floor, wrap=ask.share, statistic=statistic
    )
    return RoundRecord(number, ask, mechanism, least)


def wave(run: str, record: RoundRecord, arms: tuple[int, ...], attempt: int) -> tuple[CohortPlan, ...]:
    """One cohort for each of `arms`. Ids end in three numbers, so that two runs can never share one."""
    clients = record.ask.clients
    return tuple(CohortPlan(f"{run}.{record.number}.{arm}.{attempt}", arm, clients, attempt) for arm in arms)

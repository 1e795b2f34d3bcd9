"""A round as the learner plans it: its cohorts of fresh clients, each under a mechanism calibrated to its size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from distrust.common.bandit.decisions import Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.mechanisms import AnyMechanism, plan
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.ledger import parallel
from distrust.common.run.config import RunConfig
from distrust.server.learner.outcome import Released
from distrust.server.policies import Ask, Key, Query

DEALT = (
    "the server cannot see what a client plays",
    "whether a client leaves does not depend on the action that it was dealt",
    "the server, which hands out the slots, holds no more of them itself than the colluders that are counted",
)
"""What shuffled actions count on, besides a shuffler that is honest (FREE, footnote 2)."""


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """`clients` fresh clients play `arm`, or what the round's decision says when it is None.

    attempt    counts from 1, each replacement is one more.
    minimum    the least survivors; mechanism: calibrated to them.
    """

    cohort: str
    arm: Key
    clients: int
    attempt: int
    minimum: int
    mechanism: AnyMechanism


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What is to be done now: `cohorts` without an outcome. `mechanism` and `minimum` are the largest ones'."""

    number: int
    batch: int
    decision: Decision
    statistic: Statistic
    mechanism: AnyMechanism
    minimum: int
    cohorts: tuple[CohortPlan, ...]


@dataclass
class RoundRecord:
    """A round as it stands or ended: every cohort of every attempt, the sums by query, the arms dropped after it.

    mechanisms  by the size of a cohort. Only the learner writes in a record.
    """

    number: int
    ask: Ask
    mechanisms: dict[int, AnyMechanism]
    minima: dict[int, int]
    cohorts: tuple[CohortPlan, ...] = ()
    released: dict[Key, Released] = field(default_factory=dict)
    eliminated: tuple[int, ...] = ()

    @property
    def mechanism(self) -> AnyMechanism:
        """That of the largest cohorts."""
        return self.mechanisms[max(self.mechanisms)]

    @property
    def minimum(self) -> int:
        """That of the largest cohorts."""
        return self.minima[max(self.minima)]

    @cached_property
    def guarantee(self) -> Guarantee:
        """The weakest of the mechanisms', each at its floor of honest survivors."""
        return self._weakest([mechanism.guarantee() for mechanism in self.mechanisms.values()])

    @cached_property
    def composable(self) -> Guarantee:
        """The same for clients that return, with what several of them add up by."""
        return self._weakest([mechanism.composable() for mechanism in self.mechanisms.values()])

    def _weakest(self, found: Sequence[Guarantee]) -> Guarantee:
        weakest = found[0] if len(found) == 1 else parallel(found)
        if self.ask.decision.kind != "assigned-action" or weakest.model != "shuffle":
            return weakest
        return weakest.model_copy(update={"assumptions": (*weakest.assumptions, *DEALT)})

    @property
    def clients(self) -> int:
        """Everybody who was asked in this round."""
        return sum(cohort.clients for cohort in self.cohorts)

    @property
    def attempts(self) -> int:
        """Waves so far."""
        return max((cohort.attempt for cohort in self.cohorts), default=0)


def begin(config: RunConfig, number: int, ask: Ask, before: Sequence[RoundRecord] = ()) -> RoundRecord:
    """Plan a round's mechanisms, or take those of a round `before` that asked for the same.

    Raises BadParameter when one cannot be calibrated to its cohorts.
    """
    sizes = sorted({query.clients for query in ask.queries})
    for old in before:
        if [*old.mechanisms] == sizes and (old.ask.share, old.ask.statistic) == (ask.share, ask.statistic):
            return RoundRecord(number, ask, old.mechanisms, old.minima)
    minima = {size: config.intermediary.least_survivors(size) for size in sizes}
    mechanisms = {size: _calibrated(config, ask, size) for size in sizes}
    return RoundRecord(number, ask, mechanisms, minima)


def _calibrated(config: RunConfig, ask: Ask, clients: int) -> AnyMechanism:
    spec, words = config.intermediary, config.mechanism
    least, floor = spec.least_survivors(clients), spec.noise_floor(clients)
    dealt = ask.decision.kind == "assigned-action"
    if dealt:  # only the shuffler deals, whatever the mechanism's own choice is
        words = words.model_copy(update={"via": "shuffler"})
    return plan(words, clients=clients, least=least, floor=floor, wrap=ask.share, statistic=ask.statistic, dealt=dealt)


def wave(run: str, record: RoundRecord, queries: tuple[Query, ...], attempt: int) -> tuple[CohortPlan, ...]:
    """One cohort for each of `queries`. Ids end in three numbers, so that two runs can never share one."""
    return tuple(
        CohortPlan(
            f"{run}.{record.number}.{query.arm or 0}.{attempt}",
            query.arm,
            query.clients,
            attempt,
            record.minima[query.clients],
            record.mechanisms[query.clients],
        )
        for query in queries
    )

"""Counts regret and a policy's failures, dropped best arms and missed means, and joins them to the run's result.

Only the clients' side can: it knows the truth.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import ContextualWorld, Environment
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import LedgerClass, Snapshot
from distrust.lab.play.contextual_failures import ContextualTracker
from distrust.lab.play.result import (
    Bits,
    Driver,
    FormedInterval,
    PolicyFailures,
    Regret,
    Result,
    RoundResult,
    Truth,
    Wire,
)
from distrust.lab.play.run_file import RunFile
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import RoundRecord
from distrust.server.policies.base import Interval, Query


def tracker_of(file: RunFile) -> "FailureTracker | ContextualTracker":
    """Return the tracker for the world of a run file."""
    world = file.world()
    if isinstance(world, ContextualWorld):
        return ContextualTracker(file, world)
    return FailureTracker(file, world)


class FailureTracker:
    """Watches a learner from cohort to cohort. Compares every interval with the true mean once, when it is new."""

    def __init__(self, file: RunFile, world: Environment) -> None:
        means = world.means
        self._config, self._means = file.config, means.tolist()
        self._gaps, self._first_best = means.max() - means, world.best
        self._best: list[int] = np.flatnonzero(means == means.max()).tolist()
        self._round, self._batch = 0, 0
        self._widths, self._missed = 0, 0
        self._formed: Counter[int] = Counter()
        self._seen: list[FormedInterval] = []

    def __call__(self, learner: Learner) -> None:
        """Look at the learner after a cohort. Only the end of a round brings new intervals."""
        number = learner.rounds[-1].number
        if learner.finished or number != self._round:
            self._round = number
            self._look(learner)

    def truth(self, learner: Learner) -> Truth:
        """Return the regret by the true means, the best arm, and the failures so far."""
        rounds = (
            [pull for cohort in record.cohorts for pull in record.ask.pulls(Query(cohort.arm, cohort.clients))]
            for record in learner.rounds
        )
        regret = regret_of_pulls(self._gaps, learner.pulls, rounds)
        at = _dropped_at(learner, self._best)
        events = PolicyFailures(
            best_dropped=at is not None,
            best_dropped_at=at,
            widths=self._widths,
            width_failures=self._missed,
            failure=stated_failure(self._config, learner.rounds, self._formed),
        )
        return Truth(self._first_best, regret, events, formed=self._seen)

    def _look(self, learner: Learner) -> None:
        """Count intervals once: a run may end without another batch, and then they are counted already."""
        latest = learner.policy.latest_intervals
        if not latest or latest[-1].batch <= self._batch:
            return
        self._batch = latest[-1].batch
        self._widths += len(latest)
        self._missed += sum(not interval.lower <= self._means[interval.arm] <= interval.upper for interval in latest)
        if self._config.policy.COUNTS:  # the others state p whatever they formed
            self._formed[self._batch] += len(latest)
        if not self._config.policy.sequential:  # its intervals are as many as its pulls
            self._seen += _intervals(learner, latest)


def _intervals(learner: Learner, latest: Sequence[Interval]) -> list[FormedInterval]:
    """Return the intervals of one batch, with the last round that played it."""
    batch = latest[-1].batch
    number = next(record.number for record in reversed(learner.rounds) if record.ask.batch == batch)
    return [  # by name: a policy of one's own may have intervals of more fields
        FormedInterval(round=number, batch=batch, arm=seen.arm, mean=seen.mean, lower=seen.lower, upper=seen.upper)
        for seen in latest
    ]


def stated_failure(config: RunConfig, rounds: list[RoundRecord], latest: Counter[int]) -> float | None:
    """Return the probability that any interval of a run fails, by the policy's own theorem.

    formed  intervals by batch, of a policy that counts them: an interval has two events, a sum may wrap around.
    """
    asks = ((record.mechanism.wrap, record.ask) for record in rounds)
    events = ((share, 2 * latest[ask.batch] + ask.width * len(ask.queries)) for share, ask in asks)
    return config.policy.stated_failure(config.mechanism.calibration, events)


def _dropped_at(learner: Learner, best: list[int]) -> int | None:
    """Return the pulls until the round that dropped the last of the best arms; None when one is active."""
    left, pulls = set(best), 0
    for record in learner.rounds:
        pulls += record.ask.cost([Query(cohort.arm, cohort.clients) for cohort in record.cohorts])
        left -= set(record.eliminated)
        if not left:
            return pulls
    return None


def regret_of_pulls(
    gaps: NDArray[np.float64], pulls: list[int], rounds: Iterable[Iterable[tuple[int | None, int]]]
) -> Regret:
    """Return the regret of pulls by arm.

    gaps    largest true mean less each arm's, shape (K,).
    pulls   of the whole run, by arm.
    rounds  (arm, pulls) of all cohorts of each round. The curve's last point counts the pulls after the last cohort.
    """
    curve: list[tuple[int, float]] = []
    counted = [0] * len(pulls)
    for record in rounds:
        for arm, count in record:
            assert arm is not None  # only contextual runs have pulls that the server does not know
            counted[arm] += count
        curve.append((sum(counted), _total(gaps, counted)))
    final = _total(gaps, pulls)
    if sum(counted) < sum(pulls):
        curve.append((sum(pulls), final))
    return Regret(final=final, curve=curve)


def _total(gaps: NDArray[np.float64], pulls: list[int]) -> float:
    """Return the regret of these pulls, rounded once, so that more pulls never show less regret."""
    return math.fsum(gaps * pulls)


def summarize(
    file: RunFile,
    driver: Driver,
    snapshot: Snapshot,
    rounds: Sequence[RoundResult],
    truth: Truth,
    *,
    spent: tuple[LedgerClass, ...],
    seconds: float | None,
    wire: Wire | None = None,
    fault: str | None = None,
) -> Result:
    """Return a run's result.

    seconds  wall time; None for a run that was over when it was asked about.
    wire     counts of fleets, None in process.
    """
    config = file.config
    pulls = [arm.pulls for arm in snapshot.arms]
    clients = sum(cohort.clients for record in rounds for cohort in record.cohorts)
    return Result(
        run=config.run,
        driver=driver,
        policy=config.policy.name,
        unproven=config.unproven,
        mechanism=config.mechanism.name,
        calibration=config.mechanism.calibration,
        environment=file.environment.name,
        horizon=config.horizon,
        seed=file.environment.seed,
        noise_seed=config.unsafe.noise_seed if config.unsafe else None,
        chosen=snapshot.chosen,
        best=truth.best,
        arms=snapshot.arms,
        pulls=pulls,
        hidden=snapshot.pulls - sum(pulls),
        clipped=truth.clipped,
        switches=truth.switches,
        regret=truth.regret,
        rounds=list(rounds),
        aborted=snapshot.aborted,
        unfinished=snapshot.unfinished,
        guarantee=snapshot.guarantee,
        spent=spent,
        bits=_bits(rounds, clients, wire),
        refusals=wire.refusals if wire else {},
        seconds=seconds,
        clients_per_second=None if seconds is None else clients / seconds,
        events=truth.events,
        formed=tuple(truth.formed),
        fault=fault,
        extensions=file.extensions,
    )


def _bits(rounds: Sequence[RoundResult], clients: int, wire: Wire | None) -> Bits:
    weights = [sum(cohort.clients for cohort in record.cohorts) / clients for record in rounds]
    payload = sum(weight * record.payload_bits for weight, record in zip(weights, rounds, strict=True))
    modulus = sum(weight * (record.modulus - 1).bit_length() for weight, record in zip(weights, rounds, strict=True))
    if wire is None:
        return Bits(payload=payload, modulus=modulus)
    return Bits(payload=payload, modulus=modulus, sent=wire.payload_bits, wire=wire.bytes)

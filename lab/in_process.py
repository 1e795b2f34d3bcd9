"""A run without sockets: the learner, mechanisms and environments of the services, whole cohorts at once.

With `[unsafe] noise_seed` every sum equals the one that the services release for the same file: rewards, departures and
noise come from the same labelled streams, row by row.
"""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from client.departures import departures, survives
from client.environments import Environment
from common.modular import total
from common.randomness import Stream, SystemStream, UnsafeSeededStream
from lab.result import CohortResult, Result, RoundResult, summarize
from lab.run_file import RunFile
from server.learner import Learner
from server.outcome import Lost, Released
from server.rounds import CohortPlan, RoundPlan, RoundRecord


def run(file: RunFile, watch: Callable[[Learner], None] = lambda _learner: None) -> Result:
    """Play a run file to its end; `watch` is called after every cohort."""
    began = time.perf_counter()
    learner = play(file, watch)
    rounds = [_round(record) for record in learner.rounds]
    seconds = time.perf_counter() - began
    return summarize(file, "in-process", learner.snapshot(), rounds, seconds=seconds, wire=None)


def play(file: RunFile, watch: Callable[[Learner], None] = lambda _learner: None) -> Learner:
    """The learner at the end of the run. Raises BadParameter when the run cannot be planned."""
    learner, world = Learner(file.config), file.world()
    while plan := learner.plan():
        for cohort in plan.cohorts:
            learner.absorb(_outcome(file, world, learner, plan, cohort))
            watch(learner)
    return learner


def _outcome(
    file: RunFile, world: Environment, learner: Learner, plan: RoundPlan, cohort: CohortPlan
) -> Released | Lost:
    """What R, S and A make of one cohort."""
    rows = plan.mechanism.randomize(
        learner.statistic.vectors(_rewards(file, world, cohort)), _noise(file, cohort.cohort)
    )
    kept = rows[survives(_departures(file, cohort))]
    if len(kept) < plan.minimum:
        return Lost(cohort=cohort.cohort, reason=f"{len(kept)} survivors, needs {plan.minimum}")
    summed = total(kept, plan.mechanism.modulus)
    estimate = plan.mechanism.estimate(summed, len(kept), _noise(file, cohort.cohort, "analyzer"))
    return Released(cohort=cohort.cohort, sum=estimate.tolist(), survivors=len(kept))


def _rewards(file: RunFile, world: Environment, cohort: CohortPlan) -> NDArray[np.float64]:
    stream = UnsafeSeededStream(_seed(file), file.config.run, cohort.cohort, "rewards")
    return world.rewards(cohort.arm, cohort.clients, stream)


def _departures(file: RunFile, cohort: CohortPlan) -> NDArray[np.int64]:
    stream = UnsafeSeededStream(_seed(file), file.config.run, cohort.cohort, "departures")
    return departures(cohort.clients, file.fleet.dropout, stream)


def _seed(file: RunFile) -> int:
    assert file.environment.seed is not None  # reading the file drew one
    return file.environment.seed


def _noise(file: RunFile, cohort: str, *labels: str) -> Stream:
    """The privacy noise of a cohort: the operating system's, unless the run is named unsafe."""
    unsafe = file.config.unsafe
    if unsafe is None:
        return SystemStream()
    return UnsafeSeededStream(unsafe.noise_seed, file.config.run, cohort, *labels)


def _round(record: RoundRecord) -> RoundResult:
    sums = {released.cohort: released for released in record.released.values()}
    return RoundResult(
        number=record.number,
        batch=record.ask.batch,
        arms=list(record.ask.arms),
        eliminated=list(record.eliminated),
        modulus=record.mechanism.modulus,
        payload_bits=record.mechanism.bits,
        cohorts=[_cohort(cohort, sums.get(cohort.cohort)) for cohort in record.cohorts],
    )


def _cohort(cohort: CohortPlan, released: Released | None) -> CohortResult:
    return CohortResult(
        cohort=cohort.cohort,
        arm=cohort.arm,
        clients=cohort.clients,
        survivors=released.survivors if released else None,
        estimate=released.sum if released else None,
    )

"""Plays a run without sockets: the services' learner, mechanisms and environments, whole cohorts at once.

With `[unsafe] noise_seed` every sum equals the one that the services release for the same file: rewards, departures and
noise come from the same labelled streams, row by row. What simulated clients of such a run held is drawn again the same
way.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from distrust.client.cohort.departures import NEVER, departures, survives
from distrust.client.cohort.randomizer import true_vectors
from distrust.client.environments import AnyWorld
from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.mechanisms import AnyMechanism
from distrust.common.dp.mechanisms.families.base import StreamCounter
from distrust.common.errors import BadParameter, describe_error
from distrust.common.modular import sum_rows
from distrust.common.protocol.channels.base import Order
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.play.failures import summarize, tracker_of
from distrust.lab.play.result import CohortResult, Result, RoundResult
from distrust.lab.play.run_file import RunFile, Source, load
from distrust.lab.play.sequential import SequentialLearner
from distrust.server.learner.analyzer import estimate
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import (
    CohortPlan,
    LostCohort,
    ReleasedCohort,
    RoundPlan,
    RoundRecord,
    round_guarantee,
    spent_by_all,
)
from distrust.server.policies.base import ArmKey
from distrust.shuffler.assignment import draw_order

HELD_VALUES = 12  # coordinates of a client's vector in a file of what clients held


def run(
    source: Source,
    watch: Callable[[Learner], None] = lambda _learner: None,
    *,
    unsafe: Mapping[str, Any] | None = None,
) -> Result:
    """Play a run to its end in this process and return the result.

    source  a dictionary of a run file's keys, a path, TOML text, or a RunFile.
    watch   is called after every cohort, with the learner.
    unsafe  takes the place of the run file's `[unsafe]`. {"noise_seed": 7} repeats the run's noise, for which the seed
            of the environment must be given too; the result's guarantee is then "no privacy".
    Raises  BadRunFile or BadParameter, naming the field, the value and what is allowed.

    >>> import distrust
    >>> table = {"run": "doc", "horizon": 2_000, "mechanism": {"name": "distributed-polya", "epsilon": 1.0}}
    >>> table["environment"] = {"name": "bernoulli", "seed": 4, "means": [0.1, 0.9]}
    >>> result = distrust.run(table)
    >>> result.guarantee.line()
    'distributed pure DP, ε = 1 (exact calibration)'
    >>> distrust.run(table, unsafe={"noise_seed": 7}).guarantee.line()
    'no privacy'
    """
    with one_thread():
        return _played(load(source, unsafe), watch)


def _played(file: RunFile, watch: Callable[[Learner], None]) -> Result:
    began, tracker = time.perf_counter(), tracker_of(file)

    def track_and_watch(learner: Learner) -> None:
        tracker(learner)
        watch(learner)

    learner = play_learner(file, track_and_watch)
    ends = [0, *(record.number for record in learner.rounds)]
    rounds = [_round(file.config, record, end + 1) for record, end in zip(learner.rounds, ends, strict=False)]
    seconds = time.perf_counter() - began
    truth = tracker.truth(learner)
    spent = spent_by_all(file.config, learner.rounds)
    snapshot, fault = learner.snapshot(), learner.fault
    return summarize(file, "in-process", snapshot, rounds, truth, spent=spent, seconds=seconds, fault=fault)


def play_learner(file: RunFile, watch: Callable[[Learner], None] = lambda _learner: None) -> Learner:
    """Return the learner at the end of the run. Raises BadParameter when the run cannot be planned."""
    world = file.world()
    learner = (SequentialLearner if file.config.policy.sequential else Learner)(file.config)
    learner.run_cohorts(CohortsInProcess(file, world), watch)
    return learner


class CohortsInProcess:
    """Plays the cohorts of one run, whole: randomize, add the survivors, estimate (R, S and A in turn)."""

    def __init__(self, file: RunFile, world: AnyWorld) -> None:
        self._file, self._world = file, world
        self._counters: dict[ArmKey, StreamCounter] = {}  # by arm, where a mechanism counts streams

    def __call__(self, plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort | LostCohort:
        """Return the outcome of one cohort."""
        file, mechanism, order = self._file, cohort.mechanism, _order(self._file, plan, cohort)
        rows = mechanism.randomize(self._vectors(plan, cohort, order), file.noise_stream(cohort.cohort))
        stay = survives(_departures(file, cohort))
        survivors = int(np.count_nonzero(stay))
        if survivors < cohort.minimum:
            return LostCohort(cohort=cohort.cohort, reason=f"{survivors} survivors, needs {cohort.minimum}")
        try:
            totals, counts = _added(cohort, plan.decision, rows[stay], None if order is None else order[stay])
            before = None
            if plan.cumulative and mechanism.takes_batches:
                before = self._counters.get(cohort.arm) or mechanism.counter()
            found = estimate(mechanism, totals, counts, file.noise_stream(cohort.cohort, "analyzer"), before)
            if found.after is not None:
                self._counters[cohort.arm] = found.after
            by_action = None if order is None else counts.tolist()
            sums = found.sums.tolist()
            return ReleasedCohort(cohort=cohort.cohort, sum=sums, survivors=survivors, counts=by_action)
        except Exception as error:  # noqa: BLE001 - as the server does (`server.runs.active_run`): the run ends and says why
            return LostCohort(cohort=cohort.cohort, reason=f"the analyzer raised: {describe_error(error)}", fault=True)

    def _vectors(self, plan: RoundPlan, cohort: CohortPlan, order: Order | None) -> NDArray[np.float64]:
        """Return the clients' true vectors in slot order."""
        stream = self._file.world_stream(cohort.cohort, "rewards")
        vectors = true_vectors(
            self._world, plan.decision, plan.statistic, arm=cohort.arm, clients=cohort.clients, stream=stream
        )
        return vectors if order is None else vectors[order]


def _order(file: RunFile, plan: RoundPlan, cohort: CohortPlan) -> Order | None:
    """Return each slot's position in the assigned list, as the shuffler draws it; None unless actions are assigned."""
    if not isinstance(plan.decision, AssignedAction):
        return None
    return draw_order(plan.decision, file.noise_stream(cohort.cohort, "order"))


def _added(
    cohort: CohortPlan, decision: Decision, rows: NDArray[np.uint64], order: Order | None
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the sums of the survivors' messages mod m and their counts, as in `Estimated`: by action if assigned."""
    modulus = cohort.mechanism.modulus
    if order is None or not isinstance(decision, AssignedAction):
        return sum_rows(rows, modulus), np.array([len(rows)])
    actions, places = len(decision.actions), decision.places()[order]
    totals = np.stack([sum_rows(rows[places == place], modulus) for place in range(actions)])
    return totals, np.bincount(places, minlength=actions)


def _departures(file: RunFile, cohort: CohortPlan) -> NDArray[np.int64]:
    if not file.fleet.dropout:
        return np.full(cohort.clients, NEVER)
    return departures(cohort.clients, file.fleet.dropout, file.world_stream(cohort.cohort, "departures"))


def _round(config: RunConfig, record: RoundRecord, first: int) -> RoundResult:
    """Return a record as the result has it. It stands for the rounds from number `first` to its own."""
    sums = {released.cohort: released for released in record.released.values()}
    return RoundResult(
        number=record.number,
        first=first if first < record.number else None,
        batch=record.ask.batch,
        arms=list(record.ask.arms),
        decision=record.ask.decision,
        eliminated=list(record.eliminated),
        modulus=record.mechanism.modulus,
        payload_bits=record.mechanism.bits,
        guarantee=round_guarantee(config, record),
        cohorts=[_cohort(cohort, sums.get(cohort.cohort)) for cohort in record.cohorts],
    )


def _cohort(cohort: CohortPlan, released: ReleasedCohort | None) -> CohortResult:
    return CohortResult(
        cohort=cohort.cohort,
        arm=cohort.arm,
        clients=cohort.clients,
        survivors=released.survivors if released else None,
        estimate=released.sum if released else None,
    )


def held(file: RunFile, cohort: Cohort) -> dict[str, Any]:
    """Return the reward of each simulated client of a cohort, drawn again from the environment's seed.

    With a noise seed also the number that the client sent before it was masked or sealed; without one only the client
    knew it. Raises BadParameter for a file of another run, one without a seed, and actions that the shuffler assigned.
    """
    if file.config.run != cohort.run:
        raise BadParameter("held", file.config.run, f"must be the run file that {cohort.cohort} is of")
    if file.drawn or file.environment.seed is None:
        raise BadParameter("environment.seed", None, "must be stated: without it no process knows what clients held")
    terms = json.loads(cohort.terms)
    decision = TypeAdapter[Decision](Decision).validate_python(terms["decision"])
    if isinstance(decision, AssignedAction):
        raise BadParameter("held", cohort.cohort, "the shuffler assigned the actions: it alone knows who played what")
    statistic = TypeAdapter[Statistic](Statistic).validate_python(terms["statistic"])
    stream = file.world_stream(cohort.cohort, "rewards")
    vectors = true_vectors(file.world(), decision, statistic, arm=terms["arm"], clients=cohort.clients, stream=stream)
    clients: list[dict[str, Any]] = [
        {"slot": slot, "reward": row} for slot, row in enumerate(vectors[:, :HELD_VALUES].tolist())
    ]
    if file.config.unsafe is not None:
        mechanism = TypeAdapter[AnyMechanism](AnyMechanism).validate_python(terms["mechanism"])
        rows = mechanism.randomize(vectors, file.noise_stream(cohort.cohort))[:, :HELD_VALUES].tolist()
        clients = [{**client, "message": row} for client, row in zip(clients, rows, strict=True)]
    return {"cohort": cohort.cohort, "config": file.config.digest().hex(), "clients": clients}

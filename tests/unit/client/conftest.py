"""Rounds as a server would ask them, with everything computed as the server computes it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from distrust.aggregator.service import Aggregator
from distrust.client.cohort.randomizer import World
from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.arms import Bernoulli
from distrust.client.fleet.memory import Memory
from distrust.common.bandit.decisions import AssignedAction, AssignedArm
from distrust.common.bandit.statistics import BoundedReward, Reward, Statistic
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.mechanisms import plan
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.intermediary.tables import METADATA, VERSION
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, cohort_channel, cohort_terms
from distrust.common.protocol.storage.database import Database
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import CONFIGS, RUN_ID, SEAL_KEY, TICKET_KEY
from tests.support.manual_clock import ManualClock
from tests.support.masking_clients import EVERYONE, M, N

MakeRound = Callable[..., Round]
REWARD = Reward()
ELIMINATION = {"name": "successive-elimination", "failure": 1.5e-8}
"""p' = 1e-9 in the first round."""
ALMOST_FREE = {
    "name": "almost-free",
    "model": "shuffled",
    "beta": 1e-9,
    "actions": {"kind": "given", "vectors": [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]},
}
Kind = TypeVar("Kind", bound=Intermediary)


class Spent(NamedTuple):
    """Consecutive slots, `first` to `last`: each client has spent one contribution at this guarantee."""

    round: int
    cohort: str
    first: int
    last: int
    guarantee: Guarantee


def spent(memory: Memory, run: bytes) -> list[Spent]:
    """Return what clients have spent in a run, in order of rounds, cohorts and slots, as their file has it."""
    tables = "contributions c JOIN costs ON cost = costs.number JOIN runs ON c.run = runs.number"
    query = f"SELECT round, cohort, first, last, guarantee FROM {tables} WHERE runs.digest = ?"
    rows = memory._connection.execute(f"{query} ORDER BY round, cohort, first", (run,)).fetchall()
    return [Spent(*row[:4], Guarantee.model_validate_json(row[4])) for row in rows]


@pytest.fixture
def make_round() -> MakeRound:
    """Return a maker of rounds: a mechanism, and `cohorts` cohorts of `clients` slots. Each argument has a default."""

    def make(
        name: str = "distributed-polya",
        *,
        clients: int = 20,
        minimum: int | None = None,
        cohorts: int = 1,
        number: int = 1,
        dropout: float = 0.1,
        corrupt: float = 0.1,
        seed: int | None = None,
        assigned: AssignedAction | None = None,
        statistic: Statistic = REWARD,
        **spec: Any,
    ) -> Round:
        rates = {"dropout": dropout, "corrupt": corrupt}
        budget = {} if name == "identity" else {"epsilon": 1.0}
        fields = {"name": name, **budget, **spec}
        config = RunConfig.model_validate(
            {
                "run": "demo",
                "arms": 3,
                "horizon": 10**6,
                "policy": ELIMINATION if assigned is None else ALMOST_FREE,
                "mechanism": fields,
                "intermediary": {**rates, "minimum": minimum or 1, "stage_seconds": 60.0},
                "unsafe": None if seed is None else {"noise_seed": seed},
            }
        )
        least, min_honest = config.intermediary.min_survivors(clients), config.intermediary.min_honest(clients)
        common: dict[str, Any] = {"clients": clients, "min_survivors": least, "min_honest": min_honest}
        overflow_probability = config.overflow_probability(number, config.arms)
        mechanism = plan(
            config.mechanism,
            **common,
            overflow_probability=overflow_probability,
            statistic=statistic,
            assigned=assigned is not None,
        )
        digest = run_digest(config.digest(), RUN_ID)
        CONFIGS[digest] = config
        round_ = Round(
            run="demo",
            number=number,
            decision=assigned or AssignedArm(),
            statistic=statistic,
            mechanism=mechanism,
            assignments=[],
            **rates,
        )
        arms = range(cohorts) if assigned is None else [None]
        assignments = [
            Assignment(
                arm=arm,
                cohort=Cohort(
                    run="demo",
                    round=number,
                    cohort=f"demo.{number}.{arm or 0}.1",
                    clients=clients,
                    minimum=least,
                    stage_seconds=60.0,
                    run_digest=digest,
                    ticket_key=TICKET_KEY.public_key().public_bytes_raw(),
                    channel=cohort_channel(config, round_, mechanism, least, SEAL_KEY.public_key().public_bytes_raw()),
                    terms=cohort_terms(round_, arm, mechanism),
                ),
            )
            for arm in arms
        ]
        return round_.model_copy(update={"assignments": assignments})

    return make


@pytest.fixture
def make_assigned(make_round: MakeRound) -> MakeRound:
    """Return a maker of rounds of one cohort with assigned actions. The arms pay always, never, and half the time."""

    def make(
        name: str = "local-laplace-discrete",
        times: tuple[int, int, int] = (8, 6, 6),
        seed: int | None = None,
        **more: Any,
    ) -> Round:
        via = {} if name.startswith("shuffled") else {"via": "shuffler"}
        assigned, rewards = AssignedAction(actions=[0, 1, 2], times=list(times)), BoundedReward(bound=1.0)
        return make_round(name, clients=sum(times), assigned=assigned, seed=seed, statistic=rewards, **via, **more)

    return make


@pytest.fixture
def world() -> World:
    """Return arms that always pay, never pay, or pay half the time."""
    environment = build_environment(read_spec({"name": "bernoulli", "means": [1.0, 0.0, 0.5]}))
    assert isinstance(environment, Bernoulli)
    return World(environment, seed=11)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shuffler(clock: ManualClock, tmp_path: Path) -> Iterator[Shuffler]:
    yield from _serving(Shuffler, clock, tmp_path)


@pytest.fixture
def aggregator(clock: ManualClock, tmp_path: Path) -> Iterator[Aggregator]:
    yield from _serving(Aggregator, clock, tmp_path)


def _serving(kind: Callable[[Database, ManualClock], Kind], clock: ManualClock, folder: Path) -> Iterator[Kind]:
    """Yield an intermediary on a file of its own, for as long as a test lasts."""
    database = Database(f"sqlite:///{folder}/s.sqlite3", METADATA, VERSION)
    service = kind(database, clock)
    yield service
    service.close()
    database.close()


@pytest.fixture
def stage() -> Simulation:
    """Return a cohort that has shared. Every client may send its vector."""
    simulation = enrol(make_cohort(N, M, 1))
    simulation.send_keys(EVERYONE)
    simulation.send_shares(EVERYONE)
    return simulation

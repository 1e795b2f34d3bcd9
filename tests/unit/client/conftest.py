"""Rounds as a server would ask them, with everything computed as the server computes it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregator.service import Aggregator
from client.environments import Bernoulli, build, read_spec
from client.randomizer import World
from common.clock import ManualClock
from common.crypto.parameters import neighbourhood
from common.database import Database
from common.decisions import AssignedAction, AssignedArm
from common.intermediary.service import Intermediary
from common.intermediary.tables import METADATA, VERSION
from common.mechanisms import Mechanism, MechanismSpec, plan
from common.messages.cohort import Channel, Cohort, Dealt, LabelledBits, Masking, Sealed
from common.messages.round import Assignment, Round
from common.modular import packed_size
from common.statistics import Reward
from lab.secagg_simulation import Simulation, enrol, make_cohort
from shuffler.service import Shuffler
from tests.unit.client.sharers import EVERYONE, M, N

TICKET_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SEAL_KEY = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))

MakeRound = Callable[..., Round]
S = TypeVar("S", bound=Intermediary)


def _channel(mechanism: Mechanism, minimum: int, rates: dict[str, float]) -> Channel:
    if mechanism.via == "aggregator":
        k, t = neighbourhood(mechanism.clients, **rates, least=minimum)
        return Masking(modulus=mechanism.modulus, dimension=1, neighbours=k, threshold=t)
    if mechanism.width is not None:
        return LabelledBits(labels=1, width=mechanism.width)
    key = SEAL_KEY.public_key().public_bytes_raw()
    return Sealed(size=packed_size(mechanism.modulus, 1), server_key=key)


@pytest.fixture
def make_round() -> MakeRound:
    """A round of the named mechanism: `cohorts` cohorts of `clients` slots; every argument has a default."""

    def make(
        name: str = "distributed-polya",
        *,
        clients: int = 20,
        minimum: int | None = None,
        cohorts: int = 1,
        number: int = 1,
        dropout: float = 0.1,
        corrupt: float = 0.1,
        dealt: bool = False,
        **spec: Any,
    ) -> Round:
        rates = {"dropout": dropout, "corrupt": corrupt}
        least = clients - int(dropout * clients) if minimum is None else minimum
        floor = max(1, least - int(corrupt * clients))
        budget = {} if name == "identity" else {"epsilon": 1.0}
        words = MechanismSpec.model_validate({"name": name, **budget, **spec})
        mechanism = plan(words, clients=clients, least=least, floor=floor, wrap=1e-9, statistic=Reward(), dealt=dealt)
        assignments = [
            Assignment(
                arm=arm,
                cohort=Cohort(
                    run="demo",
                    round=number,
                    cohort=f"demo-{number}-{arm}",
                    clients=clients,
                    minimum=least,
                    stage_seconds=60.0,
                    config=bytes(32),
                    ticket_key=TICKET_KEY.public_key().public_bytes_raw(),
                    channel=_channel(mechanism, least, rates),
                ),
            )
            for arm in range(cohorts)
        ]
        return Round(
            run="demo",
            number=number,
            decision=AssignedArm(),
            statistic=Reward(),
            mechanism=mechanism,
            assignments=assignments,
            **rates,
        )

    return make


@pytest.fixture
def make_dealt(make_round: MakeRound) -> MakeRound:
    """A round of one cohort whose actions the shuffler deals: the arms that pay always, never, and half the time."""

    def make(
        name: str = "local-laplace-discrete",
        times: tuple[int, int, int] = (8, 6, 6),
        seed: int | None = None,
        **more: Any,
    ) -> Round:
        via = {} if name.startswith("shuffled") else {"via": "shuffler"}
        asked = make_round(name, clients=sum(times), dealt=True, **via, **more)
        cohort, deal = asked.assignments[0].cohort, AssignedAction(actions=[0, 1, 2], times=list(times))
        assert isinstance(cohort.channel, Sealed)
        channel = Dealt(size=cohort.channel.size, server_key=cohort.channel.server_key, deal=deal, noise_seed=seed)
        cohort = cohort.model_copy(update={"channel": channel})
        return asked.model_copy(update={"decision": deal, "assignments": [Assignment(cohort=cohort)]})

    return make


@pytest.fixture
def world() -> World:
    """Arms that always pay, never pay, or pay half the time."""
    environment = build(read_spec({"name": "bernoulli", "means": [1.0, 0.0, 0.5]}))
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


def _serving(kind: Callable[[Database, ManualClock], S], clock: ManualClock, folder: Path) -> Iterator[S]:
    """An S on a file of its own, for as long as a test lasts."""
    database = Database(f"sqlite:///{folder}/s.sqlite3", METADATA, VERSION)
    service = kind(database, clock)
    yield service
    service.close()
    database.close()


@pytest.fixture
def stage() -> Simulation:
    """A cohort that has shared; every client may send its vector."""
    simulation = enrol(make_cohort(N, M, 1))
    simulation.send_keys(EVERYONE)
    simulation.send_shares(EVERYONE)
    return simulation

"""Tests that no service ever gets a context, a reward of a contextual run, or the arm that a client chose.

Three runs are played over real services, without sockets: masked sums, sealed records, labelled bits. The tests search
all requests, answers and databases for the values that only clients know.
"""

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.client.environments.contextual import Contexts, GeneralizedLinear
from distrust.client.fleet import FleetOptions
from distrust.client.randomizer import CohortRandomizer, World
from distrust.client.requirements import PrivacyRequirements
from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.mechanisms.families.grid import GridMechanism
from distrust.common.messages.cohort import Cohort
from distrust.common.randomness import Stream
from distrust.common.run.progress import RunView
from distrust.common.run.round import Round
from distrust.lab.run.run_file import RunFile, parse_table
from tests.support.recording import (
    PARTIES,
    SEED,
    TOKEN,
    RecordedRun,
    Recording,
    RecordingTransport,
    Truth,
    fleet_over,
    keys,
    services,
)

MECHANISMS: dict[str, dict[str, Any]] = {
    "masked": {"name": "distributed-discrete-gaussian", "epsilon": 2.0, "delta": 1e-2},
    "sealed": {"name": "local-gaussian", "epsilon": 2.0, "delta": 1e-2, "via": "shuffler"},
    "bits": {"name": "shuffled-binomial", "epsilon": 2.0, "delta": 1e-2},
}
CLIENTS, ROUNDS = 12, 2


def run_file(run: str) -> RunFile:
    """Return a run in which each client has contexts of its own, in three numbers, and rewards that are not whole."""
    return parse_table(
        {
            "run": run,
            "horizon": CLIENTS * ROUNDS,
            "policy": {"name": "linucb", "batch": CLIENTS},
            "mechanism": MECHANISMS[run],
            "intermediary": {"dropout": 0.3, "corrupt": 0.05},
            "environment": {"name": "glm-sphere", "arms": 4, "dimension": 3, "noiseless": True, "seed": SEED},
        }
    )


@dataclass
class Known:
    """The values that only clients know: contexts, rewards, true vectors by cohort, messages by cohort and slot."""

    contexts: list[NDArray[np.float64]] = field(default_factory=list)
    rewards: list[NDArray[np.float64]] = field(default_factory=list)
    vectors: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    rows: dict[str, dict[int, NDArray[np.uint64]]] = field(default_factory=lambda: defaultdict(dict))
    mechanisms: dict[str, GridMechanism] = field(default_factory=dict)

    def numbers(self) -> set[float]:
        """Return every coordinate of every context and vector, and every reward."""
        arrays = [*self.contexts, *self.rewards, *self.vectors.values()]
        return {float(value) for array in arrays for value in array.ravel() if value not in (-1, 0, 1)}


@dataclass(frozen=True)
class Heard:
    """The finished runs: the values that only clients know, and all that was sent and stored."""

    known: Known
    recorded: RecordedRun
    recordings: dict[str, Recording]


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heard]:
    with pytest.MonkeyPatch.context() as tap:
        known, files = Known(), [run_file(run) for run in MECHANISMS]
        listen(known, tap)
        recorded = asyncio.run(play(tmp_path_factory.mktemp("contexts"), files))
        yield Heard(known, recorded, {party: Recording.of(recorded, party) for party in PARTIES})


def listen(known: Known, tap: pytest.MonkeyPatch) -> None:
    """Copy contexts, rewards, vectors and messages from inside the clients. No request carries the copies."""
    contexts, pay, rows = GeneralizedLinear.contexts, GeneralizedLinear.pay, CohortRandomizer.rows

    def noted_contexts(self: GeneralizedLinear, count: int, stream: Stream) -> Contexts:
        met = contexts(self, count, stream)
        known.contexts.append(met.features)
        return met

    def noted_pay(
        self: GeneralizedLinear, means: NDArray[np.float64], luck: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        paid = pay(self, means, luck)
        known.rewards.append(paid)
        return paid

    def noted_rows(self: CohortRandomizer, slots: Sequence[int]) -> NDArray[np.uint64]:
        found, name = rows(self, slots), self.assignment.cohort.cohort
        assert isinstance(self.mechanism, GridMechanism)
        known.vectors[name], known.mechanisms[name] = self._vectors, self.mechanism
        known.rows[name] |= dict(zip(slots, found, strict=True))
        return found

    tap.setattr(GeneralizedLinear, "contexts", noted_contexts)
    tap.setattr(GeneralizedLinear, "pay", noted_pay)
    tap.setattr(CohortRandomizer, "rows", noted_rows)


async def play(folder: Path, files: Sequence[RunFile]) -> RecordedRun:
    """Play all runs at once, each with two fleets. Some of their clients leave at every stage."""
    databases, exchanges = {name: folder / f"{name}.sqlite3" for name in PARTIES}, []
    options = FleetOptions(block=8, dropout=0.1)
    async with services(databases, exchanges) as (apps, operator):
        peer, fleets, views = operator.peer("http://server", TOKEN), [], {}
        for file in files:
            await peer.post("/v1/runs", file.config, RunView)
            for number in (1, 2):
                wire = RecordingTransport(f"fleet {number}", apps, exchanges)
                fleets.append(fleet_over(World(file.world(), SEED), PrivacyRequirements(), options, file.config, wire))
        ends = await asyncio.wait_for(asyncio.gather(*(fleet.serve() for fleet in fleets)), 60)
        assert set(ends) == {"finished"}
        for file in files:
            views[file.config.run] = await peer.get(f"/v1/runs/{file.config.run}", RunView)
        return RecordedRun(Truth(), exchanges, databases, files[0].world(), views, {})


def cohorts(recorded: RecordedRun, run: str) -> list[Cohort]:
    rows = recorded.rows("server", f"SELECT message FROM cohorts WHERE run = '{run}' ORDER BY cohort")
    return [Cohort.model_validate_json(text) for (text,) in rows]


def rounds(recorded: RecordedRun, run: str) -> list[Round]:
    """Return the rounds that the server told the clients of a run, in order."""
    answers = [one.answer for one in recorded.between("fleet", "server") if one.url.path == f"/v1/runs/{run}/round"]
    found_rounds = [Round.model_validate(found) for text in answers if (found := json.loads(text)["round"]) is not None]
    return list({one.number: one for one in found_rounds}.values())


@pytest.mark.parametrize("run", MECHANISMS)
def test_the_runs_were_real_and_a_number_that_was_said_is_found(heard: Heard, run: str) -> None:
    """The server's recording has the second round's parameters, which come from the first round's sums."""
    first, second = rounds(heard.recorded, run)
    assert isinstance(first.decision, ContextualChoice)
    assert isinstance(second.decision, ContextualChoice)
    theta = second.decision.theta[0]
    assert any(theta)
    assert theta != first.decision.theta[0]
    assert all(heard.recordings["server"].holds_number(value) for value in theta)
    assert Recording([b"before", struct.pack(">d", theta[0]), b"behind"]).holds_number(theta[0])


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_a_context_a_reward_or_a_number_of_a_true_vector(heard: Heard, party: str) -> None:
    numbers = heard.known.numbers()
    assert len(numbers) > len(MECHANISMS) * ROUNDS * CLIENTS * 15
    assert not [value for value in numbers if heard.recordings[party].holds_number(value)]


def test_clients_tell_the_server_how_many_tickets_they_want_and_nothing_of_their_round(heard: Heard) -> None:
    requests = [json.loads(one.body) for one in heard.recorded.between("fleet", "server") if one.body]
    assert requests
    assert set().union(*(keys(request) for request in requests)) == {"version", "request", "round", "want", "keys"}


@pytest.mark.parametrize("run", MECHANISMS)
def test_neither_a_round_nor_a_cohort_names_the_arm_of_a_client(heard: Heard, run: str) -> None:
    for round_ in rounds(heard.recorded, run):
        assert isinstance(round_.decision, ContextualChoice)
        assert round_.decision.only is None
        assert [assignment.arm for assignment in round_.assignments] == [None]
    terms = [json.loads(cohort.terms) for cohort in cohorts(heard.recorded, run)]
    assert [(one["decision"]["kind"], one.get("arm")) for one in terms] == [("contextual-choice", None)] * ROUNDS


@pytest.mark.parametrize(("run", "party"), [("masked", "aggregator"), ("sealed", "shuffler"), ("bits", "shuffler")])
def test_all_reports_of_a_cohort_have_one_length(heard: Heard, run: str, party: str) -> None:
    stage = "masked" if party == "aggregator" else "report"
    for cohort in cohorts(heard.recorded, run):
        where = f"cohort = '{cohort.cohort}' AND stage = '{stage}' AND slot >= 0"
        sizes = [len(body) for (body,) in heard.recorded.rows(party, f"SELECT body FROM messages WHERE {where}")]
        assert len(sizes) >= cohort.minimum
        assert len(set(sizes)) == 1


def test_every_number_of_a_record_that_the_server_opens_is_noised(heard: Heard) -> None:
    """A coordinate is within a step of its true value with probability 3/(σ√(2π)), σ the noise's deviation in steps.

    More than four times that share of all coordinates agree with probability below 1e-6.
    """
    near = total = 0
    share = 0.0
    for cohort in cohorts(heard.recorded, "sealed"):
        mechanism, rows = heard.known.mechanisms[cohort.cohort], heard.known.rows[cohort.cohort]
        clean = mechanism.on_grid(heard.known.vectors[cohort.cohort])
        apart = np.array([rows[slot].astype(float) - clean[slot] for slot in sorted(rows)])
        apart -= mechanism.modulus * np.rint(apart / mechanism.modulus)
        near, total = near + int((np.abs(apart) < 1).sum()), total + apart.size
        share = 3 / (2.5 * mechanism.error(1).std / mechanism.step)
    assert total >= ROUNDS * 8 * 9
    assert share < 0.1
    assert near < 4 * share * total

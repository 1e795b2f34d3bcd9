"""Tests that no service ever gets a context, a reward of a contextual run, or the arm that a client chose.

Five runs over real services, without sockets: masked sums, sealed records, labelled bits; sealed records of a θ an arm
with a public warm-up, and of one client a round. The tests search all requests, answers and databases for the values
that only clients know.
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
from scipy.stats import binom

from distrust.client.cohort.randomizer import CohortRandomizer, World
from distrust.client.environments.contextual import Contexts, GeneralizedLinear
from distrust.client.fleet.fleet import FleetOptions
from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.round import Round
from distrust.common.randomness import Stream
from distrust.lab.play.run_file import RunFile, parse_table
from tests.support.limits import lenient
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

ARMS, CLIENTS, ROUNDS = 4, 12, 2
FEW, ALONE = 8, 6  # clients of a round of the run with a warm-up; rounds of one client each
SEALED = {"name": "local-gaussian", "epsilon": 2.0, "delta": 1e-2, "via": "shuffler"}
SINGLE = {"policy": {"name": "linucb", "batch": CLIENTS}, "intermediary": {"dropout": 0.3, "corrupt": 0.05}}
MECHANISMS: dict[str, dict[str, Any]] = {
    "masked": {"name": "distributed-discrete-gaussian", "epsilon": 2.0, "delta": 1e-2},
    "sealed": SEALED,
    "bits": {"name": "shuffled-binomial", "epsilon": 2.0, "delta": 1e-2},
}
WARM_UP = {"name": "ldp-ols", "batch": FEW, "warm_up": ARMS, "margin": 0.5}
RUNS: dict[str, dict[str, Any]] = {
    **{name: {**SINGLE, "mechanism": words, "horizon": CLIENTS * ROUNDS} for name, words in MECHANISMS.items()},
    "many": {**SINGLE, "mechanism": SEALED, "horizon": FEW * (ARMS + 1), "policy": WARM_UP},
    "alone": {
        "mechanism": SEALED,
        "horizon": ALONE,
        "policy": {"name": "linucb"},
        "intermediary": {"dropout": 0.0, "corrupt": 0.0, "minimum": 1},
    },
}
"""Tables of the runs: contexts of one θ in mini-cohorts, of a θ an arm after a warm-up, and of one client a round."""


def run_file(run: str) -> RunFile:
    """Return a run in which each client has contexts of its own, in three numbers, and rewards that are not whole."""
    world = {"name": "glm-sphere", "arms": ARMS, "dimension": 3, "noiseless": True, "seed": SEED}
    parameters = "multi" if run == "many" else "single"
    return parse_table({"run": run, **RUNS[run], "environment": {**world, "parameters": parameters}})


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
        known, files = Known(), [run_file(run) for run in RUNS]
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
        self: GeneralizedLinear, means: NDArray[np.float64], payout_draws: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        paid = pay(self, means, payout_draws)
        known.rewards.append(paid)
        return paid

    def noted_rows(self: CohortRandomizer, slots: Sequence[int]) -> NDArray[np.uint64]:
        result, name = rows(self, slots), self.assignment.cohort.cohort
        assert isinstance(self.mechanism, GridMechanism)
        known.vectors[name], known.mechanisms[name] = self._vectors, self.mechanism
        known.rows[name] |= dict(zip(slots, result, strict=True))
        return result

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
                fleets.append(fleet_over(World(file.world(), SEED), lenient(), options, file.config, wire))
        ends = await asyncio.wait_for(asyncio.gather(*(fleet.serve() for fleet in fleets)), 240)
        assert set(ends) == {"finished"}
        for file in files:
            views[file.config.run] = await peer.get(f"/v1/runs/{file.config.run}", RunView)
        return RecordedRun(Truth(), exchanges, databases, files[0].world(), views, {})


def rounds(recorded: RecordedRun, run: str) -> list[Round]:
    """Return the rounds that the server told the clients of a run, in order."""
    answers = {name: [] for name in ("round", "tickets")}
    for one in recorded.between("fleet", "server"):
        folder, _, route = one.url.path.rpartition("/")
        if folder == f"/v1/runs/{run}" and route in answers:
            answers[route].append(json.loads(one.answer))
    views = [*answers["round"], *(answer["view"] for answer in answers["tickets"] if "view" in answer)]
    told = [Round.model_validate(view["round"]) for view in views if view.get("round") is not None]
    return sorted({one.number: one for one in told}.values(), key=lambda one: one.number)


@pytest.mark.parametrize("run", RUNS)
def test_the_runs_were_real_and_a_number_that_was_said_is_found(heard: Heard, run: str) -> None:
    """The server's recording has the last round's parameters, which come from the earlier rounds' sums."""
    told = rounds(heard.recorded, run)
    assert len(told) == {"many": ARMS + 1, "alone": ALONE}.get(run, ROUNDS)
    first, last = told[0].decision, told[-1].decision
    assert isinstance(first, ContextualChoice)
    assert isinstance(last, ContextualChoice)
    assert len(last.theta) == (ARMS if run == "many" else 1)
    for theta, before in zip(last.theta, first.theta, strict=True):
        assert any(theta)
        assert theta != before
        assert all(heard.recordings["server"].holds_number(value) for value in theta)
        assert Recording([b"before", struct.pack(">d", theta[0]), b"behind"]).holds_number(theta[0])


@pytest.mark.parametrize("party", PARTIES)
def test_no_service_ever_holds_a_context_a_reward_or_a_number_of_a_true_vector(heard: Heard, party: str) -> None:
    numbers = heard.known.numbers()
    assert len(numbers) > len(MECHANISMS) * ROUNDS * CLIENTS * 15 + FEW * (ARMS + 1) * 6 + ALONE * 15
    assert not [value for value in numbers if heard.recordings[party].holds_number(value)]


def test_clients_tell_the_server_how_many_tickets_they_want_and_nothing_of_their_round(heard: Heard) -> None:
    requests = [json.loads(one.body) for one in heard.recorded.between("fleet", "server") if one.body]
    assert requests
    assert set().union(*(keys(request) for request in requests)) == {"version", "request", "round", "want", "keys"}


@pytest.mark.parametrize("run", RUNS)
def test_no_round_and_no_cohort_names_an_arm_of_a_client_after_the_warm_up(heard: Heard, run: str) -> None:
    """In a warm-up all clients of a round play one public arm, in turns. Nothing else of a round names an arm."""
    told = rounds(heard.recorded, run)
    public = [number % ARMS if run == "many" and number <= ARMS else None for number in range(1, len(told) + 1)]
    for round_, arm in zip(told, public, strict=True):
        assert isinstance(round_.decision, ContextualChoice)
        assert round_.decision.only == arm
        assert [assignment.arm for assignment in round_.assignments] == [None]
    terms = [json.loads(cohort.terms) for cohort in sorted(heard.recorded.cohorts(run), key=lambda one: one.round)]
    named = [(one["decision"]["kind"], one.get("arm"), one["decision"].get("only")) for one in terms]
    assert named == [("contextual-choice", None, arm) for arm in public]


LENGTHS = {"masked": 1, "sealed": 1, "bits": 1, "many": 2, "alone": 1}
"""Lengths of reports in a whole run. In a warm-up a report has the public arm's block only."""


@pytest.mark.parametrize("run", RUNS)
def test_all_reports_of_a_cohort_have_one_length_and_all_in_which_clients_choose(heard: Heard, run: str) -> None:
    party, stage = ("aggregator", "masked") if run == "masked" else ("shuffler", "report")
    lengths = set()
    for cohort in heard.recorded.cohorts(run):
        sizes = [len(body) for body in heard.recorded.bodies(party, cohort, stage).values()]
        assert len(sizes) >= cohort.minimum
        assert len(set(sizes)) == 1
        lengths |= set(sizes)
    assert len(lengths) == LENGTHS[run]


@pytest.mark.parametrize("run", ["sealed", "many", "alone"])
def test_every_number_of_a_record_that_the_server_opens_is_noised(heard: Heard, run: str) -> None:
    """The zeros in the blocks of arms that a client did not play are noised as the other numbers are.

    A coordinate is within a step of its true value with probability 3/(σ√(2π)), σ the noise's deviation in steps. Of
    all coordinates, more than the limit are with probability below 1e-6.
    """
    near = total = 0
    share = 0.0
    for cohort in heard.recorded.cohorts(run):
        mechanism, rows = heard.known.mechanisms[cohort.cohort], heard.known.rows[cohort.cohort]
        clean = mechanism.on_grid(heard.known.vectors[cohort.cohort])
        apart = np.array([rows[slot].astype(float) - clean[slot] for slot in sorted(rows)])
        apart -= mechanism.modulus * np.rint(apart / mechanism.modulus)
        near, total = near + int((np.abs(apart) < 1).sum()), total + apart.size
        share = max(share, 3 / (2.5 * mechanism.error(1).std / mechanism.step))
    assert total >= {"sealed": ROUNDS * 8 * 9, "many": 2 * ARMS * 6 * 9, "alone": ALONE * 9}[run]
    assert share < 0.1
    assert near <= binom.isf(1e-6, total, share) < total / 2

"""Tests that repetitions in lock step have the services' results, each row as if played alone."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from distrust.client.environments import ContextualWorld
from distrust.client.environments.contextual import Contexts, GeneralizedLinear
from distrust.common.dp.mechanisms.families.grid import Randomness
from distrust.common.errors import BadParameter
from distrust.common.extensions import Extension
from distrust.common.protocol.run.config import RunConfig
from distrust.common.randomness import Stream, UnsafeSeededStream
from distrust.lab.play import in_process, lock_step
from distrust.lab.play.lock_step import in_lock_step, play_together
from distrust.lab.play.lock_step_draws import BlockDraws, Blocks, LockStepPhase
from distrust.lab.play.progress import print_result
from distrust.lab.play.run_file import RunFile, parse
from tests.support.picked import picked

pytestmark = pytest.mark.slow

APPROXIMATE = "epsilon = 1.0, delta = 0.1"
SYNTHETIC = 'name = "contextual-synthetic", arms = 20'
SPHERE = 'name = "glm-sphere", noiseless = false'


def run_file(
    mechanism: str,
    repetition: int = 0,
    *,
    batch: int = 1,
    horizon: int = 203,
    world: str = SYNTHETIC,
    policy: str = "linucb",
    numbers: str = "",
    more: str = "",
) -> RunFile:
    """Return a run of a policy. The horizon 203 leaves pulls that no batch of 20 takes."""
    return parse(
        f"""
        run = "together.{repetition}"
        horizon = {horizon}
        environment = {{{world}, seed = {repetition + 1}}}
        policy = {{name = "{policy}", batch = {batch}{numbers}}}
        mechanism = {{{mechanism}}}
        unsafe = {{noise_seed = {repetition + 50}}}
        {more}
        """
    )


class ServiceDraws:
    """The streams of a run over services: one a cohort."""

    def __init__(self, file: RunFile, world: ContextualWorld, batch: int) -> None:
        self._file, self._world, self._batch = file, world, batch

    def contexts(self, rounds: range) -> Contexts:
        met = [self._world.contexts(self._batch, self._rewards(self._cohort(number), "rewards")) for number in rounds]
        fixed = self._world.name == "contextual-synthetic"
        features = met[0].features if fixed else np.concatenate([one.features for one in met])
        return Contexts(features, np.concatenate([one.payout_draws for one in met]))

    def leftover(self, count: int) -> Contexts:
        return self._world.contexts(count, self._rewards("leftover"))

    def messages(self, phase: LockStepPhase, rounds: range) -> Randomness:
        streams = [self._noise(self._cohort(number)) for number in rounds]
        drawn = [phase.mechanism.client_randomness(stream, self._batch) for stream in streams]
        return tuple(np.concatenate(arrays) for arrays in zip(*drawn, strict=True))

    def server(self, phase: LockStepPhase, rounds: range) -> NDArray[Any] | None:
        drawn: list[NDArray[Any] | None] = []
        for number in rounds:
            stream = self._noise(self._cohort(number), "analyzer")
            sums = range(phase.sums_before(number), phase.sums_before(number + 1))
            draw = phase.mechanism.server_randomness if phase.counted is None else phase.counted.stream_noise
            drawn += [draw(stream, 1) for _ in sums]
        kept = [one for one in drawn if one is not None]
        return np.concatenate(kept) if kept else None

    def _cohort(self, number: int) -> str:
        return f"{self._file.config.run}.{number}.0.1"

    def _rewards(self, *labels: str) -> Stream:
        assert self._file.environment.seed is not None
        return UnsafeSeededStream(self._file.environment.seed, self._file.config.run, *labels)

    def _noise(self, *labels: str) -> Stream:
        assert self._file.config.unsafe is not None
        return UnsafeSeededStream(self._file.config.unsafe.noise_seed, self._file.config.run, *labels)


CASES = {
    "identity": ('name = "identity"', 1),
    "local": (f'name = "local-gaussian", {APPROXIMATE}', 1),
    "local, batches": (f'name = "local-gaussian", {APPROXIMATE}', 20),
    "local, continuous": (f'name = "local-gaussian", noise = "continuous", {APPROXIMATE}', 1),
    "sphere": ('name = "local-sphere", epsilon = 1.0', 7),
    "aggregator": (f'name = "distributed-discrete-gaussian", {APPROXIMATE}', 20),
    "bits": (f'name = "shuffled-binomial", {APPROXIMATE}', 20),
    "amplified sphere": (f'name = "shuffled-sphere", {APPROXIMATE}', 20),
    "amplified": (f'name = "shuffled-gaussian", {APPROXIMATE}', 20),
    "central": (f'name = "central-gaussian", {APPROXIMATE}', 20),
    "tree": (f'name = "tree", batches = 203, {APPROXIMATE}', 1),
    "tree, batches": (f'name = "tree", batches = 10, {APPROXIMATE}', 20),
    "factorization": (f'name = "prefix-factorization", batches = 203, {APPROXIMATE}', 1),
    "factorization, batches": (f'name = "prefix-factorization", batches = 10, {APPROXIMATE}', 20),
}


OWN_CONTEXTS = ("identity", "local, batches", "aggregator", "tree")
"""Cases that are played in both worlds: how contexts are drawn does not depend on the mechanism."""


@pytest.mark.parametrize(
    ("case", "world"),
    picked(
        [
            *(pytest.param(case, SYNTHETIC, id=f"{case}-fixed contexts") for case in CASES),
            *(pytest.param(case, SPHERE, id=f"{case}-own contexts") for case in OWN_CONTEXTS),
        ],
        8,
        "lock step",
    ),
)
@pytest.mark.few(4)
def test_with_the_streams_of_the_services_everything_is_as_over_services(case: str, world: str) -> None:
    mechanism, batch = CASES[case]
    files = [run_file(mechanism, repetition, batch=batch, world=world) for repetition in range(3)]
    sums: list[NDArray[np.float64]] = []
    together = play_together(files, ServiceDraws, lambda _number, released: sums.append(released.copy()))
    for run, (file, played) in enumerate(zip(files, together, strict=True)):
        alone = in_process.run(file)
        estimates = [cohort.estimate for record in alone.rounds for cohort in record.cohorts]
        assert [released[run].tolist() for released in sums] == estimates
        assert list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)) == alone.regret.curve
        assert played.events == alone.events
        assert (played.unfinished, played.clients) == (
            alone.unfinished,
            sum(alone.pulls) + alone.hidden - played.unfinished,
        )
        assert played.bits.payload == pytest.approx(alone.bits.payload)
        assert played.bits.modulus == pytest.approx(alone.bits.modulus)


@pytest.mark.parametrize("world", [SYNTHETIC, SPHERE], ids=["fixed contexts", "own contexts"])
@pytest.mark.parametrize("case", ["local", "bits", "tree", "tree, batches", "factorization"])
@pytest.mark.few(4)
def test_a_repetition_is_the_same_in_any_group(case: str, world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, batch = CASES[case]
    files = [run_file(mechanism, repetition, batch=batch, world=world) for repetition in range(3)]
    together = play_together(files)
    monkeypatch.setattr(lock_step, "CHUNK", 3000)  # and however many rounds lie ready
    for file, one in zip(files, together, strict=True):
        (alone,) = play_together([file])
        assert np.array_equal(alone.regret, one.regret)
        assert alone.events == one.events
    assert len({one.regret[-1] for one in together}) == 3


GAUSSIAN, POINT = f'name = "local-gaussian", {APPROXIMATE}', 'name = "local-sphere", epsilon = 1.0'
LINKS = {"identity": SPHERE, "logistic": 'name = "glm-sphere", link = "logistic"'}
MULTI = ', parameters = "multi"'
GREEDY = {
    "steps": ("ldp-sgd", POINT, SPHERE),
    "steps, poisson": ("ldp-sgd", GAUSSIAN, 'name = "glm-sphere", link = "poisson", largest = 9'),
    "steps, warm-up": ("ldp-sgd", POINT, LINKS["logistic"] + MULTI),
    "least squares": ("ldp-ols", GAUSSIAN, SPHERE),
    "least squares, warm-up": ("ldp-ols", GAUSSIAN, SPHERE + MULTI),
    "bonus": ("ldp-ucb", GAUSSIAN, SPHERE),
    "bonus, tree": ("ldp-ucb", CASES["tree"][0], SPHERE),
    "predictions": ("ldp-gloc", GAUSSIAN, LINKS["logistic"] + MULTI),
    "drawn": ("linear-thompson", CASES["tree"][0], SYNTHETIC),
    "drawn, predictions": ("gloc-thompson", GAUSSIAN, LINKS["logistic"] + MULTI),
    "rare decisions, tree": ("sblb", CASES["tree"][0], SPHERE),
}


@pytest.mark.parametrize("case", GREEDY)
@pytest.mark.few(4)
def test_generalized_linear_policies_are_as_over_services(case: str) -> None:
    policy, mechanism, world = GREEDY[case]
    files = [run_file(mechanism, repetition, world=world, policy=policy) for repetition in range(2)]
    for file, played in zip(files, play_together(files, ServiceDraws), strict=True):
        alone = in_process.run(file)
        assert list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)) == alone.regret.curve
        assert played.events == alone.events
    first, second = play_together(files)
    assert np.array_equal(play_together(files[1:])[0].regret, second.regret)
    assert first.regret[-1] != second.regret[-1]


KNOBS = {
    "scaled width": ("linucb", GAUSSIAN, SYNTHETIC, ", width_scale = 0.25"),
    "greedy width": ("ldp-ucb", GAUSSIAN, SPHERE, ", width_scale = 0.0"),
    "scaled, predictions": ("ldp-gloc", GAUSSIAN, SPHERE + MULTI, ", width_scale = 0.5"),
    "published code": ("linucb", GAUSSIAN, SYNTHETIC, ', constants = "published-code"'),
    "published noise": (
        "linucb",
        f'{GAUSSIAN}, calibration = "paper"',
        SYNTHETIC,
        ', constants = "unsafe-published-code"',
    ),
    "clip": ("ldp-sgd", POINT, SPHERE, ", clip = 1.0"),
    "share": ("ldp-sgd", POINT, SPHERE + MULTI, ", clip = 1.0, margin = 0.2, warm_up_share = 0.2"),
}


@pytest.mark.parametrize("knob", KNOBS)
def test_numbers_that_no_theorem_covers_change_a_run_alike_in_lock_step_and_over_services(knob: str) -> None:
    policy, mechanism, world, numbers = KNOBS[knob]
    file, plain = (
        run_file(mechanism, world=world, policy=policy, numbers=one, horizon=103)
        for one in (numbers, ", margin = 0.2" if knob == "share" else "")
    )
    (played,), alone = play_together([file], ServiceDraws), in_process.run(file)
    assert list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)) == alone.regret.curve
    assert played.events == alone.events
    assert (alone.events.widths, alone.events.failure) == (0, None)
    assert alone.unproven is not None
    assert alone.regret.curve != in_process.run(plain).regret.curve


@pytest.mark.parametrize("case", ["local", "tree"])
def test_decisions_that_change_rarely_change_alike_in_lock_step_and_over_services(case: str) -> None:
    mechanism, _ = CASES[case]
    files = [run_file(mechanism, repetition, numbers=", switch = 0.1", horizon=103) for repetition in range(3)]
    for file, played in zip(files, play_together(files, ServiceDraws), strict=True):
        alone = in_process.run(file)
        assert list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)) == alone.regret.curve
        assert played.events == alone.events
        assert alone.events.failure == 1 / 103
        assert alone.switches == played.switches
        assert 1 < (alone.switches or 0) < 103


def test_regret_is_by_the_weights_of_the_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = RunFile.world

    def weighted(file: RunFile) -> GeneralizedLinear:
        world = plain(file)
        assert isinstance(world, GeneralizedLinear)
        return replace(world, weights=tuple(np.linspace(0.1, 1, world.arms)))

    file = run_file(CASES["local"][0], horizon=60)
    without = in_process.run(file).regret.final
    monkeypatch.setattr(RunFile, "world", weighted)
    (played,) = play_together([file], ServiceDraws)
    assert played.regret[-1] == in_process.run(file).regret.final != without


def test_batches_that_noise_left_indefinite_are_in_the_result_and_printed_the_same_in_lock_step() -> None:
    files = [run_file(f'name = "local-gaussian", {APPROXIMATE}', one, world=SPHERE, policy="ldp-ols") for one in (0, 1)]
    bare = {"policy": {**files[0].config.policy.model_dump(), "shift": "none"}}
    shifted = [replace(file, config=RunConfig(**{**file.config.model_dump(), **bare})) for file in files]
    played = play_together(shifted, ServiceDraws)
    for file, one in zip(shifted, played, strict=True):
        alone, text = in_process.run(file), io.StringIO()
        assert one.events == alone.events
        assert 0 < (alone.events.indefinite or 0) < 203
        print_result(alone, Console(file=text, width=200))
        assert f"; {alone.events.indefinite} batches left the matrix indefinite" in text.getvalue()
    steps = in_process.run(run_file(POINT, world=SPHERE, policy="ldp-sgd", horizon=20))  # it has no matrix
    assert "indefinite" not in steps.events.model_dump()


@pytest.mark.parametrize("case", ["bonus", "predictions"])
def test_contexts_that_are_longer_than_1_are_shortened_alike(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GeneralizedLinear.contexts

    def longer(world: GeneralizedLinear, count: int, stream: Stream) -> Contexts:
        met = plain(world, count, stream)
        return replace(met, features=met.features * (0.5 + 2.5 * met.payout_draws[:, np.newaxis, np.newaxis]))

    policy, mechanism, world = GREEDY[case]
    file = run_file(mechanism, world=world, policy=policy, horizon=60)
    before = in_process.run(file).regret.final
    monkeypatch.setattr(GeneralizedLinear, "contexts", longer)
    (played,), alone = play_together([file], ServiceDraws), in_process.run(file)
    assert list(zip(played.pulls.tolist(), played.regret.tolist(), strict=True)) == alone.regret.curve
    assert alone.regret.final != before
    met = file.world().contexts(1, UnsafeSeededStream(1)).features.shape[1]
    assert played.clipped == alone.clipped
    assert 0.4 * 60 * met < alone.clipped < 60 * met
    own = Extension(kind="environment", name="own", distribution=None, version=None, source=None)
    print_result(alone.model_copy(update={"extensions": (own,)}), Console(file=(text := io.StringIO()), width=200))
    assert f"clipped     {alone.clipped} contexts, to length 1" in text.getvalue()


def test_all_series_of_a_panel_meet_the_same_clients() -> None:
    """In block draws the contexts and the luck of client i depend on the environment's seed and on i alone."""
    file, world = run_file('name = "identity"', world=SPHERE), run_file('name = "identity"', world=SPHERE).world()
    assert isinstance(world, ContextualWorld)
    by_one = BlockDraws(file, world, 1).contexts(range(1, 201))
    by_twenty = BlockDraws(file, world, 20).contexts(range(1, 11))
    assert np.array_equal(by_one.features, by_twenty.features)
    assert np.array_equal(by_one.payout_draws, by_twenty.payout_draws)


def test_rows_of_blocks_do_not_depend_on_how_they_are_asked_for() -> None:
    def draw(index: int, size: int) -> Randomness:
        return np.arange(size) + index * size, np.zeros((1, 2))

    rows, shared = Blocks(7, draw).rows(5, 20)
    assert rows.tolist() == list(range(5, 25))
    assert shared.shape == (1, 2)
    again = Blocks(7, draw)
    pieces = [again.rows(first, 4)[0] for first in range(5, 25, 4)]
    assert np.concatenate(pieces).tolist() == rows.tolist()


def test_noise_without_a_seed_is_drawn_from_the_operating_system() -> None:
    words = run_file(CASES["local"][0])
    secret = RunFile(words.config.model_copy(update={"unsafe": None}), words.environment, words.fleet)
    first, again = (play_together([secret])[0] for _ in range(2))
    assert first.regret[-1] != again.regret[-1]


def test_runs_that_differ_in_more_than_seeds_are_refused() -> None:
    with pytest.raises(BadParameter, match="names and seeds only"):
        play_together([run_file('name = "identity"'), run_file('name = "identity"', batch=2)])


def test_clients_that_leave_and_budgets_are_not_played_in_lock_step() -> None:
    plain = run_file('name = "identity"')
    assert in_lock_step(plain)
    leaving = run_file('name = "identity"', batch=20, more="fleet = {dropout = 0.1}")
    assert not in_lock_step(leaving)
    with pytest.raises(BadParameter, match="lock step"):
        play_together([leaving])


def test_a_run_that_is_stopped_is_the_beginning_of_the_whole_run() -> None:
    """Ten cohorts of 20 and 3 clients over: a stop at round 4 leaves 123 pulls, and one at round 99 nothing."""
    file = run_file(CASES["local"][0], batch=20)
    (whole,), (begun,), (ended,) = (play_together([file], stop=stop) for stop in (None, 4, 99))
    assert begun.pulls.tolist() == [20, 40, 60, 80] == whole.pulls[:4].tolist()
    assert begun.regret.tolist() == whole.regret[:4].tolist()
    assert (begun.clients, begun.unfinished) == (80, 123)
    assert ended.regret.tolist() == whole.regret.tolist()
    assert len(ended.pulls) == 11

"""Plays repetitions of one contextual run in lock step: every array has a leading axis of repetitions.

A round costs about as much for ten repetitions as for one. Nothing is computed by a formula instead: clients choose by
the policy's rule, the mechanism randomizes their vectors, their messages are added modulo m, and the policy learns from
the mechanism's estimate. Only the randomness is drawn in large blocks, from the law that each message and sum has.

A repetition's blocks come from streams of its own, so that its result does not depend on those played with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import ContextualWorld
from distrust.client.environments.contextual import Contexts
from distrust.common.bandit.contextual import ChoiceRule, ContextualSum, Observation, picked
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import MECHANISMS
from distrust.common.mechanisms.central.tree import Counter, Tree, completed
from distrust.common.mechanisms.families.grid import GridMechanism, Randomness
from distrust.common.messages.contextual_policy import ContextualPolicySpec
from distrust.common.modular import sum_rows
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.lab.run.contextual_failures import missed_widths
from distrust.lab.run.result import Bits, PolicyFailures
from distrust.lab.run.run_file import RunFile
from distrust.server.learner.rounds import plan_round
from distrust.server.learner.run_config import build_policy
from distrust.server.policies.base import Estimate
from distrust.server.policies.contextual.base import ContextualPolicy, RoundNoise

Floats = NDArray[np.float64]

BLOCK = 1 << 15
"""Numbers of a repetition that are drawn at once: of noise, and at most four times as many of contexts."""

CHUNK = 1 << 21
"""Numbers of all repetitions that lie ready at once, 16 MB an array."""

MOST_ROUNDS_READY = 512


@dataclass(frozen=True, slots=True)
class Phase:
    """Consecutive rounds of one statistic and so of one mechanism: a warm-up and what follows, or the whole run.

    index   from 0. first: the number of its first round. noise: what the policy is told of each round's sum.
    """

    index: int
    first: int
    statistic: ContextualSum
    mechanism: GridMechanism
    noise: RoundNoise

    def sums_before(self, number: int) -> int:
        """Return how many draws of the analyzer's noise the phase's rounds before round `number` take."""
        rounds = number - self.first
        return completed(rounds) if isinstance(self.mechanism, Tree) else rounds


class RunDraws(Protocol):
    """All randomness of one repetition. Rounds are numbered from 1 and asked for in order, once each or twice."""

    def contexts(self, rounds: range) -> Contexts:
        """Return what the clients of these rounds meet, round after round."""
        ...

    def leftover(self, count: int) -> Contexts:
        """Return what the last clients meet, which no round takes."""
        ...

    def messages(self, phase: Phase, rounds: range) -> Randomness:
        """Return what the clients' messages are drawn with, round after round."""
        ...

    def server(self, phase: Phase, rounds: range) -> NDArray[Any] | None:
        """Return the analyzer's noise of these rounds, a row a draw (`Phase.sums_before`); None for none."""
        ...


class Blocks:
    """Rows that are drawn block by block: what lies in row i does not depend on how the rows are asked for."""

    def __init__(self, size: int, draw: Callable[[int, int], Randomness]) -> None:
        self._size, self._draw = size, draw
        self._index = -1
        self._last: Randomness = ()

    def rows(self, first: int, count: int) -> Randomness:
        """Return `count` rows of each array from row `first` on. An array of one row stays as it is: all share it."""
        pieces: list[Randomness] = []
        for index in range(first // self._size, (first + count - 1) // self._size + 1):
            if index != self._index:
                self._index, self._last = index, self._draw(index, self._size)
            start = index * self._size
            part = slice(max(first - start, 0), first + count - start)
            pieces.append(tuple(one if len(one) < self._size else one[part] for one in self._last))
        shared = [len(one) < self._size for one in self._last]
        columns = zip(*pieces, strict=True)
        return tuple(one[0] if alone else np.concatenate(one) for one, alone in zip(columns, shared, strict=True))


class BlockDraws:
    """Draws of one repetition from streams of its own: contexts by the environment's seed, noise by the noise seed.

    Clients meet the same contexts in all series of a panel, whatever their batches are.
    """

    def __init__(self, file: RunFile, world: ContextualWorld, batch: int) -> None:
        self._file, self._world, self._batch = file, world, batch
        size = max(2, min(4096, 4 * BLOCK // (world.arms * world.dimension)))
        self._clients = Blocks(size, self._meet)
        self._phase = -1
        self._messages = self._sums = self._clients

    def contexts(self, rounds: range) -> Contexts:
        return Contexts(*self._clients.rows((rounds.start - 1) * self._batch, len(rounds) * self._batch))

    def leftover(self, count: int) -> Contexts:
        return Contexts(*self._clients.rows(self._file.config.horizon - count, count))

    def messages(self, phase: Phase, rounds: range) -> Randomness:
        self._enter(phase)
        return self._messages.rows((rounds.start - phase.first) * self._batch, len(rounds) * self._batch)

    def server(self, phase: Phase, rounds: range) -> NDArray[Any] | None:
        self._enter(phase)
        first, end = phase.sums_before(rounds.start), phase.sums_before(rounds.stop)
        rows = self._sums.rows(first, end - first)
        return rows[0] if rows else None

    def _meet(self, index: int, size: int) -> Randomness:
        seed = self._file.environment.seed
        assert seed is not None  # reading the file drew one
        met = self._world.contexts(size, UnsafeSeededStream(seed, self._file.config.run, "lock-step", index, "clients"))
        return met.features, met.luck

    def _enter(self, phase: Phase) -> None:
        """Begin the streams of a phase: its mechanism may have other laws."""
        if phase.index == self._phase:
            return
        self._phase, mechanism = phase.index, phase.mechanism
        size = max(2, BLOCK // mechanism.dimension)

        def messages(index: int, count: int) -> Randomness:
            return mechanism.client_randomness(self._noise(phase.index, "messages", index), count)

        def sums(index: int, count: int) -> Randomness:
            noise = mechanism.server_randomness(self._noise(phase.index, "sums", index), count)
            return () if noise is None else (noise,)

        self._messages, self._sums = Blocks(size, messages), Blocks(size, sums)

    def _noise(self, *labels: str | int) -> Stream:
        unsafe = self._file.config.unsafe
        if unsafe is None:
            return SystemStream()
        return UnsafeSeededStream(unsafe.noise_seed, self._file.config.run, "lock-step", *labels)


@dataclass(frozen=True, slots=True)
class LockStepResult:
    """One repetition that was played to its end.

    pulls, regret  cumulated, after each round and at the end, shape (points,).
    clients        of all cohorts. unfinished: the last pulls, which no cohort takes.
    indefinite     batches after which noise made the policy's matrix indefinite; None for a policy without one.
    """

    file: RunFile
    pulls: NDArray[np.int64]
    regret: Floats
    events: PolicyFailures
    clients: int
    unfinished: int
    bits: Bits
    indefinite: int | None


Watch = Callable[[int, Floats], None]
"""Called with a round's number and its released sums, shape (R, D)."""

MakeDraws = Callable[[RunFile, ContextualWorld, int], RunDraws]
"""Returns the draws of a run, of its world and for batches of so many clients."""


def in_lock_step(file: RunFile) -> bool:
    """Return whether runs like this one can be played in lock step: all go on round by round, whatever is drawn.

    Not with clients that leave, as cohorts may then be lost, and not with a budget, which may end a run.
    """
    config = file.config
    kind = MECHANISMS[config.mechanism.name]
    return (
        isinstance(config.policy, ContextualPolicySpec)
        and isinstance(build_policy(config), ContextualPolicy)
        and issubclass(kind, GridMechanism)
        # A class of the user's own may replace what is drawn and computed together here.
        and kind.randomize is GridMechanism.randomize
        and kind.estimate is GridMechanism.estimate
        and not file.fleet.dropout
        and config.budget is None
    )


def play_together(
    files: Sequence[RunFile], draws: MakeDraws = BlockDraws, watch: Watch = lambda _number, _sums: None
) -> list[LockStepResult]:
    """Play runs that differ in names and seeds only, to their ends. Raises BadParameter if one cannot be planned."""
    first = files[0]
    if any(_apart(file) != _apart(first) for file in files) or not in_lock_step(first):
        raise BadParameter("run files", first.config.run, "runs in lock step must differ in names and seeds only")
    return _Group(files, draws, watch).play()


def _apart(file: RunFile) -> tuple[Any, ...]:
    """Return a run file without its name and seeds."""
    words = file.config.model_dump(exclude={"run", "unsafe"})
    return words, file.environment.model_dump(exclude={"seed"}), file.fleet, file.config.unsafe is None


@dataclass(frozen=True, slots=True)
class _Met:
    """What the clients of some rounds meet: c rounds, R runs, n clients a round and run.

    features  shape (c, R, n, A, d). means, values: of each arm, shape (c, R, n, K). luck: shape (c, R, B).
    c and n are 1 in all but `luck` where the clients of a run meet the same contexts.
    """

    features: Floats
    means: Floats
    luck: Floats

    def at(self, step: int) -> "_Met":
        """Return one round's part, without the axis of rounds."""
        own = min(step, len(self.features) - 1)
        return _Met(self.features[own], self.means[own], self.luck[step])


class _Group:
    """Runs in lock step; R of them."""

    def __init__(self, files: Sequence[RunFile], draws: MakeDraws, watch: Watch) -> None:
        config = files[0].config
        policy = build_policy(config)
        assert isinstance(config.policy, ContextualPolicySpec)
        assert isinstance(policy, ContextualPolicy)
        self._files, self._config, self._policy, self._watch = files, config, policy, watch
        self._worlds: list[ContextualWorld] = []
        for file in files:
            world = file.world()
            assert isinstance(world, ContextualWorld)
            self._worlds.append(world)
        self._batch = config.policy.batch
        self._rounds = config.horizon // self._batch
        self._core = policy.core(len(files))
        self._draws = [draws(file, world, self._batch) for file, world in zip(files, self._worlds, strict=True)]
        thetas = [getattr(world, "theta", None) for world in self._worlds]
        self._theta = None if thetas[0] is None else np.stack(thetas)
        self._counter: Counter | None = None
        self._widths, self._missed = 0, np.zeros(len(files), dtype=np.int64)
        self._last: ChoiceRule = self._core.rule
        self._lost: list[Floats] = []  # regret of each round, shape (c, R)
        self._weights: list[tuple[Phase, int]] = []  # phases, and the rounds that each had

    def play(self) -> list[LockStepResult]:
        done, phase = 0, self._phase(0, 1)
        while done < self._rounds:
            if _stage(self._core.rule) != _stage(self._last):
                phase = self._phase(phase.index + 1, done + 1)
            ready = range(done + 1, min(done + self._ready(phase), self._rounds) + 1)
            played = self._play(phase, ready)
            self._weights.append((phase, played))
            done += played
        rest = self._config.horizon - done * self._batch
        pulls = [self._batch * (1 + np.arange(done))]
        if rest:
            met = self._meet([one.leftover(rest) for one in self._draws], 1, rest)
            self._lost.append(_regret(met, self._last.choose(met.features[0])[0][np.newaxis]))
            pulls.append(np.array([self._config.horizon]))
        return self._results(np.concatenate(pulls), np.concatenate(self._lost), rest)

    def _phase(self, index: int, first: int) -> Phase:
        """Plan the mechanism of the rounds from `first` on."""
        ask = self._policy.ask_by(self._core.rule)
        mechanism = plan_round(self._config, first, ask).mechanism
        assert isinstance(ask.statistic, ContextualSum)
        assert isinstance(mechanism, GridMechanism)
        estimate = Estimate(
            None,
            (),
            (self._batch,),
            (mechanism.error(self._batch),),
            mechanism.rounding,
            prefix=ask.cumulative and mechanism.stream_length > 1,
            nodes=mechanism.nodes,
        )
        return Phase(index, first, ask.statistic, mechanism, RoundNoise.of(estimate))

    def _ready(self, phase: Phase) -> int:
        """Return for how many rounds everything is drawn at once."""
        world = self._worlds[0]
        each = max(phase.mechanism.dimension, world.arms * world.dimension)
        return max(1, min(MOST_ROUNDS_READY, CHUNK // (len(self._files) * self._batch * each)))

    def _play(self, phase: Phase, ready: range) -> int:
        """Play these rounds, or fewer where the phase ends among them. Return how many."""
        met = self._meet([one.contexts(ready) for one in self._draws], len(ready), self._batch)
        randomness = self._stacked([one.messages(phase, ready) for one in self._draws], len(ready))
        server = [one.server(phase, ready) for one in self._draws]
        noise = None if server[0] is None else np.stack([one for one in server if one is not None], axis=1)
        rules: list[ChoiceRule] = []
        chosen = []
        for step, number in enumerate(ready):
            rule = self._core.rule
            if step and _stage(rule) != _stage(self._last):
                break
            now = met.at(step)
            arms, predictors = rule.choose(now.features)
            seen = self._observe(now, arms, predictors)
            vectors = phase.statistic.vectors(seen)
            messages = phase.mechanism.randomize_with(
                vectors.reshape(-1, vectors.shape[-1]), tuple(one[step] for one in randomness)
            )
            totals = sum_rows(messages.reshape(vectors.shape), phase.mechanism.modulus)
            sums = self._opened(phase, number, totals, noise, phase.sums_before(ready.start))
            self._core.learn(sums, phase.noise)
            self._watch(number, sums)
            rules.append(rule)
            chosen.append(arms)
            self._last = rule
        self._lost.append(_regret(met, np.stack(chosen)))
        self._judge(rules)
        return len(rules)

    def _meet(self, met: Sequence[Contexts], rounds: int, clients: int) -> _Met:
        """Stack what the clients of each run meet."""
        fixed = len(met[0].features) == 1 < rounds * clients
        shape = (1, 1) if fixed else (rounds, clients)
        features = np.stack([one.features.reshape(*shape, *one.features.shape[1:]) for one in met], axis=1)
        means = [world.means(one.features) for world, one in zip(self._worlds, met, strict=True)]
        luck = np.stack([one.luck.reshape(rounds, clients) for one in met], axis=1)
        return _Met(features, np.stack([one.reshape(*shape, -1) for one in means], axis=1), luck)

    def _stacked(self, draws: Sequence[Randomness], rounds: int) -> Randomness:
        """Return arrays of shape (rounds, R·B, …) of each run's arrays of shape (rounds·B, …)."""
        stacks = []
        for arrays in zip(*draws, strict=True):
            each = arrays[0].shape[1:]
            stack = np.stack([one.reshape(rounds, self._batch, *each) for one in arrays], axis=1)
            stacks.append(stack.reshape(rounds, len(self._files) * self._batch, *each))
        return tuple(stacks)

    def _observe(self, met: _Met, arms: NDArray[np.int64], predictors: Floats) -> Observation:
        """Return what the clients experience, with arrays of shape (R, B, …)."""
        shape, own = met.luck.shape, picked(met.means, arms)
        several = met.features.shape[-2] > 1
        features = _picked_rows(met.features, arms) if several else met.features[..., 0, :]
        if arms.shape != shape:  # all clients of a run meet the same contexts, and so choose the same arm
            arms, own, predictors = (np.broadcast_to(one, shape) for one in (arms, own, predictors))
            features = np.broadcast_to(features, (*shape, features.shape[-1]))
        return Observation(arms, features, self._worlds[0].pay(own, met.luck), predictors)

    def _opened(
        self, phase: Phase, number: int, totals: NDArray[np.uint64], noise: NDArray[Any] | None, before: int
    ) -> Floats:
        """Return the released sums, shape (R, D). `before`: draws of the phase that are not in `noise`."""
        mechanism = phase.mechanism
        if noise is None:
            return mechanism.estimate_with(totals, self._batch, None)
        draws = iter(noise[phase.sums_before(number) - before :])
        if not phase.noise.prefix or not isinstance(mechanism, Tree):
            return mechanism.estimate_with(totals, self._batch, next(draws))
        counter = self._counter or Counter(mechanism)
        self._counter, released = counter.add_with(totals, self._batch, lambda: next(draws))
        return released.prefix

    def _judge(self, rules: Sequence[ChoiceRule]) -> None:
        """Count one interval a run for each rule that states one."""
        runs = len(self._files)
        if self._theta is None or any(rule.inverse is None for rule in rules):
            return
        stacked = ChoiceRule(
            np.stack([rule.theta for rule in rules]),
            np.stack([rule.inverse for rule in rules if rule.inverse is not None]),
            np.stack([np.broadcast_to(np.asarray(rule.beta), (runs,)) for rule in rules]),
        )
        missed = missed_widths(stacked, self._theta)
        if missed is not None:
            self._widths += len(rules)
            self._missed += missed.sum(axis=0)

    def _results(self, pulls: NDArray[np.int64], lost: Floats, rest: int) -> list[LockStepResult]:
        curves = np.cumsum(lost, axis=0)
        rounds = sum(count for _, count in self._weights)
        bits = Bits(
            payload=sum(phase.mechanism.bits * count for phase, count in self._weights) / rounds,
            modulus=sum((phase.mechanism.modulus - 1).bit_length() * count for phase, count in self._weights) / rounds,
        )
        events = PolicyFailures(
            best_dropped=False,
            best_dropped_at=None,
            widths=self._widths,
            width_failures=0,
            failure=self._config.policy.stated_failure(self._config.mechanism.calibration, ())
            if self._widths
            else None,
        )
        indefinite = getattr(self._core, "indefinite", None)
        return [
            LockStepResult(
                file,
                pulls,
                curves[:, run],
                events.model_copy(update={"width_failures": int(self._missed[run])}),
                rounds * self._batch,
                rest,
                bits,
                None if indefinite is None else int(indefinite[run]),
            )
            for run, file in enumerate(self._files)
        ]


def _stage(rule: ChoiceRule) -> bool:
    """Return whether clients choose: the statistic differs where all play one public arm."""
    return rule.only is None


def _picked_rows(table: Floats, arms: NDArray[np.int64]) -> Floats:
    """Return each client's own row, shape (R, n, d), of a table of shape (R, n, K, d)."""
    places = arms + np.arange(0, table.size // table.shape[-1], table.shape[-2]).reshape(arms.shape)
    return table.reshape(-1, table.shape[-1])[places]


def _regret(met: _Met, arms: NDArray[np.int64]) -> Floats:
    """Return each run's regret of the first c rounds, shape (c, R), by their arms, shape (c, R, n)."""
    values = np.broadcast_to(met.means, (len(met.luck), *met.means.shape[1:]))[: len(arms)]
    own = np.take_along_axis(values, arms[..., np.newaxis], axis=-1)[..., 0]
    lost = np.broadcast_to(values.max(axis=-1) - own, (len(arms), *met.luck.shape[1:]))
    return np.ascontiguousarray(lost).sum(axis=-1)

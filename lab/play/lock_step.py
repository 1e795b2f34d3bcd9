"""Plays repetitions of one contextual run in lock step: every array has a leading axis of repetitions.

A round costs about as much for ten repetitions as for one. Nothing is computed by a formula instead: clients choose by
the policy's rule, the mechanism randomizes their vectors, their messages are added modulo m, and the policy learns from
the mechanism's estimate. Only the randomness is drawn in large blocks, from the law that each message and sum has.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import ContextualWorld
from distrust.client.environments.contextual import Contexts, clipped_contexts, longer_by_client, mean_values
from distrust.common.bandit.contextual_choice import ChoiceRule, places_of
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.error_law import Floats
from distrust.common.dp.mechanisms import MECHANISMS, Mechanism
from distrust.common.dp.mechanisms.central.prefix_factorization import Prefixes, PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.dp.mechanisms.families.grid import GridMechanism, Randomness
from distrust.common.errors import BadParameter
from distrust.common.modular import sum_rows
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.lab.play.contextual_failures import missed_widths, states_widths, width_failures
from distrust.lab.play.lock_step_draws import BlockDraws, LockStepPhase, RunDraws
from distrust.lab.play.result import Bits, PolicyFailures
from distrust.lab.play.run_file import RunFile
from distrust.server.learner.rounds import plan_round
from distrust.server.learner.run_config import build_policy, run_facts
from distrust.server.policies.base import Estimate
from distrust.server.policies.contextual.base import ContextualPolicy, clients_rule
from distrust.server.policies.contextual.designs import RoundNoise

CHUNK = 1 << 21
"""Numbers of all repetitions that lie ready at once, 16 MB an array."""

MOST_ROUNDS_READY = 128  # rounds whose draws lie ready at once, however short they are

MOST_JUDGED = 64
"""Rules that are kept until their widths are compared with the truth, together: they stay in the processor's cache."""

FEW = 4096
"""Numbers of a round up to which computing them for every arm at once costs less than for the chosen ones by round."""


@dataclass(frozen=True, slots=True)
class LockStepResult:
    """One repetition that was played to its end.

    pulls, regret  cumulated, after each round and at the end, shape (points,).
    clients        of all cohorts.
    unfinished     the last pulls, which no cohort takes.
    clipped        contexts that were shortened to length 1, as in `Result`.
    switches       batches after which clients got another decision, as in `Result`.
    """

    file: RunFile
    pulls: NDArray[np.int64]
    regret: Floats
    events: PolicyFailures
    clients: int
    unfinished: int
    bits: Bits
    clipped: int
    switches: int | None


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
        and kind.counter in {Mechanism.counter, Tree.counter, PrefixFactorization.counter}
        and not file.fleet.dropout
        and config.budget is None
    )


def play_together(
    files: Sequence[RunFile],
    draws: MakeDraws = BlockDraws,
    watch: Watch = lambda _number, _sums: None,
    *,
    stop: int | None = None,
) -> list[LockStepResult]:
    """Play runs that differ in names and seeds only, to their ends. Return their results in order.

    stop    the last round that is played: results then have the beginnings of `pulls` and `regret`. All for None.
    Raises  BadParameter if one cannot be planned.
    """
    first = files[0]
    if any(_apart(file) != _apart(first) for file in files) or not in_lock_step(first):
        raise BadParameter("run files", first.config.run, "runs in lock step must differ in names and seeds only")
    return _Group(files, draws, watch, stop).play()


def _apart(file: RunFile) -> tuple[Any, ...]:
    """Return a run file without its name and seeds."""
    fields = file.config.model_dump(exclude={"run", "unsafe"})
    return fields, file.environment.model_dump(exclude={"seed"}), file.fleet, file.config.unsafe is None


class _DrawnContexts(NamedTuple):
    """Contexts of the clients of some rounds: c rounds, R runs, n clients a round and run.

    features  as clients shorten them, shape (c, R, n, A, d).
    means     of each arm, shape (c, R, n, K).
    payout_draws  shape (c, R, B).
    contents  of all contexts, shape (c, R, n, A, width), and rewards, shaped like `means` and clamped, that each arm
              would pay: where they are computed before the choice, many rounds at once.
    longer    contexts that clients shortened, by round, shape (c, R).
    c and n are 1 in all but `payout_draws` where the clients of a run meet the same contexts.
    """

    features: Floats
    means: Floats
    payout_draws: Floats
    longer: NDArray[np.int64]
    contents: Floats | None = None
    rewards: Floats | None = None

    @property
    def fixed(self) -> bool:
        """Return whether the clients of a run meet the same contexts."""
        return self.means.shape[:3:2] != self.payout_draws.shape[::2]

    def by_round(self) -> Iterator["_DrawnContexts"]:
        """Yield each round's part, without the axis of rounds."""
        count = len(self.payout_draws)
        columns = (
            repeat(None, count) if part is None else np.broadcast_to(part, (count, *part.shape[1:])) for part in self
        )
        return map(_DrawnContexts, *columns)


class _Group:
    """Runs in lock step; R of them."""

    def __init__(self, files: Sequence[RunFile], draws: MakeDraws, watch: Watch, stop: int | None) -> None:
        config = files[0].config
        policy = build_policy(config)
        assert isinstance(config.policy, ContextualPolicySpec)
        assert isinstance(policy, ContextualPolicy)
        self._files, self._config, self._policy, self._watch = files, config, policy, watch
        self._spec = config.policy
        self._worlds: list[ContextualWorld] = []
        for file in files:
            world = file.world()
            assert isinstance(world, ContextualWorld)
            self._worlds.append(world)
        self._batch = config.policy.batch
        self._whole = config.horizon // self._batch
        self._rounds = self._whole if stop is None else min(stop, self._whole)
        self._core = policy.core([run_facts(file.config) for file in files])
        self._draws = [draws(file, world, self._batch) for file, world in zip(files, self._worlds, strict=True)]
        thetas = [getattr(world, "theta", None) for world in self._worlds]
        self._theta = np.stack([theta for theta in thetas if theta is not None]) if thetas[0] is not None else None
        self._counter: Counter | Prefixes | None = None
        self._judges = self._theta is not None and states_widths(config)
        self._widths, self._missed = 0, np.zeros(len(files), dtype=np.int64)
        self._clipped = np.array([world.clipped for world in self._worlds])
        self._last: ChoiceRule = self._core.rule
        self._lost: list[Floats] = []  # regret of each round, shape (c, R)
        self._weights: list[tuple[LockStepPhase, int]] = []  # phases, and the rounds that each had

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
        if rest and done == self._whole:
            drawn = self._draw_contexts([draws.leftover(rest) for draws in self._draws], 1, rest)
            arms = self._last.choose(drawn.features[0])[0][np.newaxis]
            self._lost.append(_regret(mean_values(self._worlds[0], drawn.means), drawn.payout_draws, arms))
            self._clipped += drawn.longer.sum(axis=0)
            pulls.append(np.array([self._config.horizon]))
        return self._results(np.concatenate(pulls), np.concatenate(self._lost), rest)

    def _phase(self, index: int, first: int) -> LockStepPhase:
        """Plan the mechanism of the rounds from `first` on. Return the phase."""
        ask = self._policy.ask_by(self._core.rule)
        mechanism = plan_round(self._config, first, ask, self._config.arms).mechanism
        assert isinstance(ask.statistic, ContextualSum)
        assert isinstance(mechanism, GridMechanism)
        estimate = Estimate(
            arm=None,
            sums=(),
            counts=(self._batch,),
            laws=(mechanism.error(self._batch),),
            rounding=mechanism.rounding,
            prefix=ask.cumulative and mechanism.takes_batches,
            nodes=mechanism.nodes,
        )
        return LockStepPhase(index, first, ask.statistic, mechanism, RoundNoise.of(estimate))

    def _ready(self, phase: LockStepPhase) -> int:
        """Return for how many rounds everything is drawn at once."""
        world = self._worlds[0]
        each = max(phase.mechanism.dimension, world.arms * world.dimension)
        return max(1, min(MOST_ROUNDS_READY, CHUNK // (len(self._files) * self._batch * each)))

    def _play(self, phase: LockStepPhase, ready: range) -> int:
        """Play these rounds, or fewer where the phase ends among them. Return how many."""
        drawn = self._draw_contexts([draws.contexts(ready) for draws in self._draws], len(ready), self._batch)
        if phase.statistic.width * drawn.features[0, ..., 0].size <= FEW or drawn.fixed:
            drawn = drawn._replace(contents=phase.statistic.contents(drawn.features))
        if drawn.means[0].size <= FEW and not drawn.fixed:
            payout_draws = np.broadcast_to(drawn.payout_draws[..., np.newaxis], drawn.means.shape)
            drawn = drawn._replace(rewards=phase.statistic.clamped(self._worlds[0].pay(drawn.means, payout_draws)))
        randomness = self._stacked([draws.messages(phase, ready) for draws in self._draws], len(ready))
        server = [draws.server(phase, ready) for draws in self._draws]
        noise = None if server[0] is None else np.stack([rows for rows in server if rows is not None], axis=1)
        rules: list[ChoiceRule] = []
        chosen: list[NDArray[np.int64]] = []
        before = phase.sums_before(ready.start)
        for number, now, own in zip(ready, drawn.by_round(), randomness, strict=True):
            rule = clients_rule(self._core.rule, self._spec)
            if chosen and _stage(rule) != _stage(self._last):
                break
            arms, predictors = rule.choose(now.features)
            vectors = self._vectors(phase.statistic, now, arms, predictors)
            messages = phase.mechanism.randomize_with(vectors.reshape(-1, vectors.shape[-1]), own)
            totals = sum_rows(messages.reshape(vectors.shape), phase.mechanism.modulus)
            sums = self._opened(phase, number, totals, noise, before)
            self._core.learn(sums, phase.noise)
            self._watch(number, sums)
            chosen.append(arms)
            self._last = rule
            if self._judges:
                rules.append(rule)
                if len(rules) == MOST_JUDGED:
                    self._judge(rules)
                    rules.clear()
        self._lost.append(_regret(mean_values(self._worlds[0], drawn.means), drawn.payout_draws, _joined(chosen)))
        self._clipped += drawn.longer[: len(chosen)].sum(axis=0)
        self._judge(rules)
        return len(chosen)

    def _draw_contexts(self, contexts: Sequence[Contexts], rounds: int, clients: int) -> _DrawnContexts:
        """Return what the clients of each run meet, stacked."""
        fixed = len(contexts[0].features) == 1 < rounds * clients
        shape = (1, 1) if fixed else (rounds, clients)
        short = [clipped_contexts(met.features) for met in contexts]
        features = np.stack([vectors.reshape(*shape, *vectors.shape[1:]) for vectors in short], axis=1)
        means = [world.means(met.features) for world, met in zip(self._worlds, contexts, strict=True)]
        payout_draws = np.stack([met.payout_draws.reshape(rounds, clients) for met in contexts], axis=1)
        longer = np.zeros((rounds, len(contexts)), dtype=np.int64)
        for run, (met, own) in enumerate(zip(contexts, short, strict=True)):
            if own is not met.features:  # something was shortened
                each = longer_by_client(met.features, rounds * clients)
                longer[:, run] = each.reshape(rounds, clients).sum(axis=1)
        return _DrawnContexts(
            features, np.stack([values.reshape(*shape, -1) for values in means], axis=1), payout_draws, longer
        )

    def _stacked(self, draws: Sequence[Randomness], rounds: int) -> Iterator[Randomness]:
        """Yield a round's arrays of shape (R·B, …), of each run's arrays of shape (rounds·B, …)."""
        stacks = []
        for arrays in zip(*draws, strict=True):
            each = arrays[0].shape[1:]
            stack = np.stack([array.reshape(rounds, self._batch, *each) for array in arrays], axis=1)
            stacks.append(stack.reshape(rounds, len(self._files) * self._batch, *each))
        return zip(*stacks, strict=True) if stacks else repeat((), rounds)

    def _vectors(
        self, statistic: ContextualSum, drawn: _DrawnContexts, arms: NDArray[np.int64], predictors: Floats
    ) -> Floats:
        """Return what the clients report of one round before any noise, shape (R, B, D)."""
        shape, places = drawn.payout_draws.shape, places_of(arms, drawn.means.shape[-1])
        own = (drawn.means if drawn.rewards is None else drawn.rewards).reshape(-1).take(places)
        table = drawn.features if drawn.contents is None else drawn.contents
        single = table.shape[-2] > 1  # a context an arm
        rows = table.reshape(-1, table.shape[-1]).take(places, axis=0) if single else table[..., 0, :]
        if drawn.contents is None:
            rows = statistic.contents(rows)
        if arms.shape != shape:  # all clients of a run meet the same contexts, and so choose the same arm
            arms, rows = np.broadcast_to(arms, shape), np.broadcast_to(rows, (*shape, rows.shape[-1]))
            own, predictors = np.broadcast_to(own, shape), np.broadcast_to(predictors, shape)
        rewards = statistic.clamped(self._worlds[0].pay(own, drawn.payout_draws)) if drawn.rewards is None else own
        return statistic.vectors_of_clamped(rows, arms, rewards, predictors)

    def _opened(
        self, phase: LockStepPhase, number: int, totals: NDArray[np.uint64], noise: NDArray[Any] | None, before: int
    ) -> Floats:
        """Return the released sums, shape (R, D). `before`: draws of the phase that are not in `noise`."""
        mechanism = phase.mechanism
        if noise is None:
            return mechanism.estimate_with(totals, self._batch, None)
        draws = iter(noise[phase.sums_before(number) - before :])
        if phase.counted is None:
            return mechanism.estimate_with(totals, self._batch, next(draws))
        counter = self._counter or phase.counted.counter()
        self._counter, released = counter.add_with(totals, self._batch, lambda: next(draws))
        return released.prefix

    def _judge(self, rules: Sequence[ChoiceRule]) -> None:
        """Count one interval a run for each rule that states one."""
        rules = [rule for rule in rules if rule.inverse is not None]
        if not rules:
            return
        stacked = ChoiceRule(
            theta=_joined([rule.theta for rule in rules]),
            inverse=_joined([rule.inverse for rule in rules if rule.inverse is not None]),
            beta=np.array([rule.beta for rule in rules]).reshape(len(rules), -1),  # one for all runs, or one a run
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
        indefinite, switches = self._by_run(self._core.indefinite), self._by_run(self._core.switches)
        return [
            LockStepResult(
                file=file,
                pulls=pulls,
                regret=curves[:, run],
                events=width_failures(self._config, self._widths, int(self._missed[run]), indefinite[run]),
                clients=rounds * self._batch,
                unfinished=rest,
                bits=bits,
                clipped=int(self._clipped[run]),
                switches=switches[run],
            )
            for run, file in enumerate(self._files)
        ]

    def _by_run(self, counts: NDArray[np.int64] | None) -> list[int | None]:
        """Return a count of the core for each run; None for a core without it."""
        return [None] * len(self._files) if counts is None else counts.tolist()


def _stage(rule: ChoiceRule) -> bool:
    """Return whether clients choose: the statistic differs where all play one public arm."""
    return rule.only is None


Array = TypeVar("Array", Floats, NDArray[np.int64])


def _joined(arrays: Sequence[Array]) -> Array:
    """Return arrays of one shape under a new first axis, as `np.stack` does, which takes longer for small ones."""
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


def _regret(means: Floats, payout_draws: Floats, arms: NDArray[np.int64]) -> Floats:
    """Return each run's regret of the first c rounds, shape (c, R), by their arms, shape (c, R, n).

    means, payout_draws  as in `_DrawnContexts`; means in what regret is counted in.
    """
    values = np.broadcast_to(means, (len(payout_draws), *means.shape[1:]))[: len(arms)]
    own = np.take_along_axis(values, arms[..., np.newaxis], axis=-1)[..., 0]
    lost = np.broadcast_to(values.max(axis=-1) - own, (len(arms), *payout_draws.shape[1:]))
    sums: Floats = np.ascontiguousarray(lost).sum(axis=-1)
    return sums

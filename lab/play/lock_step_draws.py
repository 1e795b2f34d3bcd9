"""The randomness of a repetition that is played in lock step: what its clients meet, and all noise.

It is drawn in large blocks. The blocks come from streams of the repetition's own, so that nothing depends on those that
are played with it. `RunDraws` may be implemented otherwise: by the streams of services, a run gives their numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import ContextualWorld
from distrust.client.environments.contextual import Contexts
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.mechanisms.families.grid import GridMechanism, Randomness
from distrust.lab.play.run_file import RunFile
from distrust.server.policies.contextual.designs import RoundNoise

BLOCK = 1 << 15
"""Numbers of a repetition that are drawn at once: of noise, and at most four times as many of contexts."""


@dataclass(frozen=True, slots=True)
class LockStepPhase:
    """Consecutive rounds of one statistic and so of one mechanism: a warm-up and what follows, or the whole run.

    index  from 0.
    first  the number of its first round.
    noise  what the policy knows of each round's sum.
    """

    index: int
    first: int
    statistic: ContextualSum
    mechanism: GridMechanism
    noise: RoundNoise

    def sums_before(self, number: int) -> int:
        """Return how many draws of the analyzer's noise the phase's rounds before round `number` take."""
        rounds = number - self.first
        return self.mechanism.draws(rounds) if isinstance(self.mechanism, Tree | PrefixFactorization) else rounds

    @property
    def counted(self) -> Tree | PrefixFactorization | None:
        """Return the mechanism if prefix sums of a stream that it counts are released, else None."""
        mechanism = self.mechanism
        return mechanism if self.noise.prefix and isinstance(mechanism, Tree | PrefixFactorization) else None


class RunDraws(Protocol):
    """All randomness of one repetition. Rounds are numbered from 1 and asked for in order, once each or twice."""

    def contexts(self, rounds: range) -> Contexts:
        """Return what the clients of these rounds meet, round after round."""
        ...

    def leftover(self, count: int) -> Contexts:
        """Return what the last clients meet, which no round takes."""
        ...

    def messages(self, phase: LockStepPhase, rounds: range) -> Randomness:
        """Return what the clients' messages are drawn with, round after round."""
        ...

    def server(self, phase: LockStepPhase, rounds: range) -> NDArray[Any] | None:
        """Return the analyzer's noise of these rounds, a row a draw (`LockStepPhase.sums_before`); None for none."""
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
            pieces.append(tuple(rows if len(rows) < self._size else rows[part] for rows in self._last))
        if len(pieces) == 1:
            return pieces[0]
        shared = [len(rows) < self._size for rows in self._last]
        columns = zip(*pieces, strict=True)
        return tuple(rows[0] if alone else np.concatenate(rows) for rows, alone in zip(columns, shared, strict=True))


class BlockDraws:
    """Draws of one repetition from streams of its own: contexts by the environment's seed, noise by the noise seed.

    Clients meet the same contexts in all series of a panel, whatever their batches are.
    """

    def __init__(self, file: RunFile, world: ContextualWorld, batch: int) -> None:
        self._file, self._world, self._batch = file, world, batch
        size = max(2, min(4096, 4 * BLOCK // (world.arms * world.dimension)))
        self._clients = Blocks(size, self._draw_contexts)
        self._phase = -1
        self._messages = self._sums = self._clients

    def contexts(self, rounds: range) -> Contexts:
        return Contexts(*self._clients.rows((rounds.start - 1) * self._batch, len(rounds) * self._batch))

    def leftover(self, count: int) -> Contexts:
        return Contexts(*self._clients.rows(self._file.config.horizon - count, count))

    def messages(self, phase: LockStepPhase, rounds: range) -> Randomness:
        self._enter(phase)
        return self._messages.rows((rounds.start - phase.first) * self._batch, len(rounds) * self._batch)

    def server(self, phase: LockStepPhase, rounds: range) -> NDArray[Any] | None:
        self._enter(phase)
        first, end = phase.sums_before(rounds.start), phase.sums_before(rounds.stop)
        rows = self._sums.rows(first, end - first)
        return rows[0] if rows else None

    def _draw_contexts(self, index: int, size: int) -> Randomness:
        met = self._world.contexts(size, self._file.world_stream("lock-step", index, "clients"))
        return met.features, met.payout_draws

    def _enter(self, phase: LockStepPhase) -> None:
        """Begin the streams of a phase: its mechanism may have other laws."""
        if phase.index == self._phase:
            return
        self._phase, mechanism = phase.index, phase.mechanism
        size = max(2, BLOCK // mechanism.dimension)

        def messages(index: int, count: int) -> Randomness:
            return mechanism.client_randomness(
                self._file.noise_stream("lock-step", phase.index, "messages", index), count
            )

        def sums(index: int, count: int) -> Randomness:
            draw = mechanism.server_randomness if phase.counted is None else phase.counted.stream_noise
            noise = draw(self._file.noise_stream("lock-step", phase.index, "sums", index), count)
            return () if noise is None else (noise,)

        self._messages, self._sums = Blocks(size, messages), Blocks(size, sums)

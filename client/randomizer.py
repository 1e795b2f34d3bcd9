"""R: from a true reward to a private message. The last place where a true reward exists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from client import play
from client.environments import Environment
from common.mechanisms import AnyMechanism
from common.messages.round import Assignment, Round
from common.randomness import Stream, SystemStream, UnsafeSeededStream


@dataclass(frozen=True)
class World:
    """What the simulated clients of one process live in.

    environment  their rewards.
    seed         of the rewards and of the departures.
    noise_seed   None, except in runs that are named unsafe: then the privacy noise can be repeated.
    fresh        makes a client's own stream of noise; the operating system's unless a test says otherwise.
    """

    environment: Environment
    seed: int
    noise_seed: int | None = None
    fresh: Callable[[], Stream] = SystemStream


@dataclass(frozen=True)
class Randomizer:
    """R for the clients of one cohort: slot i plays the cohort's arm, gets reward i, and only its message leaves."""

    round: Round
    assignment: Assignment
    world: World

    def rows(self, slots: Sequence[int]) -> NDArray[np.uint64]:
        """The messages of `slots`, shape (len(slots), dimension), each below the mechanism's modulus.

        Every client draws its noise from a stream of its own; with a noise seed, slot i takes row i of the cohort's.
        """
        vectors = self._vectors
        if self.world.noise_seed is not None:
            return self._unsafe_rows[list(slots)]
        own = [self.mechanism.randomize(vectors[[slot]], self.world.fresh()) for slot in slots]
        return np.concatenate(own) if own else np.empty((0, vectors.shape[1]), dtype=np.uint64)

    @property
    def mechanism(self) -> AnyMechanism:
        """That of the cohort."""
        return self.round.mechanism_of(self.assignment)

    @cached_property
    def _vectors(self) -> NDArray[np.float64]:
        """True vectors of the whole cohort, shape (n, dimension). They never leave this class."""
        cohort = self.assignment.cohort
        stream = UnsafeSeededStream(self.world.seed, cohort.run, cohort.cohort, "rewards")
        asked = (self.round.decision, self.assignment.arm, cohort.clients)
        rewards = play.rewards(self.world.environment, *asked, stream)
        return self.round.statistic.vectors(rewards)

    @cached_property
    def _unsafe_rows(self) -> NDArray[np.uint64]:
        cohort = self.assignment.cohort
        assert self.world.noise_seed is not None
        stream = UnsafeSeededStream(self.world.noise_seed, cohort.run, cohort.cohort)
        return self.mechanism.randomize(self._vectors, stream)

"""Randomizes rewards (R): a true reward becomes the message that leaves the client, packed in Z_m or as labelled bits.

True rewards are drawn here from the simulated environment, and none leaves this file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import AnyWorld, SideBySide
from distrust.client.environments.contextual import ContextualWorld, experience
from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.decisions import AssignedAction, AssignedArm, Decision, PlayDesign
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.mechanisms import AnyMechanism
from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.run.round import Assignment, Round
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream

_UNASSIGNED = -1  # the position of a slot whose assignment is not known


def true_vectors(
    world: AnyWorld, decision: Decision, statistic: Statistic, *, arm: int | None, clients: int, stream: Stream
) -> NDArray[np.float64]:
    """Return the true vectors of a whole cohort, shape (clients, D): what its clients report, before any noise.

    A row is a client's, in slot order. For assigned actions the rows are by position: only the shuffler knows which
    client has which position. A reward that is NaN counts as the least: a client that failed would disclose it.
    Raises BadParameter for a decision that this world cannot play.
    """
    if isinstance(world, ContextualWorld):
        if isinstance(decision, ContextualChoice) and isinstance(statistic, ContextualSum):
            seen, _ = experience(world, decision.rule, clients, stream)
            return statistic.vectors(seen)
        raise BadParameter("decision", decision.kind, f"{world.name} is a world of contexts")
    if isinstance(statistic, ContextualSum):
        raise BadParameter("statistic", statistic.kind, f"{world.name} has no contexts")
    match decision:
        case AssignedArm() if arm is not None:
            rewards = world.rewards(arm, clients, stream)
        case PlayDesign() if isinstance(world, SideBySide):
            rewards = world.averages(decision.actions, decision.times, clients, stream)
        case AssignedAction():
            pulls = zip(decision.actions, decision.times, strict=True)
            rewards = np.concatenate([world.rewards(action, times, stream) for action, times in pulls])
        case _:
            raise BadParameter("decision", decision.kind, f"cannot be played by one client alone in {world.name}")
    low, high = statistic.low, statistic.high
    return statistic.vectors(np.nan_to_num(rewards, nan=low, posinf=high, neginf=low))


@dataclass(frozen=True)
class World:
    """The simulated world of one process's clients, and the randomness of their noise.

    environment  draws their rewards.
    seed         of the rewards and of the departures.
    noise_seed   None, except in runs that are named unsafe: then the privacy noise can be repeated.
    fresh        makes a client's own stream of noise; the operating system's unless a test says otherwise.
    """

    environment: AnyWorld
    seed: int
    noise_seed: int | None = None
    fresh: Callable[[], Stream] = SystemStream


@dataclass(frozen=True)
class CohortRandomizer:
    """R for the clients of one cohort: slot i plays the cohort's arm, gets reward i, and only its message leaves.

    Where the shuffler assigns actions, a slot plays what `assign` noted for it, and gets that position's reward.
    """

    round: Round
    assignment: Assignment
    world: World

    def rows(self, slots: Sequence[int]) -> NDArray[np.uint64]:
        """Return the messages of `slots`, shape (len(slots), dimension), each below the mechanism's modulus.

        Every client draws its noise from a stream of its own; with a noise seed, slot i takes row i of the cohort's.
        Raises BadMessage for a slot whose position is not known.
        """
        if self._order is not None and (self._order[list(slots)] == _UNASSIGNED).any():
            raise BadMessage(f"cohort {self.assignment.cohort.cohort}: a client does not know what to play")
        vectors = self._vectors if self._order is None else self._vectors[self._order]
        if self.world.noise_seed is not None:
            return (self._unsafe_rows if self._order is None else self._seeded(vectors))[list(slots)]
        own = [self.mechanism.randomize(vectors[[slot]], self.world.fresh()) for slot in slots]
        return np.concatenate(own) if own else np.empty((0, vectors.shape[1]), dtype=np.uint64)

    def assign(self, positions: Mapping[int, int]) -> None:
        """Note the position of each slot. Raises BadMessage where no actions are assigned."""
        if self._order is None:
            raise BadMessage(f"cohort {self.assignment.cohort.cohort}: its clients know what to play")
        self._order[list(positions)] = list(positions.values())

    def place(self, slot: int) -> int | None:
        """Return the place of a slot's action in the cohort's list; None where no actions are assigned."""
        decision = self.round.decision
        if self._order is None or not isinstance(decision, AssignedAction):
            return None
        return decision.place(int(self._order[slot]))

    @property
    def mechanism(self) -> AnyMechanism:
        """Return the cohort's mechanism."""
        return self.round.mechanism_of(self.assignment)

    @cached_property
    def _order(self) -> NDArray[np.int64] | None:
        """Return the position of each slot that this process knows of. It may hold the tickets of some clients only."""
        assigned = isinstance(self.round.decision, AssignedAction)
        return np.full(self.assignment.cohort.clients, _UNASSIGNED, dtype=np.int64) if assigned else None

    @cached_property
    def _vectors(self) -> NDArray[np.float64]:
        """Return the true vectors of the whole cohort, by slot or by position, shape (n, dimension).

        They never leave this class.
        """
        cohort = self.assignment.cohort
        stream = UnsafeSeededStream(self.world.seed, cohort.run, cohort.cohort, "rewards")
        decision, arm = self.round.decision, self.assignment.arm
        return true_vectors(
            self.world.environment, decision, self.round.statistic, arm=arm, clients=cohort.clients, stream=stream
        )

    @cached_property
    def _unsafe_rows(self) -> NDArray[np.uint64]:
        return self._seeded(self._vectors)

    def _seeded(self, vectors: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the whole cohort's rows. A row depends on its own vector only; the others may be unknown here."""
        cohort = self.assignment.cohort
        assert self.world.noise_seed is not None
        stream = UnsafeSeededStream(self.world.noise_seed, cohort.run, cohort.cohort)
        return self.mechanism.randomize(vectors, stream)

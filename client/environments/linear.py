"""Defines linear worlds: an action x pays ⟨θ, x⟩ on average. Actions are public, θ stays on the clients' side.

θ is as secret as the seed that it is drawn from: see `action_spec`.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, KnownMeans, Seed
from distrust.common.bandit.actions import ActionSpec, BallActions, GivenActions, SphereActions, action_vectors
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream, UnsafeSeededStream, generator
from distrust.common.specs.base import PolicySpec

SPREADS = 3
"""Standard deviations of a reward that B must leave room for."""


class LinearEnvironmentSpec(EnvironmentSpec):
    """The table of a linear environment: the public action set, and the bounds of the rewards that a policy assumes."""

    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "linear"

    if TYPE_CHECKING:  # fields of each class
        arms: int
        dimension: int
        actions: ActionSpec | None

    @property
    @abstractmethod
    def reward_bounds(self) -> tuple[float, float, float]:
        """Return a policy's assumptions on rewards, in their units: |reward| ≤ B, deviation σ, noise R."""

    def policy_defaults(self, policy: type[PolicySpec]) -> dict[str, object]:
        bound, deviation, noise = self.reward_bounds
        widths = {"deviation": deviation, "noise": noise}
        known = {key: value for key, value in widths.items() if key in policy.model_fields}
        return {"actions": action_spec(self).model_dump(), "bound": bound, **known}

    def check_policy(self, policy: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        """Raise BadParameter for a B that would move the means, and for a smaller σ or R than the world's."""
        bound = policy.get("bound")
        if isinstance(bound, int | float) and bound > 0:  # the policy's own checks name other values
            check_bound("policy.bound", bound, self)
        for field in ("deviation", "noise"):
            value, smallest = policy.get(field), defaults.get(field)
            if isinstance(value, int | float) and isinstance(smallest, int | float) and 0 <= value < smallest:
                allowed = f"must be at least {smallest:g}, the environment's {field}: widths would miss the means"
                raise BadParameter(f"policy.{field}", value, allowed)


class LinearDistributedSpec(LinearEnvironmentSpec):
    """`[environment] name = "linear-distributed"`: clients differ (DLB section 7).

    actions    k = `arms` vectors of the unit sphere of R^dimension from the seed, unless a set is given.
    arms       k, actions to choose from.
    dimension  d, of actions and θ.
    deviation  σ: client u's own θ_u is θ* + N(0, σ² I).
    noise      R: a reward is N(⟨θ_u, x⟩, R²).
    bound      B that a policy assumes; rewards beyond it are clamped. At least `smallest_bound`.
    """

    name: Literal["linear-distributed"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=100_000)] = 1000
    dimension: Annotated[int, Field(ge=1, le=1000)] = 20
    actions: ActionSpec | None = None
    deviation: Annotated[float, Field(ge=0, le=10)] = 0.1
    noise: Annotated[float, Field(ge=0, le=10)] = 0.1
    bound: Annotated[float, Field(gt=0, le=1e6)] = 1.5

    @property
    def reward_bounds(self) -> tuple[float, float, float]:
        return self.bound, self.deviation, self.noise

    def build(self) -> "LinearDistributed":
        vectors, theta = drawn(self)
        check_bound("environment.bound", self.bound, self)
        return LinearDistributed(vectors, theta, self.deviation, self.noise)


class LinearSphereSpec(LinearEnvironmentSpec):
    """`[environment] name = "linear-sphere"`: actions and θ* uniform on the sphere, rewards ±1 (FREE section 6).

    arms       k, actions to choose from.
    dimension  d, of actions and θ.
    actions    drawn from the seed, unless a set is given.
    """

    name: Literal["linear-sphere"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=100_000)] = 10
    dimension: Annotated[int, Field(ge=1, le=1000)] = 2
    actions: ActionSpec | None = None

    @property
    def reward_bounds(self) -> tuple[float, float, float]:
        return 1.0, 0.0, 1.0

    def build(self) -> "LinearSphere":
        return LinearSphere(*drawn(self))


@runtime_checkable
class SideBySide(Protocol):
    """A world in which one client can play several actions in one phase, with a θ_u of its own."""

    def averages(self, arms: Sequence[int], times: Sequence[int], count: int, stream: Stream) -> Floats:
        """Return average rewards of `count` clients over `times[j]` plays of `arms[j]`, shape (count, s)."""


@dataclass(frozen=True)
class LinearDistributed(KnownMeans):
    """Means ⟨θ*, x⟩; client u keeps its θ_u. An average of Gaussian rewards is drawn as one Gaussian."""

    vectors: Floats
    theta: Floats
    deviation: float
    noise: float
    name: str = "linear-distributed"

    @cached_property
    def means(self) -> Floats:
        """Return the true mean reward of each action, shape (k,), in [-1, 1]."""
        means: Floats = self.vectors @ self.theta
        return means

    def rewards(self, arm: int, count: int, stream: Stream) -> Floats:
        """Return one reward of each of `count` clients, shape (count,)."""
        spread = math.hypot(self.deviation * float(np.linalg.norm(self.vectors[arm])), self.noise)
        return generator(stream).normal(self.means[arm], spread, count)

    def averages(self, arms: Sequence[int], times: Sequence[int], count: int, stream: Stream) -> Floats:
        rng, played = generator(stream), self.vectors[list(arms)]
        own = self.theta + rng.normal(0, self.deviation, (count, len(self.theta)))
        noise = rng.normal(0, 1, (count, len(played))) * self.noise / np.sqrt(np.array(times))
        averages: Floats = own @ played.T + noise
        return averages


@dataclass(frozen=True)
class LinearSphere(KnownMeans):
    """Action x pays 1 with probability (1 + ⟨θ*, x⟩)/2, else -1, to every client alike."""

    vectors: Floats
    theta: Floats
    name: str = "linear-sphere"

    @cached_property
    def means(self) -> Floats:
        """Return the true mean reward of each action, shape (k,), in [-1, 1]."""
        means: Floats = np.clip(self.vectors @ self.theta, -1, 1)
        return means

    def rewards(self, arm: int, count: int, stream: Stream) -> Floats:
        """Return plus and minus ones, shape (count,)."""
        return np.where(generator(stream).random(count) < (1 + self.means[arm]) / 2, 1.0, -1.0)

    def averages(self, arms: Sequence[int], times: Sequence[int], count: int, stream: Stream) -> Floats:
        chances = (1 + self.means[list(arms)]) / 2
        ones = generator(stream).binomial(np.array(times), chances, (count, len(chances)))
        return np.asarray(2 * ones / np.array(times) - 1, dtype=np.float64)


def action_spec(spec: LinearEnvironmentSpec) -> GivenActions | SphereActions | BallActions:
    """Return the public action set.

    Its seed is public and is derived one way from the environment's. A server can try environment seeds until one
    gives this seed, and then knows θ*: a seed that can be guessed, such as a small number, discloses the world.
    """
    if spec.actions is not None:
        return spec.actions
    seed = int.from_bytes(UnsafeSeededStream(_seed(spec), "actions").bytes(8), "little") >> 1
    return SphereActions(count=spec.arms, dimension=spec.dimension, seed=seed)


def drawn(spec: LinearEnvironmentSpec) -> tuple[Floats, Floats]:
    """Return the actions, shape (k, d), and θ*, uniform on the unit sphere.

    Raises BadParameter without a seed, for actions that cannot be, and for numbers that contradict them.
    """
    vectors = action_vectors(action_spec(spec), "environment.actions")
    _check_sizes(spec, vectors)
    normal = generator(UnsafeSeededStream(_seed(spec), "theta")).normal(size=vectors.shape[1])
    theta: Floats = np.asarray(normal / np.linalg.norm(normal))
    return vectors, theta


def _check_sizes(spec: LinearEnvironmentSpec, vectors: Floats) -> None:
    """Raise BadParameter where `arms` or `dimension` is set, and differs from the actions that the table lists."""
    for field, size in zip(("arms", "dimension"), vectors.shape, strict=True):
        if field in spec.model_fields_set and getattr(spec, field) != size:
            raise BadParameter(f"environment.{field}", getattr(spec, field), f"environment.actions has {size}")


def smallest_bound(spec: LinearEnvironmentSpec) -> float:
    """Return the smallest B for which clamping hardly moves the means: the largest |mean| and SPREADS deviations.

    The mean of clamped rewards is then off by less than 4·10⁻⁴ deviations. A policy's intervals are about the mean of
    what clients report, so with a smaller B they would miss the true mean.
    """
    if not isinstance(spec, LinearDistributedSpec):
        return 1.0
    longest = float(np.linalg.norm(action_vectors(action_spec(spec), "environment.actions"), axis=1).max())
    return longest + SPREADS * math.hypot(spec.deviation * longest, spec.noise)


def check_bound(field: str, bound: float, spec: LinearEnvironmentSpec) -> None:
    """Raise BadParameter for a B that would move the means."""
    smallest = smallest_bound(spec)
    if bound < smallest - 1e-9:
        least = math.ceil(smallest * 1e4) / 1e4  # rounded up, so that it is allowed as it is told
        raise BadParameter(field, bound, f"must be at least {least:.10g}: clamped rewards would have other means")


def _seed(spec: LinearEnvironmentSpec) -> int:
    if spec.seed is None:
        raise BadParameter("environment.seed", None, f"{spec.name} draws its vectors from a seed; give a whole number")
    return spec.seed

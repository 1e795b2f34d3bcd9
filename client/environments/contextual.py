"""Simulated worlds of contextual bandits: each client has a context, and an arm pays by it.

A mean reward is μ(⟨φ, θ⟩). θ and the contexts never leave the clients' side.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.client.environments.base import EnvironmentSpec, Seed
from distrust.common.bandit.contextual_choice import ChoiceRule, Link, link_mean
from distrust.common.bandit.contextual_sum import Observation, shortened
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.extras import stats
from distrust.common.randomness import Stream, UnsafeSeededStream, generator
from distrust.common.specs.base import PolicySpec
from distrust.common.specs.contextual import Parameters

LongContexts = Literal["clip", "refuse"]
"""Treatment of contexts of real data that are longer than 1: `clip` shortens and counts them, `refuse` raises."""

COVERED = 0.95
"""Part of a data set's contexts that are not longer than the default radius."""

LARGEST_ENTRY = 1e9
"""Largest size of a number in a data set. Squares and their sums stay far from overflow."""


HUGE = 1e100
"""Size of a number above which a context is scaled before it is squared, because squares overflow at 1e154."""

ROUNDED = 1e-12
"""Excess over 1 that the length of a context may have by rounding."""

MET = 10_000
"""Clients over which the regret of uniform play is averaged: 1 % of its spread among them is left in the mean."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts of `n` clients.

    features  contexts, shape (n, A, d), or (1, A, d) where all clients meet the same; A = K for "single", 1 for
              "multi".
    payout_draws  uniform in [0, 1), shape (n,): what an arm would pay each client follows from it and the arm's mean.
    """

    features: Floats
    payout_draws: Floats


@runtime_checkable
class ContextualWorld(Protocol):
    """K arms whose rewards depend on the client's context; rewards lie in `rewards`."""

    @property
    def name(self) -> str:
        """Return the name that a run file has for it."""

    @property
    def arms(self) -> int:
        """Return K, the number of arms."""

    @property
    def dimension(self) -> int:
        """Return d, the numbers of a context."""

    @property
    def link(self) -> Link:
        """Return μ, the link that the run's policies assume."""

    @property
    def parameters(self) -> Parameters:
        """Return whether the arms share θ ("single") or have one each ("multi")."""

    @property
    def rewards(self) -> tuple[float, float]:
        """Return the least and the largest value of a reward."""

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Return the public value of a reward of 1 of each arm, in [0, 1], shape (K,); None where all are worth 1."""

    @property
    def clipped(self) -> int:
        """Return how many rows of the world's data were longer than 1 and were shortened; 0 for drawn contexts."""

    def contexts(self, count: int, stream: Stream) -> Contexts:
        """Return what `count` clients meet; the same stream gives the same."""

    def means(self, features: Floats) -> Floats:
        """Return the true mean reward of each arm, shape (…, n, K), for contexts of shape (…, n, A, d)."""

    def pay(self, means: Floats, payout_draws: Floats) -> Floats:
        """Return rewards of clients whose arms have these means; all of one shape."""


class ContextualSpec(EnvironmentSpec):
    """The table of a contextual environment. A policy takes `features`, `link` and the range of rewards from it."""

    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "contextual"

    if TYPE_CHECKING:  # fields of each class
        arms: int

    @abstractmethod
    def build(self) -> ContextualWorld:
        """Return the world that this table describes. Raises BadParameter outside its ranges, or without its data."""

    def policy_defaults(self, policy: type[PolicySpec]) -> Mapping[str, object]:
        world = self.build()
        fields: dict[str, object] = {
            "features": world.dimension,
            "link": world.link,
            "parameters": world.parameters,
            "rewards": list(world.rewards),
        }
        if world.weights is not None:
            fields["weights"] = list(world.weights)
        return {key: value for key, value in fields.items() if key in policy.model_fields}

    def uniform_regret(self) -> float:
        """Return the expected regret of a client whose arm is drawn uniformly: a mean over MET clients.

        It is exact where all clients meet the same contexts. Raises BadParameter as `build` does, and without a seed.
        """
        world = self.build()
        met = world.contexts(MET, UnsafeSeededStream(world_seed(self), "uniform play"))
        values = mean_values(world, world.means(met.features))
        return float((values.max(axis=-1) - values.mean(axis=-1)).mean())

    def check_policy(self, policy: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        """Raise BadParameter where the policy's table says something else than the world is."""
        for field in ("features", "parameters", "rewards", "weights"):
            if field in policy and policy[field] != defaults.get(field):
                allowed = f"the environment has {defaults.get(field, 'none')}: leave it out"
                raise BadParameter(f"policy.{field}", policy[field], allowed)


@dataclass(frozen=True)
class GeneralizedLinear:
    """Means μ(⟨φ, θ⟩), which `pay` turns into rewards.

    theta     shape (1, d) for "single", (K, d) for "multi".
    fixed     contexts that all clients meet, shape (K, d); None: each client's own, uniform on the unit sphere.
    rewards   of the identity: Bernoulli in [0, 1]; or ±1 in [-1, 1], or the mean itself where `noiseless`. Of the
              logistic link: Bernoulli. Of the Poisson link: counts, at most `rewards[1]`.
    """

    name: str
    arms: int
    theta: Floats
    link: Link
    parameters: Parameters
    rewards: tuple[float, float]
    fixed: Floats | None = None
    noiseless: bool = False
    weights: tuple[float, ...] | None = None
    clipped: int = 0

    @property
    def dimension(self) -> int:
        """Return d, the numbers of a context."""
        return int(self.theta.shape[1])

    def contexts(self, count: int, stream: Stream) -> Contexts:
        rng = generator(stream)
        payout_draws = rng.random(count)
        if self.fixed is not None:
            return Contexts(self.fixed[np.newaxis], payout_draws)
        several = self.arms if self.parameters == "single" else 1
        return Contexts(on_sphere(rng.standard_normal((count, several, self.dimension))), payout_draws)

    def means(self, features: Floats) -> Floats:
        products = features @ self.theta.T
        return link_mean(self.link, products[..., 0] if self.parameters == "single" else products[..., 0, :])

    def pay(self, means: Floats, payout_draws: Floats) -> Floats:
        low, high = self.rewards
        if self.noiseless:
            return means
        if self.link == "poisson":
            counts: Floats = stats.poisson.ppf(payout_draws, means)
            return np.clip(counts, low, high)  # the quantile of luck 0 is -1
        return np.where(payout_draws < (means - low) / (high - low), high, low)


class ContextualSyntheticSpec(ContextualSpec):
    """`[environment] name = "contextual-synthetic"`: Bernoulli rewards of mean ⟨φ_a, θ*⟩ (CTX section 5).

    θ* and the features of each arm are a vector of norm 1/√2, uniform on its sphere of R^{d-1}, and an entry 1/√2. They
    are the same for all clients; the environment's seed draws them. Means lie in [0, 1], contexts have length 1.

    arms  K.
    """

    name: Literal["contextual-synthetic"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=10_000)] = 100
    dimension: Annotated[int, Field(ge=2, le=200, description="1 would leave all arms the same context")] = 5

    def build(self) -> GeneralizedLinear:
        rng = generator(UnsafeSeededStream(world_seed(self), "contextual-synthetic"))
        drawn = on_sphere(rng.standard_normal((self.arms + 1, self.dimension - 1))) * math.sqrt(0.5)
        vectors = np.concatenate([drawn, np.full((self.arms + 1, 1), math.sqrt(0.5))], axis=1)
        return GeneralizedLinear(
            name="contextual-synthetic",
            arms=self.arms,
            theta=vectors[:1],
            link="identity",
            parameters="single",
            rewards=(0.0, 1.0),
            fixed=vectors[1:],
        )


class GlmSphereSpec(ContextualSpec):
    """`[environment] name = "glm-sphere"`: contexts and θ uniform on the unit sphere of R^d (GLB section 5).

    arms        K.
    dimension   d, the length of a context.
    parameters  single: θ for all arms and a context an arm. multi: a θ an arm and one context.
    link        identity: rewards ±1 of mean z, or z itself with `noiseless`, as the published code has it. logistic:
                Bernoulli(μ(z)). poisson: counts of mean e^z, at most `largest`.
    noiseless   identity link: a reward is its mean.
    largest     r_max of the Poisson link, at least e, the largest mean. Regret is by e^z: the truncation is not in it.
    """

    name: Literal["glm-sphere"]
    seed: Seed = None
    arms: Annotated[int, Field(ge=2, le=10_000)] = 10
    dimension: Annotated[int, Field(ge=1, le=200)] = 2
    parameters: Parameters = "single"
    link: Link = "identity"
    noiseless: bool = False
    largest: Annotated[float, Field(ge=math.e, le=1000)] | None = None

    def build(self) -> GeneralizedLinear:
        if (self.largest is None) == (self.link == "poisson"):
            allowed = "the poisson link's counts are unbounded: give their largest value"
            raise BadParameter(
                "environment.largest", self.largest, allowed if self.link == "poisson" else "poisson only: leave it out"
            )
        if self.noiseless and self.link != "identity":
            raise BadParameter("environment.noiseless", True, "goes with the identity link")
        rng = generator(UnsafeSeededStream(world_seed(self), "glm-sphere"))
        rows = 1 if self.parameters == "single" else self.arms
        theta = on_sphere(rng.standard_normal((rows, self.dimension)))
        ranges = {"identity": (-1.0, 1.0), "logistic": (0.0, 1.0), "poisson": (0.0, self.largest or 1.0)}
        return GeneralizedLinear(
            name="glm-sphere",
            arms=self.arms,
            theta=theta,
            link=self.link,
            parameters=self.parameters,
            rewards=ranges[self.link],
            noiseless=self.noiseless,
        )


def on_sphere(normals: Floats) -> Floats:
    """Return vectors of length 1 in the directions of standard normal ones, shape (…, d)."""
    squares = normals * normals
    # A sum over a short axis takes NumPy eight times as long as one addition of its two columns, which is the same.
    pairs = squares.shape[-1] == 2
    lengths = np.sqrt(squares[..., :1] + squares[..., 1:] if pairs else squares.sum(axis=-1, keepdims=True))
    vectors: Floats = normals / np.where(lengths == 0, 1.0, lengths)
    return vectors


def world_seed(spec: EnvironmentSpec) -> int:
    """Return the seed of a table. Raises BadParameter without one."""
    if spec.seed is None:
        raise BadParameter("environment.seed", None, f"{spec.name} draws its vectors from a seed; give a whole number")
    return spec.seed


def mean_values(world: ContextualWorld, means: Floats) -> Floats:
    """Return what regret is counted in, for mean rewards of shape (…, K): mean rewards times the world's weights."""
    return means if world.weights is None else means * np.array(world.weights)


def experience(world: ContextualWorld, rule: ChoiceRule, count: int, stream: Stream) -> tuple[Observation, Floats]:
    """Return what `count` clients experience under a rule, and the regret of each, shape (count,).

    A client shortens its contexts before it chooses by them and reports them; what its arms pay is up to the world, but
    a reward that is NaN counts as the least. The regret is the largest mean value of the client's arms, less that of
    its choice. An arm's mean value is its mean reward, times its weight where the world has weights.
    """
    return experience_of(world, rule, count, world.contexts(count, stream))


def experience_of(world: ContextualWorld, rule: ChoiceRule, count: int, met: Contexts) -> tuple[Observation, Floats]:
    """Return what `experience` does, of `count` clients that meet these contexts."""
    shape = (count, *met.features.shape[1:])
    features = np.broadcast_to(clipped_contexts(met.features), shape)
    arms, predictors = rule.choose(features)
    means = world.means(np.broadcast_to(met.features, shape))
    own = np.take_along_axis(means, arms[:, np.newaxis], axis=1)[:, 0]
    column = arms if features.shape[1] > 1 else np.zeros_like(arms)
    chosen = np.take_along_axis(features, column[:, np.newaxis, np.newaxis], axis=1)[:, 0]
    values = mean_values(world, means)
    lost = values.max(axis=1) - np.take_along_axis(values, arms[:, np.newaxis], axis=1)[:, 0]
    low, high = world.rewards
    rewards = np.nan_to_num(world.pay(own, met.payout_draws), nan=low, posinf=high, neginf=low)
    return Observation(arms, chosen, rewards, predictors), lost


def clipped_contexts(contexts: Floats) -> Floats:
    """Return contexts, shape (…, d), with ‖φ‖ ≤ 1: longer ones are divided by their length.

    A context that is longer by rounding only stays as it is, so that no choice depends on how its length is rounded.
    One with NaN or infinity counts as 0: a client that failed would disclose that it has such a context.
    """
    squares = np.einsum("...d,...d->...", contexts, contexts)
    if not np.isfinite(squares).all():
        contexts = _numbers(contexts)
        squares = np.einsum("...d,...d->...", contexts, contexts)
    longer = squares > (1 + ROUNDED) ** 2
    return np.where(longer[..., np.newaxis], shortened(contexts), contexts) if longer.any() else contexts


def longer_by_client(contexts: Floats, count: int) -> NDArray[np.int64]:
    """Return how many contexts each of `count` clients shortens, shape (count,). One with NaN or infinity is none.

    contexts  what they meet, shape (count, A, d), or (1, A, d) where all meet the same.
    """
    squares = np.einsum("...d,...d->...", contexts, contexts)  # infinite also for large finite numbers
    longer = (squares > (1 + ROUNDED) ** 2) & np.isfinite(contexts).all(axis=-1)
    return np.broadcast_to(longer.sum(axis=-1, dtype=np.int64), (count,))


def _numbers(contexts: Floats) -> Floats:
    """Return contexts with 0 in place of those that have NaN or infinity. Numbers above HUGE are scaled down."""
    finite = np.where(np.isfinite(contexts).all(axis=-1, keepdims=True), contexts, 0.0)
    largest = np.abs(finite).max(axis=-1, keepdims=True)
    scaled: Floats = finite / np.where(largest > HUGE, largest, 1.0)
    return scaled


def within_ball(contexts: Floats, how: LongContexts, first_line: int) -> tuple[Floats, int]:
    """Return contexts, shape (n, d), with ‖x‖ ≤ 1, and how many were longer.

    first_line  line of the file that contexts[0] is from. Raises BadParameter that names a line with a longer context,
                for "refuse".
    """
    lengths = np.sqrt((contexts * contexts).sum(axis=1))
    longer = np.flatnonzero(lengths > 1 + ROUNDED)
    if how == "refuse" and len(longer):
        row = int(longer[0])
        allowed = (
            f"line {row + first_line} of the data has a context of length {lengths[row]:.4g}, and {len(longer)} lines "
            "have one above 1: a larger environment.radius makes them shorter, or clip them"
        )
        raise BadParameter("environment.long_contexts", how, allowed)
    return contexts / np.maximum(lengths, 1.0)[:, np.newaxis], len(longer)

"""Defines the contract of an environment and of its spec. True means are known on the clients' side only."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.catalogue import Catalogue, subclass_of
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream
from distrust.common.specs.base import PolicySpec
from distrust.common.wire import Message

Seed = Annotated[int, Field(ge=0, lt=2**63, description="rewards (and drawn means) from a seed")] | None
"""Seed of the world. If it is None, the driver of the run draws one."""

MEMBERS = ("name", "arms", "means", "best", "rewards")


class Environment(Protocol):
    """K arms, and a law of rewards for each: in [0, 1], or in [-B, B] for linear ones."""

    @property
    def name(self) -> str:
        """Return the name that a run file has for it."""

    @property
    def arms(self) -> int:
        """Return K, the number of arms."""

    @property
    def means(self) -> NDArray[np.float64]:
        """Return the true mean reward of each arm, shape (K,)."""

    @property
    def best(self) -> int:
        """Return the arm of the largest mean; the first of them on ties."""

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Return independent rewards of `arm`, shape (count,). The same stream gives the same rewards."""


class KnownMeans:
    """The part of `Environment` that follows from the means."""

    if TYPE_CHECKING:

        @property
        def means(self) -> NDArray[np.float64]:
            """Return the true mean reward of each arm, shape (K,)."""

    @property
    def arms(self) -> int:
        return len(self.means)

    @property
    def best(self) -> int:
        return int(np.argmax(self.means))


class EnvironmentSpec(Message):
    """The `[environment]` table of a run file: its `name`, its `seed: Seed`, and numbers of its own.

    REWARDS  what policies must be made for: see `distrust.common.specs.policy.PolicySpec`.
    """

    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "arms"

    if TYPE_CHECKING:  # each class has them as fields of its own, in the order that it prints them
        name: str
        seed: Seed

    @abstractmethod
    def build(self) -> Any:
        """Return the world that this table describes. Raises BadParameter outside its ranges, or without its data."""

    def policy_defaults(self, policy: type[PolicySpec]) -> Mapping[str, object]:
        """Return entries of the `[policy]` table that follow from this world, so that a run file may leave them out.

        Linear environments give `actions` and `bound`.
        """
        del policy
        return {}

    def uniform_regret(self) -> float:
        """Return the expected regret of a pull whose arm is drawn uniformly. Raises BadParameter as `build` does."""
        means = np.asarray(self.build().means, dtype=np.float64)
        return float(means.max() - means.mean())

    def check_policy(self, policy: Mapping[str, object], defaults: Mapping[str, object]) -> None:
        """Raise BadParameter where a `[policy]` table contradicts `defaults`: its widths would miss the means."""


def _complaint(candidate: object) -> str | None:
    missing = subclass_of(EnvironmentSpec, candidate)
    if missing is None and "seed" not in candidate.model_fields:  # type: ignore[attr-defined]  # a subclass, as was checked
        return "it needs a field `seed: Seed`, as all fleets of a run must play one world"
    return missing


ENVIRONMENTS: Catalogue[type[EnvironmentSpec]] = Catalogue("environment", "environments", _complaint, printed=str)
"""The classes by name; `distrust.client.environments` lists them."""


def check_world(world: Environment, name: str) -> Environment:
    """Return the world if it fulfils the contract. Raises BadParameter that names what it lacks."""
    lacking = [member for member in MEMBERS if not hasattr(world, member)]
    if lacking:
        raise BadParameter("environment.name", name, f"{type(world).__name__} lacks {', '.join(lacking)}")
    means = np.asarray(world.means)
    if world.arms < 2 or means.shape != (world.arms,) or not np.isfinite(means).all():
        allowed = f"{world.arms} arms with means of shape {means.shape}: at least 2 arms, one finite mean each"
        raise BadParameter("environment.name", name, allowed)
    return world

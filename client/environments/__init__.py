"""Lists the simulated worlds of rewards. `read_spec` and `build_environment` make one from an `[environment]` table.

To add an environment: write its spec and its class (`distrust.client.environments.base`), and add a line to `SPECS`.
"""

import secrets
import typing
from typing import Any

from pydantic import ValidationError

from distrust.client.environments.arms import BernoulliSpec, GaussianSpec
from distrust.client.environments.auto_lending import AutoLendingSpec
from distrust.client.environments.base import ENVIRONMENTS, Environment, EnvironmentSpec, check_world
from distrust.client.environments.contextual import (
    ContextualSpec,
    ContextualSyntheticSpec,
    ContextualWorld,
    GlmSphereSpec,
)
from distrust.client.environments.contextual_mslr import ContextualMslrSpec
from distrust.client.environments.linear import (
    LinearDistributedSpec,
    LinearSphereSpec,
    SideBySide,
)
from distrust.client.environments.mslr import MslrSpec
from distrust.common.errors import BadParameter
from distrust.common.explain import first
from distrust.common.extensions import allow_named

SPECS: tuple[type[EnvironmentSpec], ...] = (
    BernoulliSpec,
    GaussianSpec,
    MslrSpec,
    LinearDistributedSpec,
    LinearSphereSpec,
    ContextualSyntheticSpec,
    GlmSphereSpec,
    ContextualMslrSpec,
    AutoLendingSpec,
)
"""The list of environments."""

ENVIRONMENTS.register({name: spec for spec in SPECS for name in typing.get_args(spec.model_fields["name"].annotation)})


def spec_class(name: object) -> type[EnvironmentSpec]:
    """Return the class of a table by its name. Raises BadParameter for an unknown name.

    The table always comes from this process's own operator, so a `module:Name` in it is allowed.
    """
    allow_named(name)
    return ENVIRONMENTS.find(name)


def read_spec(table: dict[str, Any]) -> EnvironmentSpec:
    """Return the spec of a table of keys and values. Raises BadParameter that names the first fault."""
    kind = spec_class(table.get("name"))
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise BadParameter("environment", table, first(error)) from error


def seeded(spec: EnvironmentSpec) -> EnvironmentSpec:
    """Return the spec with a seed: its own, or a fresh one. All fleets of a run must get the same."""
    return spec if spec.seed is not None else spec.model_copy(update={"seed": secrets.randbelow(2**63)})


AnyWorld = Environment | ContextualWorld
"""The worlds that a spec builds: arms with rewards of their own, or arms whose rewards depend on a client's context."""


def build_environment(spec: EnvironmentSpec) -> AnyWorld:
    """Return the world that a spec describes. Raises BadParameter outside its ranges, or when data is missing."""
    if isinstance(spec, ContextualSpec):
        return spec.build()
    return check_world(spec.build(), spec.name)


__all__ = [
    "ENVIRONMENTS",
    "AnyWorld",
    "ContextualWorld",
    "Environment",
    "EnvironmentSpec",
    "SideBySide",
    "build_environment",
    "read_spec",
    "seeded",
    "spec_class",
]

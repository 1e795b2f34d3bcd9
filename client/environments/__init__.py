"""Worlds of rewards, one a file. `build` is the way from a run file's `[environment]` table to one of them."""

import secrets
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from client.environments.base import Environment
from client.environments.bernoulli import Bernoulli, BernoulliSpec, bernoulli
from client.environments.gaussian import ClippedGaussian, GaussianSpec, gaussian
from client.environments.linear import (
    LinearDistributed,
    LinearDistributedSpec,
    LinearSphere,
    LinearSphereSpec,
    SideBySide,
    linear,
)
from client.environments.mslr import Mslr, MslrSpec, mslr
from common.errors import BadParameter
from common.messages.explain import first

AnySpec = BernoulliSpec | GaussianSpec | MslrSpec | LinearDistributedSpec | LinearSphereSpec
EnvironmentSpec = Annotated[AnySpec, Field(discriminator="name")]
"""The `[environment]` table of a run file; `name` decides which."""

_ADAPTER: TypeAdapter[AnySpec] = TypeAdapter(EnvironmentSpec)


def read_spec(table: dict[str, Any]) -> AnySpec:
    """A table of keys and values to a spec. Raises BadParameter that names the first fault."""
    try:
        return _ADAPTER.validate_python(table)
    except ValidationError as error:
        raise BadParameter("environment", table, first(error)) from error


def seeded(spec: AnySpec) -> AnySpec:
    """The spec with a seed: its own, or a fresh one. A driver calls it once: all its fleets must play one world."""
    return spec if spec.seed is not None else spec.model_copy(update={"seed": secrets.randbelow(2**63)})


def build(spec: AnySpec) -> Environment:
    """The environment that a spec describes. Raises BadParameter outside its ranges, or when its data is missing."""
    match spec:
        case BernoulliSpec():
            return bernoulli(spec)
        case GaussianSpec():
            return gaussian(spec)
        case MslrSpec():
            return mslr(spec)
        case LinearDistributedSpec() | LinearSphereSpec():
            return linear(spec)


__all__ = [
    "AnySpec",
    "Bernoulli",
    "BernoulliSpec",
    "ClippedGaussian",
    "Environment",
    "EnvironmentSpec",
    "GaussianSpec",
    "LinearDistributed",
    "LinearDistributedSpec",
    "LinearSphere",
    "LinearSphereSpec",
    "Mslr",
    "MslrSpec",
    "SideBySide",
    "build",
    "read_spec",
    "seeded",
]

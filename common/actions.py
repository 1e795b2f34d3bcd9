"""Action sets of linear bandits: public, the same for the server that plans and the clients that play.

An action is a vector in the unit ball of R^d; arm a of a run is row a.
"""

import itertools
import math
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.errors import BadParameter
from common.messages.base import Message
from common.randomness import UnsafeSeededStream, generator

MOST = 100_000
BALL = 1 + 1e-9  # unit vectors that were rounded still count

Dimension = Annotated[int, Field(ge=1, le=1000, description="d")]


class GivenActions(Message):
    """The vectors themselves, k rows of d numbers."""

    kind: Literal["given"] = "given"
    vectors: list[list[float]]


class SphereActions(Message):
    """`count` vectors, uniform on the unit sphere of R^dimension. The seed is public and opens nothing else."""

    kind: Literal["sphere"] = "sphere"
    count: Annotated[int, Field(ge=2, le=MOST, description="k")]
    dimension: Dimension
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class BallActions(Message):
    """The whole unit ball, through a net: no point of it is farther than `spacing` from an action (DLB Remark 3.1)."""

    kind: Literal["ball"] = "ball"
    dimension: Annotated[int, Field(ge=1, le=10)]
    spacing: Annotated[float, Field(gt=0, le=1, description="ζ")]


ActionSpec = Annotated[GivenActions | SphereActions | BallActions, Field(discriminator="kind")]


def action_vectors(spec: GivenActions | SphereActions | BallActions) -> NDArray[np.float64]:
    """The actions, shape (k, d), read-only. Raises BadParameter: none, too many, ragged, or outside the unit ball."""
    match spec:
        case GivenActions():
            vectors = _given(spec)
        case SphereActions():
            vectors = _sphere(spec.count, spec.dimension, spec.seed)
        case BallActions():
            vectors = _net(spec.dimension, spec.spacing)
    vectors.setflags(write=False)
    return vectors


def check_actions(vectors: NDArray[np.float64], field: str = "policy.actions") -> None:
    """Refuse what cannot be an action set; every policy and every world asks it."""
    if vectors.ndim != 2 or min(vectors.shape) < 1:
        raise BadParameter(field, vectors.shape, "must be at least one vector of at least one number")
    if not np.isfinite(vectors).all():
        place = int(np.argmax(~np.isfinite(vectors).all(axis=1)))
        raise BadParameter(f"{field}[{place}]", vectors[place].tolist(), "must be finite")
    norms = np.linalg.norm(vectors, axis=1)
    if norms.max() > BALL:
        place = int(np.argmax(norms))
        raise BadParameter(f"{field}[{place}]", float(norms[place]), "its norm must be at most 1")
    if norms.max() == 0:
        raise BadParameter(field, "only zero vectors", "must tell at least one direction apart")


def _given(spec: GivenActions) -> NDArray[np.float64]:
    if not spec.vectors or len(spec.vectors) > MOST:
        raise BadParameter("policy.actions", f"{len(spec.vectors)} vectors", f"must be 1 to {MOST} vectors")
    if len({len(row) for row in spec.vectors}) > 1:
        raise BadParameter("policy.actions", "vectors of several lengths", "must have one dimension")
    vectors = np.array(spec.vectors, dtype=np.float64)
    check_actions(vectors)
    return vectors


@lru_cache(maxsize=8)
def _sphere(count: int, dimension: int, seed: int) -> NDArray[np.float64]:
    drawn = generator(UnsafeSeededStream(seed, "actions")).normal(size=(count, dimension))
    vectors: NDArray[np.float64] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors


@lru_cache(maxsize=8)
def _net(dimension: int, spacing: float) -> NDArray[np.float64]:
    """A cubic grid of step 2ζ/√d, its points outside the ball pulled onto the sphere, each point once.

    Every point of the ball has a grid point within ζ; projection onto a convex set brings it no farther away.
    """
    step = 2 * spacing / math.sqrt(dimension)
    side = math.ceil(1 / step)
    if (2 * side + 1) ** dimension > 50 * MOST:
        raise BadParameter("policy.actions.spacing", spacing, f"the net would have more than {MOST} points")
    grid = np.array(list(itertools.product(range(-side, side + 1), repeat=dimension)), dtype=np.float64) * step
    norms = np.linalg.norm(grid, axis=1)
    near = grid[norms <= 1 + spacing] / np.maximum(norms[norms <= 1 + spacing], 1)[:, np.newaxis]
    net: NDArray[np.float64] = np.unique(near.round(12), axis=0)
    if len(net) > MOST:
        raise BadParameter("policy.actions.spacing", spacing, f"the net would have more than {MOST} points")
    return net

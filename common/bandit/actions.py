"""Defines action sets of linear bandits: public, the same for the server that plans and the clients that play.

An action is a vector in the unit ball of R^d; arm a of a run is row a.
"""

import math
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream, generator
from distrust.common.wire import Message

MOST = 100_000  # actions
ROOM = 2_000_000  # points to choose a net from
BALL = 1 + 1e-9  # unit vectors that were rounded still count
RANK = 1e-10  # singular values below this share of the largest are none

FeatureCount = Annotated[int, Field(ge=1, le=1000, description="d")]


class GivenActions(Message):
    """The vectors themselves, k rows of d numbers."""

    kind: Literal["given"] = "given"
    vectors: list[list[float]]


class SphereActions(Message):
    """`count` vectors, uniform on the unit sphere of R^dimension. The seed is public."""

    kind: Literal["sphere"] = "sphere"
    count: Annotated[int, Field(ge=2, le=MOST, description="k")]
    dimension: FeatureCount
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class BallActions(Message):
    """The whole unit ball, through a net: no point of it is farther than `spacing` from an action (DLB Remark 3.1).

    Actions are public and numbered: rounds, pulls and intervals name them, and every elimination is of a finite list.
    So a linear oracle (argmax over the ball is θ/‖θ‖) would have no use, and a ball is as fine as its net:
    `MOST` actions reach ζ = 0.004 in the plane, 0.035 in space and 0.7 in eight dimensions. Regret is counted against
    the best action of the net; against the best point of the ball it is at most ζ‖θ*‖ a pull more.
    """

    kind: Literal["ball"] = "ball"
    dimension: Annotated[int, Field(ge=1, le=10)]
    spacing: Annotated[float, Field(gt=0, le=1, description="ζ")]


ActionSpec = Annotated[GivenActions | SphereActions | BallActions, Field(discriminator="kind")]


def action_vectors(
    spec: GivenActions | SphereActions | BallActions, field: str = "policy.actions"
) -> NDArray[np.float64]:
    """Return the actions, shape (k, d), read-only.

    Raises BadParameter, in the name of `field`: none, too many, ragged, not finite, outside the unit ball, or such that
    they do not span R^d. (Actions that are left after eliminations need not: policies work in their span.)
    """
    match spec:
        case GivenActions():
            vectors = _given(spec, field)
        case SphereActions():
            vectors = _on_sphere(spec, field)
        case BallActions():
            vectors = _net(spec.dimension, spec.spacing, field)
    vectors.setflags(write=False)
    return vectors


def check_actions(vectors: NDArray[np.float64], field: str = "policy.actions") -> None:
    """Refuse vectors that cannot be an action set. Every policy and every world calls it."""
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


def _given(spec: GivenActions, field: str) -> NDArray[np.float64]:
    if not spec.vectors or len(spec.vectors) > MOST:
        raise BadParameter(field, f"{len(spec.vectors)} vectors", f"must be 1 to {MOST} vectors")
    for place, row in enumerate(spec.vectors):
        if len(row) != len(spec.vectors[0]):
            allowed = f"must have {len(spec.vectors[0])} numbers, like the first one"
            raise BadParameter(f"{field}[{place}]", row, allowed)
    vectors = np.array(spec.vectors, dtype=np.float64)
    check_actions(vectors, field)
    _check_rank(field, int(np.linalg.matrix_rank(vectors, rtol=RANK)), vectors.shape[1])
    return vectors


def _check_rank(field: str, rank: int, dimension: int) -> None:
    if rank < dimension:
        allowed = f"must span all {dimension} dimensions; write the actions in coordinates of their own span"
        raise BadParameter(field, f"actions of rank {rank}", allowed)


def _on_sphere(spec: SphereActions, field: str) -> NDArray[np.float64]:
    _check_rank(field, min(spec.count, spec.dimension), spec.dimension)
    return _sphere(spec.count, spec.dimension, spec.seed)


@lru_cache(maxsize=8)
def _sphere(count: int, dimension: int, seed: int) -> NDArray[np.float64]:
    drawn = generator(UnsafeSeededStream(seed, "actions")).normal(size=(count, dimension))
    vectors: NDArray[np.float64] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors


@lru_cache(maxsize=8)
def _net(dimension: int, spacing: float, field: str) -> NDArray[np.float64]:
    """Return a cubic grid of step 2ζ/√d, its points outside the ball pulled onto the sphere, each point once.

    Every point of the ball has a grid point within ζ; projection onto a convex set brings it no farther away.
    """
    step = 2 * spacing / math.sqrt(dimension)
    side = math.ceil(1 / step)
    line = np.arange(-side, side + 1) * step
    grid = np.zeros((1, 0))
    for _ in range(dimension):
        _check_size(len(grid) * len(line), ROOM, field, spacing)
        wider = np.column_stack((np.repeat(grid, len(line), axis=0), np.tile(line, len(grid))))
        grid = wider[np.linalg.norm(wider, axis=1) <= 1 + spacing]
    near = grid / np.maximum(np.linalg.norm(grid, axis=1, keepdims=True), 1)
    net: NDArray[np.float64] = np.unique(near.round(12), axis=0)
    _check_size(len(net), MOST, field, spacing)
    return net


def _check_size(points: int, most: int, field: str, spacing: float) -> None:
    if points > most:
        raise BadParameter(f"{field}.spacing", spacing, f"the net would have more than {MOST} points")

"""A binary tree of noisy sums over batches, at the server: every prefix of a stream from a logarithm of noise terms."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from common.error_law import ErrorLaw
from common.gaussian_accounting import lattice_epsilon, lattice_variance
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.checks import DELTA_RULE, require
from common.mechanisms.distributed import nothing
from common.mechanisms.frame import ROUNDING, Frame, needed
from common.mechanisms.gaussian import GaussianLike
from common.mechanisms.gaussian_profile import sum_profile
from common.mechanisms.gaussian_search import Grid, Target, approximate, divergences, is_exact, least_variance
from common.mechanisms.laplace import SAMPLER
from common.mechanisms.real_gaussian import needed_delta, textbook
from common.mechanisms.roots import coarsest
from common.mechanisms.sensitivity import grid_for
from common.noise import DiscreteGaussian, DiscreteGaussianSum
from common.profile import SHOWN_DELTA, Profile, spent


class Tree(GaussianLike):
    """N_Z(0, variance) on every coordinate of every dyadic sum of batches that is complete: nodes of levels 0 … L.

    batches    M, the length of the stream: L = ⌊log₂ M⌋, and a batch is in `depth` = L + 1 nodes at most.
    variance   of one node. paper: depth · Δ₂² · 2 ln(1.25/δ)/ε² for ε < 1; Δ₂√depth is the expanded tree's sensitivity.
               exact: the least that is (ε, δ) for all the nodes together.
    estimate   releases one batch, its leaf. `Counter` releases leaves and prefix sums; each node is drawn once.
    Guarantee  (ε, δ) for the whole stream, one client in one batch: `depth` discrete Gaussians, each moved by the same
               vector. The box: their likelihood ratio is that of the sum of all coordinates of all of them, moved by
               depth · D · g, so that δ is exact. Balls: as continuous noise of 3/2 less. Billboard lemma: joint
               privacy of what clients are told.
    Source     Chan, Shi & Song 2010; Shariff & Sheffet 2018; CTX Appendix F.
    """

    name: Literal["tree"] = "tree"
    batches: Annotated[int, Field(ge=1, le=2**30, description="M: batches of the stream")]

    @model_validator(mode="after")
    def _has_delta(self) -> Self:
        require(self.delta is not None, "delta", self.delta, DELTA_RULE)
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon, delta, batches = needed(spec), needed_delta(spec), spec.batches or 1
        depth = batches.bit_length()

        def noise(g: int) -> float:
            return _least_variance(epsilon, delta, depth, Grid(g, frame.dimension, frame.norm))

        fine = coarsest(noise, frame.clients * batches / (4 * ROUNDING), noise(1))
        precision = spec.precision or max(fine, grid_for(frame.dimension, frame.norm))
        grid = Grid(precision, frame.dimension, frame.norm)
        paper = spec.calibration == "paper"
        variance = depth * grid.squared_l2 * textbook(epsilon, delta) if paper else noise(precision)
        own = {"epsilon": epsilon, "delta": delta, "variance": variance, "batches": batches}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, None)), **own})

    @property
    def depth(self) -> int:
        """Nodes that one batch is in, at most."""
        return self.batches.bit_length()

    def true_steps(self, total: NDArray[np.uint64], survivors: int) -> NDArray[np.int64]:
        """The decoded sum without noise, in grid steps: for `Counter`, never for anybody else."""
        self.check_release(total, survivors)
        return self._decode(total, survivors)

    def server_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.variance)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - server's noise
        assert self.delta is not None
        epsilon = _epsilon(self.variance, self.depth, self.grid, self.delta)
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee.model_validate(
            {
                "kind": "approximate" if self.dimension == 1 else "renyi",
                "epsilon": epsilon,
                "delta": self.delta,
                "claimed": self.epsilon,
                "rdp": tuple((a, self.depth * one) for a, one in divergences(self.variance, 1, self.grid)),
                "model": "central",
                "calibration": self.calibration,
                "assumptions": (
                    "the server is trusted: it sees the sums and adds the noise",
                    f"one client is in one batch, and there are at most {self.batches} of them",
                    "each node's noise is drawn once, and never again for a question that was answered",
                    SAMPLER,
                ),
            }
        )

    def composable(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:  # noqa: ARG002 - server's noise
        """None: a client in two batches of the stream moves the nodes that both are in twice as far."""
        return nothing(self).model_copy(update={"assumptions": ("one client is in one batch of the stream",)})

    def profile(
        self,
        survivors: int | None = None,  # noqa: ARG002 - server's noise
        colluders: int = 0,  # noqa: ARG002 - the same
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        """One node's divergences times `depth`, and the exact δ of all nodes together."""
        one = sum_profile(self.variance, 1, self.grid, delta).repeated(self.depth)
        epsilon = _epsilon(self.variance, self.depth, self.grid, delta)
        known = self.grid.is_box and is_exact(self.variance, 1, _all(self.depth, self.grid))
        whole = spent(epsilon, "exact" if known else "bound")
        return one.model_copy(update={"approximate": whole, "notes": ("of the whole stream of batches",)})

    def error(self, survivors: int) -> ErrorLaw:  # noqa: ARG002 - one node for any number of survivors
        return self.scaled(self.server_law(), self.variance)

    def prefix_error(self, batches: int) -> ErrorLaw:
        """The law of the noise in the prefix sum of the first `batches`: as many nodes as it has ones in binary."""
        nodes = max(1, batches.bit_count())
        return self.scaled(DiscreteGaussianSum(self.variance, nodes), nodes * self.variance)


def _all(depth: int, grid: Grid) -> Grid:
    """The nodes of a batch as one box: every coordinate of each of them may move by g."""
    return Grid(grid.precision, depth * grid.dimension, "linf")


def _epsilon(variance: float, depth: int, grid: Grid, delta: float) -> float:
    if grid.is_box:
        return approximate(variance, 1, _all(depth, grid), delta)
    return lattice_epsilon(depth * grid.squared_l2, variance, depth * grid.dimension, delta)


def _least_variance(epsilon: float, delta: float, depth: int, grid: Grid) -> float:
    """The least variance of a node for (ε, δ) over `depth` nodes."""
    if grid.is_box:
        return least_variance(Target(epsilon, delta, 1), _all(depth, grid))
    return lattice_variance(depth * grid.squared_l2, depth * grid.dimension, epsilon, delta)

"""`tree`: the server keeps noisy sums of a stream of batches, so that a prefix sum has logarithmically many noises."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.contextual_sum import PrintedNoise
from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.dp.accounting.guarantee import Guarantee, Kind
from distrust.common.dp.accounting.laws.gaussian_sums import (
    GaussianTarget,
    is_exact,
    sharpness,
    sum_divergences,
    sum_epsilon,
    sum_profile,
    sum_variance,
)
from distrust.common.dp.accounting.profile import Privacy, Profile, no_privacy, spent_as
from distrust.common.dp.accounting.returning import Visits, returning_lattice_epsilon
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    lattice_epsilon,
    lattice_variance,
)
from distrust.common.dp.accounting.techniques.searches import coarsest, snap_up
from distrust.common.dp.accounting.techniques.sensitivity import (
    INFLATION,
    PAPER_INFLATION,
    ROUNDING,
    Copies,
    Grid,
    grid_for,
)
from distrust.common.dp.mechanisms.families.base import MechanismSpec, StreamCounter, needed, needed_delta
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import GaussianStream, textbook
from distrust.common.dp.mechanisms.families.streams import (
    Steps,
    StreamRelease,
    check_drawn,
    check_turn,
    in_data_units,
)
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian, gaussian_reach
from distrust.common.errors import BadParameter
from distrust.common.modular import in_window
from distrust.common.randomness import Stream

WRAPPED_DRAWS = 3
"""Draws of noise by which a node differs from the two nodes below it. The modulus leaves room for so many at once."""


class Tree(GaussianStream):
    """The server adds N_Z(0, variance) to every coordinate of every complete dyadic sum of batches, its nodes.

    batches    M, the length of the stream. The nodes have levels 0 … L = ⌊log₂ M⌋, and a batch is in at most L + 1 of
               them, `depth`.
    variance   of one node. paper: depth · Δ₂² · 2 ln(1.25/δ)/ε² for ε < 1; Δ₂√depth is the expanded tree's sensitivity.
               Of LinUCB's vectors by `printed_node`, for ε ≤ 1. exact: the least that is (ε, δ) for all the nodes
               together.
    prefix     paper: the sum of the nodes of the binary digits of m. exact: the best linear estimate from all nodes
               that are complete by then, which costs no privacy (Honaker 2015): 1.34 times less noise at M = 20,000.
               It adds up estimates of nodes, by a node's own number and its children's estimates (`own_share`).
    estimate   releases one batch, its leaf. `Counter` releases leaves and prefix sums; each node is drawn once.
    modulus    one ring for all nodes. A node is the sum of its batches and its own noise, modulo m; clients that lie
               may have sent any residues. A leaf is decoded by the centred window, every other node to the number next
               to the two nodes below it, from which honest clients' nodes differ by three draws of noise. So m = ng +
               2τ + 1 has room for one batch, however long the stream is; τ bounds three draws, with p' over all nodes.
               All that is released is a function of the nodes modulo m.
    Guarantee  (ε, δ) for the whole stream, with one client in one batch: `depth` discrete Gaussians, each moved by the
               same vector. In the box their likelihood ratio is that of the sum of all their coordinates, moved by
               depth · D · g, so that δ is exact. Balls count as continuous noise of 3/2 less. By the billboard lemma
               what clients are told is jointly private. `Batches` has the guarantee of a client of several batches.
    Source     Chan, Shi & Song 2010; Shariff & Sheffet 2018; CTX Appendix F.
    """

    part: ClassVar[str] = "node"
    takes_batches: ClassVar[bool] = True
    letters: ClassVar[Mapping[str, str]] = {"depth": "depth"}

    name: Literal["tree"] = "tree"
    batches: Annotated[int, Field(ge=1, le=2**30, description="M: batches of the stream")]

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, delta, batches = needed(spec), needed_delta(spec), spec.batches or 1
        depth = batches.bit_length()

        def noise(g: int) -> float:
            return _least_variance(epsilon, delta, depth, cohort.grid(g))

        fine = coarsest(noise, cohort.clients * batches / (4 * ROUNDING), noise(1))
        paper = spec.calibration == "paper"
        sharp = math.inf if paper else sharpness(epsilon, delta)
        inflation = PAPER_INFLATION if paper else INFLATION
        fine = max(fine, grid_for(cohort.dimension, cohort.norm, sharp, inflation))
        precision = spec.precision or (fine if paper else cohort.tight(fine))
        grid = cohort.grid(precision)
        if paper and cohort.printed is not None and cohort.printed.source == "CTX":
            steps = printed_node(cohort.printed, epsilon, delta, batches) * precision / (cohort.high - cohort.low)
            variance = steps**2
        else:
            variance = depth * grid.squared_l2 * textbook(epsilon, delta) if paper else noise(precision)
        each = cohort.overflow_probability / (cohort.dimension * 2 * batches)  # a stream has 2M nodes, fewer by some
        modulus = cohort.room(precision, None, least=gaussian_reach(WRAPPED_DRAWS * variance, each))
        return cls(
            **cohort.shared(precision, modulus),
            epsilon=epsilon,
            delta=delta,
            variance=cohort.searched("variance", variance),
            batches=batches,
        )

    @property
    def nodes(self) -> float:
        if self.calibration == "paper":  # Shariff & Sheffet 2018 count every level
            return self.depth
        # A prefix has the nodes of the binary digits of m. More of them, and lower ones, have more noise. So the worst
        # m ≤ M is M itself, or M with one of its digits 1 made 0 and all lower ones 1.
        longest, digits = self.batches, range(self.batches.bit_length())
        below = [longest >> level << level for level in digits if longest >> level & 1]
        return max(self._noise_in(m) for m in (longest, *(one - 1 for one in below)) if m)

    def own_share(self, level: int) -> float:
        """Return the weight of a node's own number in its estimate; the rest is that of the sum of its children's.

        It is also the variance of the estimate in variances of one draw: V = 1/(1 + 1/(2V')) for children of variance
        V', and V = 1 for a leaf.
        """
        return 1.0 if self.calibration == "paper" else 2**level / (2 ** (level + 1) - 1)

    def _noise_in(self, batches: int) -> float:
        """Return the variance of the noise in the prefix of so many batches, in variances of one draw."""
        return sum(self.own_share(level) for level in range(batches.bit_length()) if batches >> level & 1)

    @override
    def counter(self) -> "Counter":
        return Counter(self)

    def draws(self, batches: int) -> int:
        """Return how many draws of noise the first `batches` batches of a stream take: one for each node.

        Batch m completes its leaf, and a parent for each time that 2 divides m.
        """
        return 2 * batches - batches.bit_count()

    def stream_noise(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return the noise of `count` nodes, shape (count, dimension)."""
        return self._draw(self.server_law(), stream, count)

    @property
    def depth(self) -> int:
        """Return how many nodes one batch is in, at most."""
        return self.batches.bit_length()

    def server_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.variance)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        return Privacy(compute_promise=self._promise, compute_profile=self._profile, stream=Batches(self))

    def _promise(self) -> Guarantee:
        assert self.delta is not None
        epsilon = _epsilon(self.variance, self.depth, self.grid, self.delta)
        one_node = sum_divergences(self.variance, 1, self.grid) if math.isfinite(epsilon) else ()
        curve = tuple((order, self.depth * one) for order, one in one_node)
        kind: Kind = "approximate" if self.dimension == 1 else "renyi"
        return self.make_guarantee(kind, epsilon, self.assumptions(1), delta=self.delta, rdp=curve)

    def _profile(self, delta: float) -> Profile:
        """Return one node's divergences times `depth`, and ε of all nodes together at δ."""
        one = sum_profile(self.variance, 1, self.grid, delta).repeated(self.depth)
        epsilon = _epsilon(self.variance, self.depth, self.grid, delta)
        known = self.grid.is_box and is_exact(self.variance, 1, _all(self.depth, self.grid))
        whole = spent_as(epsilon, "exact" if known else "bound")
        return one.model_copy(update={"approximate": whole, "notes": ("of the whole stream of batches",)})

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.server_law(), self.variance)


def printed_node(printed: PrintedNoise, epsilon: float, delta: float, batches: int) -> float:
    """Return √2σ, a node's noise of LinUCB-JDP: σ = 4√k (1 + c²) ln(4/δ)/ε with k = 1 + ⌈log₂ M⌉.

    Shariff & Sheffet add (Z + Zᵀ)/√2 to a node's matrix of (φ; y), Z with deviation σ in each entry: σ off the diagonal
    and √2σ on it. With our weights √2 that is √2σ on all numbers of φφᵀ. yφ has σ there and √2σ here.

    Source  Shariff & Sheffet 2018, by two public implementations; the range of ε is that of CTX Proposition F.3.
    Raises  BadParameter for ε above 1.
    """
    if epsilon > 1:
        rule = "must lie in (0, 1] for the constants of Shariff & Sheffet (CTX Proposition F.3)"
        raise BadParameter("mechanism.epsilon", epsilon, f"{rule}; calibration exact has no such limit")
    levels = 1 + (batches - 1).bit_length()
    return 4 * math.sqrt(2 * levels) * (1 + printed.factor**2) * math.log(4 / delta) / epsilon


@dataclass(frozen=True, slots=True)
class Batches:
    """The stream of one tree, of which a client may be in several batches, with one vector in each.

    Guarantee  (ε, δ) of all nodes together for a client of t batches, whichever they are: that of one Gaussian release
               which moves by Δ₂√W, W = `Visits.weight`, and by little more than the mean of what rounding adds
               (`returning_epsilon`). Which batches a client is in, and its vectors, may depend on what was released
               before. W is at least t: a policy that releases leaves only, also of trees of its own for each round,
               moves less.
    Source     our own; CTX Appendix E prints t² · depth in place of W, which is more.
    """

    # With the worst roundings: the moves of the nodes are fixed one after the other, by what was released before, and
    # their squared lengths add up to S ≤ W Δ₂². One more release that moves by the rest makes it W Δ₂² for certain.
    # With Gaussian noise of variance v the privacy loss is then a sum of martingale differences whose moment of order a
    # is e^(a² W Δ₂²/(2v)) exactly: it has the law of one release's loss. What `lattice_log_delta` loses to discrete
    # noise is a factor for each coordinate that moves, whatever the others are.

    mechanism: Tree

    def joint(self, times: int) -> Privacy:
        """Return the privacy of all nodes for a client in at most `times` batches; none for more than M."""
        tree = self.mechanism
        if times == 1:
            return replace(tree.privacy(), stream=None)
        if times > tree.batches:  # W is for at most M: batches that a policy releases alone may be more
            return no_privacy(tree.calibration)
        move = Visits(tree.grid, tree.batches, times)
        return tree.stream_privacy(move, tree.variance, partial(_moved_epsilon, tree.variance, move), times)


@lru_cache(maxsize=256)
def _moved_epsilon(variance: float, move: Visits, delta: float) -> float:
    """Return ε at δ of a client that moves all nodes by `move`; inf where none is proven."""
    return returning_lattice_epsilon(move, variance, delta)


def _all(depth: int, grid: Grid) -> Grid:
    """Return the nodes of a batch as one box, in which every coordinate of each node may move by g."""
    return Grid(grid.precision, depth * grid.dimension, "linf")


def _epsilon(variance: float, depth: int, grid: Grid, delta: float) -> float:
    """Return ε at δ of `depth` nodes together; inf where none is proven."""
    if grid.is_box:
        return sum_epsilon(variance, 1, _all(depth, grid), delta)
    return lattice_epsilon(Copies(grid, depth), variance, delta)


def _least_variance(epsilon: float, delta: float, depth: int, grid: Grid) -> float:
    """Return the least variance of a node with which `depth` nodes together are (ε, δ)."""
    if grid.is_box:
        return sum_variance(GaussianTarget(epsilon, delta, 1), _all(depth, grid))
    return snap_up(lattice_variance(Copies(grid, depth), epsilon, delta))


@dataclass(frozen=True, slots=True)
class Node:
    """A complete dyadic sum in grid steps, of the shape (…, dimension); leading axes are of streams in lock step.

    true   modulo m, without noise; it stays at the server. No number is decoded from it.
    noisy  the decoded sum of `true` and the node's noise, which is drawn once.
    best   the node's estimate, which follows from its own number and those below it.
    """

    level: int
    survivors: int
    true: Steps
    noisy: Steps
    best: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counter(StreamCounter):
    """The state after `time` batches: the nodes of the binary digits of `time`, largest first.

    Secrets  The true sums are the server's secret: the server never writes them or a node where clients can read.
    Rule     `add` draws the noise of every node that the new batch completes, once. A caller that adds the same batch
             to the same state again with another stream gets other noise, and must not publish both. The server's
             stream follows from the batch (`server.runs.settlement.analyzer_stream`).
    """

    mechanism: Tree
    time: int = 0
    nodes: tuple[Node, ...] = ()

    def add(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> tuple[Self, StreamRelease]:
        """Return the state after one more batch, and what is released of it.

        total   the batch's sum modulo m, shape (dimension,).
        Raises  TooSmall with fewer survivors than `floor`, BadParameter after the last batch.
        """
        law = self.mechanism.server_law()
        return self.add_with(total, survivors, lambda: law.sample(stream, self.mechanism.dimension))

    def add_with(
        self, totals: NDArray[np.uint64], survivors: int, noise: Callable[[], Steps]
    ) -> tuple[Self, StreamRelease]:
        """Return `add` for several streams in lock step: their sums modulo m, shape (…, dimension).

        noise  draws a node's noise for all streams, of the shape of `totals`; called once for each of `Tree.draws`.
        """
        check_turn(self.time + 1, self.mechanism.batches)
        self.mechanism.check_release(totals, survivors)
        modulus = self.mechanism.modulus
        start = self.mechanism.window_start(survivors)
        noisy = _decoded(totals.view(np.int64), noise(), start, modulus)
        leaf = Node(0, survivors, totals.view(np.int64), noisy, noisy.astype(np.float64))
        nodes, newest = self.nodes, leaf
        while nodes and nodes[-1].level == newest.level:
            left, nodes = nodes[-1], nodes[:-1]
            true = (left.true + newest.true) % modulus
            # With honest clients the node differs from the two below it by three draws of noise.
            noisy = _decoded(true, noise(), left.noisy + newest.noisy - modulus // 2, modulus)
            share = self.mechanism.own_share(left.level + 1)
            best = share * noisy + (1 - share) * (left.best + newest.best)
            newest = Node(left.level + 1, left.survivors + newest.survivors, true, noisy, best)
        nodes = (*nodes, newest)
        released = StreamRelease(self._estimate((leaf,)), self._estimate(nodes))
        return type(self)(self.mechanism, self.time + 1, nodes), released

    def _estimate(self, nodes: tuple[Node, ...]) -> NDArray[np.float64]:
        """Return the sum of nodes in data units."""
        steps = np.sum([node.best for node in nodes], axis=0)
        survivors = sum(node.survivors for node in nodes)
        return in_data_units(steps, self.mechanism.step, self.mechanism.low, survivors)


def _decoded(true: Steps, drawn: Steps, least: int | Steps, modulus: int) -> Steps:
    """Return a node's sum and noise as the numbers of [least, least + m) that equal them modulo m."""
    check_drawn(drawn, true.shape)
    return in_window(true + drawn, least, modulus)

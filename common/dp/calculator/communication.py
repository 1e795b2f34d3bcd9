"""Computes the bits of one client's message that the papers state, to stand beside the bits that are sent.

The numbers are the theorems' own, printed constants included: no calibration of ours is in them.
"""

import math
from dataclasses import dataclass

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.central.additive import (
    CentralGaussian,
    CentralLaplace,
    CentralLaplaceDiscrete,
    UnsafeIdentity,
)
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.mechanisms.distributed.additive import DistributedDiscreteGaussian, DistributedPolya
from distrust.common.dp.mechanisms.distributed.skellam import DistributedSkellam
from distrust.common.dp.mechanisms.families.base import PAPER_SCALE, Mechanism
from distrust.common.dp.mechanisms.local.additive import LocalGaussian, LocalLaplace, LocalLaplaceDiscrete
from distrust.common.dp.mechanisms.local.sphere import LocalSphere
from distrust.common.dp.mechanisms.shuffled.binomial import PAPER_EPSILON, BinomialTarget, ShuffledBinomial, paper_bits
from distrust.common.dp.mechanisms.shuffled.gaussian import ShuffledGaussian
from distrust.common.dp.mechanisms.shuffled.laplace import ShuffledLaplace
from distrust.common.dp.mechanisms.shuffled.pure import RelaxedSecaggShuffle
from distrust.common.dp.mechanisms.shuffled.sphere import ShuffledSphere

Summed = CentralLaplaceDiscrete | DistributedPolya | DistributedSkellam | DistributedDiscreteGaussian
"""The mechanisms whose sums MAB counts the bits of."""

UNSTATED: dict[type[Mechanism], str] = {
    UnsafeIdentity: "it has no theorem",
    CentralLaplace: "FREE states none",
    CentralGaussian: "DLB counts real numbers",
    LocalLaplaceDiscrete: "MAB Theorem 6 leaves a constant of τ open",
    LocalLaplace: "FREE states none",
    LocalGaussian: "DLB and CTX count real numbers",
    LocalSphere: "GLB states none",
    ShuffledGaussian: "CTX counts real numbers",
    ShuffledLaplace: "FREE states none",
    ShuffledSphere: "no paper has it",
    RelaxedSecaggShuffle: "MAB Theorem 3 leaves the length of the shuffled vector open",
    Tree: "CTX states none",
    PrefixFactorization: "its paper states none",
}
"""Why there is no number of bits, by mechanism."""


@dataclass(frozen=True, slots=True)
class StatedBits:
    """Bits of one client's message by a paper. bits: None where it states none. source: the theorem, or why not."""

    bits: int | None
    source: str


def stated_bits(mechanism: Mechanism, spec: MechanismSpec, statistic: Statistic | None, horizon: int) -> StatedBits:
    """Return the bits that a paper states for a round's mechanism: for its n, t, D, ε and δ.

    A paper's n is t in what concerns the noise, as for `paper` calibration, and n in the size of a sum.

    spec       whose s is taken, 10 without one.
    statistic  of the round; None: of one reward a client.
    horizon    T: MAB's sums wrap around with probability 1/T.
    """
    if isinstance(mechanism, ShuffledBinomial):
        return _labelled(mechanism, statistic)
    if not isinstance(mechanism, Summed):
        return StatedBits(None, UNSTATED.get(type(mechanism), "no paper of ours has this mechanism"))
    if mechanism.dimension > 1:
        return StatedBits(None, "MAB states them for one reward a client")
    if mechanism.via != "aggregator":
        return StatedBits(None, "MAB states them for sums modulo m")
    return _summed(mechanism, spec.scale or PAPER_SCALE, math.log(2 * horizon))


def _summed(mechanism: Summed, scale: float, log: float) -> StatedBits:
    """Return ⌈log₂ m⌉ for MAB's m = ng + 2τ + 1. scale: s. log: ln(2/p) = ln(2T)."""
    epsilon, root = mechanism.epsilon, math.sqrt(mechanism.floor)
    if isinstance(mechanism, DistributedSkellam):
        source, g = "MAB Theorem 2", math.ceil(scale * epsilon * root)
        tau = math.ceil(2 * g / epsilon * math.sqrt(log) + math.sqrt(2) * log)
    elif isinstance(mechanism, DistributedDiscreteGaussian):
        source, g = "MAB Theorem 4", math.ceil(scale * epsilon * root)
        tau = math.ceil(g / epsilon * math.sqrt(2 * log))
    else:
        source = "MAB Theorem 1" if isinstance(mechanism, DistributedPolya) else "MAB Theorem 5"
        g = math.ceil(epsilon * root)
        tau = math.ceil(g / epsilon * log)
    return StatedBits((mechanism.clients * g + 2 * tau).bit_length(), source)  # ⌈log₂ m⌉ is the length of m - 1


def _labelled(mechanism: ShuffledBinomial, statistic: Statistic | None) -> StatedBits:
    """Return D (g + b): DLB Algorithm 4 for one coordinate, Algorithm 2 for vectors, CTX Theorem C.1 for LinUCB's."""
    printed = statistic.printed("CTX") if isinstance(statistic, ContextualSum) else None
    if isinstance(statistic, ContextualSum) and printed is None:
        return StatedBits(None, "CTX states them for φy with φφᵀ")
    if mechanism.dimension > 1 and mechanism.epsilon >= PAPER_EPSILON:
        return StatedBits(None, f"for vectors the theorem ends at ε = {PAPER_EPSILON:g}")
    target = BinomialTarget(
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        honest=mechanism.floor,
        dimension=mechanism.dimension,
        norm="l2",  # DLB clips a vector to the ball around its box
    )
    g, b, _ = paper_bits(target, None, mechanism.high - mechanism.low, printed)
    source = f"DLB Algorithm {4 if mechanism.dimension == 1 else 2}" if printed is None else "CTX Theorem C.1"
    return StatedBits(mechanism.dimension * (g + b), source)

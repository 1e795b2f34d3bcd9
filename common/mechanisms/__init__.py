"""Private sums, one mechanism a file. `plan` is the way from a run file's words to a calibrated value."""

from distrust.common.mechanisms.base import MECHANISMS, Calibration, Mechanism, MechanismName, MechanismSpec
from distrust.common.mechanisms.central.additive import (
    CentralGaussian,
    CentralLaplace,
    CentralLaplaceDiscrete,
    UnsafeIdentity,
)
from distrust.common.mechanisms.central.tree import Tree
from distrust.common.mechanisms.distributed.discrete_gaussian import DistributedDiscreteGaussian
from distrust.common.mechanisms.distributed.polya import DistributedPolya
from distrust.common.mechanisms.distributed.skellam import DistributedSkellam
from distrust.common.mechanisms.local.additive import LocalGaussian, LocalLaplace, LocalLaplaceDiscrete
from distrust.common.mechanisms.local.sphere import LocalSphere
from distrust.common.mechanisms.pure_shuffle.mechanism import RelaxedSecaggShuffle
from distrust.common.mechanisms.registry import (
    AnyMechanism,
    check_parts,
    check_returning,
    check_spec,
    plan,
)
from distrust.common.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.mechanisms.shuffled.gaussian import ShuffledGaussian
from distrust.common.mechanisms.shuffled.laplace import ShuffledLaplace

__all__ = [
    "MECHANISMS",
    "AnyMechanism",
    "Calibration",
    "CentralGaussian",
    "CentralLaplace",
    "CentralLaplaceDiscrete",
    "DistributedDiscreteGaussian",
    "DistributedPolya",
    "DistributedSkellam",
    "LocalGaussian",
    "LocalLaplace",
    "LocalLaplaceDiscrete",
    "LocalSphere",
    "Mechanism",
    "MechanismName",
    "MechanismSpec",
    "RelaxedSecaggShuffle",
    "ShuffledBinomial",
    "ShuffledGaussian",
    "ShuffledLaplace",
    "Tree",
    "UnsafeIdentity",
    "check_parts",
    "check_returning",
    "check_spec",
    "plan",
]

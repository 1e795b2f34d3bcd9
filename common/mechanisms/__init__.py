"""Private sums, one mechanism a file. `plan` is the way from a run file's words to a calibrated value."""

from distrust.common.mechanisms.base import MECHANISMS, Calibration, Mechanism, MechanismName, MechanismSpec
from distrust.common.mechanisms.central.gaussian import CentralGaussian
from distrust.common.mechanisms.central.identity import UnsafeIdentity
from distrust.common.mechanisms.central.laplace import CentralLaplace
from distrust.common.mechanisms.central.laplace_discrete import CentralLaplaceDiscrete
from distrust.common.mechanisms.central.tree import Tree
from distrust.common.mechanisms.distributed.discrete_gaussian import DistributedDiscreteGaussian
from distrust.common.mechanisms.distributed.polya import DistributedPolya
from distrust.common.mechanisms.distributed.skellam import DistributedSkellam
from distrust.common.mechanisms.local.gaussian import LocalGaussian
from distrust.common.mechanisms.local.laplace import LocalLaplace
from distrust.common.mechanisms.local.laplace_discrete import LocalLaplaceDiscrete
from distrust.common.mechanisms.local.sphere import LocalSphere
from distrust.common.mechanisms.planning import check_parts, check_returning, check_spec, plan
from distrust.common.mechanisms.pure_shuffle import RelaxedSecaggShuffle
from distrust.common.mechanisms.registry import AnyMechanism
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

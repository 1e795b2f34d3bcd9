"""Private sums, one mechanism a file. `plan` is the way from a run file's words to a calibrated value."""

from typing import Annotated

from pydantic import Field

from common.mechanisms.base import Calibration, Mechanism, MechanismName, MechanismSpec
from common.mechanisms.central_gaussian import CentralGaussian
from common.mechanisms.central_laplace import CentralLaplace
from common.mechanisms.central_laplace_discrete import CentralLaplaceDiscrete
from common.mechanisms.distributed_discrete_gaussian import DistributedDiscreteGaussian
from common.mechanisms.distributed_polya import DistributedPolya
from common.mechanisms.distributed_skellam import DistributedSkellam
from common.mechanisms.identity import UnsafeIdentity
from common.mechanisms.local_gaussian import LocalGaussian
from common.mechanisms.local_laplace import LocalLaplace
from common.mechanisms.local_laplace_discrete import LocalLaplaceDiscrete
from common.mechanisms.local_sphere import LocalSphere
from common.mechanisms.planning import Union, check_parts, check_returning, check_spec, plan
from common.mechanisms.relaxed import RelaxedSecaggShuffle
from common.mechanisms.shuffled_binomial import ShuffledBinomial
from common.mechanisms.shuffled_gaussian import ShuffledGaussian
from common.mechanisms.shuffled_laplace import ShuffledLaplace
from common.mechanisms.tree import Tree

AnyMechanism = Annotated[Union, Field(discriminator="name")]
"""A mechanism on the wire, told apart by its name."""

__all__ = [
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

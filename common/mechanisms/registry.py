"""The list of mechanisms. Names, the type on the wire, checks, tables and audits follow from it.

To add a mechanism: write its class (`distrust.common.mechanisms.base.Mechanism` says which facts it states), and add a
line here.
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from distrust.common.catalogue import OnTheWire
from distrust.common.mechanisms.base import MECHANISMS, Mechanism
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
from distrust.common.mechanisms.pure_shuffle import RelaxedSecaggShuffle
from distrust.common.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.mechanisms.shuffled.gaussian import ShuffledGaussian
from distrust.common.mechanisms.shuffled.laplace import ShuffledLaplace

CLASSES: tuple[type[Mechanism], ...] = (
    UnsafeIdentity,
    CentralLaplaceDiscrete,
    CentralLaplace,
    CentralGaussian,
    LocalLaplaceDiscrete,
    LocalLaplace,
    LocalGaussian,
    LocalSphere,
    DistributedPolya,
    DistributedSkellam,
    DistributedDiscreteGaussian,
    ShuffledBinomial,
    ShuffledGaussian,
    ShuffledLaplace,
    RelaxedSecaggShuffle,
    Tree,
)
"""In the order of the tables that are printed."""

MECHANISMS.register({one.known_as(): one for one in CLASSES})

if TYPE_CHECKING:
    AnyMechanism = Annotated[Mechanism, "one of CLASSES"]
else:
    AnyMechanism = Annotated[Union[CLASSES], Field(discriminator="name"), OnTheWire(MECHANISMS)]  # noqa: UP007
    """A mechanism on the wire, told apart by its name. (`|` takes no tuple.)"""

"""From a run file's words to a calibrated mechanism."""

from typing import TypeAlias

from pydantic import ValidationError

from common.errors import BadParameter
from common.mechanisms.base import MechanismName, MechanismSpec
from common.mechanisms.binomial_search import PAPER_EPSILON
from common.mechanisms.central_gaussian import CentralGaussian
from common.mechanisms.central_laplace import CentralLaplace
from common.mechanisms.central_laplace_discrete import CentralLaplaceDiscrete
from common.mechanisms.checks import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed
from common.mechanisms.distributed_discrete_gaussian import DistributedDiscreteGaussian
from common.mechanisms.distributed_polya import DistributedPolya
from common.mechanisms.distributed_skellam import DistributedSkellam
from common.mechanisms.frame import Frame
from common.mechanisms.identity import UnsafeIdentity
from common.mechanisms.local_gaussian import LocalGaussian
from common.mechanisms.local_laplace import LocalLaplace
from common.mechanisms.local_laplace_discrete import LocalLaplaceDiscrete
from common.mechanisms.local_sphere import LocalSphere
from common.mechanisms.relaxed import RelaxedSecaggShuffle
from common.mechanisms.shuffled_binomial import ShuffledBinomial
from common.mechanisms.shuffled_gaussian import ShuffledGaussian
from common.mechanisms.shuffled_laplace import ShuffledLaplace
from common.mechanisms.tree import Tree
from common.messages.explain import first
from common.statistics import Statistic

Union: TypeAlias = (
    UnsafeIdentity
    | CentralLaplaceDiscrete
    | CentralLaplace
    | CentralGaussian
    | LocalLaplaceDiscrete
    | LocalLaplace
    | LocalGaussian
    | LocalSphere
    | DistributedPolya
    | DistributedSkellam
    | DistributedDiscreteGaussian
    | ShuffledBinomial
    | ShuffledGaussian
    | ShuffledLaplace
    | RelaxedSecaggShuffle
    | Tree
)
Kind: TypeAlias = (
    type[UnsafeIdentity]
    | type[CentralLaplaceDiscrete]
    | type[CentralLaplace]
    | type[CentralGaussian]
    | type[LocalLaplaceDiscrete]
    | type[LocalLaplace]
    | type[LocalGaussian]
    | type[LocalSphere]
    | type[DistributedPolya]
    | type[DistributedSkellam]
    | type[DistributedDiscreteGaussian]
    | type[ShuffledBinomial]
    | type[ShuffledGaussian]
    | type[ShuffledLaplace]
    | type[RelaxedSecaggShuffle]
    | type[Tree]
)

KINDS: dict[MechanismName, Kind] = {
    "identity": UnsafeIdentity,
    "central-laplace-discrete": CentralLaplaceDiscrete,
    "central-laplace": CentralLaplace,
    "central-gaussian": CentralGaussian,
    "local-laplace-discrete": LocalLaplaceDiscrete,
    "local-laplace": LocalLaplace,
    "local-gaussian": LocalGaussian,
    "local-sphere": LocalSphere,
    "distributed-polya": DistributedPolya,
    "distributed-skellam": DistributedSkellam,
    "distributed-discrete-gaussian": DistributedDiscreteGaussian,
    "shuffled-binomial": ShuffledBinomial,
    "shuffled-gaussian": ShuffledGaussian,
    "shuffled-laplace": ShuffledLaplace,
    "relaxed-secagg-shuffle": RelaxedSecaggShuffle,
    "tree": Tree,
}
DELTAS: dict[MechanismName, str] = {
    "central-gaussian": "needed",
    "local-gaussian": "needed",
    "shuffled-binomial": "needed",
    "shuffled-gaussian": "needed",
    "shuffled-laplace": "needed",
    "tree": "needed",
    "distributed-skellam": "optional",
    "distributed-discrete-gaussian": "optional",
}
REAL: tuple[MechanismName, ...] = ("central-laplace", "central-gaussian", "local-laplace", "local-gaussian")
EXACT_ONLY: tuple[MechanismName, ...] = ("relaxed-secagg-shuffle",)
"""No paper here prints their constants: `paper` is refused."""
_WHOLE: dict[MechanismName, str] = {
    "shuffled-gaussian": "its blanket bound is for one randomizer, and each action is another one"
}
"""What keeps a mechanism from shuffled actions although every message has noise and goes through the shuffler."""
SCALED: tuple[MechanismName, ...] = ("distributed-skellam", "distributed-discrete-gaussian")


def plan(
    spec: MechanismSpec,
    *,
    clients: int,
    least: int,
    floor: int,
    wrap: float,
    statistic: Statistic,
    dealt: bool = False,
) -> Union:
    """The mechanism for one cohort: n `clients`, at least `least` survivors, noise of `floor` honest ones, p' = `wrap`.

    The floor is what privacy rests on, so it may never exceed what is sure to arrive. `dealt`: S deals the actions, and
    opens the batch action by action. Raises BadParameter.
    """
    check_spec(spec, statistic)
    _check_cohort(clients, least, floor, wrap)
    kind = KINDS[spec.name]
    frame = Frame(
        clients=clients,
        floor=floor,
        dimension=statistic.dimension,
        low=statistic.low,
        high=statistic.high,
        wrap=wrap,
        calibration=spec.calibration,
        via=spec.via or kind.vias[0],
        norm=statistic.norm,
        dealt=dealt,
    )
    try:
        return kind.plan(spec, frame)
    except ValidationError as error:
        raise BadParameter("mechanism", spec.name, first(error)) from error


def check_spec(spec: MechanismSpec, statistic: Statistic) -> None:
    """Refuse at once what no cohort could repair; BadParameter names `mechanism.<field>`."""
    _check_epsilon(spec)
    _check_delta(spec)
    _check_vectors(spec, statistic)
    vias = KINDS[spec.name].vias
    if spec.via is not None and spec.via not in vias:
        raise BadParameter("mechanism.via", spec.via, f"{spec.name} works via {' or '.join(vias)}")
    if (spec.batches is None) == (spec.name == "tree"):
        rule = "tree needs the length of its stream" if spec.name == "tree" else f"{spec.name} has none: leave it out"
        raise BadParameter("mechanism.batches", spec.batches, rule)
    if spec.noise != "grid" and spec.name not in REAL:
        raise BadParameter("mechanism.noise", spec.noise, f"{spec.name} has noise on the grid only: leave it out")
    if spec.scale is not None and spec.name not in SCALED:
        raise BadParameter("mechanism.scale", spec.scale, f"{spec.name} has none: leave it out")
    if spec.scale is not None and not 1 <= spec.scale <= 1000:
        raise BadParameter("mechanism.scale", spec.scale, "must lie in [1, 1000] (MAB Theorems 2 and 4)")


def check_parts(spec: MechanismSpec) -> None:
    """Refuse a mechanism whose sums may only be opened whole, where S opens them action by action."""
    kind = KINDS[spec.name]
    known = ", ".join(name for name, one in KINDS.items() if one.parts)
    if spec.via == "aggregator" or "shuffler" not in kind.vias:
        raise BadParameter("mechanism.name", spec.name, f"shuffled actions need a shuffler and one of {known}")
    if not kind.parts:
        why = _WHOLE.get(spec.name, "its sums are opened whole, and these action by action")
        raise BadParameter("mechanism.name", spec.name, f"shuffled actions need one of {known}: {why}")


def check_returning(name: str, contributions: int) -> None:
    """Refuse several contributions of one client to one stream: composing guarantees of it would claim too little."""
    if name == "tree" and contributions > 1:
        why = "tree's promise is for one batch a client, and several move the nodes that they share by their sum"
        raise BadParameter("contributions", contributions, f"must be 1: {why}; take another mechanism")


def _check_epsilon(spec: MechanismSpec) -> None:
    if spec.name == "identity":
        if spec.epsilon is not None:
            raise BadParameter("mechanism.epsilon", spec.epsilon, "identity gives no privacy: leave it out")
    elif spec.epsilon is None or not epsilon_allowed(spec.epsilon):
        raise BadParameter("mechanism.epsilon", spec.epsilon, EPSILON_RULE)


def _check_delta(spec: MechanismSpec) -> None:
    rule = DELTAS.get(spec.name)
    if rule is None and spec.delta is not None:
        raise BadParameter("mechanism.delta", spec.delta, f"{spec.name} has none: leave it out")
    if rule == "needed" and spec.delta is None:
        raise BadParameter("mechanism.delta", None, f"{spec.name} needs one; {DELTA_RULE}")
    if spec.delta is not None and not delta_allowed(spec.delta):
        raise BadParameter("mechanism.delta", spec.delta, DELTA_RULE)


def _check_vectors(spec: MechanismSpec, statistic: Statistic) -> None:
    bits = spec.name == "shuffled-binomial" and spec.calibration == "paper" and statistic.dimension > 1
    if bits and (spec.epsilon or 0.0) >= PAPER_EPSILON:
        allowed = f"must be below {PAPER_EPSILON:g} for vectors (DLB Theorem 4.6)"
        raise BadParameter("mechanism.epsilon", spec.epsilon, allowed)


def _check_cohort(clients: int, least: int, floor: int, wrap: float) -> None:
    if clients < 1:
        raise BadParameter("clients", clients, "must be at least 1")
    if not 1 <= least <= clients:
        raise BadParameter("least", least, f"must lie in [1, clients = {clients}]")
    if not 1 <= floor <= least:
        raise BadParameter("floor", floor, f"must lie in [1, least = {least}]")
    if not 0 < wrap < 1:
        raise BadParameter("wrap", wrap, "must lie in (0, 1)")

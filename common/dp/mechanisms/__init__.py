"""Private sums: the list of mechanisms, and `plan`, which turns a run file's words into a calibrated one.

Names, the type on the wire, checks, tables and audits follow from `CLASSES`. To add a mechanism: write its class
(`distrust.common.dp.mechanisms.families.base.Mechanism` says which facts it states), and add a line here.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field, ValidationError

from distrust.common.bandit.contextual_sum import ContextualSum, NoiseSource
from distrust.common.bandit.error_law import Calibration
from distrust.common.bandit.statistics import Statistic
from distrust.common.catalogue import OnTheWire
from distrust.common.dp.accounting.guarantee import ALONE, SAMPLER, Guarantee, no_guarantee
from distrust.common.dp.accounting.profile import SEVERAL_BATCHES, Privacy
from distrust.common.dp.accounting.techniques.sensitivity import FULL_BALL
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
from distrust.common.dp.mechanisms.families.base import (
    DELTA_RULE,
    EPSILON_RULE,
    MECHANISMS,
    Mechanism,
    MechanismName,
    MechanismSpec,
    delta_allowed,
    epsilon_allowed,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.local.additive import LocalGaussian, LocalLaplace, LocalLaplaceDiscrete
from distrust.common.dp.mechanisms.local.sphere import LocalSphere
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.dp.mechanisms.shuffled.gaussian import ShuffledGaussian
from distrust.common.dp.mechanisms.shuffled.laplace import ShuffledLaplace
from distrust.common.dp.mechanisms.shuffled.pure import RelaxedSecaggShuffle
from distrust.common.dp.mechanisms.shuffled.sphere import ShuffledSphere
from distrust.common.errors import BadParameter
from distrust.common.explain import first

__all__ = [
    "MECHANISMS",
    "AnyMechanism",
    "Calibration",
    "Mechanism",
    "MechanismName",
    "MechanismSpec",
    "check_parts",
    "check_returning",
    "check_spec",
    "composable_of",
    "plan",
    "privacy_of",
    "promise_of",
]

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
    ShuffledSphere,
    RelaxedSecaggShuffle,
    Tree,
    PrefixFactorization,
)
"""All the mechanisms, in the order of the tables that are printed."""

MECHANISMS.register({one.known_as(): one for one in CLASSES})

if TYPE_CHECKING:
    AnyMechanism = Annotated[Mechanism, "one of CLASSES"]
else:
    AnyMechanism = Annotated[Union[CLASSES], Field(discriminator="name"), OnTheWire(MECHANISMS)]  # noqa: UP007
    """A mechanism on the wire, told apart by its name. (`|` takes no tuple.)"""


def plan(
    spec: MechanismSpec,
    *,
    clients: int,
    min_survivors: int,
    min_honest: int,
    overflow_probability: float,
    statistic: Statistic,
    assigned: bool = False,
    printed: NoiseSource | None = "CTX",
    stated: Mapping[str, float] | None = None,
) -> Mechanism:
    """Return the mechanism for one cohort.

    clients               n.
    min_survivors         with fewer survivors the cohort is aborted.
    min_honest            t: honest survivors, whose noise the guarantee counts on; at most `min_survivors`, because
                          privacy may only rest on noise that is sure to arrive.
    overflow_probability  p': bound on the probability that a sum wraps around.
    assigned              whether the shuffler assigns the actions, and opens the batch action by action.
    printed               `noise_source` of the policy: whose noise `paper` has for a contextual vector. None: the
                          constants of the mechanism itself.
    stated                numbers of the class's `searched` that another party found. They take the place of what is
                          found here, unchecked, and all that follows from them is computed. None: this party's own.
    Raises                BadParameter, naming the argument or `mechanism.<field>`.
    """
    check_spec(spec, statistic)
    if printed == "CTX-code" and spec.name != "local-gaussian":
        rule = "must be local-gaussian for policy.constants = 'unsafe-published-code': of others the code has no noise"
        raise BadParameter("mechanism.name", spec.name, rule)
    _check_cohort(clients, min_survivors, min_honest, overflow_probability)
    kind = MECHANISMS[spec.name]
    cohort = CohortParams(
        clients=clients,
        min_honest=min_honest,
        dimension=statistic.dimension,
        low=statistic.low,
        high=statistic.high,
        overflow_probability=overflow_probability,
        calibration=spec.calibration,
        intermediary=spec.via or kind.vias[0],
        norm=statistic.norm,
        squared_share=getattr(statistic, "squared_share", FULL_BALL),
        blocks=getattr(statistic, "blocks", 1),
        printed=statistic.printed(printed) if printed and isinstance(statistic, ContextualSum) else None,
        assigned=assigned,
        stated=tuple((stated or {}).items()),
    )
    try:
        mechanism = kind.plan(spec, cohort)
    except ValidationError as error:
        raise BadParameter("mechanism", spec.name, first(error)) from error
    # For a class of the user's own: other parties find it by the name that the value carries.
    if mechanism.name != spec.name:
        raise BadParameter("mechanism.name", spec.name, f"{kind.__name__}.plan made a value named {mechanism.name!r}")
    return mechanism


def promise_of(mechanism: Mechanism, *, composable: bool = False, alone: bool = False) -> Guarantee:
    """Return `privacy_of(mechanism).promise`, or its `composable`. Computed once: rounds repeat their mechanism.

    alone  what is left of it if all other clients collude: the same value where it counts on no other client.
    """
    try:
        return _cached_promise(mechanism, composable, alone)
    except TypeError:  # an extension's mechanism may have fields that cannot be hashed
        return _promise(mechanism, composable, alone)


def _promise(mechanism: Mechanism, composable: bool, alone: bool) -> Guarantee:  # noqa: FBT001  arguments of the cache
    privacy = privacy_of(mechanism, alone=alone)
    own = composable_of(mechanism, privacy) if composable else privacy.promise
    if not alone:
        return own
    promised = promise_of(mechanism, composable=composable)
    if own == promised:
        return promised
    return own if own.kind == "none" else own.model_copy(update={"assumptions": (ALONE, SAMPLER)})


_cached_promise = lru_cache(maxsize=512)(_promise)


def privacy_of(mechanism: Mechanism, *, alone: bool = False) -> Privacy:
    """Return the privacy of a cohort's release at its floor of honest survivors.

    alone  if all n clients answer and all but one collude. A mechanism whose noise no other client adds to is as good.
    """
    return mechanism.privacy(mechanism.clients, mechanism.clients - 1) if alone else mechanism.privacy()


def check_spec(spec: MechanismSpec, statistic: Statistic) -> None:
    """Raise BadParameter, naming `mechanism.<field>`, for a spec that no cohort could repair."""
    kind = MECHANISMS[spec.name]
    _check_epsilon(spec, kind)
    _check_delta(spec, kind)
    kind.check(spec, statistic)
    if spec.via is not None and spec.via not in kind.vias:
        raise BadParameter("mechanism.via", spec.via, f"{spec.name} works via {' or '.join(kind.vias)}")
    if (spec.batches is not None) != kind.takes_batches:
        needs = f"{spec.name} needs the length of its stream"
        allowed = needs if kind.takes_batches else f"{spec.name} has none: leave it out"
        raise BadParameter("mechanism.batches", spec.batches, allowed)
    if spec.noise != "grid" and not kind.takes_noise:
        raise BadParameter("mechanism.noise", spec.noise, f"{spec.name} has noise on the grid only: leave it out")
    if spec.scale is not None and not kind.takes_scale:
        raise BadParameter("mechanism.scale", spec.scale, f"{spec.name} has none: leave it out")
    if spec.scale is not None and not 1 <= spec.scale <= 1000:
        raise BadParameter("mechanism.scale", spec.scale, "must lie in [1, 1000] (MAB Theorems 2 and 4)")


def check_parts(spec: MechanismSpec) -> None:
    """Raise BadParameter for a mechanism whose sums the shuffler may not open action by action."""
    kind = MECHANISMS[spec.name]
    known = ", ".join(name for name, one in MECHANISMS.items() if one.parts)
    if spec.via == "aggregator" or "shuffler" not in kind.vias:
        raise BadParameter("mechanism.name", spec.name, f"shuffled actions need a shuffler and one of {known}")
    if not kind.parts:
        allowed = f"shuffled actions need one of {known}: {kind.why_undivided}"
        raise BadParameter("mechanism.name", spec.name, allowed)


def composable_of(mechanism: Mechanism, privacy: Privacy) -> Guarantee:
    """Return `privacy.composable`; of kind "none" for a stream whose class does not say what several batches cost."""
    if mechanism.takes_batches and privacy.stream is None:  # its guarantees would compose, and claim too little
        return no_guarantee(mechanism.calibration, SEVERAL_BATCHES)
    return privacy.composable


def check_returning(name: str, contributions: int, batches: int | None) -> None:
    """Raise BadParameter for more contributions of one client than a stream of `batches` has batches."""
    if MECHANISMS[name].takes_batches and batches is not None and contributions > batches:
        allowed = f"must be at most mechanism.batches = {batches}, the batches of {name}'s stream"
        raise BadParameter("contributions", contributions, allowed)


def _check_epsilon(spec: MechanismSpec, kind: type[Mechanism]) -> None:
    if kind.model == "none":
        if spec.epsilon is not None:
            raise BadParameter("mechanism.epsilon", spec.epsilon, f"{spec.name} gives no privacy: leave it out")
    elif spec.epsilon is None or not epsilon_allowed(spec.epsilon):
        raise BadParameter("mechanism.epsilon", spec.epsilon, EPSILON_RULE)


def _check_delta(spec: MechanismSpec, kind: type[Mechanism]) -> None:
    if kind.takes_delta is None and spec.delta is not None:
        raise BadParameter("mechanism.delta", spec.delta, f"{spec.name} has none: leave it out")
    if kind.takes_delta == "needed" and spec.delta is None:
        raise BadParameter("mechanism.delta", None, f"{spec.name} needs one; {DELTA_RULE}")
    if spec.delta is not None and not delta_allowed(spec.delta):
        raise BadParameter("mechanism.delta", spec.delta, DELTA_RULE)


def _check_cohort(clients: int, min_survivors: int, min_honest: int, overflow_probability: float) -> None:
    if clients < 1:
        raise BadParameter("clients", clients, "must be at least 1")
    if not 1 <= min_survivors <= clients:
        raise BadParameter("min_survivors", min_survivors, f"must lie in [1, clients = {clients}]")
    if not 1 <= min_honest <= min_survivors:
        raise BadParameter("min_honest", min_honest, f"must lie in [1, min_survivors = {min_survivors}]")
    if not 0 < overflow_probability < 1:
        raise BadParameter("overflow_probability", overflow_probability, "must lie in (0, 1)")

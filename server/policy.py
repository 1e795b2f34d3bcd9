"""From a run's words to its policy."""

from common.actions import action_vectors
from common.errors import BadParameter
from common.messages.policy import (
    AlmostFreeSpec,
    AnyLinearSpec,
    DpDpeSpec,
    DpPeSpec,
    SuccessiveEliminationSpec,
)
from common.messages.run import RunConfig
from server.policies.almost_free import AlmostFree
from server.policies.base import Policy
from server.policies.dp_dpe import Crowd, DistributedPhasedElimination
from server.policies.dp_pe import PrivatePhasedElimination
from server.policies.radius import Calibration
from server.policies.successive_elimination import SuccessiveElimination


def build(config: RunConfig) -> Policy:
    """The policy of a run, before its first question. Raises BadParameter for numbers that do not go together."""
    spec, calibration = config.policy, config.mechanism.calibration
    match spec:
        case SuccessiveEliminationSpec():
            return SuccessiveElimination(
                arms=config.arms, first_batch=spec.first_batch, failure=spec.failure, calibration=calibration
            )
        case DpDpeSpec() | DpPeSpec() | AlmostFreeSpec():
            return _linear(config, spec, calibration)


def _linear(config: RunConfig, spec: AnyLinearSpec, calibration: Calibration) -> Policy:
    actions = action_vectors(spec.actions)
    if len(actions) != config.arms:
        raise BadParameter("arms", config.arms, f"policy.actions has {len(actions)}")
    beta, smallest = _beta(config, spec, calibration), config.intermediary.minimum
    match spec:
        case DpDpeSpec():
            crowd = Crowd(spec.alpha, spec.clients, spec.bound, spec.deviation, spec.noise)
            return DistributedPhasedElimination(
                actions, crowd=crowd, beta=beta, calibration=calibration, smallest=smallest
            )
        case DpPeSpec():
            return PrivatePhasedElimination(
                actions, bound=spec.bound, beta=beta, calibration=calibration, smallest=smallest
            )
        case AlmostFreeSpec():
            return AlmostFree(
                actions,
                horizon=config.horizon,
                model=spec.model,
                core_set=spec.core_set,
                bound=spec.bound,
                beta=beta,
                calibration=calibration,
                smallest=smallest,
            )


def _beta(config: RunConfig, spec: AnyLinearSpec, calibration: Calibration) -> float:
    """β = 1/(kT) (DLB), or what makes FREE's logarithm ln(4|A|T²)."""
    if spec.beta is not None:
        return spec.beta
    plain = 1 / (config.arms * config.horizon)
    return plain / (4 * config.horizon) if isinstance(spec, AlmostFreeSpec) and calibration == "paper" else plain

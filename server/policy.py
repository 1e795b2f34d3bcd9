"""From a run's words to its policy."""

from common.actions import action_vectors
from common.errors import BadParameter
from common.mechanisms import MechanismSpec
from common.mechanisms.checks import epsilon_allowed
from common.messages.policy import (
    AlmostFreeSpec,
    AnyLinearSpec,
    DpDpeSpec,
    DpPeSpec,
    DpSeSpec,
    SuccessiveEliminationSpec,
    Ucb1Spec,
    VbSdpAeSpec,
)
from common.messages.run import RunConfig
from server.policies.almost_free import AlmostFree
from server.policies.base import Policy
from server.policies.dp_dpe import Crowd, DistributedPhasedElimination
from server.policies.dp_pe import PrivatePhasedElimination
from server.policies.dp_se import DpSe
from server.policies.radius import Calibration
from server.policies.successive_elimination import SuccessiveElimination
from server.policies.ucb1 import Ucb1
from server.policies.vb_sdp_ae import VbSdpAe

LEAST = 1e-12
"""Of β: noise has exact quantiles for it even when 10⁵ actions share it."""


def build(config: RunConfig) -> Policy:
    """The policy of a run, before its first question. Raises BadParameter for numbers that do not go together."""
    spec, calibration = config.policy, config.mechanism.calibration
    match spec:
        case SuccessiveEliminationSpec():
            return SuccessiveElimination(
                arms=config.arms,
                first_batch=spec.first_batch,
                failure=spec.failure,
                constants=spec.constants or calibration,
                base=spec.growth,
            )
        case DpSeSpec():
            noise = _expected_noise(config.mechanism)
            return DpSe(arms=config.arms, noise=noise, failure=spec.failure, calibration=calibration)
        case VbSdpAeSpec():
            return VbSdpAe(arms=config.arms, first_batch=spec.first_batch, failure=spec.failure)
        case Ucb1Spec():
            return Ucb1(arms=config.arms)
        case DpDpeSpec() | DpPeSpec() | AlmostFreeSpec():
            return _linear(config, spec, calibration)


def _expected_noise(spec: MechanismSpec) -> float:
    """λ = 1/ε, the scale of a sum's Laplace noise in the central model; 0 where no ε is given or allowed."""
    return 1 / spec.epsilon if spec.epsilon is not None and epsilon_allowed(spec.epsilon) else 0.0


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
    """β = 1/(kT) (DLB), or what makes FREE's logarithm ln(4|A|T²); for exact widths never below `LEAST`."""
    plain, exact = 1 / (config.arms * config.horizon), calibration == "exact"
    if spec.beta is None:
        return max(plain, LEAST) if exact else plain / (4 * config.horizon if isinstance(spec, AlmostFreeSpec) else 1)
    if exact and spec.beta < LEAST:
        raise BadParameter("policy.beta", spec.beta, f"must be at least {LEAST} for exact widths")
    return spec.beta

"""Our own mechanisms, planned as a run would plan them, for the last column of an erratum."""

from common.mechanisms import Calibration, Mechanism, MechanismName, MechanismSpec, plan
from common.statistics import BoundedVector, Reward


def planned(
    name: MechanismName,
    clients: int,
    epsilon: float,
    *,
    delta: float | None = None,
    floor: int | None = None,
    bound: float | None = None,
    calibration: Calibration = "exact",
    scale: float | None = None,
    wrap: float = 1e-6,
) -> Mechanism:
    """A cohort that opens at `floor` survivors, all by default; rewards in [0, 1], or in [-bound, bound]."""
    spec = MechanismSpec(name=name, epsilon=epsilon, delta=delta, calibration=calibration, scale=scale)
    statistic = Reward() if bound is None else BoundedVector(dimension=1, norm="linf", bound=bound)
    least = clients if floor is None else floor
    return plan(spec, clients=clients, least=least, floor=least, wrap=wrap, statistic=statistic)


def epsilon_of(mechanism: Mechanism, survivors: int | None = None) -> float:
    """The ε that the mechanism computes for itself; infinite where it has none."""
    epsilon = mechanism.guarantee(survivors).epsilon
    return float("inf") if epsilon is None else epsilon


def divergence_of(mechanism: Mechanism, order: float) -> float:
    """The Rényi divergence of that order."""
    return dict(mechanism.guarantee().rdp)[order]

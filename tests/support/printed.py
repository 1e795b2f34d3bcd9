"""Plans mechanisms for contextual vectors at the δ and the d of CTX's experiments."""

import math
from typing import Any

from distrust.common.bandit.contextual_sum import ContextualSum, NoiseSource
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike
from tests.support.planned import planned

SUM = ContextualSum(features=5)
DELTA = 0.1


def planned_mechanism(
    name: str,
    epsilon: float,
    clients: int,
    calibration: str,
    statistic: Statistic = SUM,
    *,
    printed: NoiseSource | None = "CTX",
    delta: float | None = DELTA,
    **fields: Any,
) -> Mechanism:
    """Return the mechanism for `clients` honest clients. `fields` are more of its table.

    printed  whose noise `paper` has.
    """
    spec = MechanismSpec(name=name, epsilon=epsilon, delta=delta, calibration=calibration, **fields)
    return planned(spec, clients, statistic=statistic, printed=printed)


def entry(mechanism: Mechanism) -> float:
    """Return the standard deviation of one draw on one entry."""
    assert isinstance(mechanism, GaussianLike)
    return math.sqrt(mechanism.variance) * mechanism.step

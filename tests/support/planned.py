"""Plans a mechanism for one cohort, as most tests need it: survivors and honest clients are the same number.

The second half is for `paper` of contextual vectors, at the δ and d of CTX's experiments.
"""

import math

from distrust.common.bandit.contextual_sum import ContextualSum, NoiseSource
from distrust.common.bandit.statistics import Reward, Statistic
from distrust.common.mechanisms import Mechanism, MechanismSpec, plan
from distrust.common.mechanisms.families.gaussian import GaussianLike

SUM = ContextualSum(features=5)
DELTA = 0.1


def planned(
    spec: MechanismSpec,
    clients: int,
    honest: int | None = None,
    statistic: Statistic | None = None,
    *,
    assigned: bool = False,
    printed: NoiseSource | None = None,
) -> Mechanism:
    """Return the mechanism, whose sums wrap around with probability at most 1e-6.

    honest     survivors at least, all of them honest; all clients when absent.
    statistic  a reward in [0, 1] when absent.
    printed    whose noise `paper` has for a contextual vector; CTX's when absent.
    """
    least = clients if honest is None else honest
    return plan(
        spec,
        clients=clients,
        min_survivors=least,
        min_honest=least,
        overflow_probability=1e-6,
        statistic=Reward() if statistic is None else statistic,
        assigned=assigned,
        printed=printed,
    )


def planned_mechanism(
    name: str,
    epsilon: float,
    clients: int,
    calibration: str,
    statistic: Statistic = SUM,
    *,
    printed: NoiseSource | None = None,
    **words: object,
) -> Mechanism:
    spec = MechanismSpec.model_validate(
        {"name": name, "epsilon": epsilon, "delta": DELTA, "calibration": calibration, **words}
    )
    return planned(spec, clients, statistic=statistic, printed=printed)


def entry(mechanism: Mechanism) -> float:
    """Return the standard deviation of one draw on one entry."""
    assert isinstance(mechanism, GaussianLike)
    return math.sqrt(mechanism.variance) * mechanism.step

"""Plans a mechanism for one cohort, as most tests need it: the least survivors are all honest."""

from distrust.common.bandit.contextual_sum import NoiseSource
from distrust.common.bandit.statistics import Reward, Statistic
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec, plan


def planned(
    spec: MechanismSpec,
    clients: int,
    honest: int | None = None,
    statistic: Statistic | None = None,
    *,
    assigned: bool = False,
    printed: NoiseSource | None = "CTX",
) -> Mechanism:
    """Return the mechanism, whose sums wrap around with probability at most 1e-6.

    honest     the least survivors, all of them honest; all clients when absent.
    statistic  a reward in [0, 1] when absent.
    printed    the paper whose noise `paper` has for a contextual vector.
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

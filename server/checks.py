"""What a configuration must satisfy beyond the types of its fields; each fault is a BadParameter."""

from common.errors import BadParameter
from common.mechanisms import check_spec
from common.messages.run import RunConfig
from common.statistics import Statistic

LONGEST_RUN = 56  # characters; a cohort's id adds round, arm and attempt to the run's, and has 80
LARGEST_COHORT = 1_000_000  # slots, as in messages.cohort


def check(config: RunConfig, statistic: Statistic) -> None:
    """Refuse a run that could not be started, or could not finish its first batch."""
    check_spec(config.mechanism, statistic)
    first = 2**config.policy.first_batch
    if len(config.run) > LONGEST_RUN:
        raise BadParameter("run", config.run, f"must have at most {LONGEST_RUN} characters")
    if config.intermediary.minimum > first:
        allowed = f"must be at most {first}, the clients of the first batch for one arm"
        raise BadParameter("intermediary.minimum", config.intermediary.minimum, allowed)
    if config.horizon < config.arms * first:
        allowed = (
            f"must be at least {config.arms * first}, the first batch of {first} clients for each of {config.arms} arms"
        )
        raise BadParameter("horizon", config.horizon, allowed)


def check_for_services(config: RunConfig) -> None:
    """Refuse a run whose last batches would not fit one cohort; an in-process run may be that long."""
    longest = 2 * LARGEST_COHORT
    if config.horizon >= longest:  # a single arm's batches 2^1 … 2^b take less than 2^(b+1) clients
        raise BadParameter(
            "horizon", config.horizon, f"must be below {longest} over services; in-process runs may be longer"
        )

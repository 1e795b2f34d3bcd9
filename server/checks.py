"""What a configuration must satisfy beyond the types of its fields; each fault is a BadParameter."""

from common.errors import BadParameter
from common.mechanisms import check_parts, check_returning, check_spec
from common.messages.policy import AlmostFreeSpec, AnyPolicySpec, SuccessiveEliminationSpec, Ucb1Spec
from common.messages.run import RunConfig
from server.policies import Ask
from server.policy import build

LONGEST_RUN = 56  # characters; a cohort's id adds round, arm and attempt to the run's, and has 80
LARGEST_COHORT = 1_000_000  # slots, as in messages.cohort
MOST_ROUNDS = 10_000  # of one client each, every one of them a few requests to S
PUBLIC = {
    "phased-elimination": "the baseline without privacy: identity; dp-pe takes the others",
    "ucb1": "a baseline without privacy, which sees every client's reward: identity; other policies take the others",
}
"""Policies that insist on `identity`, and why."""
ENDLESS = 10**18  # pulls, when a horizon must not stand in the way


def check(config: RunConfig) -> None:
    """Refuse a run that could not be started, or could not finish its first batch."""
    if len(config.run) > LONGEST_RUN:
        raise BadParameter("run", config.run, f"must have at most {LONGEST_RUN} characters")
    _check_pair(config)
    check_returning(config.mechanism.name, config.contributions)
    first = build(config).ask(ENDLESS)
    assert first is not None
    check_spec(config.mechanism, first.statistic)
    if first.decision.kind == "assigned-action":
        check_parts(config.mechanism)
    _check_first(config, first)


def _check_pair(config: RunConfig) -> None:
    """Refuse a policy and a mechanism that do not go together."""
    if config.policy.name in PUBLIC and config.mechanism.name != "identity":
        allowed = f"{config.policy.name} is {PUBLIC[config.policy.name]}"
        raise BadParameter("mechanism.name", config.mechanism.name, allowed)
    published = config.policy.name == "successive-elimination" and config.policy.constants is not None
    if published and config.mechanism.calibration != "paper":
        raise BadParameter("policy.constants", "published-code", 'goes with mechanism.calibration = "paper"')


def _check_first(config: RunConfig, first: Ask) -> None:
    clients = min(query.clients for query in first.queries)
    alike = {(query.arm is None, query.clients) for query in first.queries} == {(False, clients)}
    if config.intermediary.minimum > clients:
        allowed = f"must be at most {clients}, the clients of the first batch for one arm"
        raise BadParameter("intermediary.minimum", config.intermediary.minimum, allowed)
    if config.horizon < first.size:
        each = f" of {clients} clients for each of {len(first.queries)} arms" if alike else ""
        raise BadParameter("horizon", config.horizon, f"must be at least {first.size}, the first batch{each}")


def check_for_services(config: RunConfig) -> None:
    """Refuse a run whose last batches would not fit one cohort; an in-process run may be that long."""
    if config.policy.name == "ucb1" and config.mechanism.via != "shuffler":
        allowed = "ucb1 asks one client at a time, and secure aggregation needs two: shuffler"
        raise BadParameter("mechanism.via", config.mechanism.via or "aggregator", allowed)
    longest = _longest(config.policy)
    if config.horizon >= longest:
        raise BadParameter(
            "horizon", config.horizon, f"must be below {longest} over services; in-process runs may be longer"
        )


def _longest(policy: AnyPolicySpec) -> int:
    """A horizon that is too long for services."""
    match policy:
        case Ucb1Spec():
            return MOST_ROUNDS + 1
        case SuccessiveEliminationSpec():  # a batch of the last arm comes after one of two arms: (2/base + 1) of it
            return LARGEST_COHORT + 2 * LARGEST_COHORT // policy.growth
        case AlmostFreeSpec(model="shuffled"):  # all actions in one cohort: 2T/q plays, one more for each, q ≥ e
            return LARGEST_COHORT
    return 2 * LARGEST_COHORT

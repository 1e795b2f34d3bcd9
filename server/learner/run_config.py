"""Checks a configuration beyond the types of its fields, and builds its policy. Each fault is a BadParameter."""

from distrust.common.dp.mechanisms import MECHANISMS, Mechanism, check_parts, check_returning, check_spec
from distrust.common.dp.mechanisms.families.base import epsilon_allowed
from distrust.common.errors import BadParameter, ProtocolError, RunFailed, describe_error
from distrust.common.extensions import load_reference
from distrust.common.protocol.channels.sealed import LARGEST_CROWD
from distrust.common.protocol.run.config import RunConfig
from distrust.common.specs.base import PolicySpec
from distrust.common.wire import LARGEST_COHORT
from distrust.server.policies.base import Ask, Policy, PolicyClass, RunFacts

LONGEST_RUN = 56  # characters; a cohort's id adds round, arm and attempt to the run's, and has 80
ENDLESS = 10**18  # pulls: a horizon that limits no batch

MEMBERS = ("active", "intervals", "latest_intervals", "chosen", "ask", "tell", "leftover")
"""Members that a policy must have."""


def check_run_config(config: RunConfig) -> None:
    """Refuse a run that could not be started, or could not finish its first batch.

    Raises BadParameter, or RunFailed when the policy raises another exception: that is a fault of the code.
    """
    if len(config.run) > LONGEST_RUN:
        raise BadParameter("run", config.run, f"must have at most {LONGEST_RUN} characters")
    _check_pair(config)
    check_returning(config.mechanism.name, config.contributions, config.mechanism.batches)
    first = _first(config)
    check_spec(config.mechanism, first.statistic)
    _check_stream(config, first)
    if first.decision.kind == "assigned-action":
        check_parts(config.mechanism)
    _check_first(config, first)


def _check_pair(config: RunConfig) -> None:
    """Refuse a policy and a mechanism that do not go together."""
    kind, why = MECHANISMS[config.mechanism.name], config.policy.insists_on_no_privacy
    if why is not None and kind.model != "none":
        raise BadParameter("mechanism.name", config.mechanism.name, f"{config.policy.name} is {why}")
    own = config.policy.insists_on_stream
    if own is not None and not kind.takes_batches and kind.model != "none":
        raise BadParameter("mechanism.name", config.mechanism.name, f"{config.policy.name} {own}")
    config.policy.check_calibration(config.mechanism.calibration)


def _check_stream(config: RunConfig, first: Ask) -> None:
    """Refuse a stream that is shorter than the run, of a policy whose rounds are all as large as the first.

    A policy that is not cumulative takes the batches alone, which are private in any number. It is refused all the
    same, as the guarantee says that there are at most so many batches. Streams of several arms have at most so many
    together, by which returning clients are charged: one a cohort. Other policies' rounds grow, and are few.
    """
    batches, cohorts = config.mechanism.batches, config.horizon // min(query.clients for query in first.queries)
    alike = first.cumulative or first.decision.kind == "contextual-choice"
    if alike and batches is not None and batches < cohorts:
        raise BadParameter("mechanism.batches", batches, f"must be at least {cohorts}, the cohorts of this run")


def _first(config: RunConfig) -> Ask:
    """Return the policy's first batch."""
    try:
        first = build_policy(config).ask(ENDLESS)
    except ProtocolError:
        raise
    except Exception as error:
        raise RunFailed(f"run {config.run} cannot be planned: {describe_error(error)}") from error
    assert first is not None
    return first


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
    if config.policy.sequential and config.mechanism.via != "shuffler":
        allowed = f"{config.policy.name} asks one client at a time, and secure aggregation needs two: shuffler"
        raise BadParameter("mechanism.via", config.mechanism.via or "aggregator", allowed)
    longest = config.policy.longest
    if config.horizon >= longest:
        raise BadParameter(
            "horizon", config.horizon, f"must be below {longest} over services; in-process runs may be longer"
        )


def check_crowds(config: RunConfig, mechanism: Mechanism) -> None:
    """Refuse a run of this mechanism whose cohorts may become too large for receipts: each client takes a whole list.

    Batches grow in proportion to the horizon, and the policy knows the horizon at which they reach the largest cohort.
    """
    if not mechanism.receipted_in_crowds:
        return
    rule = f"{mechanism.name} has cohorts of at most {LARGEST_CROWD} clients over services, as each gives a receipt"
    if mechanism.clients > LARGEST_CROWD:
        raise BadParameter("clients", mechanism.clients, rule)
    longest = config.policy.longest * LARGEST_CROWD // LARGEST_COHORT
    if config.policy.REWARDS != "contextual" and config.horizon >= longest:  # contextual batches do not grow
        raise BadParameter("horizon", config.horizon, f"must be below {longest}: {rule}; in-process runs may be longer")


def build_policy(config: RunConfig) -> Policy:
    """Return a run's policy, before its first batch. Raises BadParameter for numbers that do not go together."""
    spec = config.policy
    try:
        kind: PolicyClass = load_reference(spec.POLICY)
    except (ImportError, AttributeError) as error:
        raise BadParameter("policy.name", spec.name, f"{spec.POLICY} cannot be imported: {error}") from error
    _require(spec, kind, ("of",))
    policy = kind.of(spec, run_facts(config))
    _require(spec, policy, MEMBERS)
    return policy


def _require(spec: PolicySpec, policy: object, members: tuple[str, ...]) -> None:
    """Refuse a class of the user's own, or its instance, that lacks a policy's members. Raises BadParameter."""
    lacking = [member for member in members if not hasattr(policy, member)]
    if lacking:
        raise BadParameter("policy.name", spec.name, f"{spec.POLICY} lacks {', '.join(lacking)}")


def run_facts(config: RunConfig) -> RunFacts:
    """Return the facts of its run that the policy may know; λ = 1/ε, or 0 where no ε is given or allowed."""
    epsilon = config.mechanism.epsilon
    return RunFacts(
        arms=config.arms,
        horizon=config.horizon,
        smallest=config.intermediary.minimum,
        calibration=config.mechanism.calibration,
        laplace_scale=1 / epsilon if epsilon is not None and epsilon_allowed(epsilon) else 0.0,
        digest=config.digest(),
    )

"""What S and the clients are told of a cohort and of a round."""

from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.crypto.parameters import neighbourhood
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.cohort import Channel, Cohort, Dealt, LabelledBits, Masking, Sealed
from distrust.common.modular import packed_size
from distrust.common.run.config import RunConfig
from distrust.common.run.round import Assignment, Round, cohort_terms
from distrust.server.keys import PublicKeys
from distrust.server.learner.rounds import CohortPlan, RoundPlan


def channel(mechanism: Mechanism, decision: Decision, config: RunConfig, minimum: int, keys: PublicKeys) -> Channel:
    """How this mechanism's messages travel: masked sums, or sealed records or labelled bits to be permuted.

    Assigned actions are dealt by the shuffler, which gives their sealed records back by action.
    """
    if mechanism.via == "aggregator":
        spec = config.intermediary
        neighbours, threshold = neighbourhood(mechanism.clients, spec.dropout, spec.corrupt, minimum)
        return Masking(
            modulus=mechanism.modulus, dimension=mechanism.dimension, neighbours=neighbours, threshold=threshold
        )
    if mechanism.width is not None:
        return LabelledBits(labels=mechanism.dimension, width=mechanism.width)
    size = packed_size(mechanism.modulus, mechanism.dimension)
    if isinstance(decision, AssignedAction):
        seed = None if config.unsafe is None else config.unsafe.noise_seed
        return Dealt(size=size, server_key=keys.seal, deal=decision, noise_seed=seed)
    return Sealed(size=size, server_key=keys.seal)


def cohort_message(config: RunConfig, asked: Round, cohort: CohortPlan, keys: PublicKeys) -> Cohort:
    """Return one cohort of a round, everything public about it."""
    return Cohort(
        run=config.run,
        round=asked.number,
        cohort=cohort.cohort,
        clients=cohort.clients,
        minimum=cohort.minimum,
        stage_seconds=config.intermediary.stage_seconds,
        config=config.digest(),
        ticket_key=keys.ticket,
        channel=channel(cohort.mechanism, asked.decision, config, cohort.minimum, keys),
        terms=cohort_terms(asked, cohort.arm, cohort.mechanism),
    )


def round_message(config: RunConfig, plan: RoundPlan, keys: PublicKeys) -> Round:
    """Return the round with the cohorts that are still to be played."""
    asked = Round(
        run=config.run,
        number=plan.number,
        decision=plan.decision,
        statistic=plan.statistic,
        mechanism=plan.mechanism,
        dropout=config.intermediary.dropout,
        corrupt=config.intermediary.corrupt,
        assignments=[],
    )
    assignments = [
        Assignment(
            arm=cohort.arm,
            cohort=cohort_message(config, asked, cohort, keys),
            mechanism=None if cohort.mechanism == plan.mechanism else cohort.mechanism,
        )
        for cohort in plan.cohorts
    ]
    return asked.model_copy(update={"assignments": assignments})

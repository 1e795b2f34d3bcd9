"""Builds the messages of a round: what the server tells the intermediary and the clients of each cohort."""

from distrust.common.bandit.decisions import AssignedAction, Decision
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.modular import packed_size
from distrust.common.protocol.crypto.parameters import neighbourhood
from distrust.common.protocol.messages.cohort import AssignedRecords, Channel, Cohort, LabelledBits, Masking, Sealed
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, cohort_terms
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.storage.keys import PublicKeys


def cohort_channel(
    mechanism: Mechanism, decision: Decision, config: RunConfig, minimum: int, keys: PublicKeys
) -> Channel:
    """Return how the mechanism's messages travel: as masked sums, sealed records or labelled bits.

    The shuffler assigns actions, and returns their sealed records by action.
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
        return AssignedRecords(
            size=size, server_key=keys.seal, receipts=mechanism.receipted, deal=decision, noise_seed=seed
        )
    return Sealed(size=size, server_key=keys.seal, receipts=mechanism.receipted)


def cohort_message(config: RunConfig, run_digest: bytes, round_: Round, cohort: CohortPlan, keys: PublicKeys) -> Cohort:
    """Return one cohort of a round of the run with digest R, with everything public about it."""
    return Cohort(
        run=config.run,
        round=round_.number,
        cohort=cohort.cohort,
        clients=cohort.clients,
        minimum=cohort.minimum,
        stage_seconds=config.intermediary.stage_seconds,
        keep_seconds=config.intermediary.keep_seconds,
        run_digest=run_digest,
        ticket_key=keys.ticket,
        channel=cohort_channel(cohort.mechanism, round_.decision, config, cohort.minimum, keys),
        terms=cohort_terms(round_, cohort.arm, cohort.mechanism),
    )


def round_message(config: RunConfig, run_digest: bytes, plan: RoundPlan, keys: PublicKeys) -> Round:
    """Return a round of the run with digest R, with the cohorts that have no outcome."""
    round_ = Round(
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
            cohort=cohort_message(config, run_digest, round_, cohort, keys),
            mechanism=None if cohort.mechanism == plan.mechanism else cohort.mechanism,
        )
        for cohort in plan.cohorts
    ]
    return round_.model_copy(update={"assignments": assignments})

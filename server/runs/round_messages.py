"""Builds the messages of a round: what the server tells the intermediary and the clients of each cohort."""

from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, cohort_channel, cohort_terms
from distrust.server.learner.rounds import CohortPlan, RoundPlan
from distrust.server.storage.keys import PublicKeys


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
        channel=cohort_channel(config, round_, cohort.mechanism, cohort.minimum, keys.seal),
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

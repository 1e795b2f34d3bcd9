"""A learner's state as a message."""

from typing import TYPE_CHECKING

from common.guarantee import Guarantee
from common.messages.progress import ArmView, Snapshot
from server.ledger import ledger
from server.policies import Interval

if TYPE_CHECKING:
    from server.learner import Learner


def snapshot(learner: "Learner") -> Snapshot:
    """Active arms, intervals, pulls, losses and the guarantee so far."""
    return Snapshot(
        arms=_arms(learner),
        horizon=learner.config.horizon,
        pulls=sum(learner.pulls),
        round=learner.rounds[-1].number,
        aborted=learner.aborted,
        unfinished=learner.unfinished,
        chosen=learner.policy.chosen,
        finished=learner.finished,
        guarantee=guarantee(learner),
    )


def guarantee(learner: "Learner") -> Guarantee:
    """What nobody has spent more than, the open round too: its cohorts may be released already."""
    return ledger(learner.config, learner.rounds).total


def _arms(learner: "Learner") -> list[ArmView]:
    dropped = {arm: record.number for record in learner.rounds for arm in record.eliminated}
    latest = {interval.arm: interval for interval in learner.policy.intervals}
    return [_arm(arm, pulls, dropped.get(arm), latest.get(arm)) for arm, pulls in enumerate(learner.pulls)]


def _arm(arm: int, pulls: int, dropped: int | None, seen: Interval | None) -> ArmView:
    plain = ArmView(arm=arm, active=dropped is None, pulls=pulls, eliminated=dropped)
    if seen is None:
        return plain
    found = {"batch": seen.batch, "mean": seen.mean, "lower": seen.lower, "upper": seen.upper}
    return plain.model_copy(update=found)

"""What went wrong for a policy, as only the clients' side can tell: it knows the true means."""

from collections import Counter

import numpy as np

from common.messages.base import Message
from common.messages.policy import SuccessiveEliminationSpec, Ucb1Spec
from common.messages.run import RunConfig
from lab.run_file import RunFile
from server.learner import Learner
from server.rounds import RoundRecord


class Events(Message):
    """Failures of one run.

    best_dropped     whether no arm of the largest true mean is left; best_dropped_at: the pulls when the last one went.
    widths           confidence intervals that the policy formed; width_failures: those that miss the true mean.
    failure          probability, by the policy's own statement, that any of them does (`stated`); null for none.
    """

    best_dropped: bool
    best_dropped_at: int | None
    widths: int
    width_failures: int
    failure: float | None


class Witness:
    """Watches a learner from cohort to cohort, and compares every interval with the truth once, when it is new."""

    def __init__(self, file: RunFile) -> None:
        self._config, self._means = file.config, file.world().means
        self._rounds, self._missed = 0, 0
        self._seen: set[tuple[int, int]] = set()

    def __call__(self, learner: Learner) -> None:
        """To be called after every cohort; there is something new only when a round is over."""
        if learner.finished or len(learner.rounds) != self._rounds:
            self._rounds = len(learner.rounds)
            self._look(learner)

    def events(self, learner: Learner) -> Events:
        """What was seen until now."""
        at = _dropped_at(learner, np.flatnonzero(self._means == self._means.max()).tolist())
        formed = Counter(batch for _, batch in self._seen)
        return Events(
            best_dropped=at is not None,
            best_dropped_at=at,
            widths=len(self._seen),
            width_failures=self._missed,
            failure=stated(self._config, learner.rounds, formed),
        )

    def _look(self, learner: Learner) -> None:
        for interval in learner.policy.intervals:
            if (interval.arm, interval.batch) not in self._seen:
                self._seen.add((interval.arm, interval.batch))
                self._missed += not interval.lower <= self._means[interval.arm] <= interval.upper


def stated(config: RunConfig, rounds: list[RoundRecord], formed: Counter[int]) -> float | None:
    """The probability that any interval of a run fails, as the policy's own theorem bounds it.

    Elimination  p; for the `paper` radii of successive elimination the 3p of MAB Lemma 2. None for UCB1, and for the
                 published code's constants, whose events sum to more than any of its numbers (server.policies.radius).
    Linear       β for each event of the phases that were played: an interval has two, a sum may wrap around.
    formed       intervals by batch.
    """
    policy = config.policy
    if isinstance(policy, Ucb1Spec):
        return None
    if isinstance(policy, SuccessiveEliminationSpec):
        lemma = 3 if config.mechanism.calibration == "paper" else 1
        return min(1.0, lemma * policy.failure) if policy.constants is None else None
    failure: float | None = getattr(policy, "failure", None)
    if failure is not None:
        return failure
    asks = [record.ask for record in rounds]
    return min(1.0, sum(ask.share * (2 * formed[ask.batch] + ask.width * len(ask.queries)) for ask in asks))


def _dropped_at(learner: Learner, best: list[int]) -> int | None:
    """Pulls of all cohorts until the round that dropped the last of the best arms; None when one is still there."""
    left, pulls = set(best), 0
    for record in learner.rounds:
        pulls += sum(count for one in record.cohorts for _, count in record.ask.decision.pulls(one.arm, one.clients))
        left -= set(record.eliminated)
        if not left:
            return pulls
    return None

"""Counts a policy's failures: dropped best arms and missed means. Only the clients' side can: it knows the truth."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from distrust.common.run.config import RunConfig
from distrust.lab.run.result import PolicyFailures
from distrust.lab.run.run_file import RunFile
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import RoundRecord
from distrust.server.policies.base import Interval


class FailureTracker:
    """Watches a learner from cohort to cohort. Compares every interval with the true mean once, when it is new."""

    def __init__(self, file: RunFile) -> None:
        means = file.world().means
        self._config, self._means = file.config, means.tolist()
        self._best: list[int] = np.flatnonzero(means == means.max()).tolist()
        self._round, self._batch = 0, 0
        self._widths, self._missed = 0, 0
        self._formed: Counter[int] = Counter()

    def __call__(self, learner: Learner) -> None:
        """Look at the learner after a cohort. Only the end of a round brings new intervals."""
        number = learner.rounds[-1].number
        if learner.finished or number != self._round:
            self._round = number
            self._look(learner.policy.formed)

    def events(self, learner: Learner) -> PolicyFailures:
        """Return the failures so far."""
        at = _dropped_at(learner, self._best)
        return PolicyFailures(
            best_dropped=at is not None,
            best_dropped_at=at,
            widths=self._widths,
            width_failures=self._missed,
            failure=stated_failure(self._config, learner.rounds, self._formed),
        )

    def _look(self, formed: Sequence[Interval]) -> None:
        """Count intervals once: a run may end without another batch, and then they are counted already."""
        if not formed or formed[-1].batch <= self._batch:
            return
        self._batch = formed[-1].batch
        self._widths += len(formed)
        self._missed += sum(not one.lower <= self._means[one.arm] <= one.upper for one in formed)
        if self._config.policy.COUNTS:  # the others state p whatever they formed
            self._formed[self._batch] += len(formed)


def stated_failure(config: RunConfig, rounds: list[RoundRecord], formed: Counter[int]) -> float | None:
    """Return the probability that any interval of a run fails, by the policy's own theorem.

    formed  intervals by batch, of a policy that counts them: an interval has two events, a sum may wrap around.
    """
    asks = [record.ask for record in rounds]
    events = ((ask.share, 2 * formed[ask.batch] + ask.width * len(ask.queries)) for ask in asks)
    return config.policy.stated_failure(config.mechanism.calibration, events)


def _dropped_at(learner: Learner, best: list[int]) -> int | None:
    """Return the pulls until the round that dropped the last of the best arms; None when one is active."""
    left, pulls = set(best), 0
    for record in learner.rounds:
        pulls += sum(count for one in record.cohorts for _, count in record.ask.decision.pulls(one.arm, one.clients))
        left -= set(record.eliminated)
        if not left:
            return pulls
    return None

"""Plays policies that ask one client a round: keeps few records of a long run.

A run of a million rounds would keep a million records. Here consecutive rounds are joined into one record, with one
cohort an arm and the sum over its survivors.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from distrust.common.protocol.run.config import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundRecord
from distrust.server.policies.base import ArmKey, Query

MOST_RECORDS = 1000
"""Records of a whole run, at most; about as many single rounds are kept while it is played."""


class SequentialLearner(Learner):
    """A learner for a policy that asks one client a round: `rounds` joins every `block` closed rounds into one record.

    It decides like any learner, with records that stay few in a million rounds.

    A record of a block stands for its rounds: its number and its decision are the last one's; for each arm it has one
    cohort of all the clients that it had, named as their last one, and the sum over the survivors, who played by the
    decisions of all these rounds.
    """

    def __init__(self, config: RunConfig, block: int | None = None) -> None:
        self._block = block or -(-config.horizon // MOST_RECORDS)
        self.blocks: list[RoundRecord] = []
        super().__init__(config)

    def _open_round(self) -> None:
        if len(self.rounds) - len(self.blocks) == self._block:
            self._join()
        super()._open_round()

    def _finish(self, leftover: dict[ArmKey, int]) -> None:
        super()._finish(leftover)
        if len(self.rounds) > len(self.blocks):
            self._join()

    def _join(self) -> None:
        """Join all rounds since the last block: one more block, or one for each statistic that they asked for."""
        parts = groupby(self.rounds[len(self.blocks) :], key=lambda record: record.ask.statistic)
        self.blocks += [join_records(list(part)) for _, part in parts]
        self.rounds[:] = self.blocks


def join_records(records: Sequence[RoundRecord]) -> RoundRecord:
    """Return one record for consecutive rounds of one mechanism and statistic that dropped no arm."""
    last, cohorts = records[-1], _cohorts_by_arm(records)
    if len(records) == 1:
        return last
    ask = replace(last.ask, queries=tuple(Query(arm, cohort.clients) for arm, cohort in cohorts.items()))
    record = RoundRecord(last.number, ask, last.mechanisms, last.minima, tuple(cohorts.values()))
    record.released = _sums_by_arm(records, cohorts)
    record.joined = sum(part.played for part in records)
    return record


def _cohorts_by_arm(records: Sequence[RoundRecord]) -> dict[ArmKey, CohortPlan]:
    """Return the last cohort of every arm, with all the clients that the arm had."""
    latest: dict[ArmKey, CohortPlan] = {}
    clients: dict[ArmKey, int] = {}
    for cohort in (cohort for record in records for cohort in record.cohorts):
        clients[cohort.arm] = clients.get(cohort.arm, 0) + cohort.clients
        latest[cohort.arm] = cohort
    return {arm: replace(latest[arm], clients=clients[arm]) for arm in sorted(latest, key=lambda arm: arm or 0)}


def _sums_by_arm(records: Sequence[RoundRecord], cohorts: dict[ArmKey, CohortPlan]) -> dict[ArmKey, ReleasedCohort]:
    """Return the sums over all survivors, by arm; of a stream the last one, which is over all batches so far."""
    stream = records[-1].ask.cumulative and records[-1].mechanism.takes_batches
    sums: dict[ArmKey, list[float]] = {}
    survivors: dict[ArmKey, int] = {}
    for arm, released in (item for record in records for item in record.released.items()):
        before = [0.0] * len(released.sum) if stream else sums.get(arm, [0.0] * len(released.sum))
        sums[arm] = [x + y for x, y in zip(before, released.sum, strict=True)]
        survivors[arm] = survivors.get(arm, 0) + released.survivors
    return {
        arm: ReleasedCohort(cohort=cohorts[arm].cohort, sum=total, survivors=survivors[arm])
        for arm, total in sums.items()
    }

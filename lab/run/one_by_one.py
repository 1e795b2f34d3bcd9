"""A policy that asks one client a round, in process: the same learner with a lighter record, for a million rounds."""

from collections.abc import Sequence
from dataclasses import replace

from distrust.common.messages.run import RunConfig
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundRecord
from distrust.server.policies.base import Key, Query

RECORDS = 1000
"""Records of a whole run, at most, and about as many rounds in detail while it is played."""


class OneByOne(Learner):
    """Decides as any learner does; `rounds` joins every `block` closed rounds into one record.

    A record of a block stands for its rounds: its number is the last one's; for each arm it has one cohort of all the
    clients that were asked, named as their last one, and the sum over those who answered.
    """

    def __init__(self, config: RunConfig, block: int | None = None) -> None:
        self._block = block or -(-config.horizon // RECORDS)
        self.blocks: list[RoundRecord] = []
        super().__init__(config)

    def _open_round(self) -> None:
        if len(self.rounds) - len(self.blocks) == self._block:
            self._join()
        super()._open_round()

    def _finish(self, leftover: dict[int, int]) -> None:
        super()._finish(leftover)
        if len(self.rounds) > len(self.blocks):
            self._join()

    def _join(self) -> None:
        """All rounds since the last block, into one more."""
        self.blocks.append(joined(self.rounds[len(self.blocks) :]))
        self.rounds[len(self.blocks) - 1 :] = [self.blocks[-1]]


def joined(records: Sequence[RoundRecord]) -> RoundRecord:
    """One record for consecutive rounds of one mechanism, decision and statistic, none of which dropped an arm."""
    last, cohorts = records[-1], _by_arm(records)
    if len(records) == 1:
        return last
    ask = replace(last.ask, queries=tuple(Query(arm, one.clients) for arm, one in cohorts.items()))
    record = RoundRecord(last.number, ask, last.mechanisms, last.minima, tuple(cohorts.values()))
    record.released = _released(records, cohorts)
    return record


def _by_arm(records: Sequence[RoundRecord]) -> dict[Key, CohortPlan]:
    """The last cohort of every arm, with all the clients that the arm was asked for."""
    found: dict[Key, CohortPlan] = {}
    clients: dict[Key, int] = {}
    for cohort in (cohort for record in records for cohort in record.cohorts):
        clients[cohort.arm] = clients.get(cohort.arm, 0) + cohort.clients
        found[cohort.arm] = cohort
    return {arm: replace(found[arm], clients=clients[arm]) for arm in sorted(found, key=lambda arm: arm or 0)}


def _released(records: Sequence[RoundRecord], cohorts: dict[Key, CohortPlan]) -> dict[Key, ReleasedCohort]:
    """The sums over all who answered, by arm."""
    sums: dict[Key, list[float]] = {}
    survivors: dict[Key, int] = {}
    for arm, one in (item for record in records for item in record.released.items()):
        sums[arm] = [x + y for x, y in zip(sums.get(arm, [0.0] * len(one.sum)), one.sum, strict=True)]
        survivors[arm] = survivors.get(arm, 0) + one.survivors
    return {
        arm: ReleasedCohort(cohort=cohorts[arm].cohort, sum=total, survivors=survivors[arm])
        for arm, total in sums.items()
    }

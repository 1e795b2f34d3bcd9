"""The round machine: a pure function of a configuration and its cohorts' outcomes. No I/O, no clock, no chance."""

from collections.abc import Iterable
from typing import Self

from common.errors import BadMessage, BadParameter, BudgetExceeded, WrongCohort
from common.messages.progress import Snapshot
from common.messages.run import RunConfig
from common.statistics import Reward, Statistic
from server.checks import check
from server.ledger import admit
from server.outcome import Lost, Released
from server.policies import Estimate, Policy, SuccessiveElimination
from server.policies.successive_elimination import in_turn
from server.rounds import CohortPlan, RoundPlan, RoundRecord, begin, wave
from server.snapshot import snapshot


class Learner:
    """Plans rounds, absorbs what came out of their cohorts, and stops before the horizon is passed.

    Attempts  A round's cohorts are one wave. When all of them have ended, the aborted ones are replaced together by
              fresh cohorts of fresh clients, the next wave, if the horizon allows all of them; otherwise the run
              finishes, and nothing of that batch is used. So the order of outcomes within a wave never matters.
    Pulls     A client counts as a pull of its arm from the moment its cohort is planned.
    Fault     A later round whose mechanism cannot be calibrated, or that would overdraw the budget, ends the run;
              `fault` says why.
    Raises    BadParameter for a configuration that cannot be run (server.checks), or whose first round
              cannot be calibrated; BudgetExceeded when that would overdraw already.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.statistic: Statistic = Reward()
        check(config, self.statistic)
        self.policy = _policy(config)
        self.pulls = [0] * config.arms
        self.aborted = 0
        self.unfinished = 0
        self.finished = False
        self.fault: str | None = None
        self.rounds: list[RoundRecord] = []
        self._pending: dict[str, CohortPlan] = {}
        self._lost: list[int] = []
        self._open_round()

    @classmethod
    def replay(cls, config: RunConfig, outcomes: Iterable[Released | Lost]) -> Self:
        """The learner after these outcomes: the same ones always give the same plans."""
        learner = cls(config)
        for outcome in outcomes:
            learner.absorb(outcome)
        return learner

    @property
    def left(self) -> int:
        """Clients that may still be asked."""
        return self.config.horizon - sum(self.pulls)

    def plan(self) -> RoundPlan | None:
        """The open round with its cohorts that have no outcome yet; None when the run is over."""
        if self.finished:
            return None
        record = self.rounds[-1]
        pending = tuple(self._pending.values())
        return RoundPlan(record.number, record.ask.batch, record.mechanism, record.minimum, pending)

    def absorb(self, outcome: Released | Lost) -> None:
        """Take one cohort's end. Raises WrongCohort if it is not waited for, BadMessage for an impossible sum."""
        cohort = self._pending.get(outcome.cohort)
        if cohort is None:
            raise WrongCohort(f"cohort {outcome.cohort} is not waited for in run {self.config.run}")
        if isinstance(outcome, Released):
            self._keep(cohort, outcome)
        else:
            self._lost.append(cohort.arm)
            self.aborted += 1
        del self._pending[outcome.cohort]
        if not self._pending:
            self._next_wave()

    def snapshot(self) -> Snapshot:
        """Where the run stands."""
        return snapshot(self)

    def _keep(self, cohort: CohortPlan, outcome: Released) -> None:
        record = self.rounds[-1]
        if not record.minimum <= outcome.survivors <= cohort.clients:
            raise BadMessage(
                f"cohort {cohort.cohort}: {outcome.survivors} survivors of {cohort.clients}, needs {record.minimum}"
            )
        if len(outcome.sum) != self.statistic.dimension:
            raise BadMessage(
                f"cohort {cohort.cohort}: {len(outcome.sum)} coordinates, needs {self.statistic.dimension}"
            )
        record.released[cohort.arm] = outcome

    def _next_wave(self) -> None:
        lost, self._lost = tuple(sorted(self._lost)), []
        if not lost:
            self._close_round()
        elif len(lost) * self.rounds[-1].ask.clients <= self.left:
            self._ask(lost)
        else:
            clients = self.rounds[-1].ask.clients
            self.unfinished += self.rounds[-1].clients
            self._finish(in_turn(lost, clients, self.left))

    def _close_round(self) -> None:
        record, before = self.rounds[-1], self.policy.active
        self.policy.tell([_estimate(record, arm) for arm in sorted(record.released)])
        stay = set(self.policy.active)
        record.eliminated = tuple(arm for arm in before if arm not in stay)
        self._open_round()

    def _open_round(self) -> None:
        ask = self.policy.ask(self.left)
        if ask is None:
            self._finish(self.policy.leftover(self.left))
            return
        try:
            record = begin(self.config, len(self.rounds) + 1, ask, self.statistic)
            admit(self.config, self.rounds, record)
        except (BadParameter, BudgetExceeded) as error:
            if not self.rounds:
                raise
            self.finished, self.fault = True, f"round {len(self.rounds) + 1}: {error}"
        else:
            self.rounds.append(record)
            self._ask(ask.arms)

    def _ask(self, arms: tuple[int, ...]) -> None:
        """One more attempt of the open round, for these arms."""
        record = self.rounds[-1]
        cohorts = wave(self.config.run, record, arms, record.attempts + 1)
        record.cohorts += cohorts
        self._pending = {cohort.cohort: cohort for cohort in cohorts}
        self._count({cohort.arm: cohort.clients for cohort in cohorts})

    def _finish(self, leftover: dict[int, int]) -> None:
        """The last clients are played as the paper plays them; nothing is opened for them and nothing released."""
        self._count(leftover)
        self.unfinished += sum(leftover.values())
        self.finished = True

    def _count(self, clients: dict[int, int]) -> None:
        for arm, count in clients.items():
            self.pulls[arm] += count


def _policy(config: RunConfig) -> Policy:
    spec = config.policy
    return SuccessiveElimination(
        arms=config.arms, first_batch=spec.first_batch, failure=spec.failure, calibration=config.mechanism.calibration
    )


def _estimate(record: RoundRecord, arm: int) -> Estimate:
    outcome = record.released[arm]
    return Estimate(arm, outcome.sum[0], outcome.survivors, record.mechanism.error(outcome.survivors))

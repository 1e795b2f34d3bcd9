"""Plans rounds as a pure function of a configuration and its cohorts' outcomes. No I/O, no clock."""

from collections.abc import Callable, Iterable
from operator import le
from typing import Self

from distrust.common.dp.accounting.guarantee import Guarantee, ShownGuarantee
from distrust.common.errors import BadMessage, BadParameter, BudgetExceeded, RunFailed, WrongCohort, describe_error
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import ArmView, Snapshot
from distrust.server.learner.rounds import (
    CohortPlan,
    LostCohort,
    ReleasedCohort,
    RoundPlan,
    RoundRecord,
    attempt_cohorts,
    check_budget,
    plan_round,
    spent_at_most,
)
from distrust.server.learner.run_config import build_policy, check_run_config
from distrust.server.policies.base import ArmKey, Ask, Estimate, Policy, Query, StoppedPolicy

MOST_FORMED = 1000
"""Intervals of one round that are kept for watchers: 160 bytes each, until the run's last round is forgotten."""

PlayCohort = Callable[[RoundPlan, CohortPlan], ReleasedCohort | LostCohort]
"""Returns the outcome of one cohort of a round."""


class Learner:
    """Plans rounds, absorbs their cohorts' outcomes, and stops before the horizon is passed.

    Attempts  A round's cohorts are its first attempt. When all of them have ended, the aborted ones are replaced
              together by fresh cohorts of fresh clients, the next attempt, if the horizon allows all of them. Otherwise
              the run finishes, and nothing of that batch is used. So the order of outcomes within an attempt never
              matters.
    Pulls     What a cohort plays counts from the moment it is planned: a pull a client, or what its decision says.
    Fault     The run ends early and `fault` says why: a later round's mechanism cannot be calibrated or would overdraw
              the budget, the policy or the analyzer raised an exception (its type is named), or no round was closed.
              The same outcomes end in the same fault, so that a replay stops where the run stopped.
    Raises    BadParameter for a configuration that cannot be run (server.learner.run_config), or whose first round
              cannot be calibrated; BudgetExceeded when that would overdraw already; RunFailed when the policy raises
              any other exception in its first round.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        check_run_config(config)
        self.policy: Policy = build_policy(config)
        self.pulls = [0] * config.arms
        self.hidden = 0  # pulls whose arms only the clients know
        self.aborted = 0
        self.unfinished = 0
        self.finished = False
        self.fault: str | None = None
        self.error: Exception | None = None
        self.rounds: list[RoundRecord] = []
        self._closed = 0
        self._pending: dict[str, CohortPlan] = {}
        self._lost: list[ArmKey] = []
        self._last_loss = ""
        self._open_round()

    @classmethod
    def replay(cls, config: RunConfig, outcomes: Iterable[ReleasedCohort | LostCohort]) -> Self:
        """Return the learner after these outcomes. The same outcomes always give the same plans."""
        learner = cls(config)
        for outcome in outcomes:
            try:
                learner.absorb(outcome)
            except (BadMessage, WrongCohort) as error:  # committed by another version of this code
                learner.fail(f"replay of cohort {outcome.cohort}", error)
                break
        return learner

    def run_cohorts(self, outcome: PlayCohort, watch: Callable[[Self], None] = lambda _learner: None) -> None:
        """Play the run to its end: `outcome` returns each cohort's outcome; `watch` is called after each cohort."""
        while plan := self.plan():
            for cohort in plan.cohorts:
                self.absorb(outcome(plan, cohort))
                watch(self)
                if self.finished:  # a fault ends the run in the middle of an attempt
                    return

    @property
    def left(self) -> int:
        """Return how many pulls the horizon leaves."""
        return self.config.horizon - self.spent

    @property
    def spent(self) -> int:
        """Return how many pulls were planned."""
        return sum(self.pulls) + self.hidden

    def plan(self) -> RoundPlan | None:
        """Return the open round with the cohorts that have no outcome yet; None when the run is over."""
        if self.finished:
            return None
        record = self.rounds[-1]
        pending = tuple(self._pending.values())
        ask = record.ask
        return RoundPlan(
            number=record.number,
            batch=ask.batch,
            decision=ask.decision,
            statistic=ask.statistic,
            mechanism=record.mechanism,
            minimum=record.minimum,
            cohorts=pending,
            cumulative=ask.cumulative,
        )

    def absorb(self, outcome: ReleasedCohort | LostCohort) -> None:
        """Take one cohort's outcome. Raises WrongCohort if it is not waited for, BadMessage for an impossible sum."""
        cohort = self._pending.get(outcome.cohort)
        if cohort is None:
            raise WrongCohort(f"cohort {outcome.cohort} is not waited for in run {self.config.run}")
        if isinstance(outcome, ReleasedCohort):
            self._keep(cohort, outcome)
        else:
            self._lost.append(cohort.arm)
            self.aborted += 1
            self._last_loss = f"cohort {outcome.cohort}: {outcome.reason}"
        del self._pending[outcome.cohort]
        if isinstance(outcome, LostCohort) and outcome.fault:
            self.stop(f"round {self._number}: {self._last_loss}")
        elif not self._pending:
            self._end_attempt()

    def fail(self, where: str, error: Exception) -> None:
        """End the run as failed, for an exception outside the protocol. `where` names the step that raised it."""
        self.error = error
        self.stop(f"{where}: {describe_error(error)}")

    @property
    def _number(self) -> int:
        """Return the last round's number so far; 0 before the first."""
        return self.rounds[-1].number if self.rounds else 0

    def snapshot(self) -> Snapshot:
        """Return active arms, intervals, pulls, losses and the guarantee so far."""
        return Snapshot(
            arms=_arms(self),
            horizon=self.config.horizon,
            pulls=self.spent,
            round=self.rounds[-1].number,
            aborted=self.aborted,
            unfinished=self.unfinished,
            chosen=self.policy.chosen,
            finished=self.finished,
            guarantee=spent_at_most(self.config, self.rounds),  # the open round's cohorts may be released already
        )

    def _keep(self, cohort: CohortPlan, outcome: ReleasedCohort) -> None:
        record = self.rounds[-1]
        if not cohort.minimum <= outcome.survivors <= cohort.clients:
            raise BadMessage(
                f"cohort {cohort.cohort}: {outcome.survivors} survivors of {cohort.clients}, needs {cohort.minimum}"
            )
        if len(outcome.sum) != record.ask.width:
            raise BadMessage(f"cohort {cohort.cohort}: {len(outcome.sum)} coordinates, needs {record.ask.width}")
        _check_counts(record, outcome)
        record.released[cohort.arm] = outcome

    def _end_attempt(self) -> None:
        ask, arms = self.rounds[-1].ask, set(self._lost)
        self._lost = []
        lost = tuple(query for query in ask.queries if query.arm in arms)
        if not lost:
            self._close_round()
        elif ask.cost(lost) <= self.left:
            self._open_attempt(lost)
        else:
            self.unfinished += ask.cost([Query(cohort.arm, cohort.clients) for cohort in self.rounds[-1].cohorts])
            self._finish(ask.spend(lost, self.left))

    def _close_round(self) -> None:
        record, before = self.rounds[-1], self.policy.active
        try:
            self.policy.tell([_estimate(record, query) for query in record.ask.queries])
            stay, latest = set(self.policy.active), self.policy.latest_intervals
        except Exception as error:  # noqa: BLE001 - whatever a policy raises, the run ends and says so
            self.policy = StoppedPolicy.instead_of(self.policy, before)
            self.fail(f"round {record.number}", error)
            return
        record.eliminated = tuple(arm for arm in before if arm not in stay)
        record.latest_intervals = latest if len(latest) <= MOST_FORMED else ()
        self._closed += 1
        self._open_round()

    def _open_round(self) -> None:
        number = self._number + 1
        try:
            ask, record, leftover = self._planned(number)
        except (BadParameter, BudgetExceeded) as error:
            if not self.rounds:
                raise
            self.stop(f"round {number}: {error}")
        except Exception as error:
            if not self.rounds:
                raise RunFailed(f"run {self.config.run} cannot be planned: {describe_error(error)}") from error
            self.policy = StoppedPolicy.instead_of(self.policy, self.policy.active)
            self.fail(f"round {number}", error)
        else:
            if ask is None or record is None:
                self._finish(leftover)
            else:
                self.rounds.append(record)
                self._open_attempt(ask.queries)

    def _planned(self, number: int) -> tuple[Ask | None, RoundRecord | None, dict[ArmKey, int]]:
        """Return the next round, or else how the last pulls are played."""
        ask = self.policy.ask(self.left)
        if ask is None:
            return None, None, self.policy.leftover(self.left)
        record = plan_round(self.config, number, ask, len(self.policy.active), self.rounds[-1:])
        check_budget(self.config, self.rounds, record)
        return ask, record, {}

    def _open_attempt(self, queries: tuple[Query, ...]) -> None:
        """Open one more attempt of the open round, for these queries."""
        record = self.rounds[-1]
        cohorts = attempt_cohorts(self.config.run, record, queries, record.attempts + 1)
        record.cohorts += cohorts
        self._pending = {cohort.cohort: cohort for cohort in cohorts}
        for query in queries:
            self._count(record.ask.pulls(query))

    def _finish(self, leftover: dict[ArmKey, int]) -> None:
        """Finish the run: count the last pulls as the paper plays them. No cohort is opened for them."""
        self._count(leftover.items())
        self.unfinished += sum(leftover.values())
        self.finished = True
        if not self._closed:  # the policy was told nothing: there is no result
            cohorts = sum(len(record.cohorts) for record in self.rounds)
            self.stop(
                f"nothing was measured: no round was closed, {self.aborted} of {cohorts} cohorts were aborted; "
                f"the last one was {self._last_loss}"
            )

    def stop(self, why: str) -> None:
        """End the run as failed: no more cohorts, no more rounds."""
        self.finished, self.fault = True, why
        self._pending = {}

    def _count(self, pulls: Iterable[tuple[ArmKey, int]]) -> None:
        for arm, count in pulls:
            if arm is None:
                self.hidden += count
            else:
                self.pulls[arm] += count


def _estimate(record: RoundRecord, query: Query) -> Estimate:
    outcome, mechanism = record.released[query.arm], record.mechanisms[query.clients]
    counts = tuple(outcome.counts or [outcome.survivors] * len(outcome.sum))
    laws = {count: mechanism.error(max(1, count)) for count in set(counts)}
    noise = tuple(laws[count] for count in counts)
    return Estimate(
        arm=query.arm,
        sums=tuple(outcome.sum),
        counts=counts,
        laws=noise,
        rounding=mechanism.rounding,
        joint=mechanism.joint,
        prefix=record.ask.cumulative and mechanism.takes_batches,
        nodes=mechanism.nodes,
        clients=query.clients,
        whole=mechanism.error(query.clients),
    )


def _check_counts(record: RoundRecord, outcome: ReleasedCohort) -> None:
    """Refuse counts by action without assigned actions, and counts that do not fit them. Raises BadMessage."""
    decision = record.ask.decision
    if decision.kind != "assigned-action":
        if outcome.counts is not None:
            raise BadMessage(f"cohort {outcome.cohort}: counts by action, where all clients play alike")
        return
    counts = outcome.counts or []
    fit = len(counts) == len(decision.times) and all(map(le, counts, decision.times))
    if not fit or sum(counts) != outcome.survivors:
        raise BadMessage(f"cohort {outcome.cohort}: {counts} survivors by action, of {decision.times}")


def blank_snapshot(config: RunConfig) -> Snapshot:
    """Return the snapshot of a run that cannot be played again: no estimates, and no promise of privacy."""
    why = ("the run cannot be played again from what is stored: nothing is promised of it",)
    promise = Guarantee(
        kind="none", epsilon=None, model="none", calibration=config.mechanism.calibration, assumptions=why
    )
    return Snapshot(
        arms=[ArmView(arm=arm, active=True, pulls=0) for arm in range(config.arms)],
        horizon=config.horizon,
        pulls=0,
        round=0,
        aborted=0,
        unfinished=0,
        chosen=None,
        finished=True,
        guarantee=ShownGuarantee.of(promise, promise),
    )


def _arms(learner: Learner) -> list[ArmView]:
    dropped = {arm: record.number for record in learner.rounds for arm in record.eliminated}
    views = [
        ArmView(arm=arm, active=arm not in dropped, pulls=pulls, eliminated=dropped.get(arm))
        for arm, pulls in enumerate(learner.pulls)
    ]
    for interval in learner.policy.intervals:
        bounds = {"batch": interval.batch, "mean": interval.mean, "lower": interval.lower, "upper": interval.upper}
        views[interval.arm] = views[interval.arm].model_copy(update=bounds)
    return views

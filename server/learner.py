"""The round machine: a pure function of a configuration and its cohorts' outcomes. No I/O, no clock, no chance."""

from collections.abc import Callable, Iterable
from operator import le
from typing import Self

from common.errors import BadMessage, BadParameter, BudgetExceeded, WrongCohort
from common.messages.progress import Snapshot
from common.messages.run import RunConfig
from server.checks import check
from server.ledger import admit
from server.outcome import Lost, Released
from server.policies import Estimate, Key, Policy, Query
from server.policy import build
from server.rounds import CohortPlan, RoundPlan, RoundRecord, begin, wave
from server.snapshot import snapshot

JOINT = ("local-sphere",)
"""Mechanisms whose noise is one draw for a client's whole vector."""

Play = Callable[[RoundPlan, CohortPlan], Released | Lost]
"""How one cohort of a round ends."""


class Learner:
    """Plans rounds, absorbs what came out of their cohorts, and stops before the horizon is passed.

    Attempts  A round's cohorts are one wave. When all of them have ended, the aborted ones are replaced together by
              fresh cohorts of fresh clients, the next wave, if the horizon allows all of them; otherwise the run
              finishes, and nothing of that batch is used. So the order of outcomes within a wave never matters.
    Pulls     What a cohort plays counts from the moment it is planned: a pull a client, or what its decision says.
    Fault     A later round whose mechanism cannot be calibrated, or that would overdraw the budget, ends the run;
              `fault` says why.
    Raises    BadParameter for a configuration that cannot be run (server.checks), or whose first round
              cannot be calibrated; BudgetExceeded when that would overdraw already.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        check(config)
        self.policy: Policy = build(config)
        self.pulls = [0] * config.arms
        self.aborted = 0
        self.unfinished = 0
        self.finished = False
        self.fault: str | None = None
        self.rounds: list[RoundRecord] = []
        self._pending: dict[str, CohortPlan] = {}
        self._lost: list[Key] = []
        self._open_round()

    @classmethod
    def replay(cls, config: RunConfig, outcomes: Iterable[Released | Lost]) -> Self:
        """The learner after these outcomes: the same ones always give the same plans."""
        learner = cls(config)
        for outcome in outcomes:
            learner.absorb(outcome)
        return learner

    def play(self, outcome: Play, watch: Callable[[Self], None] = lambda _learner: None) -> None:
        """To the end of the run: `outcome` says how a cohort ends, `watch` is called after each."""
        while plan := self.plan():
            for cohort in plan.cohorts:
                self.absorb(outcome(plan, cohort))
                watch(self)

    @property
    def left(self) -> int:
        """Pulls that may still be asked for."""
        return self.config.horizon - sum(self.pulls)

    def plan(self) -> RoundPlan | None:
        """The open round with its cohorts that have no outcome yet; None when the run is over."""
        if self.finished:
            return None
        record = self.rounds[-1]
        pending = tuple(self._pending.values())
        ask = record.ask
        return RoundPlan(
            record.number, ask.batch, ask.decision, ask.statistic, record.mechanism, record.minimum, pending
        )

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

    @property
    def _number(self) -> int:
        """Of the last round so far."""
        return self.rounds[-1].number if self.rounds else 0

    def snapshot(self) -> Snapshot:
        """Where the run stands."""
        return snapshot(self)

    def _keep(self, cohort: CohortPlan, outcome: Released) -> None:
        record = self.rounds[-1]
        if not cohort.minimum <= outcome.survivors <= cohort.clients:
            raise BadMessage(
                f"cohort {cohort.cohort}: {outcome.survivors} survivors of {cohort.clients}, needs {cohort.minimum}"
            )
        if len(outcome.sum) != record.ask.width:
            raise BadMessage(f"cohort {cohort.cohort}: {len(outcome.sum)} coordinates, needs {record.ask.width}")
        _check_counts(record, outcome)
        record.released[cohort.arm] = outcome

    def _next_wave(self) -> None:
        ask, gone = self.rounds[-1].ask, set(self._lost)
        self._lost = []
        lost = tuple(query for query in ask.queries if query.arm in gone)
        if not lost:
            self._close_round()
        elif ask.cost(lost) <= self.left:
            self._ask(lost)
        else:
            self.unfinished += ask.cost([Query(one.arm, one.clients) for one in self.rounds[-1].cohorts])
            self._finish(ask.spend(lost, self.left))

    def _close_round(self) -> None:
        record, before = self.rounds[-1], self.policy.active
        self.policy.tell([_estimate(record, query) for query in record.ask.queries])
        stay = set(self.policy.active)
        record.eliminated = tuple(arm for arm in before if arm not in stay)
        self._open_round()

    def _open_round(self) -> None:
        try:
            ask = self.policy.ask(self.left)
            record = None if ask is None else begin(self.config, self._number + 1, ask, self.rounds[-1:])
            if record is not None:
                admit(self.config, self.rounds, record)
        except (BadParameter, BudgetExceeded) as error:
            if not self.rounds:
                raise
            self.finished, self.fault = True, f"round {self._number + 1}: {error}"
            return
        if ask is None or record is None:
            self._finish(self.policy.leftover(self.left))
        else:
            self.rounds.append(record)
            self._ask(ask.queries)

    def _ask(self, queries: tuple[Query, ...]) -> None:
        """One more attempt of the open round, for these queries."""
        record = self.rounds[-1]
        cohorts = wave(self.config.run, record, queries, record.attempts + 1)
        record.cohorts += cohorts
        self._pending = {cohort.cohort: cohort for cohort in cohorts}
        for query in queries:
            self._count(record.ask.pulls(query))

    def _finish(self, leftover: dict[int, int]) -> None:
        """The last clients are played as the paper plays them; nothing is opened for them and nothing released."""
        self._count(leftover.items())
        self.unfinished += sum(leftover.values())
        self.finished = True

    def _count(self, pulls: Iterable[tuple[int, int]]) -> None:
        for arm, count in pulls:
            self.pulls[arm] += count


def _estimate(record: RoundRecord, query: Query) -> Estimate:
    outcome, mechanism = record.released[query.arm], record.mechanisms[query.clients]
    counts = tuple(outcome.counts or [outcome.survivors] * len(outcome.sum))
    laws = {count: mechanism.error(max(1, count)) for count in set(counts)}
    told = tuple(laws[count] for count in counts)
    return Estimate(query.arm, tuple(outcome.sum), counts, told, mechanism.rounding, joint=mechanism.name in JOINT)


def _check_counts(record: RoundRecord, outcome: Released) -> None:
    """Action by action counts come with assigned actions, and with nothing else."""
    decision = record.ask.decision
    if decision.kind != "assigned-action":
        if outcome.counts is not None:
            raise BadMessage(f"cohort {outcome.cohort}: counts by action, where everybody plays alike")
        return
    counts = outcome.counts or []
    fit = len(counts) == len(decision.times) and all(map(le, counts, decision.times))
    if not fit or sum(counts) != outcome.survivors:
        raise BadMessage(f"cohort {outcome.cohort}: {counts} survivors by action, of {decision.times}")

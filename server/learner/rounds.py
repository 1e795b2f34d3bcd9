"""Plans a round's cohorts, records their outcomes, and computes what the round costs its clients."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from distrust.common.bandit.decisions import Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.accounting.guarantee import Guarantee, ShownGuarantee
from distrust.common.dp.accounting.ledger import Entry, PrivacyLedger, parallel, within
from distrust.common.dp.accounting.profile import BatchStream, Privacy, Repeated
from distrust.common.dp.mechanisms import AnyMechanism, Mechanism, plan, privacy_of, promise_of
from distrust.common.errors import BadParameter, BudgetExceeded
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.progress import LedgerClass
from distrust.common.wire import Identifier, Message
from distrust.server.policies.base import ArmKey, Ask, Interval, Query

SEEDED = "unsafe.noise_seed: the privacy noise can be computed by every party that knows the seed"


class ReleasedCohort(Message):
    """Outcome of a released cohort: the analyzer's estimate of the survivors' true sum.

    sum     one number a coordinate, in data units, with its final noise.

    counts  for assigned actions the survivors by action; then `sum` is by action, too.
    liars, disputes  what the aggregator reported of clients that lied (see `Batch`).
    """

    kind: Literal["released"] = "released"
    cohort: Identifier
    sum: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1)]
    survivors: Annotated[int, Field(ge=1)]
    counts: list[Annotated[int, Field(ge=0)]] | None = None
    liars: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    disputes: Annotated[int, Field(ge=0)] = 0


class LostCohort(Message):
    """Outcome of an aborted cohort: no sum, and the reason.

    fault  the server's own code raised an exception on this cohort; the run ends as failed, and nothing is retried.
    """

    kind: Literal["aborted"] = "aborted"
    cohort: Identifier
    reason: str
    fault: bool = False


Outcome = Annotated[ReleasedCohort | LostCohort, Field(discriminator="kind")]

OUTCOME_JSON: TypeAdapter[ReleasedCohort | LostCohort] = TypeAdapter(Outcome)
"""Reads an outcome from its JSON. A run is its configuration and its outcomes, in order; no more is stored."""


ASSIGNED_ACTION_ASSUMPTIONS = (
    "the server cannot see what a client plays",
    "whether a client leaves does not depend on the action that it was dealt",
    "the server, which hands out the slots, holds no more of them itself than the colluders that are counted",
    "the shuffler keeps away from the estimates: it knows who plays what, so against it each client has its own noise",
)
"""Assumptions of the guarantee of assigned actions, besides an honest shuffler (FREE, footnote 2)."""


@dataclass(frozen=True, slots=True)
class CohortPlan:
    """`clients` fresh clients play `arm`, or what the round's decision says when it is None.

    attempt    from 1; each replacement of the cohort counts one more.
    minimum    smallest number of survivors.
    mechanism  calibrated to it.
    """

    cohort: str
    arm: ArmKey
    clients: int
    attempt: int
    minimum: int
    mechanism: AnyMechanism


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The open round, with the `cohorts` that have no outcome. `mechanism` and `minimum` are of its largest cohorts."""

    number: int
    batch: int
    decision: Decision
    statistic: Statistic
    mechanism: AnyMechanism
    minimum: int
    cohorts: tuple[CohortPlan, ...]
    cumulative: bool = False


@dataclass
class RoundRecord:
    """A round, open or closed: the cohorts of all attempts, the sums by query, the arms dropped after it.

    mechanisms, minima  by the size of a cohort. Only the learner changes a record.
    latest_intervals    the intervals that the policy formed when the round was closed, for watchers.
    joined              cohorts of the rounds that the record stands for; 0: it is one round's.
    """

    number: int
    ask: Ask
    mechanisms: dict[int, AnyMechanism]
    minima: dict[int, int]
    cohorts: tuple[CohortPlan, ...] = ()
    released: dict[ArmKey, ReleasedCohort] = field(default_factory=dict)
    eliminated: tuple[int, ...] = ()
    latest_intervals: tuple[Interval, ...] = ()
    joined: int = 0

    @property
    def played(self) -> int:
        """Return how many cohorts clients may have taken part in: one at least, and those of all rounds it stands for.

        As many batches of a stream may a returning client be in.
        """
        return self.joined or max(1, len(self.cohorts))

    @property
    def mechanism(self) -> AnyMechanism:
        """Return the mechanism of the largest cohorts."""
        return self.mechanisms[max(self.mechanisms)]

    @property
    def minimum(self) -> int:
        """Return the minimum of the largest cohorts."""
        return self.minima[max(self.minima)]

    @cached_property
    def cost(self) -> "RoundCost":
        """Return what the round costs its clients, each cohort at its least number of honest survivors."""
        return RoundCost(tuple(self.mechanisms.values()), assigned=self.ask.decision.kind == "assigned-action")

    @cached_property
    def cost_alone(self) -> "RoundCost":
        """Return what it costs a client if all others of its cohort collude; `cost` where it counts on no other."""
        alone = replace(self.cost, alone=True)
        counts = any(promise_of(one) is not promise_of(one, alone=True) for one in self.cost.mechanisms)
        return alone if counts else self.cost

    @property
    def clients(self) -> int:
        """Return the number of clients of all attempts of this round."""
        return sum(cohort.clients for cohort in self.cohorts)

    @property
    def attempts(self) -> int:
        """Return the number of attempts so far."""
        return max((cohort.attempt for cohort in self.cohorts), default=0)


@dataclass(frozen=True)
class RoundCost:
    """What the mechanisms of one round cost a client of one of its cohorts.

    assigned  whether the shuffler assigns the actions.
    alone     whether all other clients of the cohort collude.
    """

    mechanisms: tuple[AnyMechanism, ...]
    assigned: bool
    alone: bool = False

    @cached_property
    def guarantee(self) -> Guarantee:
        """Return the weakest guarantee of the mechanisms."""
        return self._weakest([promise_of(mechanism, alone=self.alone) for mechanism in self.mechanisms])

    @cached_property
    def composable(self) -> Guarantee:
        """Return the weakest guarantee for clients that return, in the form that several of them compose by."""
        every = [promise_of(mechanism, composable=True, alone=self.alone) for mechanism in self.mechanisms]
        return self._weakest(every)

    @cached_property
    def streams(self) -> tuple[BatchStream, ...]:
        """Return the streams that the cohorts are batches of; none where a mechanism's releases compose."""
        streams = [one.stream for one in self._privacies]
        return tuple(stream for stream in streams if stream is not None) if all(streams) else ()

    @cached_property
    def laws(self) -> tuple[Repeated, ...]:
        """Return the laws by which several releases of the cohorts compose; none where a mechanism has none."""
        laws = [one.repeated for one in self._privacies]
        return tuple(law for law in laws if law is not None) if all(laws) else ()

    @property
    def _privacies(self) -> list[Privacy]:
        return [privacy_of(mechanism, alone=self.alone) for mechanism in self.mechanisms]

    def _weakest(self, guarantees: Sequence[Guarantee]) -> Guarantee:
        weakest = guarantees[0] if len(guarantees) == 1 else parallel(guarantees)
        if not self.assigned or weakest.model != "shuffle":
            return weakest
        return weakest.model_copy(update={"assumptions": (*weakest.assumptions, *ASSIGNED_ACTION_ASSUMPTIONS)})


def plan_round(
    config: RunConfig, number: int, ask: Ask, active: int, before: Sequence[RoundRecord] = ()
) -> RoundRecord:
    """Return a round with its mechanisms: planned, or those of a round `before` of the same sizes, p' and statistic.

    active  arms that are not dropped; p' of the mechanisms is what the policy's spec says of a round with so many.
    Raises  BadParameter when one cannot be calibrated to its cohorts, and for a round of a stream that differs.
    """
    sizes, share = sorted({query.clients for query in ask.queries}), config.overflow_probability(number, active)
    for old in before:
        if [*old.mechanisms] == sizes and (old.mechanism.wrap, old.ask.statistic) == (share, ask.statistic):
            return RoundRecord(number, ask, old.mechanisms, old.minima)
    minima = {size: config.intermediary.min_survivors(size) for size in sizes}
    mechanisms = {size: _calibrated(config, ask, size, share) for size in sizes}
    counted = ask.cumulative and any(mechanism.takes_batches for mechanism in mechanisms.values())
    if counted and any(old.ask.cumulative and old.mechanisms != mechanisms for old in before):  # modulo one m only
        allowed = "counts a stream, whose rounds must all have one size, one share and one statistic"
        raise BadParameter("mechanism.name", config.mechanism.name, allowed)
    return RoundRecord(number, ask, mechanisms, minima)


def _calibrated(config: RunConfig, ask: Ask, clients: int, share: float) -> AnyMechanism:
    words = config.mechanism
    assigned = ask.decision.kind == "assigned-action"
    if assigned:  # only the shuffler assigns actions, whatever the mechanism's own choice is
        words = words.model_copy(update={"via": "shuffler"})
    return plan(
        words,
        clients=clients,
        min_survivors=config.intermediary.min_survivors(clients),
        min_honest=config.intermediary.min_honest(clients),
        overflow_probability=share,
        statistic=ask.statistic,
        assigned=assigned,
        printed=config.policy.noise_source,
    )


def attempt_cohorts(run: str, record: RoundRecord, queries: tuple[Query, ...], attempt: int) -> tuple[CohortPlan, ...]:
    """Return one planned cohort for each of `queries`. Ids end in three numbers, so that two runs never share an id."""
    return tuple(
        CohortPlan(
            cohort=f"{run}.{record.number}.{query.arm or 0}.{attempt}",
            arm=query.arm,
            clients=query.clients,
            attempt=attempt,
            minimum=record.minima[query.clients],
            mechanism=record.mechanisms[query.clients],
        )
        for query in queries
    )


def promise_to_survivors(mechanism: Mechanism, survivors: int) -> str:
    """Return in words the promise of a released cohort.

    It is that with all survivors honest, and that with a tenth of them revealing their noise.
    """
    colluders = max(1, survivors // 10)
    honest, colluding = (_promise(mechanism.privacy(survivors, count).promise) for count in (0, colluders))
    return f"{honest} with the {survivors} who answered, {colluding} if {colluders} of them collude"


def _promise(guarantee: Guarantee) -> str:
    if guarantee.epsilon is None:
        return "no guarantee"
    return f"ε = {guarantee.epsilon:.3g}" + (f", δ = {guarantee.delta:.3g}" if guarantee.delta else "")


def round_guarantee(config: RunConfig, record: RoundRecord) -> ShownGuarantee:
    """Return one round's guarantee at its least number of honest survivors, and what is left if all others collude."""
    return ShownGuarantee.of(_spent(config, record.cost), _spent(config, record.cost_alone))


def _spent(config: RunConfig, cost: RoundCost) -> Guarantee:
    """Return what one contribution to a round costs; no privacy if its noise comes from a seed."""
    if config.unsafe is None:
        return cost.guarantee if config.contributions == 1 or cost.streams else cost.composable
    return _without_privacy(cost.guarantee)


@lru_cache(maxsize=64)
def _without_privacy(promise: Guarantee) -> Guarantee:
    return promise.model_copy(
        update={"kind": "none", "epsilon": None, "delta": 0.0, "rdp": (), "assumptions": (SEEDED,)}
    )


def run_ledger(config: RunConfig, records: Sequence[RoundRecord], *, alone: bool = False) -> PrivacyLedger:
    """Return the ledger of all rounds. Aborted cohorts count too: their clients may have reported.

    Consecutive rounds with one and the same guarantee are one entry: a run may have as many rounds as clients.

    alone  of what is left if all other clients of each cohort collude, which no budget is about.
    """
    entries: list[Entry] = []
    budget = None if alone else config.budget
    for cost, repeated in groupby(records, attrgetter("cost_alone" if alone else "cost")):
        rounds, guarantee = list(repeated), _spent(config, cost)
        clients, cohorts = sum(record.clients for record in rounds), sum(one.played for one in rounds)
        streams: tuple[BatchStream, ...] = ()
        laws: tuple[Repeated, ...] = ()
        if config.unsafe is None and (config.contributions > 1 or (budget and not within(guarantee, budget))):
            streams, laws = cost.streams, cost.laws
            # A single batch of a stream that does not say what several cost still has its promise.
            guarantee = guarantee if streams or cost.composable.kind == "none" else cost.composable
        if entries and entries[-1].guarantee is guarantee:
            last = entries.pop()
            clients, cohorts = last.clients + clients, last.cohorts + cohorts
        entries.append(Entry(f"rounds to {rounds[-1].number}", clients, cohorts, guarantee, streams, laws))
    return PrivacyLedger(config.contributions, budget, tuple(entries))


def spent_by_all(config: RunConfig, records: Sequence[RoundRecord]) -> tuple[LedgerClass, ...]:
    """Return the most that clients have spent, by how often they took part, the most often last.

    There must be a round.
    """
    ledger, alone = _ledgers(config, records)
    spent, left = ledger.classes, alone.classes
    return tuple(
        LedgerClass(contributions=times, guarantee=ShownGuarantee.of(one, left[times])) for times, one in spent.items()
    )


def spent_at_most(config: RunConfig, records: Sequence[RoundRecord]) -> ShownGuarantee:
    """Return the most that any client has spent. There must be a round."""
    ledger, alone = _ledgers(config, records)
    return ShownGuarantee.of(ledger.total, alone.total)


def _ledgers(config: RunConfig, records: Sequence[RoundRecord]) -> tuple[PrivacyLedger, PrivacyLedger]:
    """Return the ledger of all rounds, and that of what is left if all others collude; it may be the same one."""
    ledger = run_ledger(config, records)
    counts = any(record.cost_alone is not record.cost for record in records)
    return ledger, run_ledger(config, records, alone=True) if counts else ledger


def check_budget(config: RunConfig, records: Sequence[RoundRecord], planned: RoundRecord) -> None:
    """Refuse a round that the declared budget does not cover, before it is opened. Raises BudgetExceeded."""
    if config.budget is not None:
        if config.unsafe is not None:
            limit, seed = config.budget, config.unsafe.noise_seed
            raise BudgetExceeded(None, config.contributions, limit.epsilon, limit.delta, seed=seed)
        run_ledger(config, records).spend(run_ledger(config, [planned]).entries[0])

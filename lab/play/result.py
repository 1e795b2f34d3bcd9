"""Defines the result of a run: the object that `run --json` writes, the same for runs in process and over services.

Regret is counted here, on the clients' side: the server never learns the true means.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.decisions import AssignedArm, Decision
from distrust.common.dp.accounting.guarantee import ShownGuarantee
from distrust.common.extensions import Extension
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.protocol.run.progress import ARMS_HEAD, ArmView, LedgerClass, arm_lines
from distrust.common.wire import Message

Driver = Literal["in-process", "http"]
PROMISE = ("kind", "epsilon", "delta", "epsilon_alone", "model", "calibration")
COLUMNS: Mapping[str, Sequence[str]] = {
    "rounds": (
        *("round", "batch", "arms", "clients", "cohorts", "released", "eliminated", "pulls", "regret"),
        *("modulus", "payload_bits", *PROMISE),
    ),
    "arms": ("arm", "pulls", "mean", "lower", "upper", "batch", "active", "eliminated", "chosen"),
    "cohorts": ("round", "cohort", "arm", "clients", "survivors", "estimate", "liars", "disputes", "reason"),
    "intervals": ("round", "batch", "arm", "mean", "lower", "upper"),
    "ledger": ("contributions", *PROMISE),
}
"""Columns of `Result.frame`."""


class Regret(Message):
    """Σ over all pulls of (best mean - the pulled arm's mean). `curve`: (pulls, regret) after each round, cumulated."""

    final: float
    curve: list[tuple[int, float]]


class CohortResult(Message):
    """One cohort. `estimate` is of its survivors' sum, absent when nothing was released.

    liars     slots of clients whose lies the aggregator proved.
    disputes  pairs of which one lied.
    reason    why nothing was released, as the services report it, with the slots of clients that lied.
    """

    cohort: str
    arm: int | None
    clients: int
    survivors: int | None = None
    estimate: list[float] | None = None
    liars: list[int] = Field(default_factory=list)
    disputes: int = 0
    reason: str | None = None


class RoundResult(Message):
    """One round: its arms, those dropped after it, its cohorts, the size of a message, its line of the ledger.

    In process a record may stand for several rounds of one client each, those from `first` on (`SequentialLearner`).
    Then `number` and `decision` are the last round's, and each arm has one cohort, with the sum over all these rounds.
    """

    number: int
    first: int | None = Field(default=None, exclude_if=lambda first: first is None)
    batch: int
    arms: list[int]
    decision: Decision = AssignedArm()
    eliminated: list[int]
    modulus: int
    payload_bits: int
    guarantee: ShownGuarantee
    cohorts: list[CohortResult]

    def pulls(self) -> list[tuple[int | None, int]]:
        """Return (arm, pulls) of all its cohorts, replaced ones too; arm None where only the clients know it."""
        return [pull for cohort in self.cohorts for pull in self.decision.pulls(cohort.arm, cohort.clients)]


class Bits(Message):
    """The size of a client's message.

    payload  bits of its randomized vector, the mean over the run's clients: by the mechanism's own count.
    modulus  ⌈log₂ m⌉ bits a coordinate, the same mean: what a sum in Z_m needs.
    sent     bits of the bodies that carried it, as the fleets counted them; absent in process, like `wire`.
    wire     bytes for one client, both ways: all stages' bodies with their JSON, and header lines.
    """

    payload: float
    modulus: float
    sent: float | None = None
    wire: float | None = None


class Wire(Message):
    """The traffic and refusals that the fleets counted.

    payload_bits  sent for one client that was served; None when none was.
    bytes         both ways, for one client that joined a cohort; None when none did.
    refusals      why clients refused or were refused, and how many.
    """

    payload_bits: float | None = None
    bytes: float | None = None
    refusals: dict[str, int] = Field(default_factory=dict)


class PolicyFailures(Message):
    """Failures of one run.

    best_dropped     whether no arm of the largest true mean is left; False in a contextual run, whose clients have
                     best arms of their own.
    best_dropped_at  the pulls when the last one went; None in a contextual run.
    widths           confidence intervals that the policy formed: one for each arm that it judged after a batch, and for
                     UCB1, whose batches are pulls, one for each pull that was answered (`Policy.formed`). In a
                     contextual run the confidence ellipsoids of θ*, one for each round's decision; 0 where no theorem
                     states one, or where the clients' world has no θ*.
    width_failures   those that miss the true mean, or θ*, when they are formed. None fails later: elimination keeps an
                     interval as it is, and UCB1's only grow around the same estimate until the arm is pulled again.
    failure          probability, by the policy's own statement, that any of them does (`stated`); null for none.
    indefinite       batches after which noise left the matrix V of a contextual policy indefinite, and it was shifted
                     further than the theorem has it; absent for a policy without such a matrix.
    """

    best_dropped: bool
    best_dropped_at: int | None
    widths: int
    width_failures: int
    failure: float | None
    indefinite: int | None = Field(default=None, exclude_if=lambda indefinite: indefinite is None)


class FormedInterval(Message):
    """A confidence interval as the policy formed it after a round, not clipped to the rewards' range."""

    round: int
    batch: int
    arm: int
    mean: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Truth:
    """Facts of a run that only the clients' side knows. `best` is None where the best arm depends on the client.

    clipped   contexts that were shortened to length 1: rows of the world's data, and those that clients met.
    formed    intervals of arms in the order of the rounds, which the tracker that counts the failures saw.
    switches  as in `Result`.
    """

    best: int | None
    regret: Regret
    events: PolicyFailures
    clipped: int = 0
    formed: Sequence[FormedInterval] = ()
    switches: int | None = None


class Result(Shown, Message):
    """A run that ended. `seed` is the environment's; `noise_seed` is there in unsafe runs only.

    spent   the run's ledger: what clients have spent at most, by how often they took part; `guarantee` is the total.
    events  the policy's failures, seen from the clients' side; over services the lab plays the run again for them.
    formed  every interval of an arm, by round; none where the arms are the clients' own, or each round is one client.
    fault   why the run failed: a round that could not be planned, an exception with its type, or nothing measured.
            None for a run that finished. In process only: over services a run that failed has no result.
    extensions  where the classes of the user's own are from, as this driver has them; absent for a run without any.

    frame(table)  one of five tables:
    rounds        a line a round: clients, cohorts, arms dropped after it, its message and its guarantee; `pulls` and
                  `regret` are cumulated over the run. A run in process of more than 1000 rounds of one client joins
                  consecutive rounds: then a line stands for the rounds after the line before it up to `round`, and
                  `cohorts` counts one for each arm that they pulled.
    arms          a line an arm: its pulls and its latest interval.
    cohorts       a line a cohort, replaced ones too.
    intervals     a line for each interval of an arm that the policy formed.
    ledger        the most that a client has spent, by how often it took part.
    """

    TABLES: ClassVar[tuple[str, ...]] = tuple(COLUMNS)

    run: str
    driver: Driver
    policy: str
    unproven: str | None = Field(
        default=None,
        exclude_if=lambda unproven: unproven is None,
        description="numbers of the run file that no theorem of the policy covers, and what follows",
    )
    mechanism: str
    calibration: str
    environment: str
    horizon: int
    seed: int | None
    noise_seed: int | None
    chosen: int | None
    best: int | None = Field(
        description="the arm of the largest true mean, known to the clients' side; null where each client has one"
    )
    arms: list[ArmView]
    pulls: list[int]
    hidden: int = Field(
        default=0, exclude_if=lambda hidden: hidden == 0, description="pulls whose arms only the clients know"
    )
    clipped: int = Field(
        default=0,
        exclude_if=lambda clipped: clipped == 0,
        description=(
            "contexts that were longer than 1, and were shortened: rows of the environment's data, once each, and "
            "all that clients met"
        ),
    )
    switches: int | None = Field(
        default=None,
        exclude_if=lambda switches: switches is None,
        description="batches after which clients got another decision; absent where every batch brings one",
    )
    regret: Regret
    rounds: list[RoundResult]
    aborted: int
    unfinished: int
    guarantee: ShownGuarantee
    spent: tuple[LedgerClass, ...]
    bits: Bits
    seconds: float | None
    clients_per_second: float | None
    events: PolicyFailures
    formed: tuple[FormedInterval, ...] = Field(default=(), exclude_if=lambda formed: not formed)
    fault: str | None = None
    refusals: dict[str, int] = Field(default_factory=dict, description="why clients refused, and how many")
    extensions: tuple[Extension, ...] = Field(default=(), exclude_if=lambda extensions: not extensions)

    @override
    def _table(self, name: str) -> NamedRows:
        return COLUMNS[name], _rows(self, name)

    @override
    def _line(self) -> str:
        failed = "" if self.fault is None else f"failed: {self.fault}; "
        return f"of {self.run}, {self.driver}: {failed}{self.guarantee.line()}, regret {self.regret.final:,.1f}"

    @override
    def _cards(self) -> list[Card]:
        """Return the closing table of `distrust run`, without the seconds."""
        lines = arm_lines(self.arms, self.chosen)
        arms = [HtmlTable(ARMS_HEAD, lines, words=("fate",))] if arms_known(self) else []
        failed = [] if self.fault is None else [("failed", self.fault)]
        return [Card(f"run {self.run} ({self.driver})", [*failed, *facts(self)], arms)]


def _rows(result: Result, table: str) -> list[dict[str, Any]]:
    """Return a table of the result, column by name."""
    if table == "arms":
        return [{**arm.model_dump(), "chosen": arm.arm == result.chosen} for arm in result.arms]
    if table == "cohorts":
        rounds = [(record.number, cohort) for record in result.rounds for cohort in record.cohorts]
        return [{"round": number, **cohort.model_dump(), "liars": len(cohort.liars)} for number, cohort in rounds]
    if table == "intervals":
        return [interval.model_dump() for interval in result.formed]
    if table == "ledger":
        return [{"contributions": spent.contributions, **_promise(spent.guarantee)} for spent in result.spent]
    return [
        {
            **record.model_dump(include={"batch", "eliminated", "modulus", "payload_bits"}),
            **_promise(record.guarantee),
            "round": record.number,
            "arms": len(record.arms),
            "clients": sum(cohort.clients for cohort in record.cohorts),
            "cohorts": len(record.cohorts),
            "released": sum(cohort.estimate is not None for cohort in record.cohorts),
            "pulls": pulls,
            "regret": regret,
        }
        for record, (pulls, regret) in zip(result.rounds, ends_of_records(result), strict=True)
    ]


def ends_of_records(result: Result) -> list[tuple[int, float]]:
    """Return (pulls, regret) at the end of each record, cumulated. The curve may have a point for each joined round."""
    regrets = dict(result.regret.curve)
    ends = accumulate(sum(count for _, count in record.pulls()) for record in result.rounds)
    return [(pulls, regrets[pulls]) for pulls in ends]


def _promise(guarantee: ShownGuarantee) -> dict[str, Any]:
    columns = guarantee.columns()
    return {name: columns[name] for name in PROMISE}


def arms_known(result: Result) -> bool:
    """Return False where all arms that were pulled are known to their clients alone, so that there is none to list."""
    return not result.hidden or any(result.pulls)


def facts(result: Result) -> list[tuple[str, str]]:
    """Return the facts of a run as people read them, by name. Its promise and what that assumes are always there."""
    pulls = sum(result.pulls) + result.hidden
    cohorts = [cohort for record in result.rounds for cohort in record.cohorts]
    aborted = [f"{cohort.cohort}: {cohort.reason}" for cohort in cohorts if cohort.reason is not None][:3]
    liars, guarantee = _liars(cohorts), result.guarantee
    rounds = result.rounds[-1].number if result.rounds else 0  # one record may stand for several
    switches = f"after {result.switches or 0:,} of {rounds:,} batches clients got another decision"
    spent = (f"{cost.guarantee.figures()} for a client that came {cost.contributions} ×" for cost in result.spent)
    named = [
        _chosen(result),
        ("pulls", f"{pulls:,} of {result.horizon:,}, {result.unfinished:,} of them after the last whole batch"),
        *([("clipped", _clipped(result))] if result.clipped else []),
        ("regret", f"{result.regret.final:,.1f}"),
        ("failures", _failures(result)),
        *([("unproven", result.unproven)] if result.unproven is not None else []),
        ("rounds", f"{rounds}, with {result.aborted} cohorts aborted and replaced"),
        *([("switches", switches)] if result.switches is not None else []),
        *(("aborted", why) for why in aborted),
        *(("refused", f"{clients:,} clients: {why}") for why, clients in most_common(result.refusals)),
        *([("liars", liars)] if liars else []),
        ("mechanism", f"{result.mechanism}, {result.calibration} calibration"),
        ("guarantee", f"{guarantee.line()}; neighbours: {guarantee.neighbours}"),
        ("alone", guarantee.left_line()),
        *([("spent", "; ".join(spent))] if len(result.spent) > 1 else []),
        *(("assumes", assumption) for assumption in guarantee.assumptions),
        ("payload", _payload(result.bits)),
    ]
    if result.bits.wire is not None:
        named.append(("wire", f"{result.bits.wire:,.0f} bytes per client, both ways, all stages, headers included"))
    return named


def _chosen(result: Result) -> tuple[str, str]:
    if result.best is None:
        return ("arms", "each client chooses by its own context, and the server does not learn which")
    return ("arm chosen", f"{result.chosen} (the clients' world says {result.best} is best)")


def _clipped(result: Result) -> str:
    own = any(extension.kind == "environment" for extension in result.extensions)  # it may draw contexts, or have data
    return f"{result.clipped:,} contexts{'' if own else ' of the data'}, to length 1"


def _failures(result: Result) -> str:
    """Return the policy's failures, and the probability that it states for them."""
    failures = result.events
    stated = "" if failures.failure is None else f" (p = {failures.failure:.3g} that any does)"
    shifted = f"; {failures.indefinite:,} batches left the matrix indefinite" if failures.indefinite else ""
    missed = f"{failures.width_failures:,} of {failures.widths:,}"
    if result.best is not None:
        kept = f"dropped after {failures.best_dropped_at:,} pulls" if failures.best_dropped else "kept"
        return f"best arm {kept}; {missed} intervals miss the true mean{stated}{shifted}"
    if failures.widths:
        return f"{missed} decisions' ellipsoids miss θ*{stated}{shifted}"
    decisions = (record.decision for record in result.rounds)
    if any(isinstance(decision, ContextualChoice) and decision.inverse is not None for decision in decisions):
        return f"no theorem states this policy's widths, or the clients' world has no θ*: none is judged{shifted}"
    return f"this policy states no widths{shifted}"


def _liars(cohorts: Sequence[CohortResult]) -> str:
    """Return the number of clients that the aggregator named as liars, and of disputes; empty if there are none."""
    named, disputes = sum(len(cohort.liars) for cohort in cohorts), sum(cohort.disputes for cohort in cohorts)
    if not named and not disputes:
        return ""
    return f"{named} clients with false boxes, shares or accusations, {disputes} disputed pairs"


def most_common(refusals: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the three reasons that most clients gave, and the clients of each."""
    return sorted(refusals.items(), key=lambda one: -one[1])[:3]


def _payload(bits: Bits) -> str:
    """Return the bits per client. They are means over the run, in which m differs from round to round."""
    travels = "" if bits.sent is None else f"; {bits.sent:.1f} as they travel"
    return f"{bits.payload:.1f} bits per client, ⌈log₂ m⌉ = {bits.modulus:.1f}{travels}"

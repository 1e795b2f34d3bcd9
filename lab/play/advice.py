"""Ranks mechanisms and batch sizes for a run by the width of its policy's intervals at the end. No client plays.

A policy plays its whole horizon on sums of 0, and on contexts whose second moment is the identity over d. So it drops
no arm, every arm has as few clients as it can have, and noise, intervals and cohorts are those of a run. A policy of
one's own whose intervals depend on the rewards themselves gets other ones in a run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.compare import trusted
from distrust.common.dp.mechanisms import MECHANISMS
from distrust.common.dp.mechanisms.families.base import DELTA_RULE, MechanismSpec, delta_allowed
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.protocol.run.config import RunConfig
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.common.specs.policy import DpUcbSpec, SuccessiveEliminationSpec
from distrust.lab.play.run_file import RunFile, Source, load
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import CohortPlan, ReleasedCohort, RoundPlan, round_guarantee

BATCH_SIZES = (1, 10, 100, 1_000, 10_000)  # clients of a batch of policies that have one, besides the run's own
MOST_TRIED = 20_000  # rounds of one run that is tried: each takes about a millisecond
COLUMNS = ("mechanism", "batch", "width", "clients", "bits", "trust", "promise", "refused")
WORDS = ("mechanism", "batch", "trust needed", "promise")


@dataclass(frozen=True, slots=True)
class Choice:
    """A mechanism with a size of batches.

    batch    the policy's own numbers that set the size; empty where its schedule is fixed.
    width    half the width of its widest interval at the end, in units of a mean reward.
    clients  of the largest cohort.
    bits     of one client's packed message in it.
    promise  ε and δ of a client of one cohort.
    """

    mechanism: str
    batch: str
    width: float
    clients: int
    bits: int
    trust: str
    promise: str

    def cells(self) -> tuple[str, ...]:
        """Return the line under `Advice.HEAD`."""
        width = f"{self.width:.4g}"
        return (self.mechanism, self.batch, width, f"{self.clients:,}", str(self.bits), self.trust, self.promise)


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Shown):
    """The choices, the narrowest intervals first, and why others are none.

    refused  mechanism, batch, and the reason.
    seeded   the run's noise comes from a seed, so that no choice promises anything.
    frame()  a row for each of both; a refused one has its reason alone.
    """

    TABLES = ("choices",)
    HEAD: ClassVar[tuple[str, ...]] = ("mechanism", "batch", "width", "clients", "bits", "trust needed", "promise")

    title: str
    choices: Sequence[Choice]
    refused: Sequence[tuple[str, str, str]]
    seeded: bool = False

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object."""
        return {"question": self.title, "choices": list(self._rows())}

    @property
    def notes(self) -> list[str]:
        """Return what a width is, and why mechanisms are refused."""
        width = (
            "width: half of the widest interval when the horizon is over and no arm was dropped; that larger batches "
            "learn later is not in it"
        )
        reasons: dict[str, list[str]] = {}
        for mechanism, batch, why in self.refused:
            reasons.setdefault(why, []).append(f"{mechanism} {batch}".strip())
        seeded = ["[unsafe]: the noise comes from a seed, so that nothing is promised"] if self.seeded else []
        return [width, *seeded, *(f"{', '.join(dict.fromkeys(who))}: {why}" for why, who in reasons.items())]

    def lines(self) -> list[tuple[str, ...]]:
        """Return a line of text under HEAD for each choice."""
        return [choice.cells() for choice in self.choices]

    def _rows(self) -> Iterator[dict[str, Any]]:
        for choice in self.choices:
            yield {name: getattr(choice, name) for name in COLUMNS[:-1]}
        for mechanism, batch, why in self.refused:
            yield {"mechanism": mechanism, "batch": batch, "refused": why}

    @override
    def _table(self, name: str) -> NamedRows:
        return COLUMNS, list(self._rows())

    @override
    def _line(self) -> str:
        return f"{len(self.choices)} choices: {self.title}"

    @override
    def _cards(self) -> list[Card]:
        """Return the table of `distrust advise`."""
        return [Card(self.title, tables=[HtmlTable(self.HEAD, self.lines(), WORDS)], notes=self.notes)]


def advise(source: Source, mechanisms: Iterable[str] | None = None, delta: float | None = None) -> Advice:
    """Return which mechanisms, with which sizes of batches, give a run's policy the narrowest intervals.

    source      a run file in any form that `run` takes. Its ε and its calibration hold for all mechanisms, its other
                numbers of the mechanism for its own mechanism only.
    mechanisms  names to compare. None: all that promise something, and the run's own.
    delta       δ for those that need one. None: the run's.
    Raises      BadRunFile or BadParameter, naming the field, the value and what is allowed; also for a policy that has
                no intervals or takes no noise, and where no mechanism serves the run.

    >>> import distrust
    >>> table = {"run": "doc", "horizon": 2_000, "mechanism": {"name": "local-laplace-discrete", "epsilon": 1.0}}
    >>> table["environment"] = {"name": "bernoulli", "seed": 4, "means": [0.1, 0.9]}
    >>> advice = distrust.advise(table, ["central-laplace-discrete", "local-laplace-discrete"])
    >>> [choice.mechanism for choice in advice.choices if choice.batch == "base = 4"]
    ['central-laplace-discrete', 'local-laplace-discrete']
    """
    file = load(source)
    config = file.config
    if config.mechanism.epsilon is None:
        raise BadParameter("mechanism.epsilon", None, "advice needs an ε: state one")
    if config.policy.insists_on_no_privacy:
        raise BadParameter("policy.name", config.policy.name, f"is {config.policy.insists_on_no_privacy}")
    if delta is not None and not delta_allowed(delta):
        raise BadParameter("delta", delta, DELTA_RULE)
    private = [name for name, kind in MECHANISMS.items() if kind.model != "none"]
    names = dict.fromkeys([*private, config.mechanism.name] if mechanisms is None else mechanisms)
    for name in names:
        if name not in MECHANISMS or MECHANISMS[name].model == "none":
            raise BadParameter("mechanism", name, f"must be one of {', '.join(private)}")
    choices, refused = [], []
    with one_thread():
        for name in names:
            for words in _batches(config):
                batch = ", ".join(f"{key} = {value}" for key, value in words.items())
                try:
                    choices.append(_choice(file, name, words, batch, delta))
                except ProtocolError as error:
                    refused.append((name, batch, error))
    if not choices:
        raise refused[0][2]
    title = f"T = {config.horizon}, K = {config.arms}, ε = {config.mechanism.epsilon:g}, {config.policy.name}"
    reasons = [(name, batch, error.detail) for name, batch, error in refused]
    return Advice(title, sorted(choices, key=lambda choice: choice.width), reasons, seeded=config.unsafe is not None)


def _batches(config: RunConfig) -> list[dict[str, int]]:
    """Return the sizes of batches to try, as words of the policy's table; one without words for a fixed schedule."""
    policy = config.policy
    if isinstance(policy, SuccessiveEliminationSpec) and policy.constants is None:
        return [{"base": 2}, {"base": 4}]
    if isinstance(policy, ContextualPolicySpec | DpUcbSpec):
        sizes = {policy.batch, *(size for size in BATCH_SIZES if config.horizon / MOST_TRIED <= size <= config.horizon)}
        return [{"batch": size} for size in sorted(sizes)]
    return [{}]


def _choice(file: RunFile, name: str, words: Mapping[str, int], batch: str, delta: float | None) -> Choice:
    """Return the choice of a mechanism and a batch size. Raises ProtocolError where it does not serve the run."""
    config = file.config
    if config.horizon > MOST_TRIED * words.get("batch", config.horizon):
        raise BadParameter("policy.batch", words["batch"], f"takes more than the {MOST_TRIED} rounds that advice plays")
    table = {**config.policy.model_dump(), **words}
    policy = type(config.policy).model_validate(table)
    mechanism = _mechanism(config, name, delta, policy)
    learner = Learner(config.model_copy(update={"policy": policy, "mechanism": mechanism}))
    learner.run_cohorts(_expected)
    if learner.fault is not None:
        raise BadParameter("mechanism", name, learner.fault)
    played = max(learner.rounds, key=lambda record: record.mechanism.clients)
    return Choice(
        mechanism=name,
        batch=batch,
        width=_width(learner),
        clients=played.mechanism.clients,
        bits=played.mechanism.bits,
        trust=trusted(played.mechanism),
        promise=round_guarantee(learner.config, played).figures(),
    )


def _mechanism(config: RunConfig, name: str, delta: float | None, policy: Any) -> MechanismSpec:
    """Return the run's mechanism under another name, with the numbers that this one takes. Raises BadParameter."""
    kind, own = MECHANISMS[name], config.mechanism
    shared = {"epsilon": own.epsilon, "calibration": own.calibration}
    fields: dict[str, Any] = own.model_dump() if name == own.name else shared
    fields["name"] = name
    if kind.takes_delta:
        fields["delta"] = own.delta if delta is None else delta
    if kind.takes_batches:
        if not isinstance(policy, ContextualPolicySpec | DpUcbSpec):
            raise BadParameter("mechanism", name, "counts a stream of batches, and this policy asks for none")
        fields["batches"] = max(1, config.horizon // policy.batch)
    return MechanismSpec.model_validate(fields)


def _expected(plan: RoundPlan, cohort: CohortPlan) -> ReleasedCohort:
    """Return the outcome of a cohort whose clients all answer, and whose sum tells no arm from another."""
    if isinstance(plan.decision, AssignedAction):
        counts = np.bincount(plan.decision.places(), minlength=len(plan.decision.actions)).tolist()
        return ReleasedCohort(
            cohort=cohort.cohort, sum=[0.0] * len(counts), survivors=cohort.clients, counts=[int(n) for n in counts]
        )
    total = (plan.number if plan.cumulative and cohort.mechanism.takes_batches else 1) * cohort.clients
    return ReleasedCohort(cohort=cohort.cohort, sum=_sum(plan.statistic, total), survivors=cohort.clients)


def _sum(statistic: Statistic, clients: int) -> list[float]:
    """Return the expected sum: 0, but for Σφφᵀ of contexts of length 1 in all directions."""
    vector = np.zeros(statistic.dimension)
    if isinstance(statistic, ContextualSum) and statistic.moments:
        d, (rows, columns) = statistic.features, np.triu_indices(statistic.features)
        block = np.concatenate((np.zeros(d), np.where(rows == columns, clients / d / statistic.blocks, 0.0)))
        vector = np.tile(block, statistic.blocks)
    return [float(number) for number in vector]


def _width(learner: Learner) -> float:
    """Return half the width of the widest interval; of a context of length 1 where arms have none.

    Raises BadParameter for a policy without intervals.
    """
    policy = learner.policy
    if policy.intervals:
        return max((interval.upper - interval.lower) / 2 for interval in policy.intervals)
    ask = policy.ask(learner.config.horizon)
    if ask is not None and isinstance(ask.decision, ContextualChoice):
        rule = ask.decision.rule
        if rule.inverse is not None and np.any(rule.beta):
            return float(np.max(rule.beta) * np.sqrt(np.linalg.eigvalsh(rule.inverse).max()))
    raise BadParameter("policy.name", learner.config.policy.name, "has no intervals whose width could be compared")

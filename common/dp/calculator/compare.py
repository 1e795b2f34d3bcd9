"""Compares all mechanisms: what each promises, its error, the size of its messages, the parties that it trusts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Unpack, get_args

from typing_extensions import override

from distrust.common.bandit.error_law import How, ScaledErrorLaw
from distrust.common.dp.accounting.composition import own_delta
from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.promise import NINE_DIGITS, Promise, promised
from distrust.common.dp.calculator.query import PrivacyQuery, PrivacyWords, checks_arguments
from distrust.common.dp.mechanisms import MECHANISMS, Calibration, Mechanism, MechanismName
from distrust.common.dp.mechanisms.families.base import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed
from distrust.common.errors import BadParameter
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.wire import Message

TAIL = 1e-3
"""The probability whose quantile is shown."""

TRUST = {
    "none": "all parties",
    "central": "server",
    "local": "no party",
    "distributed": "clients, server or aggregator",
    "shuffle": "clients, shuffler",
}
"""Parties that must be honest, by model: of the clients enough, and of server and aggregator one."""

COUNTS_ON = {
    "none": "Nothing is promised.",
    "central": "The promise counts on the server, which sees the exact sum and adds the noise.",
    "local": "The promise counts on no other party: each client's own device draws all of its noise.",
    "distributed": (
        "The promise counts on t honest clients, whose shares of the noise add up, and on server and aggregator, "
        "which must not lie together."
    ),
    "shuffle": (
        "The promise counts on t honest clients, whose messages hide each other, and on server and shuffler, which "
        "must not lie together."
    ),
}
"""Sentences about the parties and the numbers that a promise rests on, by model."""

PROMISED = ("kind", "epsilon", "delta")
COLUMNS = (
    *("mechanism", "calibration", *PROMISED, "same_promise", "epsilon_alone"),
    *("std", "quantile", "bits", "via", "trust", "refused"),
)
"""Columns of `Comparison.frame`; `quantile` is what the noise exceeds with probability TAIL at most. `epsilon_alone` is
what is left of ε if all other clients collude."""

LABELLED = "clients, shuffler (sees bits)"
HEAD = ("mechanism", "", "guarantee", "promise", "all others collude", "std", f"p = {TAIL:g}", "bits", "trust needed")
WORDS = ("mechanism", "", "guarantee", "promise", "all others collude", "trust needed")

Standing = Literal["as asked", "weaker", "stronger", "none"]
"""Comparison of a promise with the requested one: a weaker promise has a larger ε, a stronger one a smaller ε."""

SHORT = 0.01
"""Share by which a guaranteed ε may fall short of the one asked for and count as the same promise: noise that is found
on a grid, and proven bounds, end a little below it. A larger ε never counts as the same."""

EXPLAINED = (
    "clients: as many honest ones as the noise counts on; server or aggregator: one of the two is honest, and no "
    "client colludes with an aggregator that lies; shuffler: does not lie together with the server"
)


class TailError(Message):
    """The noise in one coordinate of the sum, in the data's units. quantile: q with P(|noise| > q) ≤ TAIL."""

    std: float
    quantile: float
    quantile_how: How


@dataclass(frozen=True, slots=True)
class Offer:
    """Promise and cost of one mechanism. trust: the parties that must be honest for the promise to hold."""

    promise: Promise
    standing: Standing
    error: TailError
    bits: int
    intermediary: str
    trust: str

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object."""
        cost = {"bits": self.bits, "via": self.intermediary, "trust": self.trust}
        same = {"same_promise": self.same_promise}
        return {**self.promise.model_dump(), **same, "error": self.error.model_dump(), **cost}

    @property
    def same_promise(self) -> bool:
        """Return True where the guarantee is the one that was asked for."""
        return self.standing == "as asked"

    def columns(self) -> dict[str, Any]:
        """Return the numbers of a row of a data frame, by column."""
        promise = self.promise.guarantee.model_dump(include=set(PROMISED))
        cost = {"std": self.error.std, "quantile": self.error.quantile, "bits": self.bits}
        whole = {**promise, "same_promise": self.same_promise, "epsilon_alone": self.promise.alone.epsilon}
        return {**whole, **cost, "via": self.intermediary, "trust": self.trust}

    def cells(self) -> tuple[str, ...]:
        """Return guarantee, standing, error, bits and trust as text."""
        most = "≤ " if self.error.quantile_how == "bound" else ""
        error = (f"{self.error.std:.5g}", f"{most}{self.error.quantile:.5g}")
        promise = (self.promise.guarantee.shown(), self.standing, self.promise.alone.shown())
        return (*promise, *error, str(self.bits), self.trust)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """The answer for every mechanism and calibration: an offer, or why there is none.

    shared_delta  the δ at which all rows with a δ are shown; None where no row has one.
    frame()       a row for each mechanism and calibration; `refused` says why there is none.
    """

    TABLES = ("mechanisms",)

    query: PrivacyQuery
    shared_delta: float | None
    rows: Sequence[tuple[MechanismName, Calibration, Offer | str]]

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object."""
        rows = [
            {"mechanism": name, "calibration": calibration}
            | ({"refused": one} if isinstance(one, str) else one.described())
            for name, calibration, one in self.rows
        ]
        return {**self.query.described(), "shared_delta": self.shared_delta, "tail": TAIL, "mechanisms": rows}

    @property
    def title(self) -> str:
        """Return the question, for people."""
        query = self.query
        title = f"n = {query.clients}, ε = {query.epsilon:g}"
        if query.contributions > 1:
            title += f", {query.contributions} contributions"
        if self.shared_delta:
            title += f", compared at δ = {self.shared_delta:g}"
        return (
            title if query.dimension == 1 else f"{title}, D = {query.dimension}, {query.norm}; errors of one coordinate"
        )

    @property
    def notes(self) -> list[str]:
        """Return notes for the reader, what the trusted parties must keep to, and why mechanisms are refused."""
        refused = [f"{name} ({calibration}): {one}" for name, calibration, one in self.rows if isinstance(one, str)]
        return [*self.query.notes, EXPLAINED, *self._unequal(), *refused]

    def _unequal(self) -> list[str]:
        """Return what the promises are measured against, if one of them is another."""
        if all(one.same_promise for _, _, one in self.rows if isinstance(one, Offer)):
            return []
        at = f" at δ = {self.shared_delta:g} or less" if self.shared_delta else ""
        promise = f"promise: as asked is ε = {requested_epsilon(self.query):g}{at}, or up to {SHORT:.0%} less"
        kinds = "a weaker one has a larger ε, a stronger one a smaller"
        return [f"{promise}; {kinds}; std, p and bits compare only between rows of equal promise"]

    def lines(self) -> list[tuple[str, ...]]:
        """Return a line of text under `HEAD` for each mechanism and calibration that is not refused."""
        return [
            (name, calibration, *offer.cells()) for name, calibration, offer in self.rows if isinstance(offer, Offer)
        ]

    @override
    def _table(self, name: str) -> NamedRows:
        rows = [
            {"mechanism": name, "calibration": calibration}
            | ({"refused": one} if isinstance(one, str) else one.columns())
            for name, calibration, one in self.rows
        ]
        return COLUMNS, rows

    @override
    def _line(self) -> str:
        return f"of {len(self.rows)} mechanisms and calibrations: {self.title}"

    @override
    def _cards(self) -> list[Card]:
        """Return the table of `distrust privacy --compare`."""
        lines = self.lines()
        return [Card(self.title, tables=[HtmlTable(HEAD, lines, WORDS, most=len(lines))], notes=self.notes)]


@checks_arguments(PrivacyWords)
def compare(*, n: int, epsilon: float, **fields: Unpack[PrivacyWords]) -> Comparison:
    """Return the promise and the cost of every mechanism for one of n clients, as `distrust privacy --compare` does.

    fields  other fields of `PrivacyQuery`: delta, dropout, corrupt, dimension, …
    Raises  BadParameter, naming the field, the value and what is allowed.

    >>> import distrust
    >>> comparison = distrust.compare(n=100, epsilon=1.0)
    >>> [line[-1] for line in comparison.lines() if line[:2] == ("distributed-polya", "exact")]
    ['clients, server or aggregator']
    """
    with one_thread():
        return compared(PrivacyQuery(clients=n, epsilon=epsilon, **fields))


def compared(query: PrivacyQuery) -> Comparison:
    """Return the answer for every mechanism in both calibrations.

    A mechanism that has no δ, stream, s or continuous noise is planned without it; one that needs a δ or a stream is
    refused without. Without a target δ all rows are shown at the largest δ that any of them takes.
    """
    # What no mechanism takes is refused here. A δ of 0 is refused, row by row, by those that need one.
    if query.epsilon is None or not epsilon_allowed(query.epsilon):
        raise BadParameter("epsilon", query.epsilon, EPSILON_RULE)
    if query.delta and not delta_allowed(query.delta):
        raise BadParameter("delta", query.delta, DELTA_RULE)
    pairs = list(product(MECHANISMS, get_args(Calibration)))
    planned = [_planned(query, name, calibration) for name, calibration in pairs]
    deltas = [0.0 if isinstance(one, str) else _own_delta(one, query) for one in planned]
    shared = query.target_delta or max(deltas)
    at_shared = replace(query, target_delta=shared) if delta_allowed(shared) else query
    offers = [
        one if isinstance(one, str) else _offer(one, at_shared if delta else query)
        for one, delta in zip(planned, deltas, strict=True)
    ]
    return Comparison(query, shared or None, [(*pair, offer) for pair, offer in zip(pairs, offers, strict=True)])


def _planned(query: PrivacyQuery, name: MechanismName, calibration: Calibration) -> Mechanism | str:
    """Return the mechanism, or why there is none."""
    try:
        return suited(query, name).planned(name, calibration)
    except BadParameter as refused:
        return str(refused)


def suited(query: PrivacyQuery, name: MechanismName) -> PrivacyQuery:
    """Return the same question without the words that this mechanism has no use for."""
    kind = MECHANISMS[name]
    return replace(
        query,
        epsilon=None if kind.model == "none" else query.epsilon,
        delta=query.delta if kind.takes_delta else None,
        batches=query.batches if kind.takes_batches else None,
        noise=query.noise if kind.takes_noise else "grid",
        scale=query.scale if kind.takes_scale else None,
    )


def _own_delta(mechanism: Mechanism, query: PrivacyQuery) -> float:
    """Return the δ of all the contributions to one mechanism when none is asked for; 0 for a pure one."""
    return own_delta(((mechanism.privacy(query.answers, query.colluders).promise, query.contributions),))


def _offer(mechanism: Mechanism, query: PrivacyQuery) -> Offer | str:
    """Return the promise and the error of a sum over the survivors, or why there is no promise."""
    try:
        law = mechanism.error(query.answered)
        promise = promised(mechanism, query)
    except BadParameter as refused:
        return str(refused)
    how = law.quantile_how if isinstance(law, ScaledErrorLaw) else "bound"
    error = TailError(std=law.std, quantile=law.quantile(TAIL), quantile_how=how)
    standing = _standing(promise.guarantee.epsilon, requested_epsilon(query))
    return Offer(promise, standing, error, mechanism.bits, mechanism.via, trusted(mechanism))


def requested_epsilon(query: PrivacyQuery) -> float:
    """Return the ε of all the contributions that was asked for: the budget of each, added up (basic composition)."""
    assert query.epsilon is not None
    return query.contributions * query.epsilon


PromiseOrder = Literal["equal", "first", "second", "neither", "models"]
"""Comparison of two promises: the stronger one, `neither` where each has the smaller number, or two models."""


def stronger(first: Guarantee, second: Guarantee) -> PromiseOrder:
    """Return which of two promises is the stronger one: with an ε and a δ that are no larger.

    Two values of ε are the same by the rule of `SHORT`. Promises of two models are against different parties, so that
    their numbers do not compare. No promise at all is weaker than any.
    """
    if first.epsilon is None:
        return "equal" if second.epsilon is None else "second"
    if second.epsilon is None:
        return "first"
    if first.model != second.model:
        return "models"
    same = "as asked" in (_standing(first.epsilon, second.epsilon), _standing(second.epsilon, first.epsilon))
    no_worse = same or first.epsilon < second.epsilon, same or second.epsilon < first.epsilon
    at_least = no_worse[0] and first.delta <= second.delta, no_worse[1] and second.delta <= first.delta
    orders: dict[tuple[bool, bool], PromiseOrder] = {
        (True, True): "equal",
        (True, False): "first",
        (False, True): "second",
    }
    return orders.get(at_least, "neither")


def _standing(epsilon: float | None, requested: float) -> Standing:
    """Return how a guarantee's ε at the shared δ stands to the one asked for."""
    if epsilon is None:
        return "none"
    if epsilon > requested * (1 + NINE_DIGITS):
        return "weaker"
    return "stronger" if epsilon < requested * (1 - SHORT) else "as asked"


def trusted(mechanism: Mechanism) -> str:
    """Return the parties that must be honest for the guarantee to hold."""
    model = mechanism.privacy().promise.model
    return LABELLED if model == "shuffle" and mechanism.width is not None else TRUST[model]

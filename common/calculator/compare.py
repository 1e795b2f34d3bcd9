"""Compares all mechanisms: what each promises, its error, the size of its messages, the parties that it trusts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

from distrust.common.bandit.error_law import How, ScaledErrorLaw
from distrust.common.calculator.query import PrivacyQuery
from distrust.common.calculator.report import Promise, promised
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import MECHANISMS, Calibration, Mechanism, MechanismName
from distrust.common.mechanisms.families.base import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed
from distrust.common.privacy.composition import own_delta
from distrust.common.wire import Message

TAIL = 1e-3
"""The probability whose quantile is shown."""

TRUST = {
    "none": "all parties",
    "central": "server",
    "local": "no party",
    "distributed": "clients, aggregator",
    "shuffle": "clients, shuffler",
}
LABELLED = "clients, shuffler (sees bits)"


class TailError(Message):
    """The noise in one coordinate of the sum, in the data's units. quantile: q with P(|noise| > q) ≤ TAIL."""

    std: float
    quantile: float
    quantile_how: How


@dataclass(frozen=True, slots=True)
class Offer:
    """Promise and cost of one mechanism. trust: the parties that must be honest for the promise to hold."""

    promise: Promise
    error: TailError
    bits: int
    intermediary: str
    trust: str

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object."""
        cost = {"bits": self.bits, "via": self.intermediary, "trust": self.trust}
        return {**self.promise.model_dump(), "error": self.error.model_dump(), **cost}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer for every mechanism and calibration: an offer, or why there is none.

    shared_delta  the δ at which all rows with a δ are shown; None where no row has one.
    """

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
    return Offer(promise, error, mechanism.bits, mechanism.via, trusted(mechanism))


def trusted(mechanism: Mechanism) -> str:
    """Return the parties that must be honest for the guarantee to hold."""
    model = mechanism.privacy().promise.model
    return LABELLED if model == "shuffle" and mechanism.width is not None else TRUST[model]

"""Computes a mechanism's promise and cost for one cohort, in both calibrations, from its laws alone."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from typing_extensions import override

from distrust.common.bandit.error_law import How, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import IF_OTHERS_COLLUDE
from distrust.common.dp.accounting.profile import Profile
from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.promise import Promise, promised
from distrust.common.dp.calculator.query import PrivacyQuery, PrivacyWords, checks_arguments
from distrust.common.dp.mechanisms import Calibration, Mechanism
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.common.notebook import Card, HtmlTable, NamedRows, Shown
from distrust.common.wire import Message

TAILS = (0.5, 0.1, 0.01, 1e-3, 1e-6, 1e-9, 1e-12)  # probabilities p of the quantiles that a report lists

NOISE = {"variance": "variance", "scale": "scale"}
"""Size of the noise that the guarantee rests on, in grid steps: every mechanism that has the field."""

UNKNOWN = {"exact": "∞", "bound": "not known"}
"""Text for a missing ε: none is enough, or none was proven."""


def six_digits(value: float | None) -> str:
    """Return six digits of a number; whole numbers keep all of theirs, and none is a dash."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def labelled(epsilon: float | None, how: str) -> str:
    """Return a figure with its label: "≤" before a bound."""
    if epsilon is None:
        return UNKNOWN[how]
    return six_digits(epsilon) if how == "exact" else f"≤ {six_digits(epsilon)}"


class SumError(Message):
    """The noise in the sum of `survivors` vectors, in the data's units. quantiles: (p, q), P(|noise| > q) ≤ p."""

    survivors: int
    of: str
    std: float
    rounding_std: float
    quantiles: tuple[tuple[float, float], ...]
    quantiles_how: How


@dataclass(frozen=True, slots=True)
class MechanismFigures:
    """One calibrated mechanism in numbers. parameters: the theorem's letters. bits: of one client's message.

    mechanism  the calibrated value itself, which is no part of what is described.
    """

    mechanism: Mechanism
    parameters: Mapping[str, float]
    bits: int
    intermediary: str
    error: SumError
    promise: Promise

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object."""
        cost = {"parameters": dict(self.parameters), "bits": self.bits, "via": self.intermediary}
        return {**cost, "error": self.error.model_dump(), **self.promise.model_dump()}


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """The answer for one mechanism. A calibration that is refused is a sentence: `exact` never is.

    frame()  a column `figure`, and one of text for each calibration.
    """

    TABLES = ("figures",)

    mechanism: str
    query: PrivacyQuery
    sides: Mapping[Calibration, MechanismFigures | str]

    def described(self) -> dict[str, Any]:
        """Return the JSON-able object: mechanism, question, and a place for each calibration."""
        described: dict[str, Any] = {"mechanism": self.mechanism, **self.query.described()}
        for calibration, side in self.sides.items():
            described[calibration] = {"refused": side} if isinstance(side, str) else side.described()
        return described

    @property
    def figures(self) -> Mapping[Calibration, MechanismFigures]:
        """Return the calibrations that are not refused."""
        return {name: side for name, side in self.sides.items() if isinstance(side, MechanismFigures)}

    @property
    def title(self) -> str:
        """Return the mechanism and its cohort, for people."""
        title = f"{self.mechanism}, n = {self.query.clients}, t = {self.query.min_honest}"
        return title if self.query.dimension == 1 else f"{title}, D = {self.query.dimension}, {self.query.norm}"

    @property
    def notes(self) -> list[str]:
        """Return what the promise assumes, notes for the reader, and why a calibration is refused."""
        promise = next(iter(self.figures.values())).promise
        refused = [f"{name}: {side}" for name, side in self.sides.items() if isinstance(side, str)]
        notes = [*self.query.notes, *promise.guarantee.assumptions, *promise.profile.notes]
        return list(dict.fromkeys([*notes, *refused]))

    def lines(self) -> list[tuple[str, list[str]]]:
        """Return parameters, guarantee, profile, bits and error as text: a label, and a cell for each of `figures`."""
        sides = list(self.figures.values())
        letters = dict.fromkeys(letter for side in sides for letter in side.parameters)
        promises = [side.promise.guarantee for side in sides]
        return [
            *((letter, [six_digits(side.parameters.get(letter)) for side in sides]) for letter in letters),
            ("kind", [promise.kind for promise in promises]),
            ("epsilon", [labelled(one.epsilon, one.how) for one in promises]),
            ("delta", [six_digits(one.delta) for one in promises]),
            (IF_OTHERS_COLLUDE, [side.promise.left() for side in sides]),
            *_profile_lines([side.promise.profile for side in sides]),
            ("bits a client", [six_digits(side.bits) for side in sides]),
            *_error_lines([side.error for side in sides]),
        ]

    @override
    def _table(self, name: str) -> NamedRows:
        names = list(self.figures)
        rows = [{"figure": label, **dict(zip(names, cells, strict=True))} for label, cells in self.lines()]
        return ["figure", *names], rows

    @override
    def _line(self) -> str:
        return f"on {self.title}: {'; '.join(side.promise.guarantee.line() for side in self.figures.values())}"

    @override
    def _cards(self) -> list[Card]:
        """Return the promise and what it assumes, then all figures."""
        promises = [
            fact
            for name, side in self.figures.items()
            for fact in (
                (f"guarantee, {name}", side.promise.guarantee.line()),
                (f"{IF_OTHERS_COLLUDE}, {name}", side.promise.left()),
            )
        ]
        lines = [(label, *cells) for label, cells in self.lines()]
        table = HtmlTable(("", *self.figures), lines, words=("",), most=len(lines))
        return [Card(self.title, [*promises, *(("assumes", note) for note in self.notes)], [table])]


def _profile_lines(profiles: Sequence[Profile]) -> list[tuple[str, list[str]]]:
    """Return the profile's lines: pure, at δ, and by order."""
    at = f"epsilon at delta = {profiles[0].delta:g}"
    lines = [
        ("pure epsilon", [labelled(profile.pure.epsilon, profile.pure.how) for profile in profiles]),
        (at, [labelled(one.approximate.epsilon, one.approximate.how) for one in profiles]),
    ]
    for i, (order, _) in enumerate(profiles[0].rdp):
        lines.append((f"RDP({order:g})", [labelled(one.rdp[i][1], one.rdp_how) for one in profiles]))
    return lines


def _error_lines(errors: Sequence[SumError]) -> list[tuple[str, list[str]]]:
    """Return the lines of the noise, in the data's units."""
    lines = [
        (f"error of {errors[0].of}: std", [six_digits(one.std) for one in errors]),
        ("rounding: std at most", [six_digits(one.rounding_std) for one in errors]),
    ]
    for i, (p, _) in enumerate(errors[0].quantiles):
        cells = [labelled(error.quantiles[i][1], error.quantiles_how) for error in errors]
        lines.append((f"|noise| above, p = {p:g}", cells))
    return lines


@checks_arguments(PrivacyWords)
def privacy(mechanism: str, *, n: int, epsilon: float | None = None, **fields: Unpack[PrivacyWords]) -> Report:
    """Return what a mechanism promises to one of n clients, and its cost, as `distrust privacy` shows it.

    mechanism  its name, as in a run file.
    epsilon    a client's budget, in nats.
    fields     other fields of `PrivacyQuery`: delta, dropout, corrupt, survivors, colluders, contributions, …
    Raises     BadParameter, naming the field, the value and what is allowed.

    >>> import distrust
    >>> report = distrust.privacy("distributed-polya", n=1000, epsilon=1.0, dropout=0.1, corrupt=0.1)
    >>> print(report.figures["exact"].promise.guarantee.line())
    distributed pure DP, ε = 1 (exact calibration)
    >>> report.figures["exact"].bits
    16
    """
    allow_named(mechanism)
    with one_thread():
        return report_on(mechanism, PrivacyQuery(clients=n, epsilon=epsilon, **fields))


def json_of(described: Mapping[str, Any]) -> str:
    """Return the JSON text of a report. NaN and infinity, which JSON has not, are errors."""
    return json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def report_on(name: str, query: PrivacyQuery) -> Report:
    """Return the answer for one mechanism. Raises BadParameter, but where `paper` alone is refused."""
    exact = figures_of(name, query, "exact")
    try:
        paper: MechanismFigures | str = figures_of(name, query, "paper")
    except BadParameter as error:
        paper = str(error)
    return Report(name, query, {"exact": exact, "paper": paper})


def figures_of(name: str, query: PrivacyQuery, calibration: Calibration) -> MechanismFigures:
    """Return a calibrated mechanism in numbers. Raises BadParameter."""
    mechanism = query.planned(name, calibration)
    law = mechanism.error(query.answered)
    error = SumError(
        survivors=query.answered,
        of="the sum" if mechanism.dimension == 1 else "one coordinate of the sum",
        std=law.std,
        rounding_std=math.sqrt(query.answered) * mechanism.rounding,
        quantiles=tuple((p, law.quantile(p)) for p in TAILS),
        quantiles_how=law.quantile_how if isinstance(law, ScaledErrorLaw) else "bound",
    )
    return MechanismFigures(
        mechanism=mechanism,
        parameters=_parameters(mechanism),
        bits=mechanism.bits,
        intermediary=mechanism.via,
        error=error,
        promise=promised(mechanism, query),
    )


def _parameters(mechanism: Mechanism) -> dict[str, float]:
    """Return the theorem's letters, where the mechanism has them."""
    letters: dict[str, float] = {"g": mechanism.precision, "m": mechanism.modulus}
    if mechanism.has_room:
        letters["tau"] = (mechanism.modulus - mechanism.clients * mechanism.precision - 1) // 2
    own = {**NOISE, **mechanism.letters}
    return {
        **letters,
        **{letter: getattr(mechanism, field) for field, letter in own.items() if hasattr(mechanism, field)},
    }

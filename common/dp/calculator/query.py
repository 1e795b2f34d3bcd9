"""Defines the question of `distrust privacy`: a cohort, its clients' vectors, its survivors, how often."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import Annotated, Any, ParamSpec, TypedDict, TypeVar, cast, get_args, get_type_hints

from pydantic import ValidationError
from typing_extensions import Doc

from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.dp.mechanisms import MECHANISMS, Calibration, Mechanism, MechanismSpec, check_spec, plan
from distrust.common.dp.mechanisms.families.base import DELTA_RULE, delta_allowed
from distrust.common.dp.mechanisms.families.cohort import Noise
from distrust.common.errors import BadParameter
from distrust.common.explain import wanted
from distrust.common.wire import Norm

P = ParamSpec("P")
R = TypeVar("R")

NUMBERS: dict[type, tuple[type, str]] = {int: (Integral, "a whole number"), float: (Real, "a number")}
"""By the type of an argument, what it must be, also in words."""

ARGUMENTS = {"clients": "n"}
"""Arguments of functions that have another name than the field."""

OVERFLOW_PROBABILITY = 1e-6  # p': the run's own value depends on its failure probability, arms and batch
MOST_CLIENTS = 1_000_000  # n of a question, at most
MOST_COORDINATES = 1_000_000  # of a vector, at most
MOST_CONTRIBUTIONS = 10_000  # of one client, at most: so many releases are composed
WIDEST = 1e12  # of [low, high]
HIGH = 1.0  # the largest value of a coordinate where none is given


class CohortWords(TypedDict, total=False):
    """Fields of `PrivacyQuery` that describe a cohort, its vectors and its mechanism, beside n and ε."""

    delta: float | None
    dropout: float
    corrupt: float
    batches: int | None
    dimension: int
    norm: Norm
    low: float
    high: float
    noise: Noise
    scale: float | None
    precision: int | None


class PrivacyWords(CohortWords, total=False):
    """All fields of `PrivacyQuery` beside n and ε."""

    survivors: int | None
    colluders: int
    contributions: int
    target_delta: float | None


def checks_arguments(words: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that refuses wrong arguments by BadParameter, where Python would raise TypeError.

    words  the TypedDict of the function's other keywords. An argument that is unknown, missing, given by its place, or
           no number where a number must be is named, with its value and what is allowed. A refusal of the function's
           own names the argument, where it would name the field of a query or of a mechanism's table.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        placed = [one.name for one in own if one.kind is not Parameter.KEYWORD_ONLY]

        @wraps(function)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            # Read at the first call: an annotation may name what is imported for types alone.
            hints = {**get_type_hints(function), **get_type_hints(words)}
            known = [*(one.name for one in own), *get_type_hints(words)]
            if len(args) > len(placed):
                raise BadParameter("arguments", args[len(placed)], f"must be given by name, one of {', '.join(known)}")
            for name, value in keywords.items():
                if name not in known:
                    raise BadParameter(name, value, f"is no argument here; arguments are {', '.join(known)}")
            plain = {name: _number(name, value, hints[name]) for name, value in keywords.items()}
            for one in own:
                if one.default is Parameter.empty and one.name not in {*plain, *placed[: len(args)]}:
                    raise BadParameter(one.name, None, "must be given")
            try:
                return function(*args, **plain)  # the same keywords, as plain numbers
            except BadParameter as error:
                name = error.field.rpartition(".")[2]
                name = ARGUMENTS.get(name, name)
                if name == error.field or name not in known:
                    raise
                raise BadParameter(name, error.value, error.allowed) from error

        return checked

    return decorate


def _number(name: str, value: Any, hint: object) -> Any:
    """Return a value, a number of NumPy's as one of Python's.

    Raises BadParameter for a value that is no number where the annotation has one.
    """
    kinds = get_args(hint) or (hint,)
    kind = next((one for one in kinds if one in NUMBERS), None)
    if kind is None or (value is None and type(None) in kinds):
        return value
    number, called = NUMBERS[kind]
    if not isinstance(value, number) or isinstance(value, bool):
        raise BadParameter(name, value, f"must be {called}")
    return value if isinstance(value, int) else kind(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyQuery:
    """One cohort, its statistic and its survivors. The mechanism's name is no part of it: `--compare` shows all.

    A field's `Doc` is the help of its option.

    clients        n.
    dropout        share of n that may vanish, in [0, 1/2).
    corrupt        share of n that may collude, in [0, 1/2). The two shares fix the floor t.
    batches        length of the stream, for `tree` and `prefix-factorization`.
    dimension      D coordinates, each in [low, high]; of the box, or of the ball of radius (high - low)/2 in `norm`.
                   Only high - low matters: moving the interval moves the sum and nothing else.
    noise          as in a run file: "grid" or "continuous".
    scale          s, as in a run file.
    precision      g, as in a run file.
    survivors      clients that answered. None: for the guarantee the floor t, for the error all n.
    colluders      clients, of those that answered or of the fewest that may answer, that reveal their noise.
    contributions  cohorts like this one that one client takes part in.
    target_delta   δ of all the contributions together.
    Raises         BadParameter, naming the field.
    """

    clients: Annotated[int, Doc("Clients of the cohort")]
    epsilon: Annotated[float | None, Doc("Budget of a client, in nats")] = None
    delta: Annotated[float | None, Doc("For mechanisms whose theorem has one")] = None
    dropout: Annotated[float, Doc("Share of the clients that may vanish")] = 0.0
    corrupt: Annotated[float, Doc("Share of the clients that may collude")] = 0.0
    survivors: Annotated[int | None, Doc("Clients that answered")] = None
    colluders: Annotated[int, Doc("Survivors that tell their noise")] = 0
    contributions: Annotated[int, Doc("Such cohorts that one client takes part in")] = 1
    target_delta: Annotated[float | None, Doc("δ of all the contributions together")] = None
    batches: Annotated[int | None, Doc("Length of the stream, for tree and prefix-factorization")] = None
    dimension: Annotated[int, Doc("D: coordinates of a client's vector")] = 1
    norm: Annotated[Norm, Doc("Ball that vectors lie in: l1, l2 or linf (the box)")] = "linf"
    low: Annotated[float, Doc("Least value of a coordinate")] = 0.0
    high: Annotated[float, Doc("Largest value; the ball has radius (high - low)/2")] = HIGH
    noise: Annotated[Noise, Doc("grid, or continuous, which is unsafe")] = "grid"
    scale: Annotated[float | None, Doc("s of MAB Theorems 2 and 4")] = None
    precision: Annotated[int | None, Doc("g: steps of the grid")] = None

    def __post_init__(self) -> None:
        whole = (("clients", self.clients, MOST_CLIENTS), ("dimension", self.dimension, MOST_COORDINATES))
        for field, count, most in whole:
            if not 1 <= count <= most:
                raise BadParameter(field, count, f"must lie in [1, {most}]")
        for field, share in (("dropout", self.dropout), ("corrupt", self.corrupt)):
            if not 0 <= share < 0.5:
                raise BadParameter(field, share, "must lie in [0, 1/2)")
        for field, end in (("low", self.low), ("high", self.high)):
            if not abs(end) <= WIDEST:
                raise BadParameter(field, end, f"must lie in [{-WIDEST:g}, {WIDEST:g}]")
        if not self.low < self.high:
            if self.high == HIGH:  # the usual one: the other end is what was given
                raise BadParameter("low", self.low, f"must be below high = {self.high:g}")
            raise BadParameter("high", self.high, f"must be above low = {self.low:g}")
        for field, value, known in (("norm", self.norm, get_args(Norm)), ("noise", self.noise, get_args(Noise))):
            _known(field, value, known)
        self._check_participation()

    def _check_participation(self) -> None:
        """Refuse more answers than clients, more colluders than answers, and too many contributions."""
        if self.survivors is not None and not 1 <= self.survivors <= self.clients:
            raise BadParameter("survivors", self.survivors, f"must lie in [1, n = {self.clients}]")
        field, most = ("min_survivors", self.min_survivors) if self.survivors is None else ("survivors", self.survivors)
        if not 0 <= self.colluders <= most:
            raise BadParameter("colluders", self.colluders, f"must lie in [0, {field} = {most}]")
        if not 1 <= self.contributions <= MOST_CONTRIBUTIONS:
            raise BadParameter("contributions", self.contributions, f"must lie in [1, {MOST_CONTRIBUTIONS}]")
        if self.target_delta is not None and not delta_allowed(self.target_delta):
            raise BadParameter("target_delta", self.target_delta, DELTA_RULE)

    @property
    def min_survivors(self) -> int:
        """Return the fewest clients that answer: n without the dropouts."""
        return self.clients - math.floor(self.dropout * self.clients)

    @property
    def min_honest(self) -> int:
        """Return t, the fewest honest clients that answer, at least 1."""
        return max(1, self.min_survivors - math.floor(self.corrupt * self.clients))

    @property
    def statistic(self) -> Reward | BoundedVector:
        """Return the reward in [0, 1], or a vector of the same width around 0."""
        if self.dimension == 1 and (self.low, self.high) == (0.0, 1.0):
            return Reward()
        return BoundedVector(dimension=self.dimension, norm=self.norm, bound=(self.high - self.low) / 2)

    def planned(self, name: str, calibration: str, statistic: Statistic | None = None) -> Mechanism:
        """Return the calibrated mechanism for this cohort, and for another statistic where one is given.

        Raises BadParameter.
        """
        spec, statistic = self.spec(name, calibration), self.statistic if statistic is None else statistic
        check_spec(spec, statistic)
        return plan(
            spec,
            clients=self.clients,
            min_survivors=self.min_survivors,
            min_honest=self.min_honest,
            overflow_probability=OVERFLOW_PROBABILITY,
            statistic=statistic,
        )

    @property
    def answers(self) -> int | None:
        """Return how many answered, as a mechanism's guarantee takes it; None stands for the floor of honest clients.

        `min_honest` leaves the colluders out already. Where there are colluders and no stated survivors, they are
        subtracted from `min_survivors`.
        """
        return self.min_survivors if self.survivors is None and self.colluders else self.survivors

    @property
    def answered(self) -> int:
        """Return the number of clients whose sum the error is about."""
        return self.clients if self.survivors is None else self.survivors

    @property
    def notes(self) -> list[str]:
        """Return notes that a reader of a sum over so few clients needs."""
        if self.survivors is None or self.survivors >= self.min_survivors:
            return []
        return [f"never opened: a release needs {self.min_survivors} answers, and {self.survivors} came"]

    def described(self) -> dict[str, Any]:
        """Return the question and what follows from it, JSON-able, in the order that every report has."""
        fields = asdict(self)
        answered = {name: fields.pop(name) for name in ("survivors", "colluders", "contributions", "target_delta")}
        return {
            **fields,
            "least": self.min_survivors,
            "floor": self.min_honest,
            "wrap": OVERFLOW_PROBABILITY,
            **answered,
            "notes": self.notes,
        }

    def spec(self, name: str, calibration: str) -> MechanismSpec:
        """Return the mechanism's table of a run file. Raises BadParameter."""
        try:
            MECHANISMS.find(name)
        except BadParameter as error:
            raise BadParameter("mechanism", name, error.allowed) from error
        _known("calibration", calibration, get_args(Calibration))
        for field in ("epsilon", "delta", "batches", "scale", "precision"):
            value = getattr(self, field)
            if value is not None and not math.isfinite(value):
                raise BadParameter(f"mechanism.{field}", value, "must be a finite number")
        try:
            return MechanismSpec(
                name=name,
                calibration=cast(Calibration, calibration),
                noise=self.noise,
                epsilon=self.epsilon,
                delta=self.delta,
                batches=self.batches,
                scale=self.scale,
                precision=self.precision,
            )
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            raise BadParameter(f"mechanism.{field}", getattr(self, field, None), wanted(error)) from error


def _known(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadParameter(field, value, f"must be one of {', '.join(known)}")

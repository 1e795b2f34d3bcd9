"""What `distrust privacy` is asked: a cohort, what its clients send, and the words of a mechanism."""

import math
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import ValidationError

from distrust.common.bandit.statistics import BoundedVector, Norm, Reward
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import MECHANISMS, Calibration, Mechanism, MechanismSpec, check_spec, plan
from distrust.common.mechanisms.base import Noise
from distrust.common.messages.explain import wanted

WRAP = 1e-6  # p': the run's own value depends on its failure probability, arms and batch
MOST_CLIENTS = 1_000_000
MOST_COORDINATES = 1_000_000
WIDEST = 1e12  # of [low, high]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyQuery:
    """One cohort and its statistic; the mechanism's name comes later. Raises BadParameter, naming the field.

    clients    n. dropout, corrupt: shares of n that may vanish, or collude, each in [0, 1/2); they fix the floor t.
    dimension  D coordinates, each in [low, high]; of the box, or of the ball of radius (high - low)/2 in `norm`.
               Only high - low matters: moving the interval moves the sum and nothing else.
    batches    length of the stream, for `tree`.
    noise, scale, precision  as in a run file: "grid" or "continuous", s and g.
    """

    clients: int
    epsilon: float | None
    delta: float | None = None
    dropout: float = 0.0
    corrupt: float = 0.0
    batches: int | None = None
    dimension: int = 1
    norm: str = "linf"
    low: float = 0.0
    high: float = 1.0
    noise: str = "grid"
    scale: float | None = None
    precision: int | None = None

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
            raise BadParameter("high", self.high, f"must be above low = {self.low:g}")
        for field, given, known in (("norm", self.norm, get_args(Norm)), ("noise", self.noise, get_args(Noise))):
            _known(field, given, known)

    @property
    def least(self) -> int:
        """The fewest that answer: n without the dropouts."""
        return self.clients - math.floor(self.dropout * self.clients)

    @property
    def floor(self) -> int:
        """t: what is left of them without the colluders, at least 1."""
        return max(1, self.least - math.floor(self.corrupt * self.clients))

    @property
    def statistic(self) -> Reward | BoundedVector:
        """The reward in [0, 1], or a vector of the same width around 0."""
        if self.dimension == 1 and (self.low, self.high) == (0.0, 1.0):
            return Reward()
        words = {"dimension": self.dimension, "norm": self.norm, "bound": (self.high - self.low) / 2}
        return BoundedVector.model_validate(words)

    def planned(self, name: str, calibration: str) -> Mechanism:
        """The calibrated mechanism for this cohort."""
        spec, statistic = self.spec(name, calibration), self.statistic
        check_spec(spec, statistic)
        return plan(spec, clients=self.clients, least=self.least, floor=self.floor, wrap=WRAP, statistic=statistic)

    def answers(self, survivors: int | None, colluders: int) -> int | None:
        """Who answered, for a guarantee: `survivors` if told; None, the floor of honest ones, if nobody colludes.

        The floor leaves the colluders out already, so that told ones are taken off `least`. Raises BadParameter for
        more answers than clients and more colluders than answers.
        """
        if survivors is not None and not 1 <= survivors <= self.clients:
            raise BadParameter("survivors", survivors, f"must lie in [1, clients = {self.clients}]")
        field, most = ("least", self.least) if survivors is None else ("survivors", survivors)
        if not 0 <= colluders <= most:
            raise BadParameter("colluders", colluders, f"must lie in [0, {field} = {most}]")
        return self.least if survivors is None and colluders else survivors

    def notes(self, survivors: int | None) -> list[str]:
        """What a reader must know of a sum over so few."""
        if survivors is None or survivors >= self.least:
            return []
        return [f"never opened: a release needs {self.least} answers, and {survivors} came"]

    def spec(self, name: str, calibration: str) -> MechanismSpec:
        """The words of a run file."""
        _known("mechanism", name, tuple(MECHANISMS))
        _known("calibration", calibration, get_args(Calibration))
        words: dict[str, Any] = {"name": name, "calibration": calibration, "noise": self.noise}
        for field in ("epsilon", "delta", "batches", "scale", "precision"):
            given = getattr(self, field)
            if given is not None:
                words[field] = given
                if not math.isfinite(given):
                    raise BadParameter(f"mechanism.{field}", given, "must be a finite number")
        try:
            return MechanismSpec.model_validate(words)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            raise BadParameter(f"mechanism.{field}", words.get(field), wanted(error)) from error


def _known(field: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise BadParameter(field, given, f"must be one of {', '.join(known)}")

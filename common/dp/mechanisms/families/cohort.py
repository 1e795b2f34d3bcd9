"""Defines what is known of a cohort before a mechanism is calibrated to it, and a mechanism's fields that follow."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from distrust.common.bandit.contextual_sum import PrintedNoise
from distrust.common.bandit.error_law import Calibration
from distrust.common.dp.accounting.techniques.sensitivity import FULL_BALL, Grid, steps_moved
from distrust.common.errors import BadParameter
from distrust.common.wire import Norm, Via

Noise = Literal["grid", "continuous"]
"""Discrete noise on the grid, which is exact; or continuous noise in floating point, which is unsafe."""


Number = TypeVar("Number", int, float)


class Quantiles(Protocol):
    """A law of noise that a modulus leaves room for: any law with quantiles."""

    def quantile(self, p: float) -> float: ...


class SharedFields(TypedDict):
    """The fields that every mechanism has and that its cohort settles. `Mechanism` describes them."""

    calibration: Calibration
    via: Via
    clients: int
    floor: int
    dimension: int
    low: float
    high: float
    norm: Norm
    precision: int
    modulus: int
    wrap: float
    moved: int | None


@dataclass(frozen=True, slots=True)
class CohortParams:
    """A cohort's facts that are fixed before a mechanism is calibrated to it.

    clients               n.
    min_honest            t: honest survivors, whose noise the guarantee counts on. A paper's n is the number of clients
                          that carry the noise, so its formulas take t. The room in Z_m is for all n.
    dimension, low, high  D coordinates in [low, high].
    norm                  of the ball around the middle that bounds a vector; "linf" is the box.
    overflow_probability  p': bound on the probability that a sum wraps around.
    squared_share         (Δ₂ / diameter)², below 1 where a statistic does not fill its ℓ₂ ball.
    blocks                equal parts of a vector, of which a client fills at most one; the others are zero.
    assigned              whether the shuffler assigns the actions, and opens what was played of each.
    printed               for `paper`: what the noise that a source prints for a contextual vector depends on. None: the
                          mechanism's own constants.
    stated                numbers of the mechanism's searched fields that another party found. They are taken as they
                          are: the caller checks what they promise.
    """

    clients: int
    min_honest: int
    dimension: int
    low: float
    high: float
    overflow_probability: float
    calibration: Calibration
    intermediary: Via
    norm: Norm = "linf"
    assigned: bool = False
    squared_share: Fraction = FULL_BALL
    blocks: int = 1
    printed: PrintedNoise | None = None
    stated: tuple[tuple[str, float], ...] = ()

    def searched(self, field: str, found: Number) -> Number:
        """Return the number that was told for a searched field, else the one that the party's own search found."""
        numbers: dict[str, Any] = dict(self.stated)
        stated: Number = numbers.get(field, found)
        return stated

    @property
    def apart(self) -> float | None:
        """Return what CTX charges for each of the two parts of a contextual vector, in units of Δ₂; None for others."""
        return None if self.printed is None else self.printed.share(2 * max(1.0, self.printed.factor))

    def shared(self, precision: int, modulus: int, *, full_ball: bool = False) -> SharedFields:
        """Return the fields that every mechanism has. Raises BadParameter for a modulus of 2^62 or more.

        full_ball  the guarantee takes the statistic to fill its ball, whatever `squared_share` is.
        """
        if modulus >= 2**62:
            raise BadParameter("mechanism.precision", precision, "clients * precision and noise must stay below 2^62")
        return {
            "calibration": self.calibration,
            "via": self.intermediary,
            "clients": self.clients,
            "floor": self.min_honest,
            "dimension": self.dimension,
            "low": self.low,
            "high": self.high,
            "norm": self.norm,
            "precision": precision,
            "modulus": modulus,
            "wrap": self.overflow_probability,
            "moved": None
            if full_ball or self.squared_share == FULL_BALL
            else steps_moved(precision, self.squared_share),
        }

    def grid(self, precision: int, *, rounded: bool = True) -> Grid:
        """Return what one client can move on a grid of `precision` steps between low and high."""
        return Grid(steps_moved(precision, self.squared_share), self.dimension, self.norm, rounded=rounded)

    def tight(self, precision: int) -> int:
        """Return the precision, or one of the next few, of which a client can move the least share of the steps.

        Moves are whole steps. On a coarse grid their rounding up costs a few percent of noise; some grids have none.
        """
        near = range(precision, precision + 8)
        return (
            precision
            if self.squared_share == FULL_BALL
            else min(near, key=lambda g: steps_moved(g, self.squared_share) / g)
        )

    @property
    def log_overflow(self) -> float:
        """Return ln(2/p') for one coordinate, by the union bound."""
        return math.log(2 * self.dimension / self.overflow_probability)

    def room(self, precision: int, law: Quantiles | None, noise: Noise = "grid", least: float = 0.0) -> int:
        """Return the modulus m = ng + 2τ + 1.

        law    of the total noise in one coordinate, in grid steps; τ is its quantile at p'/D. None: no noise.
        least  smallest τ.
        """
        tail = 0.0 if law is None else law.quantile(max(self.overflow_probability / self.dimension, 1e-18))
        apart = self.clients if noise == "continuous" else 0  # it is rounded afterwards, by less than a step a client
        return self.clients * precision + 2 * (math.ceil(max(tail, least)) + apart) + 1

"""What a cohort fixes before a mechanism is calibrated to it, and the ranges of ε and δ."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.base import Calibration, MechanismSpec, Noise, Norm
from distrust.common.mechanisms.calibration.roots import least as least  # noqa: PLC0414 - also for those who look for it here
from distrust.common.mechanisms.calibration.sensitivity import INFLATION, l1, laplace_scale
from distrust.common.messages.cohort import Via

ROUNDING = 0.1
"""Share of the privacy noise's variance that `exact` grids leave to the rounding, whose variance is at most n/4."""


class Quantiles(Protocol):
    """What there has to be room for."""

    def quantile(self, p: float) -> float: ...


@dataclass(frozen=True, slots=True)
class CohortParams:
    """n clients, the noise counts on `floor` of them; D coordinates in [low, high] and in `norm`; p' for a wrapped sum.

    As the paper's n stands for the clients that carry the noise, its formulas take `floor` for privacy and rounding;
    the room in Z_m is made for all `clients`.
    """

    clients: int
    floor: int
    dimension: int
    low: float
    high: float
    wrap: float
    calibration: Calibration
    via: Via
    norm: Norm = "linf"
    dealt: bool = False  # S deals actions, and opens what was played of each

    def shared(self, precision: int, modulus: int) -> dict[str, Any]:
        """The fields of every mechanism."""
        if modulus >= 2**62:
            raise BadParameter("mechanism.precision", precision, "clients * precision and noise must stay below 2^62")
        own = {field: getattr(self, field) for field in self.__slots__ if field != "dealt"}
        return {**own, "precision": precision, "modulus": modulus}

    @property
    def log_wrap(self) -> float:
        """ln(2/p') for one coordinate, by the union bound."""
        return math.log(2 * self.dimension / self.wrap)

    def room(self, precision: int, law: Quantiles | None, noise: Noise = "grid", least: float = 0.0) -> int:
        """The modulus m = ng + 2τ + 1, τ the exact quantile of the total noise at p'/D, at least `least`.

        Continuous noise is rounded afterwards, by less than a step a client.
        """
        tail = 0.0 if law is None else law.quantile(max(self.wrap / self.dimension, 1e-18))
        apart = self.clients if noise == "continuous" else 0
        return self.clients * precision + 2 * (math.ceil(max(tail, least)) + apart) + 1


def needed(spec: MechanismSpec) -> float:
    """ε of a spec whose mechanism needs one."""
    if spec.epsilon is None:
        raise BadParameter("mechanism.epsilon", None, f"{spec.name} needs one")
    return spec.epsilon


def laplace_precision(frame: CohortParams, spec: MechanismSpec, terms: int) -> int:
    """The precision g for `terms` discrete Laplace terms in the sum: ⌈ε√t⌉ for `paper`, else `little_rounding`."""
    if spec.precision is not None:
        return spec.precision
    if spec.calibration == "paper":
        return math.ceil(needed(spec) * math.sqrt(frame.floor))
    return little_rounding(frame, needed(spec), terms, ROUNDING)


def little_rounding(frame: CohortParams, epsilon: float, terms: int, share: float, inflation: float = INFLATION) -> int:
    """The least g whose rounding variance n/4 is at most `share` of the noise's, terms / (2 sinh²(1/(2 scale))).

    In ℓ₁ and ℓ₂ balls also the least where rounding takes at most `inflation` more scale.
    """
    sine = math.sqrt(2 * share * terms / frame.clients)
    scale = 1 / (2 * math.asinh(sine))
    guess = max(1, math.ceil(scale * epsilon / frame.dimension))
    if frame.norm == "linf" or frame.dimension == 1:
        return guess

    def enough(g: int) -> bool:
        own = laplace_scale(epsilon, g, frame.dimension, frame.norm)
        return own >= scale and own <= (1 + inflation) * l1(g, frame.dimension, frame.norm) / epsilon

    return least(enough, guess)


EPSILONS = (1e-4, 50.0)
"""Range of ε: below it the noise would not fit its table, above it there is no privacy worth the name."""


def require(met: bool, field: str, value: object, allowed: str) -> None:  # noqa: FBT001 - the condition itself
    """For validators: a ValueError that reads like a BadParameter."""
    if not met:
        raise ValueError(f"{field} = {value!r}: {allowed}")


def epsilon_allowed(epsilon: float) -> bool:
    """Finite and in range."""
    return math.isfinite(epsilon) and EPSILONS[0] <= epsilon <= EPSILONS[1]


EPSILON_RULE = f"must lie in [{EPSILONS[0]:g}, {EPSILONS[1]:g}]"
LEAST_DELTA = 1e-18
"""Below it what the laws leave out, 1e-22, and how exactly noise is drawn would be felt."""

DELTA_RULE = f"must lie in [{LEAST_DELTA:g}, 1/2)"


def delta_allowed(delta: float) -> bool:
    """In the theorems' interval, and not so small that nobody could keep it."""
    return LEAST_DELTA <= delta < 0.5

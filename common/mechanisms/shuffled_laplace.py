"""Discrete Laplace noise at each client, permuted: a little local privacy, much more behind the shuffler."""

from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from common.amplification import clones_local_epsilon, paper_local_epsilon
from common.error_law import ErrorLaw
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.checks import DELTA_RULE, EPSILON_RULE, delta_allowed, epsilon_allowed, require
from common.mechanisms.frame import ROUNDING, Frame, little_rounding, needed
from common.mechanisms.laplace import SAMPLER, LaplaceLike
from common.mechanisms.real_gaussian import needed_delta
from common.mechanisms.sensitivity import laplace_scale
from common.mechanisms.shuffled import (
    GAIN,
    LOCAL,
    alike_epsilon,
    alike_local_epsilon,
    alike_renyi,
    laplace_epsilon,
    laplace_renyi,
    of_the_records,
)
from common.messages.cohort import Via
from common.noise import DiscreteLaplace, PolyaDifference
from common.profile import SHOWN_DELTA, Profile, bound, tightened


class ShuffledLaplace(LaplaceLike):
    """Lap_Z of ε₀ on each client's vector; ε₀ is the largest that t shuffled messages amplify to (ε, δ).

    local      ε₀ ≥ ε. paper: f⁻¹(ε) of the closed form inside its range, else ε. exact: by the clones bound, computed;
               where all messages are of one law and one coordinate, by the privacy blanket of that law if it is larger.
    Guarantee  (ε, δ) for the permuted messages of t honest clients; (ε₀, 0) for each message in any case.
    Parts      Assigned actions, `dealt`, may be opened one by one: place j of the permuted list plays a public action:
               its message is an ε₀-private randomizer of its own, and the clones bound, used then alone, holds for any
               sequence of those.
    Source     FREE Algorithm 3, equation (10), with its range and max(ε, f⁻¹(ε)). Feldman, McMillan & Talwar 2021,
               Theorem 3.1, for randomizers that differ from place to place. Balle et al. 2019 for one randomizer.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    parts: ClassVar[bool] = True

    name: Literal["shuffled-laplace"] = "shuffled-laplace"
    delta: float
    local: Annotated[float, Field(description="ε₀ in nats: what a message alone promises")]
    dealt: Annotated[bool, Field(description="whether S deals actions, and opens what was played of each")] = False

    @model_validator(mode="after")
    def _is_local(self) -> Self:
        require(delta_allowed(self.delta), "delta", self.delta, DELTA_RULE)
        require(epsilon_allowed(self.local), "local", self.local, EPSILON_RULE)
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        epsilon, delta = needed(spec), needed_delta(spec)
        amplify = paper_local_epsilon if spec.calibration == "paper" else clones_local_epsilon
        local = max(epsilon, amplify(epsilon, delta, frame.floor)) if frame.floor > 1 else epsilon
        alike = frame.dimension == 1 and not frame.dealt and spec.calibration == "exact" and frame.floor > 1
        about = GAIN * local if alike else local
        precision = spec.precision or little_rounding(frame, about, frame.clients, ROUNDING)
        if alike:
            local = max(epsilon, alike_local_epsilon(epsilon, delta, frame.floor, precision))
        total = PolyaDifference(Fraction(frame.clients), laplace_scale(local, precision, frame.dimension, frame.norm))
        own = {"epsilon": epsilon, "delta": delta, "local": local, "dealt": frame.dealt}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total)), **own})

    @property
    def scale(self) -> float:
        """Scale of a client's discrete Laplace law, in grid steps."""
        return laplace_scale(self.local, self.precision, self.dimension, self.norm)

    @property
    def divisible(self) -> bool:
        return self.dealt

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = max(1, self.honest(survivors, colluders))
        local = self.one_term_epsilon
        epsilon = self._amplified(local, honest) if honest > 1 else local
        amplified = epsilon < local
        return Guarantee.model_validate(
            {
                "kind": "approximate" if amplified else "pure",
                "epsilon": epsilon,
                "delta": self.delta if amplified else 0.0,
                "claimed": self.epsilon,
                "model": "shuffle" if amplified else "local",
                "calibration": self.calibration,
                "assumptions": (*of_the_records(honest), SAMPLER),
            }
        )

    def _amplified(self, local: float, honest: int) -> float:
        if self.dealt or self.dimension > 1:
            return laplace_epsilon(local, self.delta, honest)
        asked = self.epsilon if self.calibration == "exact" and honest >= self.floor else 0.0
        return alike_epsilon(self.local, self.precision, self.delta, honest, asked)

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        """(ε, δ) and Rényi of the messages together; one message alone bounds them, and has pure ε."""
        found = self.model_copy(update={"delta": delta}).guarantee(survivors, colluders)
        alone = super().profile(survivors, colluders, delta)
        honest, local = max(1, self.honest(survivors, colluders)), self.one_term_epsilon
        clones = self.dealt or self.dimension > 1
        together = laplace_renyi(local, honest) if clones else alike_renyi(self.local, self.precision, honest)
        change = {"pure": bound(alone.pure.epsilon), "approximate": bound(found.epsilon)}
        by_order = {"rdp": tightened(alone.rdp, together), "rdp_how": "bound"}
        return alone.model_copy(update={**change, **by_order, "notes": (LOCAL,)})

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)

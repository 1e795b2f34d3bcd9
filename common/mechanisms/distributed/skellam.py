"""Skellam noise at each client, summed by secure aggregation: Rényi privacy close to the Gaussian's, on integers."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.mechanisms.assumptions import nothing, of_the_sum
from distrust.common.mechanisms.base import MechanismSpec, Need
from distrust.common.mechanisms.calibration.gaussian_profile import skellam_profile
from distrust.common.mechanisms.calibration.sensitivity import Grid, squared_l2
from distrust.common.mechanisms.calibration.skellam import (
    Target,
    best_precision,
    divergences,
    least_variance,
    released_epsilon,
)
from distrust.common.mechanisms.cohort_params import (
    DELTA_RULE,
    EPSILON_RULE,
    CohortParams,
    delta_allowed,
    epsilon_allowed,
    needed,
    require,
)
from distrust.common.mechanisms.families.laplace import SAMPLER
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.messages.cohort import Via
from distrust.common.noise.law import ScaledErrorLaw
from distrust.common.noise.skellam import Skellam
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.hockey_stick import from_rdp
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, unprotected

PAPER_SCALE = 10.0  # s of the paper's experiments


class DistributedSkellam(GridMechanism):
    """Sk(0, variance/t) on each client: Sk(0, variance) over t of them, whatever its split.

    variance   in grid steps squared, per coordinate. paper: S/ε², S the squared ℓ₂ sensitivity, g = ⌈sε√t⌉. exact: the
               least whose privacy is (ε, δ), or RDP(α) ≤ αε²/2 at every order of ORDERS when δ is absent.
    Guarantee  of the modular sum over at least t honest clients, computed from the law: (ε, δ) of one coordinate, or of
               a box whose D coordinates all move by g; for ℓ₁ and ℓ₂ balls a bound on the worst move (`spread`), whose
               Rényi moments are the law's too. Vectors get RDP by order as well.
    Source     MAB Theorem 2 with t for n and σ² = g²/ε² (the statement prints σ²/(nε²)); for its bound on RDP, Agarwal,
               Kairouz & Liu 2021, the law's own divergence.
    """

    model: ClassVar[Model] = "distributed"
    vias: ClassVar[tuple[Via, ...]] = ("aggregator",)
    takes_delta: ClassVar[Need | None] = "optional"
    takes_scale: ClassVar[bool] = True

    name: Literal["distributed-skellam"] = "distributed-skellam"
    epsilon: float
    delta: float | None = None
    variance: Annotated[float, Field(gt=0, description="variance of the noise of t clients, grid steps squared")]

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        require(self.delta is None or delta_allowed(self.delta), "delta", self.delta, DELTA_RULE)
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        target = Target(needed(spec), spec.delta, frame.dimension, frame.norm)
        precision = spec.precision or cls._precision(spec, frame, target)
        paper = spec.calibration == "paper"
        square = squared_l2(precision, frame.dimension, frame.norm)
        variance = square / target.epsilon**2 if paper else least_variance(target, precision)
        total = Skellam(variance * frame.clients / frame.floor)
        log = frame.log_wrap
        tau = 2 * math.sqrt(variance * log) + math.sqrt(2) * log if paper else 0.0
        own = {"epsilon": target.epsilon, "delta": target.delta, "variance": variance}
        return cls.model_validate({**frame.shared(precision, frame.room(precision, total, least=tau)), **own})

    @staticmethod
    def _precision(spec: MechanismSpec, frame: CohortParams, target: Target) -> int:
        if spec.calibration == "exact" and spec.scale is None:
            return best_precision(target, frame.clients)
        return math.ceil((spec.scale or PAPER_SCALE) * target.epsilon * math.sqrt(frame.floor))

    def client_law(self) -> Skellam:
        return Skellam(self.variance / self.floor)

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return nothing(self)
        variance = self.variance * honest / self.floor
        grid = Grid(self.precision, self.dimension, self.norm)
        if self.delta is not None and self.dimension == 1:
            return self._promise("approximate", released_epsilon(variance, grid, self.delta), self.delta, (), honest)
        pairs = divergences(variance, self.precision, self.dimension, self.norm)
        delta = SHOWN_DELTA if self.delta is None else self.delta
        ways = [released_epsilon(variance, grid, delta), *([from_rdp(pairs, delta)] if pairs else [])]
        return self._promise("renyi" if pairs else "approximate", min(ways), delta, pairs, honest)

    def _promise(
        self,
        kind: Literal["approximate", "renyi"],
        epsilon: float,
        delta: float,
        rdp: tuple[tuple[float, float], ...],
        honest: int,
    ) -> Guarantee:
        if math.isinf(epsilon):
            return nothing(self)
        return Guarantee(
            kind=kind,
            epsilon=epsilon,
            delta=delta,
            claimed=self.epsilon,
            rdp=rdp,
            model=self.model,
            calibration=self.calibration,
            assumptions=(*of_the_sum(honest), SAMPLER),
        )

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return unprotected(delta)
        variance = self.variance * honest / self.floor
        grid = Grid(self.precision, self.dimension, self.norm)
        pairs = divergences(variance, self.precision, self.dimension, self.norm)
        return skellam_profile(Skellam(variance), grid, released_epsilon(variance, grid, delta), pairs, delta)

    def released_law(self, honest: int) -> Skellam | None:
        return Skellam(self.variance * honest / self.floor) if honest > 0 else None

    def error(self, survivors: int) -> ErrorLaw:
        law = Skellam(self.variance * survivors / self.floor)
        return ScaledErrorLaw(law, self.step, self._sub_exponential(survivors))

    def _sub_exponential(self, survivors: int) -> tuple[float, float]:
        """MAB Lemma 4, (2σ, √2) in grid steps; as Theorem 2 rounds it, (2/ε + √2/(sε), 1/(sε)), for `paper`."""
        more = math.sqrt(survivors / self.floor)
        if self.calibration == "exact":
            return 2 * math.sqrt(self.variance) * more * self.step, math.sqrt(2) * self.step
        scale = self.precision / (self.epsilon * math.sqrt(self.floor))
        unit = (self.high - self.low) / self.epsilon
        norm = math.sqrt(squared_l2(self.precision, self.dimension, self.norm)) / self.precision
        return (2 * norm + math.sqrt(2) / scale) * more * unit, unit / scale

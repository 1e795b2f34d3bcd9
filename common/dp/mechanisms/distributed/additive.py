"""The distributed mechanisms whose clients add shares of noise: by secure aggregation the server sees the sum only."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.dp.accounting.guarantee import SAMPLER, Model, sum_assumptions
from distrust.common.dp.accounting.laws.gaussian_sums import GaussianTarget, sum_precision, sum_variance
from distrust.common.dp.accounting.profile import Privacy, no_privacy
from distrust.common.dp.accounting.techniques.sensitivity import laplace_scale
from distrust.common.dp.mechanisms.families.base import PAPER_SCALE, MechanismSpec, Need, needed
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike, laplace_precision
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.polya import PolyaDifference
from distrust.common.wire import Via


class DistributedPolya(LaplaceLike):
    """Each client adds γ⁺ - γ⁻ with Pólya(1/t, e^(-ε/(gD))); t such shares add up to Lap_Z(gD/ε).

    Guarantee  (ε, 0) for the modular sum over at least t honest clients. With fewer the released law has the shape
               r = honest/t < 1, and its privacy is computed: ε = ln p_r(0)/p_r(g). More shares only hide more.
    Utility    standard deviation √2 D √(n'/t) / ε in data units.
    Source     MAB Theorem 1 with t for n; Goryczka & Xiong 2015, Theorem 5.1.
    """

    model: ClassVar[Model] = "distributed"
    vias: ClassVar[tuple[Via, ...]] = ("aggregator",)

    name: Literal["distributed-polya"] = "distributed-polya"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(cohort, spec, 1)
        scale = laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
        total = PolyaDifference(Fraction(cohort.clients, cohort.min_honest), scale)
        tau = scale * cohort.log_overflow if spec.calibration == "paper" else 0.0
        return cls(**cohort.shared(precision, cohort.room(precision, total, least=tau)), epsilon=epsilon)

    def client_law(self) -> PolyaDifference:
        return PolyaDifference(Fraction(1, self.floor), self.scale)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_privacy(self.calibration)
        noise = PolyaDifference(Fraction(honest, self.floor), self.scale)
        log_concave = honest >= self.floor
        return self.laplace_privacy(noise, sum_assumptions(honest), noise if log_concave else None)

    def error(self, survivors: int) -> ErrorLaw:
        law = PolyaDifference(Fraction(survivors, self.floor), self.scale)
        return self.scaled(law, survivors / self.floor)


class DistributedDiscreteGaussian(GaussianLike):
    """Each client adds N_Z(0, variance/t). The sum is no discrete Gaussian; its privacy is that of the convolution.

    variance   paper: S/ε², S the squared ℓ₂ sensitivity (g² for one coordinate), g = ⌈sε√t⌉. exact: the least whose
               convolved law is (ε, δ), or ½ε²-CDP at every order of GUARANTEE_ORDERS when δ is absent.
    Guarantee  of the modular sum over at least t honest clients, for any number of them.
    Source     MAB Theorem 4 with t for n (Kairouz, Liu & Steinke 2021); it achieves ½ε̂²-CDP. Its ε̂, and Lemma 4's tail,
               say nothing below one step of deviation a client, so that neither is used.
    """

    model: ClassVar[Model] = "distributed"
    vias: ClassVar[tuple[Via, ...]] = ("aggregator",)
    takes_delta: ClassVar[Need | None] = "optional"
    takes_scale: ClassVar[bool] = True
    letters: ClassVar[Mapping[str, str]] = {"share": "variance of a share"}

    name: Literal["distributed-discrete-gaussian"] = "distributed-discrete-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        target = GaussianTarget(needed(spec), spec.delta, cohort.min_honest)
        precision = spec.precision or cls._precision(spec, cohort, target)
        grid = cohort.grid(precision)
        paper = spec.calibration == "paper"
        variance = grid.squared_l2 / target.epsilon**2 if paper else sum_variance(target, grid)
        variance = cohort.searched("variance", variance)
        total = DiscreteGaussianSum(variance / cohort.min_honest, cohort.clients)
        tau = math.sqrt(2 * variance * cohort.log_overflow) if paper else 0.0
        return cls(
            **cohort.shared(precision, cohort.room(precision, total, least=tau)),
            epsilon=target.epsilon,
            delta=target.delta,
            variance=variance,
        )

    @staticmethod
    def _precision(spec: MechanismSpec, cohort: CohortParams, target: GaussianTarget) -> int:
        if spec.calibration == "exact" and spec.scale is None:
            return cohort.tight(sum_precision(target, cohort.dimension, cohort.norm, cohort.clients))
        return math.ceil((spec.scale or PAPER_SCALE) * target.epsilon * math.sqrt(cohort.min_honest))

    @property
    def share(self) -> float:
        """Return the parameter of one client's noise, in grid steps squared."""
        return self.variance / self.floor

    def client_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.share)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_privacy(self.calibration)
        law = DiscreteGaussianSum(self.share, honest)
        return self.gaussian_privacy(self.share, honest, (*sum_assumptions(honest), SAMPLER), law)

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(DiscreteGaussianSum(self.share, survivors), survivors * self.share)

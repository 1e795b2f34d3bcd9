"""The central mechanisms, whose noise the server adds to the sum, and the baseline without noise."""

import math
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import TRUSTED_SERVER, Model, no_guarantee
from distrust.common.dp.accounting.profile import Privacy, unprotected
from distrust.common.dp.accounting.techniques.sensitivity import laplace_scale
from distrust.common.dp.mechanisms.families.base import MechanismSpec, needed
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import RealGaussian
from distrust.common.dp.mechanisms.families.grid import FINE, INFLATED, GridMechanism, ServerNoise
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike, RealLaplace, laplace_precision, little_rounding
from distrust.common.dp.noise.continuous import Gaussian, Laplace
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.polya import DiscreteLaplace

FINEST_PRECISION = 1 << 20
"""Grid steps of the baseline when a run file states none."""


class UnsafeIdentity(GridMechanism):
    """Clients send the rounded values without noise.

    A party that reads a message, or a sum over one client, reads the data.

    Guarantee  none.
    Utility    the sum to half a grid step a client; exact for values on the grid, so for 0/1 rewards.
    """

    model: ClassVar[Model] = "none"
    gaussian: ClassVar[bool] = True
    parts: ClassVar[bool] = True

    name: Literal["identity"] = "identity"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision = spec.precision or FINEST_PRECISION
        return cls(**cohort.shared(precision, cohort.room(precision, None)))

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        return Privacy(
            compute_promise=lambda: no_guarantee(self.calibration, "none: there is no noise"),
            compute_profile=lambda delta: unprotected(delta, "there is no noise"),
        )

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return ScaledErrorLaw(None, self.step, (0.0, 0.0))


class CentralLaplaceDiscrete(LaplaceLike):
    """The server adds Lap_Z(gD/ε) to every coordinate of the sum, once.

    Guarantee  (ε, 0) for what the server publishes; none against the server.
    Exactness  noise is added modulo m, before the sum is decoded; the sum wraps with probability at most `wrap`.
    Source     MAB Algorithms 2 and 3, Theorem 5; the proof holds for every ε.
    """

    model: ClassVar[Model] = "central"
    parts: ClassVar[bool] = True

    name: Literal["central-laplace-discrete"] = "central-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(cohort, spec, 1)
        law = DiscreteLaplace(laplace_scale(epsilon, precision, cohort.dimension, cohort.norm))
        return cls(**cohort.shared(precision, cohort.room(precision, law)), epsilon=epsilon)

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        return self.one_term_privacy(TRUSTED_SERVER)

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.server_law(), 1)


class CentralLaplace(ServerNoise, RealLaplace):
    """The server adds Lap(Δ₁/ε) to the sum, once. Δ₁ is that of the stated range: 2 for rewards in [-1, 1].

    Guarantee    (ε, 0) for what the server publishes; none against the server.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth to its variance, and in a
                 ball another hundredth.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 1, which states Lap(1/ε) for rewards in [-1, 1] and so gives 2ε; Sajed & Sheffet 2019.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-laplace"] = "central-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(cohort, epsilon, 1, FINE, INFLATED)
        scale = laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
        law = Laplace(scale) if spec.noise == "continuous" else DiscreteLaplace(scale)
        return cls(**cohort.shared(precision, cohort.room(precision, law)), epsilon=epsilon, noise=spec.noise)

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.grid_law(), 1)


class CentralGaussian(ServerNoise, RealGaussian):
    """The server adds N(0, σ²) to every coordinate of the sum, once.

    Δ₂         the most that one client's vector moves in ℓ₂, rounding included: high - low for one coordinate.
    exact      the least σ with Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r) ≤ δ, r = Δ₂/σ (Balle & Wang 2018, Theorem 8).
    paper      σ = √(2 ln(1.25/δ)) Δ₂/ε, for ε < 1 only (Dwork & Roth 2014, Theorem A.1).
    noise      continuous: N(0, σ²) in reals. grid: N_Z(0, σ²) on a fine grid. Its `exact` σ comes from its own law p on
               the integers, Σ_k max(0, p(k) - e^ε p(k - Δ₂)) ≤ δ with k, Δ₂ and σ in steps, for one coordinate; for
               vectors from the law of a box, or from a bound by continuous noise.
    Guarantee  (ε, δ) for what the server publishes; none against the server.
    Source     DLB equations 5 and 55; analytic Gaussian mechanism (Balle & Wang 2018); Canonne, Kamath & Steinke 2020.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-gaussian"] = "central-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision, own = cls.calibrated(spec, cohort, cohort.clients)
        variance = own["variance"]
        law = Gaussian(math.sqrt(variance)) if spec.noise == "continuous" else DiscreteGaussian(variance)
        return cls(**cohort.shared(precision, cohort.room(precision, law)), **own)

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.grid_law(), self.variance)

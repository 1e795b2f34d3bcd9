"""The local mechanisms that add noise: each client adds it to its own vector, and trusts no other party."""

import math
from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import OWN_DEVICE, Model
from distrust.common.dp.accounting.profile import Privacy
from distrust.common.dp.accounting.techniques.sensitivity import drawn_scale, l1, laplace_scale
from distrust.common.dp.mechanisms.families.base import MechanismSpec, needed
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import RealGaussian
from distrust.common.dp.mechanisms.families.grid import FINE, INFLATED, ClientNoise
from distrust.common.dp.mechanisms.families.laplace import LaplaceLike, RealLaplace, laplace_precision, little_rounding
from distrust.common.dp.noise.continuous import Gaussian, Laplace, Rounded
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.wire import Via


class LocalLaplaceDiscrete(LaplaceLike):
    """Each client adds Lap_Z(gD/ε) to every coordinate of its vector.

    Guarantee  (ε, 0) for every single message, against every party that reads it.
    Exactness  messages are reduced modulo m; the sum of the n terms wraps with probability at most `wrap`.
    Source     MAB Algorithms 4 and 5, Theorem 6, whose unnamed constant c is replaced by the exact quantile.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")
    parts: ClassVar[bool] = True

    name: Literal["local-laplace-discrete"] = "local-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(cohort, spec, cohort.clients)
        total = PolyaDifference(
            Fraction(cohort.clients), laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
        )
        return cls(**cohort.shared(precision, cohort.room(precision, total)), epsilon=epsilon)

    def client_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        return self.one_term_privacy(OWN_DEVICE)

    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)


class LocalLaplace(ClientNoise, RealLaplace):
    """Each client adds Lap(Δ₁/ε₀) to every coordinate of its vector.

    Guarantee    (ε, 0) for every single message, against every party that reads it.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth to its variance, and in a
                 ball another hundredth. continuous: on the value itself, which is then rounded at random to the grid.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 2, with Δ₁ from the stated range.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-laplace"] = "local-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(cohort, epsilon, cohort.clients, FINE, INFLATED)
        if spec.noise == "continuous":
            scale = drawn_scale(epsilon, precision, cohort.dimension, cohort.norm)
            total: Laplace | PolyaDifference = Laplace(scale, cohort.clients)
        else:
            scale = laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
            total = PolyaDifference(Fraction(cohort.clients), scale)
        modulus = cohort.room(precision, total, spec.noise)
        return cls(**cohort.shared(precision, modulus), epsilon=epsilon, noise=spec.noise)

    @property
    def scale(self) -> float:
        """Return the scale of the noise as it is drawn, in grid steps."""
        if not self.continuous:
            return super().scale
        # Continuous noise comes before the rounding, and need not pay for it.
        return drawn_scale(self.epsilon, self.precision, self.dimension, self.norm)

    @property
    def one_term_epsilon(self) -> float:
        if not self.continuous:
            return super().one_term_epsilon
        return l1(self.precision, self.dimension, self.norm) / self.scale

    def error(self, survivors: int) -> ErrorLaw:
        if self.continuous:
            rounded, unit = Rounded(Laplace(self.scale, survivors), survivors), self.scale * self.step
            return ScaledErrorLaw(rounded, self.step, (math.sqrt(survivors * (4 * unit**2 + self.step**2 / 2)), unit))
        return self.scaled(PolyaDifference(Fraction(survivors), self.scale), survivors)


class LocalGaussian(ClientNoise, RealGaussian):
    """Each client adds N(0, σ²) to every coordinate of its vector.

    Δ₂         the most that its vector moves in ℓ₂, rounding included: high - low for one coordinate.
    exact      the least σ with Φ(r/2 - ε/r) - e^ε Φ(-r/2 - ε/r) ≤ δ, r = Δ₂/σ (Balle & Wang 2018, Theorem 8); on the
               grid the same of the discrete law, as for `central-gaussian`.
    paper      σ = √(2 ln(1.25/δ)) Δ₂/ε, for ε < 1 only (Dwork & Roth 2014, Theorem A.1). Of a contextual vector with
               ‖φ‖ ≤ 1, |s| ≤ c it is that of the policy's source: 4 max(1, c) √(2 ln(2.5/δ))/ε for CTX, ε ≤ 1;
               2 max(2, c) √(2 ln(1.25/δ))/ε for GLB's single parameter, ε < 1, and at ε/2, δ/2 for several;
               6 √(2 ln(2.5/δ))/ε for LDP-UCB, ε < 2; 6 √(2 ln(3.75/δ))/ε for LDP-GLOC, ε < 3. For LinUCB with
               `constants = "unsafe-published-code"` it is that of CTX's own code (`code_deviation`), for any ε.
    noise      continuous: N(0, σ²) in reals, then rounded. grid: N_Z(0, σ²) on a fine grid.
    Guarantee  (ε, δ) for every single message, against every party that reads it.
    Source     DLB equations 7 and 57, CTX Appendix F, GLB's OLS; calibrated as `central-gaussian` is.
    """

    model: ClassVar[Model] = "local"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler", "aggregator")

    name: Literal["local-gaussian"] = "local-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision, own = cls.calibrated(spec, cohort, 1)
        variance, clients = own["variance"], cohort.clients
        drawn = Gaussian(math.sqrt(clients * variance))
        total = drawn if spec.noise == "continuous" else DiscreteGaussianSum(variance, clients)
        modulus = cohort.room(precision, total, spec.noise)
        return cls(**cohort.shared(precision, modulus), **own)

    def error(self, survivors: int) -> ErrorLaw:
        variance = survivors * self.variance
        if self.continuous:
            return self.scaled(Rounded(Gaussian(math.sqrt(variance)), survivors), variance + survivors / 4)
        return self.scaled(DiscreteGaussianSum(self.variance, survivors), variance)

"""Noise that the server adds to the sum, once; and none at all, the baseline."""

from fractions import Fraction
from typing import ClassVar, Literal, Self

from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, ScaledErrorLaw
from distrust.common.mechanisms.families.base import CohortParams, MechanismSpec, needed
from distrust.common.mechanisms.families.gaussian import RealGaussian
from distrust.common.mechanisms.families.grid import FINE, INFLATED, GridMechanism, ServerNoise
from distrust.common.mechanisms.families.laplace import LaplaceLike, laplace_precision, little_rounding
from distrust.common.noise.continuous import Laplace
from distrust.common.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.noise.polya import DiscreteLaplace, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.laplace import real_laplace_profile
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, unprotected
from distrust.common.privacy.sensitivity import laplace_scale

FINEST = 1 << 20


class UnsafeIdentity(GridMechanism):
    """The rounded values as they are. A reader of a message, or of a sum over one client, reads the data.

    Guarantee  none.
    Utility    the sum to half a grid step a client; exact for values on the grid, so for 0/1 rewards.
    """

    model: ClassVar[Model] = "none"
    parts: ClassVar[bool] = True

    name: Literal["identity"] = "identity"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision = spec.precision or FINEST
        return cls(**cohort.shared(precision, cohort.room(precision, None)))

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        return Guarantee(
            kind="none",
            epsilon=None,
            model=self.model,
            calibration=self.calibration,
            assumptions=("none: there is no noise",),
        )

    @override
    def profile(
        self,
        survivors: int | None = None,
        colluders: int = 0,
        delta: float = SHOWN_DELTA,
    ) -> Profile:
        return unprotected(delta, "there is no noise")

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return ScaledErrorLaw(None, self.step, (0.0, 0.0))


class CentralLaplaceDiscrete(LaplaceLike):
    """Lap_Z(gD/ε) once on the sum, by the server.

    Guarantee  (ε, 0) for what the server publishes; none against the server.
    Exactness  noise is added to the decoded integer, outside Z_m, so that it cannot wrap.
    Source     MAB Algorithms 2 and 3, Theorem 5; the proof holds for every ε.
    """

    model: ClassVar[Model] = "central"
    parts: ClassVar[bool] = True

    name: Literal["central-laplace-discrete"] = "central-laplace-discrete"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon, precision = needed(spec), laplace_precision(cohort, spec, 1)
        paper = spec.calibration == "paper"  # Theorem 5 keeps room for noise in Z_m; ours needs none there
        law = DiscreteLaplace(laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)) if paper else None
        return cls(**cohort.shared(precision, cohort.room(precision, law)), epsilon=epsilon)

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        epsilon = self.released_epsilon(PolyaDifference(Fraction(1), self.scale))
        return self.promise(epsilon, ("the server is trusted: it sees the sum and adds the noise",))

    @override
    def released_law(self, honest: int) -> DiscreteLaplace:
        return self.server_law()

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.server_law(), 1)


class CentralLaplace(ServerNoise, LaplaceLike):
    """Lap(Δ₁/ε) once on the sum, by the server; Δ₁ from the stated range: 2 for rewards in [-1, 1].

    Guarantee    (ε, 0) for what the server publishes; none against the server.
    noise        grid: Lap_Z of the same ε on a grid so fine that rounding adds a hundredth of its variance, and in a
                 ball takes a hundredth more of it.
    Calibration  the theorem is tight: `paper` and `exact` are the same.
    Source       FREE Algorithm 1, which states Lap(1/ε) for rewards in [-1, 1] and so gives 2ε; Sajed & Sheffet 2019.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-laplace"] = "central-laplace"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        epsilon = needed(spec)
        precision = spec.precision or little_rounding(cohort, epsilon, 1, FINE, INFLATED)
        return cls(**cohort.shared(precision, cohort.room(precision, None)), epsilon=epsilon, noise=spec.noise)

    def server_law(self) -> DiscreteLaplace:
        return DiscreteLaplace(self.scale)

    def real_law(self) -> Laplace:
        return Laplace(self.scale)

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        trust = "the server is trusted: it sees the sum and adds the noise"
        return self.promise(self.one_term_epsilon, (*self.warnings, trust))

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        if not self.continuous:
            return super().profile(survivors, colluders, delta)
        found = real_laplace_profile(self.scale, self.grid, self.one_term_epsilon, delta, self.as_drawn)
        return found.model_copy(update={"notes": self.warnings})

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.server_law(), 1)


class CentralGaussian(ServerNoise, RealGaussian):
    """N(0, σ²) on every coordinate of the sum, by the server.

    Guarantee  (ε, δ) for what the server publishes; none against the server.
    Source     DLB equations 5 and 55; analytic Gaussian mechanism (Balle & Wang 2018); Canonne, Kamath & Steinke 2020.
    """

    model: ClassVar[Model] = "central"

    name: Literal["central-gaussian"] = "central-gaussian"

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        precision, own = cls.calibrated(spec, cohort, cohort.clients)
        return cls(**cohort.shared(precision, cohort.room(precision, None)), **own)

    def server_law(self) -> DiscreteGaussian:
        return self.grid_law()

    @override
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        return self.one_draw("the server is trusted: it sees the sum and adds the noise")

    @override
    def error(self, survivors: int) -> ErrorLaw:
        return self.scaled(self.real_law() if self.continuous else self.grid_law(), self.variance)

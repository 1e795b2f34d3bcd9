"""The base classes of mechanisms with Gaussian noise: discrete, in one draw or in shares, or one draw in reals."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.contextual_sum import PrintedNoise
from distrust.common.bandit.error_law import ScaledErrorLaw, Spread
from distrust.common.dp.accounting.guarantee import GUARANTEE_ORDERS, STREAM_SAMPLER, Guarantee, Kind, Model
from distrust.common.dp.accounting.laws.gaussian_sums import (
    GaussianTarget,
    real_gaussian_profile,
    repeated_gaussian,
    sharpness,
    sum_divergences,
    sum_epsilon,
    sum_precision,
    sum_profile,
    sum_variance,
)
from distrust.common.dp.accounting.profile import RAISED, SHOWN_DELTA, Privacy, Profile, bound, curve, exact
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    Move,
    gaussian_divergence,
    rounded_epsilon,
    rounded_variance,
)
from distrust.common.dp.accounting.techniques.sensitivity import grid_for
from distrust.common.dp.mechanisms.families.base import (
    MechanismSpec,
    Need,
    needed,
    needed_delta,
)
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import FINE, INFLATED, UNSAFE, GridMechanism, RealNoise
from distrust.common.dp.noise.continuous import Gaussian
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import is_gaussian
from distrust.common.dp.noise.law import Law
from distrust.common.errors import BadParameter, two_spellings

CODE_STEPS = 10
"""Least steps of the grid in σ of the published code, so that rounding adds at most a 400th to its variance."""


class GaussianLike(GridMechanism):
    """A mechanism with noise calibrated to the ℓ₂ norm of what one client can move, rounding included."""

    gaussian: ClassVar[bool] = True
    searched: ClassVar[frozenset[str]] = frozenset({"variance"})

    epsilon: Annotated[float, Field(description="ε in nats, for one client's whole vector")]
    delta: float | None = None
    variance: Annotated[float, Field(gt=0, description="parameter of the noise that is counted on, grid steps squared")]

    def gaussian_privacy(self, share: float, terms: int, assumptions: tuple[str, ...], law: Law | None) -> Privacy:
        """Return the privacy of `terms` draws of N_Z(0, share) on every coordinate.

        law  of the sum of these draws; None where more than that sum is released.
        """
        exact = self.calibration == "exact"
        requested = self.epsilon if exact and self.delta is not None else math.inf
        enough = self.epsilon**2 / 2 if exact and self.delta is None else math.inf

        def promise() -> Guarantee:
            delta = SHOWN_DELTA if self.delta is None else self.delta
            epsilon = sum_epsilon(share, terms, self.grid, delta, requested)
            curve = sum_divergences(share, terms, self.grid, enough) if math.isfinite(epsilon) else ()
            kind: Kind = "approximate" if self.dimension == 1 and self.delta is not None else "renyi"
            return self.make_guarantee(kind, epsilon, assumptions, delta=delta, rdp=curve)

        return Privacy(
            compute_promise=promise,
            compute_profile=lambda delta: sum_profile(share, terms, self.grid, delta),
            law=law,
            repeated=repeated_gaussian(terms * share, self.grid) if is_gaussian(share, terms) else None,
        )

    def scaled(self, law: Spread, variance: float) -> ScaledErrorLaw:
        """Return the law of the error for noise `law` with the parameter `variance`, both in grid steps.

        It is sub-Gaussian with the parameter itself: |error| > √(2 variance ln(2/p)) with probability at most p.
        """
        return ScaledErrorLaw(law, self.step, (math.sqrt(2 * variance) * self.step, 0.0))


class GaussianStream(GaussianLike):
    """A mechanism that releases prefix sums of a stream, with Gaussian noise that is drawn once for each `part`."""

    model: ClassVar[Model] = "central"
    takes_delta: ClassVar[Need | None] = "needed"
    part: ClassVar[str]

    if TYPE_CHECKING:  # each class has it as a field of its own, which on the wire comes after its name
        batches: int

    @property
    def stream_length(self) -> int:
        return self.batches

    def assumptions(self, times: int) -> tuple[str, ...]:
        """Return what the guarantee of a client in at most `times` batches assumes."""
        several = f"at most {times} batches, with one vector in each"
        return (
            "the server is trusted: it sees the sums and adds the noise",
            f"one client is in {several if times > 1 else 'one batch'}, and there are at most {self.batches} of them",
            f"each {self.part}'s noise is drawn once, and never again for a question that was answered",
            STREAM_SAMPLER,
        )

    def stream_privacy(
        self, move: Move, variance: float, epsilon: Callable[[float], float], times: int, orders: tuple[float, ...] = ()
    ) -> Privacy:
        """Return the privacy of a whole stream that a client of `times` batches moves by `move`.

        epsilon  returns ε at a δ.
        orders   whose divergences the guarantee carries.
        """

        def divergence(order: float) -> float:
            return gaussian_divergence(move, variance, order) * RAISED

        def promise() -> Guarantee:
            assert self.delta is not None
            by_order = tuple((order, divergence(order)) for order in orders)
            spent = self.make_guarantee(
                "approximate", epsilon(self.delta), self.assumptions(times), delta=self.delta, rdp=by_order
            )
            # The ε that was asked for is that of one batch.
            return spent if times == 1 else spent.model_copy(update={"claimed": None})

        def profile(delta: float) -> Profile:
            whole, note = bound(epsilon(delta)), "of the whole stream of batches"
            pairs = curve(divergence)
            return Profile(delta=delta, pure=exact(None), approximate=whole, rdp=pairs, rdp_how="bound", notes=(note,))

        return Privacy(compute_promise=promise, compute_profile=profile)


class RealGaussian(RealNoise, GaussianLike):
    """A mechanism with one draw of Gaussian noise on every coordinate.

    variance    of the draw. paper: Δ₂² · 2 ln(1.25/δ)/ε², for ε < 1 only; of a contextual vector at clients, that of
                `printed_variance`. exact: the least that is (ε, δ).
    grid        N_Z(0, variance): (ε, δ) exactly for one coordinate and for the box; for a ball by `lattice_epsilon`.
    continuous  N(0, variance): the analytic Gaussian mechanism, exact for vectors too.
    """

    takes_delta: ClassVar[Need | None] = "needed"

    @classmethod
    def calibrated(cls, spec: MechanismSpec, cohort: CohortParams, clients: int) -> tuple[int, dict[str, Any]]:
        """Return the precision and the own fields of the mechanism.

        At this precision the rounding of `clients` values adds a hundredth of one draw's variance. In a ball, rounding
        that comes before the noise adds half a hundredth to the sensitivity too.
        """
        epsilon, delta = needed(spec), needed_delta(spec)
        target = GaussianTarget(epsilon, delta, 1)
        fine = sum_precision(target, cohort.dimension, cohort.norm, clients, FINE)
        paper = spec.calibration == "paper"
        sharp = math.inf if paper else sharpness(epsilon, delta)
        fine = max(fine, grid_for(cohort.dimension, cohort.norm, sharp, INFLATED))
        source = cohort.printed if paper and cls.model == "local" else None
        code = None if source is None or source.source != "CTX-code" else code_deviation(epsilon, delta, cohort.clients)
        if code is not None:
            fine = max(fine, math.ceil(CODE_STEPS * (cohort.high - cohort.low) / code))
        precision = spec.precision or (fine if paper else cohort.tight(fine))
        grid = cohort.grid(precision, rounded=cls.rounds_first or spec.noise == "grid")
        if source is not None and code is not None:
            variance = grid.squared_l2 * source.share(code) ** 2
        elif source is not None:
            variance = grid.squared_l2 * printed_variance(source, cohort.blocks, epsilon, delta)
        elif paper:
            variance = grid.squared_l2 * textbook(epsilon, delta)
        elif spec.noise == "continuous":
            variance = rounded_variance(grid, epsilon, delta)
        else:
            variance = sum_variance(target, grid)
        variance = cohort.searched("variance", variance)
        return precision, {"epsilon": epsilon, "delta": delta, "variance": variance, "noise": spec.noise}

    def real_law(self) -> Gaussian:
        return Gaussian(math.sqrt(self.variance))

    def grid_law(self) -> DiscreteGaussian:
        return DiscreteGaussian(self.variance)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        if self.continuous:
            return Privacy(
                compute_promise=self._continuous_promise,
                compute_profile=self._continuous_profile,
                repeated=repeated_gaussian(self.variance, self.grid, continuous=True),
            )
        return self.gaussian_privacy(self.variance, 1, self.assumptions, self.grid_law())

    def _continuous_promise(self) -> Guarantee:
        assert self.delta is not None
        epsilon = rounded_epsilon(self.grid, self.variance, self.delta)
        curve = tuple((order, gaussian_divergence(self.grid, self.variance, order)) for order in GUARANTEE_ORDERS)
        return self.make_guarantee("approximate", epsilon, self.assumptions, delta=self.delta, rdp=curve)

    def _continuous_profile(self, delta: float) -> Profile:
        result = real_gaussian_profile(self.variance, self.grid, delta, self.as_drawn)
        return result.model_copy(update={"notes": (UNSAFE,)})


def textbook(epsilon: float, delta: float) -> float:
    """Return σ²/Δ² = 2 ln(1.25/δ)/ε² (Dwork & Roth 2014, Theorem A.1). Raises BadParameter unless ε < 1."""
    if epsilon >= 1:
        rule = "must lie in (0, 1) for the paper's Gaussian constants; calibration exact has no such limit"
        raise BadParameter("mechanism.epsilon", epsilon, rule)
    return 2 * math.log(1.25 / delta) / epsilon**2


def code_deviation(epsilon: float, delta: float, clients: int) -> float:
    """Return σ = √(ln(2.5B/δ)/B)/ε, which CTX's authors' code draws for each of B clients, in units of the data.

    It is 4√2 times less than Proposition F.1 has for B = 1, and √(32 ln(2/δ)) times less than Theorem B.1 has for more.
    No theorem has it, and it keeps less than ε: what it keeps is computed.
    """
    return math.sqrt(math.log(2.5 * clients / delta) / clients) / epsilon


@dataclass(frozen=True, slots=True)
class Releases:
    """A printed σ as that of `count` releases, each of the sensitivity `charged` and (ε/count, δ/count)-private.

    most    largest ε that is accepted; itself only where it is `closed`.
    source  words for the theorem.
    """

    count: int
    charged: float
    most: float
    closed: bool
    source: str


def printed_releases(printed: PrintedNoise, blocks: int) -> Releases:
    """Return the noise that a source prints for contextual vectors of so many blocks, |s| ≤ c and ‖φ‖ ≤ 1.

    CTX       σ = 4√(2 ln(2.5/δ))/ε on every entry, ε ≤ 1 (Proposition F.1).
    GLB       σ = 4√(2 ln(1.25/δ))/ε on the matrix and half of it, times c, on the vector, ε < 1 (section 3.1); of more
              blocks than one at ε/2 and δ/2 (section 4.1). One release has one σ: the larger one.
    LDP-UCB   σ = 6√(2 ln(2.5/δ))/ε (Zheng et al. 2020, by GLB's published code).
    LDP-GLOC  σ = 6√(2 ln(3.75/δ))/ε of three releases. The code draws with 2.5, which is less.
    """
    # The baselines' own ranges are not at hand. Theirs end where Dwork & Roth's theorem does for each of the releases.
    c = printed.factor
    several = blocks > 1
    many = 2 if several else 1
    return {
        "CTX": Releases(2, 2 * max(1.0, c), 1.0, True, "CTX Proposition F.1"),
        "GLB": Releases(many, 2 * max(2.0, c), float(many), False, f"GLB Proposition {'4' if several else '3'}.1"),
        "LDP-UCB": Releases(2, 3.0, 2.0, False, "LDP-UCB"),
        "LDP-GLOC": Releases(3, 2.0, 3.0, False, "LDP-GLOC"),
    }[printed.source]


def printed_variance(printed: PrintedNoise, blocks: int, epsilon: float, delta: float) -> float:
    """Return σ²/Δ₂² of the noise that a source prints. Raises BadParameter outside of its range."""
    what = printed_releases(printed, blocks)
    if epsilon > what.most or (epsilon == what.most and not what.closed):
        allowed = f"must lie in (0, {what.most:g}{']' if what.closed else ')'}"
        rule = f"{allowed} for the constants of {what.source}; calibration exact has no such limit"
        raise BadParameter("mechanism.epsilon", epsilon, rule)
    if printed.sensitivity > what.count * what.charged:
        move, most = two_spellings(printed.sensitivity, what.count * what.charged)
        rule = f"{what.source}'s constants are for vectors that move by {most} at most"
        moved = f"and these rewards move them by {move}"
        raise BadParameter("mechanism.calibration", "paper", f"{rule}, {moved}; calibration exact has no such limit")
    return printed.share(what.charged) ** 2 * textbook(epsilon / what.count, delta / what.count)

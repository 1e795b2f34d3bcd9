"""Bits at each client, permuted by a trusted shuffler: pure privacy in the count of ones."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, How
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.assumptions import no_guarantee, of_the_bits
from distrust.common.mechanisms.base import (
    EPSILON_RULE,
    SAMPLER,
    Calibration,
    CohortParams,
    MechanismSpec,
    epsilon_allowed,
    needed,
    require,
)
from distrust.common.mechanisms.grid import GridMechanism
from distrust.common.mechanisms.laplace_like import little_rounding
from distrust.common.mechanisms.pure_shuffle.certificate import LEAST_ESCAPE, BitDesign, certified_epsilon
from distrust.common.mechanisms.pure_shuffle.search import fewest_bits, finest
from distrust.common.messages.cohort import Via
from distrust.common.noise.law import ScaledErrorLaw, Table, tabulate
from distrust.common.noise.polya import Polya, PolyaDifference
from distrust.common.privacy.guarantee import Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, of_pure, unprotected
from distrust.common.privacy.sensitivity import Grid, laplace_loss, laplace_scale
from distrust.common.randomness import Stream

UNPRINTED = "must be exact: MAB Theorem 3 rests on a protocol of Cheu & Yan, and no paper here prints its constants"

THEOREM = 0.5
"""Share of the noise's variance that MAB Theorem 3's g leaves to the rounding."""


class Uncut(PolyaDifference):
    """The noise if every γ were sent: beyond q with probability p, so that the sum is with p + `wrap` at most.

    A bound, as a γ above W makes the answer uniform instead, which `wrap` counts: far out there is less than this.
    """

    __slots__ = ()

    @property
    def quantile_how(self) -> How:
        return "bound"


class RelaxedSecaggShuffle(GridMechanism):
    """Each client sends d bits a label, c + x̂ + γ⁺ - γ⁻ of them ones, or with probability q a uniform number of ones.

    Guarantee  (Dε̂, 0) over at least `floor` honest clients, ε̂ certified for the count of ones under each of D labels;
               in ℓ₁ and ℓ₂ balls what ε̂ of single steps adds up to along the worst move.
    Utility    the sum plus the shares' noise, except with probability at most `wrap`, when someone's answer was uniform
               and the estimate is off by up to d grid steps for each of them. `error` is the law without that event.
    share      t ≤ floor: the noise of t clients is discrete Laplace. escape: q, at least, of each coordinate.
    Exactness  a γ above `reach` makes the answer uniform too; the certificate counts on q alone.
    Raises     BadParameter for `paper`: the construction of Cheu & Yan is not in the papers' texts.
    Source     for MAB Theorem 3; the construction and its proof are ours, docs/privacy/pure-shuffling.md.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact",)
    letters: ClassVar[Mapping[str, str]] = {"share": "share", "reach": "W", "length": "d", "escape": "q"}

    name: Literal["relaxed-secagg-shuffle"] = "relaxed-secagg-shuffle"
    epsilon: Annotated[float, Field(description="ε in nats that was asked for, for one client's whole vector")]
    share: Annotated[int, Field(ge=1, description="t: clients whose noise is discrete Laplace")]
    scale: Annotated[float, Field(gt=0, description="scale of that noise, in grid steps")]
    reach: Annotated[int, Field(ge=1, description="W: largest γ")]
    length: Annotated[int, Field(ge=3, description="d: bits a label")]
    escape: Annotated[float, Field(gt=0, lt=1, description="q: probability of a uniform answer")]

    @model_validator(mode="after")
    def _is_a_design(self) -> Self:
        require(epsilon_allowed(self.epsilon), "epsilon", self.epsilon, EPSILON_RULE)
        require(self.calibration == "exact", "calibration", self.calibration, "must be exact")
        require(self.share <= self.floor, "share", self.share, f"must be at most floor = {self.floor}")
        try:
            chance = self.design.uniform_chance() * self.clients * self.dimension
        except BadParameter as error:
            raise ValueError(error.detail) from error
        rare = f"anyone's uniform answer must have probability at most wrap = {self.wrap}"
        require(chance <= self.wrap, "escape", self.escape, rare)
        most = self.clients * self.length
        require(self.modulus > most, "modulus", self.modulus, f"must be above clients * length = {most}")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, frame: CohortParams) -> Self:
        """Return the fewest bits for these words; `spec.name` is not looked at.

        g is the theorem's ⌈ε√t/2⌉ by default, as far as it is certified: the rounding's variance is then half of the
        noise's, and bits grow as g. g = 1 is enough for rewards that are 0 or 1. In a ball g is chosen by the same
        share, and the certificate is of moves by one step, of which `laplace_loss` adds up the worst in the ball.
        """
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", UNPRINTED)
        epsilon, chance = needed(spec), frame.wrap / (frame.clients * frame.dimension) * (1 - 1e-9)
        if chance < 2 * LEAST_ESCAPE:
            least = frame.clients * frame.dimension * 2 * LEAST_ESCAPE * (1 + 1e-8)
            raise BadParameter("wrap", frame.wrap, f"must be at least clients * dimension * 2^-49 = {least:.3g}")
        precision = spec.precision or cls._precision(epsilon, chance, frame)
        if Grid(precision, frame.dimension, frame.norm).is_box:
            design = fewest_bits(epsilon / frame.dimension, frame.floor, precision, chance)
        else:
            each = 1 / laplace_scale(epsilon, precision, frame.dimension, frame.norm)
            design = fewest_bits(each, frame.floor, precision, chance, 1)
        own = {field: getattr(design, field) for field in ("share", "scale", "reach", "length", "escape")}
        shared = frame.shared(precision, frame.clients * design.length + 1)
        return cls.model_validate({**shared, **own, "epsilon": epsilon})

    @staticmethod
    def _precision(epsilon: float, chance: float, frame: CohortParams) -> int:
        if frame.norm == "linf" or frame.dimension == 1:
            each = epsilon / frame.dimension
            return finest(each, math.ceil(each * math.sqrt(frame.floor) / 2), chance)
        wanted = little_rounding(frame, epsilon, 1, THEOREM, math.inf)
        return finest(epsilon, wanted, chance)

    def _certified(self, honest: int) -> float:
        """Return ε for one client's whole vector; in a ball by steps, if that is less than by coordinates."""
        whole = self.dimension * certified_epsilon(self.design, honest)
        if self.norm == "linf" or self.dimension == 1:
            return whole
        each = certified_epsilon(self.design, honest, move=1)
        return min(whole, laplace_loss(1 / each, self.precision, self.dimension, self.norm))

    @property
    def silent_ones(self) -> int:
        return self.design.center

    @property
    def design(self) -> BitDesign:
        """The law of one coordinate of one client."""
        return BitDesign(self.precision, self.share, self.scale, self.reach, self.length, self.escape)

    @property
    def bits(self) -> int:
        return self.dimension * self.length

    @property
    def width(self) -> int:
        """d: bits under each label."""
        return self.length

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        shape = (vectors.shape[0], self.dimension)
        count = shape[0] * shape[1]
        law = Polya(Fraction(1, self.share), self.scale)
        plus, minus = law.sample(stream, count), law.sample(stream, count)
        uniform = _uniform(self.length).draw(stream, count)
        away = stream.words(count) < np.uint64(math.ceil(self.escape * 2**64))
        away |= (plus > self.reach) | (minus > self.reach)
        rounded = self._round(vectors, stream.words(count).reshape(shape))
        ones = rounded + (self.design.center + plus - minus).reshape(shape)
        return np.where(away.reshape(shape), uniform.reshape(shape), ones).astype(np.uint64)

    @override
    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        self.check_release(total, survivors)
        ones = total.astype(np.float64) - survivors * self.design.center
        return ones * self.step + survivors * self.low

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_guarantee(self)
        return Guarantee(
            kind="pure",
            epsilon=self._certified(honest),
            claimed=self.epsilon,
            model=self.model,
            calibration=self.calibration,
            assumptions=(*of_the_bits(honest), SAMPLER),
        )

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return unprotected(delta)
        return of_pure(
            self._certified(honest), delta, "bound", "from the certified pure epsilon: no law with that one loses more"
        )

    def error(self, survivors: int) -> ErrorLaw:
        law = Uncut(Fraction(survivors, self.share), self.scale)
        unit = self.scale * self.step
        return ScaledErrorLaw(law, self.step, (math.sqrt(2 * survivors / self.share) * unit, unit))


def plan_relaxed(spec: MechanismSpec, frame: CohortParams) -> RelaxedSecaggShuffle:
    """From a run file's words and a cohort to the calibrated value; raises BadParameter where nothing is certified."""
    return RelaxedSecaggShuffle.plan(spec, frame)


def _uniform(length: int) -> Table:
    """The uniform law on {0..length}, with 128-bit thresholds."""
    return tabulate(0, lambda _: (1, 1), greatest=length)

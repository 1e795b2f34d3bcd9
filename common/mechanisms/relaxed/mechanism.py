"""Bits at each client, permuted by a trusted shuffler: pure privacy in the count of ones."""

import math
from fractions import Fraction
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from common.error_law import ErrorLaw, How
from common.errors import BadParameter
from common.guarantee import Guarantee
from common.mechanisms.base import MechanismSpec
from common.mechanisms.checks import EPSILON_RULE, epsilon_allowed, require
from common.mechanisms.distributed import nothing, of_the_bits
from common.mechanisms.frame import Frame, needed
from common.mechanisms.laplace import SAMPLER
from common.mechanisms.lattice import Lattice
from common.mechanisms.relaxed.certificate import certified_epsilon
from common.mechanisms.relaxed.design import Design
from common.mechanisms.relaxed.search import fewest_bits
from common.mechanisms.scaled import Scaled
from common.messages.cohort import Via
from common.noise import Polya, PolyaDifference
from common.noise.table import Table, tabulate
from common.profile import SHOWN_DELTA, Profile, of_pure, unprotected
from common.randomness import Stream

UNPRINTED = "must be exact: MAB Theorem 3 rests on a protocol of Cheu & Yan, and no paper here prints its constants"


class Uncut(PolyaDifference):
    """The noise if every γ were sent: beyond q with probability p, so that the sum is with p + `wrap` at most.

    A bound, as a γ above W makes the answer uniform instead, which `wrap` counts: far out there is less than this.
    """

    __slots__ = ()

    @property
    def quantile_how(self) -> How:
        return "bound"


class RelaxedSecaggShuffle(Lattice):
    """Each client sends d bits a label, c + x̂ + γ⁺ - γ⁻ of them ones, or with probability q a uniform number of ones.

    Guarantee  (Dε̂, 0) over at least `floor` honest clients, ε̂ certified for the count of ones under each of D labels.
    Utility    the sum plus the shares' noise, except with probability at most `wrap`, when someone's answer was uniform
               and the estimate is off by up to d grid steps for each of them. `error` is the law without that event.
    share      t ≤ floor: the noise of t clients is discrete Laplace. escape: q, at least, of each coordinate.
    Exactness  a γ above `reach` makes the answer uniform too; the certificate counts on q alone.
    Raises     BadParameter for `paper`: the construction of Cheu & Yan is not in the papers' texts.
    Source     for MAB Theorem 3; the construction and its proof are ours, docs/privacy.md.
    """

    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)

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
    def plan(cls, spec: MechanismSpec, frame: Frame) -> Self:
        """The fewest bits for these words; `spec.name` is not looked at.

        Bits grow like g and the noise, in data units, does not shrink with it: so g = 1 by default. The rounding to
        {0, 1} is then part of the reward's own spread, which widths for rewards in [low, high] count already.
        """
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", UNPRINTED)
        epsilon, precision = needed(spec), spec.precision or 1
        chance = frame.wrap / (frame.clients * frame.dimension)
        design = fewest_bits(epsilon / frame.dimension, frame.floor, precision, chance * (1 - 1e-9))
        own = {field: getattr(design, field) for field in ("share", "scale", "reach", "length", "escape")}
        shared = frame.shared(precision, frame.clients * design.length + 1)
        return cls.model_validate({**shared, **own, "epsilon": epsilon})

    @property
    def design(self) -> Design:
        """The law of one coordinate of one client."""
        return Design(self.precision, self.share, self.scale, self.reach, self.length, self.escape)

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

    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:  # noqa: ARG002
        self.check_release(total, survivors)
        ones = total.astype(np.float64) - survivors * self.design.center
        return ones * self.step + survivors * self.low

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return nothing(self)
        return Guarantee(
            kind="pure",
            epsilon=self.dimension * certified_epsilon(self.design, honest),
            claimed=self.epsilon,
            model="shuffle",
            calibration=self.calibration,
            assumptions=(*of_the_bits(honest), SAMPLER),
        )

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return unprotected(delta)
        pure = self.dimension * certified_epsilon(self.design, honest)
        return of_pure(pure, delta, "bound", "from the certified pure epsilon: no law with that one loses more")

    def error(self, survivors: int) -> ErrorLaw:
        law = Uncut(Fraction(survivors, self.share), self.scale)
        unit = self.scale * self.step
        return Scaled(law, self.step, (math.sqrt(2 * survivors / self.share) * unit, unit))


def plan_relaxed(spec: MechanismSpec, frame: Frame) -> RelaxedSecaggShuffle:
    """From a run file's words and a cohort to the calibrated value; raises BadParameter where nothing is certified."""
    return RelaxedSecaggShuffle.plan(spec, frame)


def _uniform(length: int) -> Table:
    """The uniform law on {0..length}, with 128-bit thresholds."""
    return tabulate(0, lambda _: (1, 1), greatest=length)

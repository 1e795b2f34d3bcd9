"""Bits at each client, permuted by a trusted shuffler: pure privacy in the count of ones.

The search comes first: the shortest answers, at the least noise, whose certificate meets a pure target.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import islice, product
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, How, ScaledErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.families.base import (
    EPSILON_RULE,
    SAMPLER,
    CohortParams,
    MechanismSpec,
    epsilon_allowed,
    needed,
    require,
)
from distrust.common.mechanisms.families.grid import GridMechanism, Randomness
from distrust.common.mechanisms.families.laplace import little_rounding
from distrust.common.mechanisms.shuffled.pure_certificate import (
    FARTHEST,
    LEAST_ESCAPE,
    BitDesign,
    certified_epsilon,
    pair_epsilon,
    splits,
)
from distrust.common.messages.cohort import Via
from distrust.common.noise.law import Table, tabulate
from distrust.common.noise.polya import Polya, PolyaDifference
from distrust.common.privacy.guarantee import Calibration, Guarantee, Model, bits_assumptions, no_guarantee
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, of_pure, unprotected
from distrust.common.privacy.searches import least_satisfying, snap_down
from distrust.common.privacy.sensitivity import Grid, laplace_loss, laplace_scale
from distrust.common.randomness import Stream

FRACTIONS = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6, 0.5)
"""What the noise alone spends of ε̂; the rest pays for escapes and truncation."""

FEW = 3
"""Numbers of escaped users, from none on, that a W is tried with first."""

REMEDY = "raise epsilon or wrap, or lower the precision or dimension"

LONG, MANY = 400, 14
"""W from which the search takes larger steps, and looks at more numbers of escaped users before it certifies."""

ROOM = 3.0
"""FARTHEST over the least W that the tails allow, on a grid of our choice. A certificate then takes seconds."""

COARSE = (0.998, 0.99, 0.95, 0.85, 0.7, 0.5)
"""FRACTIONS of such searches, with few shares."""


@dataclass(frozen=True, slots=True)
class _Try:
    """All but W: g, the move that ε̂ is of, t, the scale and the chance of a uniform answer.

    excess  the noise's variance over that of a continuous Laplace variable with ε̂, about.
    """

    precision: int
    move: int
    share: int
    scale: float
    chance: float
    excess: float

    def length(self, reach: int) -> int:
        return 2 * reach + self.precision

    def cost(self, reach: int) -> float:
        return self.length(reach) * self.excess

    def design(self, reach: int) -> BitDesign | None:
        """With the largest q, as overflows count as uniform answers; None where they take most of the chance."""
        trial = BitDesign(self.precision, self.share, self.scale, reach, self.length(reach), self.chance)
        escape = (self.chance - 2 * trial.overflow()) * (1 - 1e-9)
        return replace(trial, escape=snap_down(escape)) if escape > self.chance / 2 else None

    def start(self, epsilon: float) -> int:
        """Return a lower bound of W: the tail's condition with M ≥ 1 and q = chance, and rare overflows."""
        room = math.expm1(epsilon) * self.chance / (1 - self.chance)

        def enough(reach: int) -> bool:
            short = math.exp(-reach / self.scale) * (self.length(reach) + 1) > room
            return reach > FARTHEST or not (short or self.design(reach) is None)

        return least_satisfying(enough, 1)


@lru_cache(maxsize=256)
def finest(epsilon: float, precision: int, chance: float) -> int:
    """Return the largest g ≤ `precision` for which W is not beyond FARTHEST for certain; at least 1.

    epsilon  of a move by g steps, whatever g is.
    """

    def too_fine(g: int) -> bool:
        one = _Try(g, g, 1, g / epsilon, chance, 1.0)
        return g > precision or one.start(epsilon) * ROOM > FARTHEST

    return max(1, least_satisfying(too_fine, 1) - 1)


@lru_cache(maxsize=256)
def fewest_bits(epsilon: float, honest: int, precision: int, chance: float, move: int | None = None) -> BitDesign:
    """Return W, d, t and noise for `honest` users, x̂ in {0..precision}.

    Answers are uniform with probability at most `chance`.

    ε̂ is of changes of x̂ by `move` steps at most, all of them when None.

    The least product of bits and the noise's variance: neither is bought at more than its worth. Raises BadParameter if
    nothing up to FARTHEST is certified. d = 2W + g: a longer answer thins out the escape and is hardly ever worth it.
    """
    best: BitDesign | None = None
    limit = math.inf
    for one in _tries(epsilon, honest, precision, chance, move or precision):
        found = _shortest(one, epsilon, honest, limit)
        if found is not None:
            best, limit = found, one.cost(found.reach)
    if best is None:
        rule = f"not certified for {honest} clients and precision {precision} with W up to {FARTHEST}: {REMEDY}"
        raise BadParameter("epsilon", epsilon, rule)
    return best


def _tries(epsilon: float, honest: int, precision: int, chance: float, move: int) -> list[_Try]:
    """Return the least noise first."""
    long = _Try(precision, move, honest, move / epsilon, chance, 1.0).start(epsilon) >= LONG
    parts, shares = (COARSE, islice(_shares(honest), 3)) if long else (FRACTIONS, _shares(honest))
    tries = [
        _Try(precision, move, share, move / (part * epsilon), chance, honest / share / part**2)
        for part, share in product(parts, tuple(shares))
    ]
    return sorted(tries, key=lambda one: one.excess)


def _shares(honest: int) -> Iterator[int]:
    """Return shares n, n - 1, n - 2, n - 4, … down to n/2: less noise is asked of each when more are counted on."""
    yield honest
    missing = 1
    while 2 * missing <= honest and missing <= 64:
        yield honest - missing
        missing *= 2


def _shortest(one: _Try, epsilon: float, honest: int, limit: float) -> BitDesign | None:
    """Return the certified design of the least W, if it costs less than `limit`."""
    start = one.start(epsilon)
    if start > FARTHEST or one.cost(start) >= limit:
        return None

    def certified(reach: int) -> BitDesign | None:
        design = one.design(reach)
        fits = design is not None and certified_epsilon(design, honest, epsilon, one.move) <= epsilon
        return design if fits else None

    def promising(reach: int) -> bool:
        design = one.design(reach)
        few = FEW if start < LONG else MANY
        return design is not None and all(
            pair_epsilon(design, *pair, one.move) <= epsilon for pair in islice(splits(design, honest), few)
        )

    def shortest(met: Callable[[int], bool], step: int = 1) -> int:
        found = least_satisfying(lambda more: start - 1 + step * more >= most or met(start - 1 + step * more), 1)
        return min(most, start - 1 + step * found)

    most = min(FARTHEST, 3 * start + 16)  # where the certificate has nearly its limit in W
    while one.cost(most) >= limit:
        most -= max(1, (most - start) // 8)
    if start >= LONG:  # a certificate takes a second: W to a hundredth, and no second chance
        return certified(shortest(promising, start // 100)) if promising(most) else None
    start = shortest(promising)  # the whole certificate takes a second, and these few are nearly always the worst
    return certified(shortest(lambda reach: certified(reach) is not None))


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
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        """Return the fewest bits for these words; `spec.name` is not looked at.

        g is the theorem's ⌈ε√t/2⌉ by default, as far as it is certified: the rounding's variance is then half of the
        noise's, and bits grow as g. g = 1 is enough for rewards that are 0 or 1. In a ball g is chosen by the same
        share, and the certificate is of moves by one step, of which `laplace_loss` adds up the worst in the ball.
        """
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", UNPRINTED)
        epsilon, chance = needed(spec), cohort.wrap / (cohort.clients * cohort.dimension) * (1 - 1e-9)
        if chance < 2 * LEAST_ESCAPE:
            least = cohort.clients * cohort.dimension * 2 * LEAST_ESCAPE * (1 + 1e-8)
            raise BadParameter("wrap", cohort.wrap, f"must be at least clients * dimension * 2^-49 = {least:.3g}")
        precision = spec.precision or cls._precision(epsilon, chance, cohort)
        if Grid(precision, cohort.dimension, cohort.norm).is_box:
            design = fewest_bits(epsilon / cohort.dimension, cohort.floor, precision, chance)
        else:
            each = 1 / laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
            design = fewest_bits(each, cohort.floor, precision, chance, 1)
        own = {field: getattr(design, field) for field in ("share", "scale", "reach", "length", "escape")}
        shared = cohort.shared(precision, cohort.clients * design.length + 1)
        return cls(**shared, **own, epsilon=epsilon)

    @staticmethod
    def _precision(epsilon: float, chance: float, cohort: CohortParams) -> int:
        if cohort.norm == "linf" or cohort.dimension == 1:
            each = epsilon / cohort.dimension
            return finest(each, math.ceil(each * math.sqrt(cohort.floor) / 2), chance)
        wanted = little_rounding(cohort, epsilon, 1, THEOREM, math.inf)
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

    @override
    def client_randomness(self, stream: Stream, count: int) -> Randomness:
        shape = (count, self.dimension)
        size = count * self.dimension
        law = Polya(Fraction(1, self.share), self.scale)
        plus, minus = law.sample(stream, size), law.sample(stream, size)
        uniform = _uniform(self.length).draw(stream, size)
        away = stream.words(size) < np.uint64(math.ceil(self.escape * 2**64))
        away |= (plus > self.reach) | (minus > self.reach)
        noise = (self.design.center + plus - minus).reshape(shape)
        return noise, uniform.reshape(shape), away.reshape(shape), self._uniform(stream, count)

    @override
    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        noise, uniform, away, chances = randomness
        ones = self._round(vectors, chances) + noise
        return np.where(away, uniform, ones).astype(np.uint64)

    @override
    def estimate_with(
        self, totals: NDArray[np.uint64], survivors: int, noise: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        del noise  # there is none: the clients' bits are all of it
        ones = totals.astype(np.float64) - survivors * self.design.center
        return ones * self.step + survivors * self.low

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_guarantee(self.calibration)
        return Guarantee(
            kind="pure",
            epsilon=self._certified(honest),
            claimed=self.epsilon,
            model=self.model,
            calibration=self.calibration,
            assumptions=(*bits_assumptions(honest), SAMPLER),
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


def _uniform(length: int) -> Table:
    """Return the uniform law on {0..length}, with 128-bit thresholds."""
    return tabulate(0, lambda _: (1, 1), greatest=length)

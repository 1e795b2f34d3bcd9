"""`relaxed-secagg-shuffle`: bits at each client, permuted by a trusted shuffler; the count of ones has pure privacy.

The file begins with the search for the shortest answers, at the least noise, whose certificate meets a pure target.
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

from distrust.common.bandit.error_law import Calibration, ErrorLaw, How, ScaledErrorLaw
from distrust.common.dp.accounting.guarantee import SAMPLER, Model, bits_assumptions
from distrust.common.dp.accounting.profile import Privacy, no_privacy, of_pure
from distrust.common.dp.accounting.techniques.searches import least_satisfying, snap_down
from distrust.common.dp.accounting.techniques.sensitivity import Grid, laplace_loss, laplace_scale
from distrust.common.dp.mechanisms.families.base import MechanismSpec, needed, require
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.grid import GridMechanism, Randomness
from distrust.common.dp.mechanisms.families.laplace import little_rounding
from distrust.common.dp.mechanisms.shuffled.pure_certificate import (
    LEAST_ESCAPE,
    LONGEST_REACH,
    BitDesign,
    certified_epsilon,
    pair_epsilon,
    splits,
)
from distrust.common.dp.noise.law import Pmf, Table, tabulate
from distrust.common.dp.noise.polya import PolyaDifference, polya_table
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream
from distrust.common.wire import Via

FRACTIONS = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6, 0.5)
"""Shares of ε̂ that the noise alone may spend; the rest pays for escapes and truncation."""

FEW = 3
"""Numbers of escaped users, from none on, with which the search tries a W first."""

REMEDY = "raise epsilon or wrap, or lower the precision or dimension"

LONG, MANY = 400, 14
"""The W from which the search takes larger steps, and how many numbers of escaped users it then tries W with first."""

ROOM = 3.0
"""The factor by which LONGEST_REACH is above the least W of a grid that we choose. A certificate then takes seconds."""

COARSE = (0.998, 0.99, 0.95, 0.85, 0.7, 0.5)
"""FRACTIONS of the searches from LONG on, which also try few shares."""

UNPRINTED = "must be exact: MAB Theorem 3 rests on a protocol of Cheu & Yan, and no paper here prints its constants"

THEOREM = 0.5
"""The rounding's share of the noise's variance at the g of MAB Theorem 3."""


@dataclass(frozen=True, slots=True)
class _Try:
    """A design without its W.

    precision  g.
    move       steps that ε̂ is of.
    share      t.
    chance     the largest probability of a uniform answer.
    excess     about the noise's variance over that of a continuous Laplace variable with ε̂.
    """

    precision: int
    move: int
    share: int
    scale: float
    chance: float
    excess: float

    def length(self, reach: int) -> int:
        """Return d = 2W + g. A longer answer thins out the escape, and is hardly ever worth it."""
        return 2 * reach + self.precision

    def cost(self, reach: int) -> float:
        """Return the product of bits and variance, which the search makes small."""
        return self.length(reach) * self.excess

    def design(self, reach: int) -> BitDesign | None:
        """Return the design with W = `reach` and the largest q; None where overflows take most of `chance`."""
        # An overflow makes the answer uniform, and so takes a part of the chance.
        trial = BitDesign(
            precision=self.precision,
            share=self.share,
            scale=self.scale,
            reach=reach,
            length=self.length(reach),
            escape=self.chance,
        )
        escape = (self.chance - 2 * trial.overflow()) * (1 - 1e-9)
        return replace(trial, escape=snap_down(escape)) if escape > self.chance / 2 else None

    def start(self, epsilon: float) -> int:
        """Return a lower bound of W, by the tail's condition with M ≥ 1 and q = `chance`, and by rare overflows."""
        room = math.expm1(epsilon) * self.chance / (1 - self.chance)

        def enough(reach: int) -> bool:
            short = math.exp(-reach / self.scale) * (self.length(reach) + 1) > room
            return reach > LONGEST_REACH or not (short or self.design(reach) is None)

        return least_satisfying(enough, 1)


@lru_cache(maxsize=256)
def finest(epsilon: float, precision: int, chance: float) -> int:
    """Return the largest g ≤ `precision` for which W may be within LONGEST_REACH; at least 1.

    epsilon  the ε of a move by g steps, whatever g is.
    """

    def too_fine(g: int) -> bool:
        one = _Try(g, g, 1, g / epsilon, chance, 1.0)
        return g > precision or one.start(epsilon) * ROOM > LONGEST_REACH

    return max(1, least_satisfying(too_fine, 1) - 1)


@lru_cache(maxsize=256)
def fewest_bits(epsilon: float, honest: int, precision: int, chance: float, move: int | None = None) -> BitDesign:
    """Return the certified design with the least product of bits and variance, for x̂ in {0..precision}.

    epsilon  ε̂, of changes of x̂ by at most `move` steps; None: by all of them.
    honest   users whose noise counts.
    chance   the largest probability of a uniform answer.
    Raises   BadParameter if no W up to LONGEST_REACH is certified.
    """
    best: BitDesign | None = None
    limit = math.inf
    for one in _tries(epsilon, honest, precision, chance, move or precision):
        result = _shortest(one, epsilon, honest, limit)
        if result is not None:
            best, limit = result, one.cost(result.reach)
    if best is None:
        rule = f"not certified for {honest} clients and precision {precision} with W up to {LONGEST_REACH}: {REMEDY}"
        raise BadParameter("epsilon", epsilon, rule)
    return best


def _tries(epsilon: float, honest: int, precision: int, chance: float, move: int) -> list[_Try]:
    """Return what the search tries, in ascending order of the noise."""
    long = _Try(precision, move, honest, move / epsilon, chance, 1.0).start(epsilon) >= LONG
    parts, shares = (COARSE, islice(_shares(honest), 3)) if long else (FRACTIONS, _shares(honest))
    tries = [
        _Try(precision, move, share, move / (part * epsilon), chance, honest / share / part**2)
        for part, share in product(parts, tuple(shares))
    ]
    return sorted(tries, key=lambda one: one.excess)


def _shares(honest: int) -> Iterator[int]:
    """Yield the shares n, n - 1, n - 2, n - 4, … down to n/2. The more are counted on, the less noise each one adds."""
    yield honest
    missing = 1
    while 2 * missing <= honest and missing <= 64:
        yield honest - missing
        missing *= 2


def _shortest(one: _Try, epsilon: float, honest: int, limit: float) -> BitDesign | None:
    """Return the certified design of the least W, if it costs less than `limit`."""
    start = one.start(epsilon)
    if start > LONGEST_REACH or one.cost(start) >= limit:
        return None

    def certified(reach: int) -> BitDesign | None:
        design = one.design(reach)
        fits = design is not None and certified_epsilon(design, honest, epsilon, one.move) <= epsilon
        return design if fits else None

    def promising(reach: int) -> bool:
        design = one.design(reach)
        few = FEW if start < LONG else MANY
        return design is not None and all(
            pair_epsilon(design, normal, escaped, one.move) <= epsilon
            for normal, escaped in islice(splits(design, honest), few)
        )

    def shortest(met: Callable[[int], bool], step: int = 1) -> int:
        result = least_satisfying(lambda more: start - 1 + step * more >= most or met(start - 1 + step * more), 1)
        return min(most, start - 1 + step * result)

    most = min(LONGEST_REACH, 3 * start + 16)  # where the certificate has nearly its limit in W
    while one.cost(most) >= limit:
        most -= max(1, (most - start) // 8)
    if start >= LONG:  # a certificate takes a second: W to a hundredth, and no second chance
        return certified(shortest(promising, start // 100)) if promising(most) else None
    start = shortest(promising)  # the whole certificate takes a second, and these few are nearly always the worst
    return certified(shortest(lambda reach: certified(reach) is not None))


class Uncut(PolyaDifference):
    """The law of the noise if every γ were sent.

    If it is beyond q with probability p, the sum is so with probability at most p + `wrap`. A quantile is a bound: a γ
    above W makes the answer uniform, which `wrap` counts, so that the sum's own tail is lighter.
    """

    __slots__ = ()

    @property
    def quantile_how(self) -> How:
        return "bound"


class RelaxedSecaggShuffle(GridMechanism):
    """Each client sends d bits a label, c + x̂ + γ⁺ - γ⁻ of them ones, or with probability q a uniform number of ones.

    share      t ≤ `floor`: the noise of t clients is discrete Laplace.
    escape     q, of each coordinate. A γ above `reach` makes the answer uniform too; the certificate counts on q alone.
    Guarantee  (Dε̂, 0) over at least `floor` honest clients, ε̂ certified for the count of ones under each of D labels.
               In ℓ₁ and ℓ₂ balls it is what ε̂ of single steps adds up to along the worst move.
    Utility    the sum plus the shares' noise, except with probability at most `wrap`, when a client's answer is uniform
               and puts the estimate off by up to d grid steps. `error` is the law without that event.
    Raises     BadParameter for `paper`: the construction of Cheu & Yan is not in the papers' texts.
    Source     for MAB Theorem 3; the construction and its proof are ours, docs/concepts/privacy/pure-shuffling.md.
    """

    model: ClassVar[Model] = "shuffle"
    vias: ClassVar[tuple[Via, ...]] = ("shuffler",)
    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact",)
    searched: ClassVar[frozenset[str]] = frozenset({"scale", "escape"})
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
        require(self.share <= self.floor, "share", self.share, f"must be at most floor = {self.floor}")
        try:
            chance = self.design.uniform_chance() * self.clients * self.dimension
        except BadParameter as error:
            raise ValueError(error.detail) from error
        rare = f"a client's uniform answer must have probability at most wrap = {self.wrap}"
        require(chance <= self.wrap, "escape", self.escape, rare)
        most = self.clients * self.length
        require(self.modulus > most, "modulus", self.modulus, f"must be above clients * length = {most}")
        return self

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        """Return the mechanism with the fewest bits. It does not look at `spec.name`.

        By default g is the theorem's ⌈ε√t/2⌉, as far as it can be certified: the rounding's variance is then half of
        the noise's, and bits grow as g. For rewards that are 0 or 1, g = 1 is enough. In a ball g is chosen by the same
        share. The certificate is then of moves by one step, and `laplace_loss` adds up the worst of them in the ball.
        """
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", UNPRINTED)
        epsilon, chance = needed(spec), cohort.overflow_probability / (cohort.clients * cohort.dimension)
        chance *= 1 - 1e-9
        if chance < 2 * LEAST_ESCAPE:
            least = cohort.clients * cohort.dimension * 2 * LEAST_ESCAPE * (1 + 1e-8)
            allowed = f"must be at least clients * dimension * 2^-49 = {least:.3g}"
            raise BadParameter("overflow_probability", cohort.overflow_probability, allowed)
        precision = spec.precision or cls._precision(epsilon, chance, cohort)
        if Grid(precision, cohort.dimension, cohort.norm).is_box:
            design = fewest_bits(epsilon / cohort.dimension, cohort.min_honest, precision, chance)
        else:
            each = 1 / laplace_scale(epsilon, precision, cohort.dimension, cohort.norm)
            design = fewest_bits(each, cohort.min_honest, precision, chance, 1)
        return cls(
            **cohort.shared(precision, cohort.clients * design.length + 1),
            epsilon=epsilon,
            share=design.share,
            scale=cohort.searched("scale", design.scale),
            reach=design.reach,
            length=design.length,
            escape=cohort.searched("escape", design.escape),
        )

    @staticmethod
    def _precision(epsilon: float, chance: float, cohort: CohortParams) -> int:
        if cohort.norm == "linf" or cohort.dimension == 1:
            each = epsilon / cohort.dimension
            return finest(each, math.ceil(each * math.sqrt(cohort.min_honest) / 2), chance)
        wanted = little_rounding(cohort, epsilon, 1, THEOREM, math.inf)
        return finest(epsilon, wanted, chance)

    def _certified(self, honest: int) -> float:
        """Return the certified ε for one client's whole vector; in a ball the lesser of by steps and by coordinates."""
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
        """Return the law of one coordinate of one client."""
        return BitDesign(
            precision=self.precision,
            share=self.share,
            scale=self.scale,
            reach=self.reach,
            length=self.length,
            escape=self.escape,
        )

    @property
    def bits(self) -> int:
        return self.dimension * self.length

    @property
    def width(self) -> int:
        """Return d, the bits under each label."""
        return self.length

    @override
    def client_randomness(self, stream: Stream, count: int) -> Randomness:
        shape = (count, self.dimension)
        size = count * self.dimension
        law = polya_table(Fraction(1, self.share), self.scale)
        plus, minus = law.draw(stream, size), law.draw(stream, size)
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

    @override
    def message_law(self, *, high: bool) -> Pmf:
        return self.design.answer_law(self.precision if high else 0)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        honest = self.honest(survivors, colluders)
        if honest < 1:
            return no_privacy(self.calibration)
        assumptions = (*bits_assumptions(honest), SAMPLER)
        note = "from the certified pure epsilon: no law with that one loses more"
        return Privacy(
            compute_promise=lambda: self.make_guarantee("pure", self._certified(honest), assumptions),
            compute_profile=lambda delta: of_pure(self._certified(honest), delta, "bound", note),
        )

    def error(self, survivors: int) -> ErrorLaw:
        law = Uncut(Fraction(survivors, self.share), self.scale)
        unit = self.scale * self.step
        return ScaledErrorLaw(law, self.step, (math.sqrt(2 * survivors / self.share) * unit, unit))


def _uniform(length: int) -> Table:
    """Return the uniform law on {0..length}, with 128-bit thresholds."""
    return tabulate(0, lambda _: (1, 1), greatest=length)

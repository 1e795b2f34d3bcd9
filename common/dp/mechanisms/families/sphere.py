"""The base class of mechanisms whose messages are random points on a sphere in place of vectors in a ball.

The file begins with uniform directions, the law of the error of a sum of such points, and the coin that chooses one.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field, model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import ErrorLaw, How, ScaledErrorLaw
from distrust.common.dp.mechanisms.families.base import MechanismSpec, require
from distrust.common.dp.mechanisms.families.cohort import CohortParams, SharedFields
from distrust.common.dp.mechanisms.families.grid import FINE, GridMechanism, Randomness, fractions
from distrust.common.dp.noise.coins import MOST_EXACT, worst_quantile
from distrust.common.dp.noise.law import Pmf, check_probability
from distrust.common.errors import BadParameter
from distrust.common.extras import mpmath
from distrust.common.randomness import Stream
from distrust.common.wire import Norm

WORD = 2**64  # cases of the word that decides a coordinate; chances are parts of it

UNIFORM = "directions are uniform up to floating point, on which accuracy rests and privacy does not"
"""The assumption of answers on a sphere."""


def directions(stream: Stream, count: int, dimension: int) -> NDArray[np.float64]:
    """Return unit vectors, shape (count, dimension), whose law is symmetric under u → -u to the last bit.

    Normal sizes by inversion and a fair sign for each coordinate; uniform up to floating point.
    """
    words = stream.words(count * dimension).reshape(count, dimension)
    halves = ((words >> np.uint64(12)) + 0.5) * 2.0**-53  # middles of 2⁵² cells of (0, 1/2)
    normal = np.where(words & np.uint64(1), scipy.special.ndtri(halves), -scipy.special.ndtri(halves))
    unit: NDArray[np.float64] = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    return unit


@lru_cache(maxsize=256)
def radius(reach: float, dimension: int, epsilon: float) -> float:
    """Return the radius r = R √π Γ((d+1)/2)/Γ(d/2) · (e^ε + 1)/(e^ε - 1), for unbiased answers; R is `reach`."""
    ratio = math.exp(float(scipy.special.gammaln((dimension + 1) / 2) - scipy.special.gammaln(dimension / 2)))
    return reach * math.sqrt(math.pi) * ratio / math.tanh(epsilon / 2)


@dataclass(frozen=True, slots=True)
class SphereSum:
    """The law of the error, along a direction, of a sum of `terms` answers on the sphere of `radius`.

    Vectors are at most `reach` long; all lengths have one unit.

    std       √(terms/dimension) radius, reached where the vectors are 0: half-spheres have the sphere's second moments.
    quantile  holds for all data. One coordinate: answers are ±radius, coins with chances in [a, 1 - a], 1 - 2a =
              reach/radius. The worst data's quantile is then exact (`common/dp/noise/coins.py`), for p < 1/4 and up to
              MOST_EXACT terms. More coordinates or terms: it is Chernoff's bound on `direction_log_moment` of the worst
              data for one answer, which holds in both directions. The worst data for the sum are not known.
    """

    terms: int
    dimension: int
    radius: float
    reach: float

    @property
    def std(self) -> float:
        return math.sqrt(self.terms / self.dimension) * self.radius

    @property
    def quantile_how(self) -> How:
        """Return "exact" for one coordinate, unless a quantile of some p ≤ 1/2 may be below one count; else "bound"."""
        exact = self._coins and worst_quantile(self.terms, (1 - self.reach / self.radius) / 2, 0.5) > 1
        return "exact" if exact else "bound"

    @property
    def _coins(self) -> bool:
        return self.dimension == 1 and self.terms <= MOST_EXACT

    def quantile(self, p: float) -> float:
        """Return a q with P(|error| > q) ≤ p whatever the data, the least one where `quantile_how` is exact."""
        check_probability(p)
        ratio = self.reach / self.radius
        if self._coins:
            return 2 * self.radius * worst_quantile(self.terms, (1 - ratio) / 2, p)
        return self.radius * chernoff(self.terms, self.dimension, ratio, p)


@lru_cache(maxsize=1024)
def chernoff(terms: int, dimension: int, ratio: float, p: float) -> float:
    """Return the minimum over λ of (terms · K(λ) + ln(2/p))/λ, at most terms (1 + ratio), for the unit sphere.

    Any λ gives a bound.
    """
    target = math.log(2 / p)
    gauss = math.sqrt(2 * dimension * target / terms)  # best for K = λ²/(2 dimension)
    top = max(math.sqrt(1400 * dimension), 700.0)  # M below e^700, and no better λ beyond, but for a sum's farthest end
    if gauss / 8 >= top:
        return terms * (1 + ratio)

    def bound(log: float) -> float:
        return (terms * direction_log_moment(math.exp(log), dimension, ratio) + target) / math.exp(log)

    ends = (math.log(gauss / 8), math.log(top))
    result = scipy.optimize.minimize_scalar(bound, bounds=ends, method="bounded", options={"xatol": 1e-7})
    return min(float(result.fun) * (1 + 1e-9), terms * (1 + ratio))


def direction_log_moment(size: float, dimension: int, ratio: float) -> float:
    """Return K(λ) = max ln E e^(λ(V - E V)), V a unit answer along a direction, over all vectors.

    λ = `size`, `ratio` = R/r.

    Let u be uniform, x at the angle θ to the direction, μ = E|u₁|, M = E cosh λu₁ and s = |x|/(rμ): E V = s μ cos θ and
    E e^(λV) = M + s E sinh(λu₁) sign⟨u, x⟩. Split u along x: this mean is ± λμM |cos θ| ρ, where for D coordinates,
    with h = (D - 1)/2, a = λ|cos θ| and b = λ sin θ,
        μ M ρ = ½ Γ(D/2) Σ_m 4^-m/Γ(m + 1 + h) Σ_(k+l=m) a^2k b^2l / (Γ(k + 3/2) l!).
    What moves from a² to b² takes (k + 1)/(k + 3/2) of what it adds, term by term. So ρ is least for θ = 0, and there
    S/M, S = Σ (λ/2)^2k Γ(3/2) Γ(1 + h)/(Γ(k + 3/2) Γ(k + 1 + h)), M = Σ (λ/2)^2k Γ(D/2)/(Γ(k + 1) Γ(k + D/2)).
    And ρ ≤ 1, by E|τ|^(2k+1) (1 - τ²)^l ≤ (2k + 1) E|τ| E τ^2k (1 - τ²)^l, τ = ⟨u, x⟩/|x|. So vectors that lean towards
    the direction give at most ln M, as 0 does. Those that lean away give ln M + ln(1 - ρt) + t, t = λ|E V| ≤ λ ratio,
    which is largest for the least ρ and t = 1/ρ - 1, or the last t.
    """
    k = np.arange(1, math.ceil(min(size, size**2 / dimension)) + 60)
    powers = 2 * k * math.log(size / 2)
    more = [float(np.exp(powers - _rising(1 + half, k) - _rising(dimension / 2 + half, k)).sum()) for half in (0, 0.5)]
    gap = (more[0] - more[1]) / (1 + more[1])  # 1/ρ - 1
    t = min(gap, size * ratio)
    return math.log1p(more[0]) + math.log1p(-t / (1 + gap)) + t


def _rising(start: float, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logarithm of start (start + 1) … (start + k - 1)."""
    logs: NDArray[np.float64] = scipy.special.gammaln(start + k) - scipy.special.gammaln(start)
    return logs


Blocks: TypeAlias = Annotated[int, Field(ge=1, exclude_if=lambda blocks: blocks == 1)]
"""Equal parts of the vector, of which a client fills at most one."""


class SphereLike(GridMechanism):
    """A mechanism whose clients send Ψ_{ε₀,R}(x), a random point of the sphere of radius r, instead of their vector x.

    By the length of x it takes x or -x. A coin says whether the point is from that half of the sphere or the other.

    Exactness  a pair ±u is drawn from a law that is symmetric to the last bit, whatever x. Then the coin says which of
               the two is sent. So floating point touches how uniform the directions are, and no likelihood ratio: given
               the pair, ±u are sent with probabilities (1 ± a)/2 with |a| ≤ tanh(ε₀/2), ε₀ that of the coin as it is
               drawn, ⌊2⁶⁴ e^ε₀/(1 + e^ε₀)⌋ of 2⁶⁴ cases.
    Grid       g steps between -r and r, to which the answer is rounded at random: a hundredth of its variance at most.
               One coordinate has the answers ±r, both on the grid; messages are then 0 or g, and g is 1.
    Utility    unbiased; variance per client and coordinate at most r²/D, r about R √(πD/2) (e^ε₀ + 1)/(e^ε₀ - 1). Error
               quantiles hold for the worst data: exactly for one coordinate, else as a bound.

    blocks  Equal parts of the vector, of which a client fills at most one, and each of which has its own Ψ. Guarantees
            need the others to be zero; a vector with two filled blocks is refused (GLB Algorithm 2, synthetic updates).
    """

    joint: ClassVar[bool] = True
    letters: ClassVar[Mapping[str, str]] = {"radius": "radius"}

    if TYPE_CHECKING:  # each class has it as a field of its own, which on the wire comes after its ε
        blocks: Blocks

    @property
    @abstractmethod
    def answer_epsilon(self) -> float:
        """Return ε₀, what one answer promises by itself, in nats. The coin is drawn for it, rounded down."""

    @model_validator(mode="after")
    def _has_equal_blocks(self) -> Self:
        fits = self.blocks == 1 or (self.dimension % self.blocks == 0 and self.norm == "l2")
        require(fits, "blocks", self.blocks, f"must divide dimension = {self.dimension}, in the norm l2")
        return self

    @property
    def drawn_epsilon(self) -> float:
        """Return ε₀ of the coin as it is drawn."""
        return coin_epsilon(coin(self.answer_epsilon))

    @property
    def size(self) -> int:
        """Return how many coordinates a block has."""
        return self.dimension // self.blocks

    @property
    def reach(self) -> float:
        """Return R, the ℓ₂ radius of the data, in data units."""
        return ball((self.high - self.low) / 2, self.dimension, self.norm)

    @property
    def radius(self) -> float:
        """Return r, the radius of the answers, in data units."""
        return radius(self.reach, self.size, self.drawn_epsilon)

    @property
    def step(self) -> float:
        return 2 * self.radius / self.precision

    @property
    def origin(self) -> float:
        return (self.low + self.high) / 2 - self.radius

    @property
    def rounding(self) -> float:
        return 0.0 if self.size == 1 else self.step / 2

    @override
    def client_randomness(self, stream: Stream, count: int) -> Randomness:
        draws, shape = count * self.blocks, (count, self.blocks)
        unit = directions(stream, draws, self.size).reshape(*shape, self.size)
        signs = fractions(stream.words(draws)).reshape(shape)
        own = (stream.words(draws) < np.uint64(coin(self.answer_epsilon))).reshape(shape)
        chances = self._uniform(stream, count).reshape(unit.shape)
        return unit, signs, own, self._answers(unit, chances), self._answers(-unit, chances)

    @override
    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        unit, signs, own, plus, minus = randomness
        centred = self.on_grid(vectors).reshape(unit.shape)
        centred /= self.precision
        centred -= 0.5
        centred *= self.high - self.low
        if self.blocks > 1:
            # A zero is the middle of the grid up to rounding, which must not count as data.
            centred = np.where(vectors.reshape(unit.shape) == 0, 0.0, centred)
            filled = np.add.reduce(np.logical_or.reduce(centred, axis=2), axis=1, dtype=np.int64)
            if np.count_nonzero(filled > 1):
                raise BadParameter("vectors", "two filled blocks", "the guarantee is for one; the others must be zero")
        lengths = np.sqrt(np.add.reduce(centred * centred, axis=2))
        keep = signs < 0.5 + lengths / (2 * self.reach)
        ahead = np.einsum("ibj,ibj->ib", unit, centred) > 0  # the same for u and -u but for the sign
        flip = (ahead == keep) != own
        return np.where(flip[..., np.newaxis], minus, plus).reshape(vectors.shape)

    def _answers(self, unit: NDArray[np.float64], chances: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Return the messages that stand for the points in these directions, rounded to the grid at random."""
        answers = (np.clip(unit, -1, 1) + 1) * (self.precision / 2)
        whole = np.floor(answers)
        return (whole + (chances < answers - whole)).astype(np.uint64)

    @override
    def message_law(self, *, high: bool) -> Pmf | None:
        # One coordinate has the answers 0 and g. The coin says whether the answer is on the value's side.
        if self.size > 1 or self.blocks > 1:
            return None
        cases = coin(self.answer_epsilon)
        logs = np.full(self.precision + 1, -np.inf)
        logs[self.precision if high else 0] = math.log(cases / WORD)
        logs[0 if high else self.precision] = math.log((WORD - cases) / WORD)
        return Pmf(0, logs, 0.0)

    def error(self, survivors: int) -> ErrorLaw:
        law = SphereSum(survivors, self.size, self.precision / 2, self.reach / self.step)
        return ScaledErrorLaw(law, self.step, (math.sqrt(2 * survivors) * self.radius, 0.0))


def sphere_fields(spec: MechanismSpec, cohort: CohortParams) -> SharedFields:
    """Return the fields that every mechanism has, with the spec's grid, else one that is fine enough."""
    size = cohort.dimension // cohort.blocks
    fine = 1 if size == 1 else math.ceil(math.sqrt(size / FINE))
    precision = spec.precision or fine
    return cohort.shared(precision, cohort.room(precision, None), full_ball=True)


def ball(half: float, dimension: int, norm: Norm) -> float:
    """Return the ℓ₂ radius of the ball of `norm` with radius `half`."""
    return half * math.sqrt(dimension) if norm == "linf" else half


@lru_cache(maxsize=256)
def coin(epsilon: float) -> int:
    """Return in how many of 2⁶⁴ cases the point is from x's own half: their share is e^ε/(1 + e^ε), rounded down.

    They are never all of the cases.
    """
    with mpmath.workprec(192):
        chance = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        return min(WORD - 1, int(mpmath.floor(chance * WORD)))


@lru_cache(maxsize=256)
def coin_epsilon(cases: int) -> float:
    """Return ε of a coin that shows heads in so many of 2⁶⁴ cases: the logarithm of its odds."""
    with mpmath.workprec(192):
        return float(mpmath.log(mpmath.mpf(cases) / (WORD - cases)))

"""Contextual bandits: the bounded vector that a client reports of its context, its arm and its reward."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from distrust.common.bandit.contextual_choice import (
    Integers,
    Link,
    Range,
    ThetaNorm,
    link_mean,
    places_of,
    triangle,
    unpacked_triangle,
)
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.wire import Message

MOST_NUMBERS = 1_000_000
"""Most numbers of one report."""

FLOAT_ROUNDING = Fraction(1, 2**40)
"""Relative excess that covers the rounding of a few operations in floating point."""


HUGE = 1e150
"""Size from which a number's square may leave a double's range."""

ROOT = math.sqrt(2)
"""Weight of entries off the diagonal, which stand for two entries of the matrix."""


@lru_cache(maxsize=32)
def _weights(size: int) -> Floats:
    """Return what the entries of a packed triangle are multiplied by: √2 off the diagonal."""
    rows, columns = triangle(size)
    return np.where(rows == columns, 1.0, ROOT)


NoiseSource = Literal["CTX", "GLB", "LDP-UCB", "LDP-GLOC", "CTX-code"]
"""Sources whose noise `paper` has for a contextual vector: CTX, GLB, the baselines of GLB's code, and CTX's code."""


@dataclass(frozen=True, slots=True)
class PrintedNoise:
    """Facts on which the printed noise of a contextual vector depends.

    source       whose constants `paper` has.
    features     d.
    factor       c, the largest |s|, in units of the reward; contexts have length 1 at most.
    sensitivity  Δ₂ of the whole vector.
    """

    source: NoiseSource
    features: int
    factor: float
    sensitivity: float

    def share(self, charged: float) -> float:
        """Return a sensitivity that a source charges for, in units of Δ₂."""
        return charged / self.sensitivity


@dataclass(frozen=True, slots=True)
class Observation:
    """Contexts, arms and rewards of clients, one row a client. They never leave the device.

    arms        chosen, shape (…, n).
    features    the contexts φ of the chosen arms, shape (…, n, d).
    rewards     shape (…, n).
    predictors  ⟨φ, θ̂⟩ by the parameters that the client was given, shape (…, n).
    """

    arms: Integers
    features: Floats
    rewards: Floats
    predictors: Floats


class ContextualSum(Message):
    """A vector a client: sφ, and with `moments` the upper triangle of φφᵀ, its off-diagonal entries times √2.

    Contexts are shortened to ‖φ‖ ≤ 1, rewards are clamped to [low, high]. s is the reward r, or, with `residual`,
    μ(⟨φ, θ̂⟩) - r, the factor of the gradient; |s| ≤ c.

    features    d.
    blocks      K where every arm has parameters of its own; the block of the chosen arm is filled, the others are zero,
                so that after noise all look alike (the synthetic updates of GLB, Algorithm 2).
    theta_norm  S, a bound on ‖θ̂‖: predictors of residuals are clamped to [-S, S].
    clip        with a residual alone: vectors are shortened to this length; None: to none. Below the largest |s| their
                mean is biased.
    radius      the vectors' largest ℓ₂ norm: √(1 + c²) with moments, where the weights √2 make it the Frobenius norm;
                else c, or `clip` where it is less.
    """

    kind: Literal["contextual-sum"] = "contextual-sum"
    features: Annotated[int, Field(ge=1, le=200, description="d: numbers of a context")]
    blocks: Annotated[int, Field(ge=1, le=10_000, description="K, or 1 where the arms share their parameters")] = 1
    moments: bool = True
    residual: Link | None = None
    rewards: Range = Field(default_factory=lambda: [0.0, 1.0])
    theta_norm: ThetaNorm = Field(default=1.0, exclude_if=lambda norm: norm == 1)
    clip: Annotated[float, Field(gt=0)] | None = Field(default=None, exclude_if=lambda clip: clip is None)

    @model_validator(mode="after")
    def _clip_is_of_gradients(self) -> Self:
        if self.clip is not None and (self.residual is None or self.moments):
            raise ValueError(f"clip = {self.clip:g}: goes with a residual and without moments; leave it out")
        return self

    @model_validator(mode="after")
    def _vector_fits(self) -> Self:
        if self.dimension > MOST_NUMBERS:
            raise ValueError(f"blocks = {self.blocks}: {self.dimension} numbers a report, at most {MOST_NUMBERS}")
        return self

    @model_validator(mode="after")
    def _rewards_rise(self) -> Self:
        low, high = self.rewards
        if not -1e6 <= low < high <= 1e6:
            raise ValueError(f"rewards = [{low:g}, {high:g}]: must rise, and lie in [-1e6, 1e6]")
        return self

    @property
    def norm(self) -> Literal["l2"]:
        return "l2"

    @property
    def width(self) -> int:
        """Return the numbers of a block: d, and d(d+1)/2 more with moments."""
        return self.features + (self.features * (self.features + 1) // 2 if self.moments else 0)

    @property
    def dimension(self) -> int:
        return self.blocks * self.width

    @property
    def factor(self) -> float:
        """Return the largest |s|: of a reward, or of μ(z) - r over z in [-S, S], which ‖φ‖ ≤ 1 and ‖θ̂‖ ≤ S give."""
        low, high = self.rewards
        if self.residual is None:
            return max(abs(low), abs(high))
        ends = link_mean(self.residual, np.array([-self.theta_norm, self.theta_norm]))
        return float(max(ends[1] - low, high - ends[0]))

    @property
    def radius(self) -> float:
        if self.moments:
            return math.hypot(1.0, self.factor)
        return self.factor if self.clip is None else min(self.clip, self.factor)

    @property
    def low(self) -> float:
        return -self.radius

    @property
    def high(self) -> float:
        return self.radius

    @property
    def squared_share(self) -> Fraction:
        """Return (Δ₂ / 2 radius)², exactly: the share of the ball's diameter that two vectors can be apart, squared."""
        c = Fraction(self.factor)
        if not self.moments:
            return Fraction(1)
        if self.features == 1:
            return min(Fraction(1), Fraction(self.sensitivity) ** 2 * (1 + FLOAT_ROUNDING) / (4 * (1 + c * c)))
        own = (2 + c * c) ** 2 / 2 if c * c <= 2 else 4 * c * c
        return max(own, 2 * (1 + c * c) if self.blocks > 1 else own) / (4 * (1 + c * c))

    def printed(self, source: NoiseSource) -> PrintedNoise | None:
        """Return what printed noise depends on; None without moments: a gradient is released alone.

        All sources release sφ and φφᵀ apart, with one σ a part and without the weights. Together they are one release
        that moves by no more than ours, and by Δ₂ in the basis in which φφᵀ - φ'φ'ᵀ is diagonal. So where both parts
        have the same σ, one release of ours with that σ promises exactly what the two promise together.
        """
        return PrintedNoise(source, self.features, self.factor, self.sensitivity) if self.moments else None

    @property
    def sensitivity(self) -> float:
        """Return Δ₂, the largest ℓ₂ distance of two clients' vectors; √4.5 for moments, c = 1 and d ≥ 2.

        With a = ‖φ‖, b = ‖φ'‖ and p = ⟨φ, φ'⟩ its square is a⁴ + b⁴ - 2p² + s²a² + s'²b² - 2ss'p, which is largest at
        p = -ss'/2 where that is at least -ab, and at p = -ab otherwise. Two arms' blocks are orthogonal.
        """
        c = self.factor
        if not self.moments:
            return 2 * self.radius
        if self.features == 1:  # p = ±ab; at a = 1 the square is (1 + b)² ((1 - b)² + c²), largest at b = 1 or here:
            b = (1 - math.sqrt(max(0.0, 1 - 2 * c * c))) / 2
            own = max(2 * c, (1 + b) * math.hypot(1 - b, c))
        else:
            own = (2 + c * c) / math.sqrt(2) if c * c <= 2 else 2 * c
        apart = math.sqrt(2) * self.radius if self.blocks > 1 else 0.0
        return max(own, apart)

    def vectors(self, seen: Observation) -> Floats:
        """Return the clients' vectors, shape (…, n, dimension). Raises BadParameter for NaN and infinities."""
        return self.vectors_of(self.contents(seen.features), seen.arms, seen.rewards, seen.predictors)

    def contents(self, contexts: Floats) -> Floats:
        """Return what contexts, shape (…, d), put into a block whatever the reward, shape (…, width).

        That is φ and, with moments, the weighted triangle of φφᵀ. Raises BadParameter for NaN and infinities.
        """
        if contexts.shape[-1] != self.features:
            raise BadParameter("context", contexts.shape[-1], f"must have {self.features} numbers")
        _check_finite(contexts)
        size, short = self.features, shortened(_scaled_down(contexts))
        if not self.moments:
            return short
        own = np.empty((*short.shape[:-1], self.width))
        own[..., :size] = short
        place = size
        for row in range(size):
            part = own[..., place : place + size - row]
            np.multiply(short[..., row : row + 1], short[..., row:], out=part)
            if row < size - 1:
                part[..., 1:] *= ROOT  # off the diagonal
            place += size - row
        return own

    def vectors_of(self, contents: Floats, arms: Integers, rewards: Floats, predictors: Floats) -> Floats:
        """Return `vectors` from `contents` of the chosen arms' contexts, shape (…, n, width)."""
        return self.vectors_of_clamped(contents, arms, self.clamped(rewards), predictors)

    def clamped(self, rewards: Floats) -> Floats:
        """Return rewards in their range, elementwise. Raises BadParameter for NaN and infinities."""
        _check_finite(rewards)
        low, high = self.rewards
        inside: Floats = np.minimum(np.maximum(rewards, low), high)
        return inside

    def vectors_of_clamped(self, contents: Floats, arms: Integers, rewards: Floats, predictors: Floats) -> Floats:
        """Return `vectors_of` rewards that `clamped` returned."""
        factor = rewards
        if self.residual is not None:
            most = self.theta_norm
            factor = link_mean(self.residual, np.minimum(np.maximum(predictors, -most), most)) - rewards
        own = contents.copy()
        scaled = own[..., : self.features]
        scaled *= factor[..., np.newaxis]
        if self.clip is not None:
            own = shortened(own, self.clip)
        if self.blocks == 1:
            return own
        width = own.shape[-1]
        filled = np.zeros((arms.size * self.blocks, width))
        filled[places_of(arms, self.blocks).reshape(-1)] = own.reshape(-1, width)
        return filled.reshape(*own.shape[:-1], self.blocks * width)

    def parts(self, sums: Floats) -> tuple[Floats, Floats | None]:
        """Return Σsφ, shape (…, blocks, d), and Σφφᵀ, shape (…, blocks, d, d) or None, of summed vectors."""
        blocks = sums.reshape(*sums.shape[:-1], self.blocks, self.width)
        linear = blocks[..., : self.features]
        if not self.moments:
            return linear, None
        return linear, unpacked_triangle(blocks[..., self.features :] / _weights(self.features), self.features)


def _check_finite(numbers: Floats) -> None:
    """Raise BadParameter for NaN and infinities."""
    if np.count_nonzero(np.isfinite(numbers)) < numbers.size:
        raise BadParameter("context or reward", "NaN or infinity", "finite numbers are allowed")


def shortened(vectors: Floats, longest: float = 1.0) -> Floats:
    """Return vectors, shape (…, d), at most `longest` long: longer ones are shortened to it."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    excess = np.maximum(lengths if longest == 1 else lengths / longest, 1.0)
    short: Floats = vectors / excess[..., np.newaxis]
    return short


def _scaled_down(vectors: Floats) -> Floats:
    """Return finite vectors; those whose squares might be infinite are divided, and stay longer than 1."""
    if vectors.min(initial=0.0) > -HUGE and vectors.max(initial=0.0) < HUGE:
        return vectors
    largest = np.abs(vectors).max(axis=-1, keepdims=True)  # of its own numbers: no vector depends on another's
    scaled: Floats = vectors / np.where(largest < HUGE, 1.0, largest / 2)
    return scaled

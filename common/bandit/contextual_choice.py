"""Contextual bandits: the choice that a client makes on its own device, and the public parameters of it.

The server publishes parameters. A client computes from them and from its own context which arm it plays (CTX, Algorithm
1; GLB, Algorithms 1 and 2). `contextual_sum` has the vector that it then reports. The context, the arm and the reward
never leave the device in clear.

All arrays may have leading axes of repetitions, written "…" below, which broadcast.
"""

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from distrust.common.bandit.error_law import Floats
from distrust.common.wire import Message

Integers: TypeAlias = NDArray[np.int64]

Link = Literal["identity", "logistic", "poisson"]
"""μ of a generalized linear model: the mean reward of an arm is μ(⟨φ, θ⟩)."""

Finite = Annotated[float, Field(allow_inf_nan=False)]

Range = Annotated[list[Finite], Field(min_length=2, max_length=2)]
"""Least and largest value of a reward."""

ThetaNorm = Annotated[
    float, Field(ge=1, le=100, allow_inf_nan=False, description="S: a bound on ‖θ*‖, kept by ‖θ̂‖ as well")
]

FiniteVector = Annotated[list[Finite], Field(min_length=1, max_length=20_100)]

Weights = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=2, max_length=10_000)]
"""Values of a reward of 1, one an arm, as parts of the largest."""


LARGEST_EXPONENT = 700.0
"""Largest exponent of the Poisson link. Larger ones overflow, for some contexts only, and 0 times infinity is no score.

A warning or an error that a client meets for some contexts only would disclose which it has.
"""


def link_mean(link: Link, predictor: Floats) -> Floats:
    """Return μ of linear predictors, elementwise, of the same shape; e^z only up to z = `LARGEST_EXPONENT`."""
    if link == "identity":
        return predictor
    if link == "poisson":
        return np.exp(np.minimum(predictor, LARGEST_EXPONENT))
    return 0.5 * (1 + np.tanh(predictor / 2))  # 1/(1 + e^-z) without overflow


def least_slope(link: Link) -> float:
    """Return ζ = min μ'(z) over z in [-1, 1]: 1, 0.1966 or e⁻¹ (GLB, Assumption 3.2)."""
    slopes = {"identity": 1.0, "logistic": 0.25 / math.cosh(0.5) ** 2, "poisson": math.exp(-1)}
    return slopes[link]


def largest_slope(link: Link) -> float:
    """Return L = max μ'(z) over z in [-1, 1]: 1, 1/4 or e."""
    return {"identity": 1.0, "logistic": 0.25, "poisson": math.e}[link]


def packed_triangle(matrix: Floats) -> Floats:
    """Return the upper triangle of symmetric matrices, shape (…, d, d), row by row: shape (…, d(d+1)/2)."""
    size = matrix.shape[-1]
    rows, columns = triangle(size)
    packed: Floats = np.take(matrix.reshape(*matrix.shape[:-2], size * size), rows * size + columns, axis=-1)
    return packed


def unpacked_triangle(packed: Floats, size: int) -> Floats:
    """Return the symmetric matrices, shape (…, d, d), of packed upper triangles; d is `size`."""
    return np.take(packed, _places(size), axis=-1)


@lru_cache(maxsize=32)
def triangle(size: int) -> tuple[Integers, Integers]:
    """Return the rows and the columns of the entries of an upper triangle, row by row."""
    rows, columns = np.triu_indices(size)
    return rows, columns


@lru_cache(maxsize=32)
def _places(size: int) -> Integers:
    """Return where each entry of a symmetric matrix lies in its packed triangle, shape (size, size)."""
    rows, columns = triangle(size)
    places = np.empty((size, size), dtype=np.int64)
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))
    return places


def picked(table: Floats, arms: Integers) -> Floats:
    """Return each client's own entry, shape (…, n), of a table of shape (…, n, K)."""
    return table.reshape(-1).take(places_of(arms, table.shape[-1]))


def places_of(arms: Integers, count: int) -> Integers:
    """Return where each client's own entry lies, shape (…, n), in a flattened table of shape (…, n, `count`)."""
    places: Integers = arms + _starts(arms.shape, count)
    return places


@lru_cache(maxsize=128)
def _starts(shape: tuple[int, ...], count: int) -> Integers:
    return np.arange(0, math.prod(shape) * count, count).reshape(shape)


@dataclass(frozen=True, slots=True)
class Screen:
    """Keeps the arms whose mean by frozen parameters is above the best such mean less `margin`.

    theta   the parameters after the warm-up, shape (…, K, d). Source: GLB, Algorithm 2, with μ as Lemma D.1
            needs it (equation 4.1 leaves it out).
    margin  h/2 ≥ 0, shape (…), in units of the reward.
    """

    theta: Floats
    link: Link
    margin: Floats | float

    def allowed(self, features: Floats, weights: Floats | None = None) -> NDArray[np.bool_]:
        """Return which arms stay for contexts of shape (…, n, 1, d): shape (…, n, K); weights as in `ChoiceRule`."""
        means = link_mean(self.link, _predictors(self.theta, features))
        if weights is not None:
            means = weights * means
        return np.asarray(means >= means.max(axis=-1, keepdims=True) - _over_clients(self.margin))


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """Computes the arms that clients choose: argmax over a of ⟨φ_a, θ_a⟩ + β ‖φ_a‖ in the norm of `inverse`.

    theta    one row that all arms share, shape (…, 1, d), or one an arm, shape (…, K, d).
    inverse  V⁻¹ for each row of theta, shape (…, 1 or K, d, d); None without a bonus.
    beta     β ≥ 0, shape (…), the bonus's weight.
    screen   arms that are not looked at; None for none.
    only     the arm that every client plays; None: each client chooses.
    weights  public value w_a ≥ 0 of a reward of 1 of each arm, such as a price, shape (K,). Clients then maximize
             w_a μ(⟨φ_a, θ_a⟩ + β ‖φ_a‖), with μ of `link`. None: all arms' rewards are worth the same, and μ, which
             rises, changes no choice.
    anchor   the parameters of the residual that clients report, of the shape of theta; None: theta itself.
    """

    theta: Floats
    inverse: Floats | None = None
    beta: Floats | float = 0.0
    screen: Screen | None = None
    only: int | None = None
    weights: Floats | None = None
    link: Link = "identity"
    anchor: Floats | None = None

    def choose(self, features: Floats) -> tuple[Integers, Floats]:
        """Return the clients' arms and the linear predictors of their residuals, both of shape (…, n).

        features  contexts, shape (…, n, A, d): A = K, a context an arm, with one row of theta; or A = 1, one context
                  for all arms, with K rows. The first of equal scores is chosen.
        """
        predictors = scores = _predictors(self.theta, features)
        if self.anchor is not None:
            predictors = _predictors(self.anchor, features)
        if self.only is not None:
            column = min(self.only, predictors.shape[-1] - 1)
            arms = np.full(predictors.shape[:-1], self.only, dtype=np.int64)
            return arms, np.asarray(predictors[..., column])
        if self.inverse is not None:
            bonus = self._lengths(features)
            bonus *= _over_clients(self.beta)
            bonus += scores
            scores = bonus
        if self.weights is not None:
            scores = self.weights * link_mean(self.link, scores)
        if self.screen is not None:
            scores = np.where(self.screen.allowed(features, self.weights), scores, -np.inf)
        arms = scores.argmax(axis=-1)
        return arms, picked(predictors, arms)

    def _lengths(self, features: Floats) -> Floats:
        """Return ‖φ_a‖ in the norm of V_a⁻¹, shape (…, n, K)."""
        assert self.inverse is not None
        if self.inverse.shape[-3] == 1:
            squares = np.vecdot(features @ self.inverse, features)
        else:
            squares = np.einsum("...nd,...kde,...ne->...nk", features[..., 0, :], self.inverse, features[..., 0, :])
        lengths: Floats = np.maximum(squares, 0)
        return np.sqrt(lengths, out=lengths)


def _over_clients(numbers: Floats | float) -> Floats | float:
    """Return numbers of shape (…) so that they broadcast over clients and arms, (…, n, K)."""
    return numbers if isinstance(numbers, float) else np.asarray(numbers)[..., np.newaxis, np.newaxis]


def _predictors(theta: Floats, features: Floats) -> Floats:
    """Return ⟨φ_a, θ_a⟩ for every client and arm, shape (…, n, K)."""
    products = features @ theta.mT[..., np.newaxis, :, :]
    predictors: Floats = products[..., 0] if theta.shape[-2] == 1 else products[..., 0, :]
    return predictors


class ScreenTerms(Message):
    """`Screen` on the wire."""

    theta: Annotated[list[FiniteVector], Field(min_length=1, max_length=10_000)]
    link: Link
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ContextualChoice(Message):
    """Each client chooses its arm on its own device, by public parameters. The arm is not disclosed.

    theta    θ̂: one row of d numbers that all arms share, or one an arm.
    inverse  upper triangle of V⁻¹ for each row of theta, row by row; absent without a bonus.
    beta     weight of the bonus.
    screen   which arms are left out.
    only     the arm that all clients of the cohort play; then it is public, as in a warm-up.
    weights  public value of a reward of 1 of each arm; then `link` is μ. Both are absent where all are worth the same.
    anchor   the parameters of the residual that clients report, as many rows as theta has; absent: theta itself.
    """

    kind: Literal["contextual-choice"] = "contextual-choice"
    theta: Annotated[list[FiniteVector], Field(min_length=1, max_length=10_000)]
    inverse: list[FiniteVector] | None = None
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    screen: ScreenTerms | None = None
    only: Annotated[int, Field(ge=0)] | None = None
    weights: Weights | None = Field(default=None, exclude_if=lambda weights: weights is None)
    link: Link = Field(default="identity", exclude_if=lambda link: link == "identity")
    anchor: list[FiniteVector] | None = Field(default=None, exclude_if=lambda anchor: anchor is None)

    @model_validator(mode="after")
    def _sizes_match(self) -> Self:
        size = len(self.theta[0])
        rows = [*self.theta, *(self.screen.theta if self.screen else []), *(self.anchor or [])]
        if any(len(row) != size for row in rows):
            raise ValueError(f"theta: every row must have the {size} numbers of the first")
        if self.anchor is not None and len(self.anchor) != len(self.theta):
            raise ValueError(f"anchor: must have as many rows as theta has, {len(self.theta)}")
        if self.inverse is not None:
            if len(self.inverse) != len(self.theta):
                raise ValueError(f"inverse: must have one triangle for each of the {len(self.theta)} rows of theta")
            if any(len(row) != size * (size + 1) // 2 for row in self.inverse):
                raise ValueError(f"inverse: a triangle of {size} x {size} has {size * (size + 1) // 2} numbers")
        if self.weights is not None and len(self.theta) not in {1, len(self.weights)}:
            raise ValueError(f"weights: must be one for each of the {len(self.theta)} arms")
        return self

    @classmethod
    def of(cls, rule: ChoiceRule) -> Self:
        """Return the message of a rule without leading axes."""
        facts = _listed(rule)
        if rule.inverse is not None:
            facts["inverse"] = packed_triangle(rule.inverse).tolist()
        if rule.screen is not None:
            facts["screen"] = ScreenTerms(**_listed(rule.screen))
        return cls(**facts)

    @property
    def rule(self) -> ChoiceRule:
        """Return the rule that clients compute with."""
        facts = _arrays(self)
        if self.inverse is not None:
            facts["inverse"] = unpacked_triangle(facts["inverse"], len(self.theta[0]))
        if self.screen is not None:
            facts["screen"] = Screen(**_arrays(self.screen))
        return ChoiceRule(**facts)

    def pulls(self, arm: int | None, clients: int) -> tuple[tuple[int | None, int], ...]:
        """Return (arm, pulls) that a cohort takes from the horizon; arm None where only the clients know it."""
        del arm
        return ((self.only, clients),)


def _listed(value: ChoiceRule | Screen) -> dict[str, Any]:
    """Return the fields of a value without leading axes, with lists and numbers in place of arrays."""
    facts = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {name: fact.tolist() if isinstance(fact, np.ndarray | np.generic) else fact for name, fact in facts}


def _arrays(message: ContextualChoice | ScreenTerms) -> dict[str, Any]:
    """Return the fields of a message but for `kind`, with arrays in place of lists."""
    return {name: np.array(fact) if isinstance(fact, list) else fact for name, fact in message if name != "kind"}

"""All that one released law promises: pure ε, (ε, δ) and Rényi divergences by order, each computed and labelled."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from distrust.common.bandit.error_law import How
from distrust.common.noise.law import LIMIT
from distrust.common.privacy.hockey_stick import Extensible, from_rdp, rdp, renyi_divergence
from distrust.common.wire import Message

LOCAL_NOTE = (
    "pure epsilon is that of one message alone, and so are Rényi divergences of orders where shuffling shows no less"
)
"""Note of a profile whose (ε, δ) is of many shuffled messages."""

PROFILE_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Rényi orders of a profile."""

SHOWN_DELTA = 1e-6
"""δ of a profile when none was asked for."""

RAISED = 1 + 2e-10
"""What is computed from a stored law is raised by this factor, above its rounding errors and below nine digits."""

ProfilePairs = tuple[tuple[float, float | None], ...]


class Spent(Message):
    """One ε. `exact`: of the released law's worst pair of inputs, and null is infinity. `bound`: null is unknown."""

    epsilon: Annotated[float, Field(ge=0)] | None
    how: How


class Profile(Message):
    """The privacy of one release for the unit "one client's data", neighbours replace one client.

    pure         (ε, 0). approximate: (ε, δ) at `delta`. rdp: (order α > 1, ε at α), as `rdp_how` says.
    exact        what the law gives, to nine digits and never below it; a bound is at or above it. Both are of the law
                 of integers: that it travels modulo m can only hide more, by less than the chance of a wrapped sum.
    notes        where a figure comes from, when its label alone does not tell.
    """

    delta: Annotated[float, Field(gt=0, lt=1)]
    pure: Spent
    approximate: Spent
    rdp: ProfilePairs
    rdp_how: How
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[tuple[float, float], ...]:
        """(order, ε) where there is one."""
        return tuple((order, epsilon) for order, epsilon in self.rdp if epsilon is not None)

    def repeated(self, count: int) -> Self:
        """Of `count` such releases about the same client; (ε, δ) by the best of their sums."""
        if count == 1:
            return self
        pure = None if self.pure.epsilon is None else count * self.pure.epsilon
        rdp = tuple((order, None if one is None else count * one) for order, one in self.rdp)
        ways = [math.inf if pure is None else pure]
        if self.known:
            ways.append(from_rdp([(order, count * one) for order, one in self.known], self.delta))
        change = {
            "pure": Spent(epsilon=pure, how=self.pure.how),
            "approximate": bound(min(ways)),
            "rdp": rdp,
        }
        return self.model_copy(update=change)


def exact(epsilon: float | None) -> Spent:
    """Return what the law gives; None or inf: no ε is enough."""
    return Spent(epsilon=_finite(epsilon), how="exact")


def bound(epsilon: float | None) -> Spent:
    """Return an ε that is enough; None or inf: none is known."""
    return Spent(epsilon=_finite(epsilon), how="bound")


def spent_as(epsilon: float | None, how: How) -> Spent:
    """Either; a search that found none tells nothing, because the stored law ends at masses of 1e-22."""
    found = _finite(epsilon)
    return Spent(epsilon=found, how="bound" if found is None else how)


def curve(rdp: Callable[[float], float]) -> ProfilePairs:
    """Return (order, ε) at every order of a profile; inf is null."""
    return tuple((order, _finite(rdp(order))) for order in PROFILE_ORDERS)


def filled(pairs: Iterable[tuple[float, float]]) -> ProfilePairs:
    """Return known (order, ε) pairs at the orders of a profile.

    a missing one has the next larger one's, which is no less.
    """
    known = sorted(pairs)
    return tuple((order, min((e for a, e in known if a >= order), default=None)) for order in PROFILE_ORDERS)


def tightened(pairs: ProfilePairs, others: Sequence[float]) -> ProfilePairs:
    """Return the lesser of two bounds at every order, and of all larger orders: divergences grow with the order."""
    known = [math.inf if epsilon is None else epsilon for _, epsilon in pairs]
    least = np.minimum.accumulate(np.minimum(known, others)[::-1])[::-1]
    return tuple((order, _finite(float(one))) for (order, _), one in zip(pairs, least, strict=True))


def unprotected(delta: float, *notes: str) -> Profile:
    """Return the profile of a release without noise: it shows the data."""
    nothing = exact(None)
    rdp: ProfilePairs = tuple((order, None) for order in PROFILE_ORDERS)
    return Profile(delta=delta, pure=nothing, approximate=nothing, rdp=rdp, rdp_how="exact", notes=notes)


def of_pure(epsilon: float, delta: float, how: How, *notes: str) -> Profile:
    """Return the worst ε-pure law, randomized response, of which every other is a function; its own law, if `exact`."""
    return Profile(
        delta=delta,
        pure=spent_as(epsilon, how),
        approximate=spent_as(response_epsilon(epsilon, delta), how),
        rdp=curve(lambda order: response_renyi(epsilon, order)),
        rdp_how=how,
        notes=notes,
    )


def response_renyi(epsilon: float, order: float) -> float:
    """Return RDP(α) of randomized response, rounded up and never above ε."""
    rare = -epsilon - math.log1p(math.exp(-epsilon))
    answers = np.array([rare, rare + epsilon])
    return min(epsilon, renyi_divergence(answers, np.array([epsilon, -epsilon]), order) * RAISED)


def response_epsilon(epsilon: float, delta: float) -> float:
    """Return ε' at δ of randomized response: e^ε' = e^ε - δ (1 + e^ε), rounded up and never above ε."""
    gone = delta * (1 + math.exp(-epsilon))
    return 0.0 if gone >= 1 else min(epsilon, max(0.0, (epsilon + math.log1p(-gone)) * RAISED))


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or math.isinf(epsilon) else epsilon


def law_curve(law: Extensible, shift: int, dimension: int) -> ProfilePairs:
    """Return divergences of `dimension` coordinates moved by `shift`, from the law itself.

    Null where the support that an order needs is too long.
    """
    margin = math.ceil(15 * law.std) + 60
    fit = [order for order in PROFILE_ORDERS if order * shift + margin <= LIMIT]
    if not fit:
        return tuple((order, None) for order in PROFILE_ORDERS)
    pmf = law.pmf(least=math.ceil(fit[-1] * shift) + margin)
    known = dict(zip(fit, rdp(pmf, shift, fit), strict=True))
    return tuple((order, dimension * known[order] * RAISED if order in known else None) for order in PROFILE_ORDERS)

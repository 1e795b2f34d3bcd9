"""The privacy of one release as one value: the guarantee that travels, and every figure that its law gives.

A mechanism's `privacy` returns a `Privacy`. Its `Profile` has pure ε, ε at δ and Rényi divergences by order, each
computed and labelled as exact or as a bound.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Protocol, Self

import numpy as np
from pydantic import Field

from distrust.common.bandit.error_law import Calibration, How
from distrust.common.dp.accounting.guarantee import Guarantee, no_guarantee
from distrust.common.dp.accounting.techniques.hockey_stick import Extensible, from_rdp, rdp, renyi_divergence
from distrust.common.dp.noise.law import LIMIT, Law
from distrust.common.wire import Message

LOCAL_NOTE = (
    "pure epsilon is that of one message alone, and so are Rényi divergences of orders where shuffling shows no less"
)
"""The note of a profile whose (ε, δ) is that of many shuffled messages."""

PROFILE_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Rényi orders of a profile."""

SHOWN_DELTA = 1e-6
"""The δ of a profile when no other was asked for."""

RAISED = 1 + 2e-10
"""Factor on every figure that a stored law gives: above the law's rounding errors, and below the ninth digit."""

ProfilePairs = tuple[tuple[float, float | None], ...]


class Spent(Message):
    """One ε in nats. An exact one is that of the law's worst pair of inputs; null is then infinity.

    A bound is at or above it; null then means that no ε is known.
    """

    epsilon: Annotated[float, Field(ge=0)] | None
    how: How


class Profile(Message):
    """All figures of one release, for the unit "one client's data"; neighbours replace one client.

    pure         the ε of (ε, 0).
    approximate  the ε of (ε, δ) at `delta`.
    rdp          (order α > 1, ε at α) pairs; `rdp_how` labels all of them.
    notes        where a figure comes from, when its label alone does not tell.

    An exact figure is what the law of integers gives, to nine digits and never below it. A bound is at or above that.
    Sums travel modulo m, which can only hide more, by less than the probability of a wrapped sum.
    """

    delta: Annotated[float, Field(gt=0, lt=1)]
    pure: Spent
    approximate: Spent
    rdp: ProfilePairs
    rdp_how: How
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[tuple[float, float], ...]:
        """Return the (order, ε) pairs whose ε is finite and known."""
        return tuple((order, epsilon) for order, epsilon in self.rdp if epsilon is not None)

    def repeated(self, count: int) -> Self:
        """Return the profile of `count` such releases about one client; its (ε, δ) is the least of the sums."""
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


SEVERAL_BATCHES = "what several batches of one client cost is one release of their stream, and not composed"
"""The reason why a guarantee for one batch of a stream does not compose."""


class BatchStream(Protocol):
    """A stream of batches that share noise, of which one client may be in several. A frozen value.

    Two streams are equal if they promise the same.
    """

    def joint(self, times: int) -> "Privacy":
        """Return the privacy of all that the stream releases, for a client in at most `times` ≥ 1 of its batches."""
        ...


class Repeated(Protocol):
    """Releases of one law about one client, composed by that law. A frozen value; equal ones promise the same."""

    def epsilon(self, times: int, delta: float) -> float:
        """Return an ε that holds at δ in (0, 1) for `times` ≥ 1 such releases together; inf where none is known."""
        ...

    def joined(self, other: "Repeated") -> "Repeated | None":
        """Return the law of releases that may be of this law or of `other`; None where none is known."""
        ...


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The promise of one release to each client whose data is in it. Figures are computed when they are asked for.

    compute_promise  returns the guarantee of the release.
    compute_profile  returns its profile at a δ in (0, 1).
    law              the noise of each released coordinate, if nothing else is released and the noise is a log-concave
                     law of integers. The largest shift is then the worst pair of inputs at every ε, and several
                     releases may be composed from the law itself. None for all else, such as shuffled messages, which
                     the server sees one by one.
    stream           the stream that the release is a batch of: batches of one client do not compose. None: several
                     releases about one client compose.
    repeated         several releases about one client, by their law, where that tells more than adding up guarantees.
    """

    compute_promise: Callable[[], Guarantee]
    compute_profile: Callable[[float], Profile]
    law: Law | None = None
    stream: BatchStream | None = None
    repeated: Repeated | None = None

    @cached_property
    def promise(self) -> Guarantee:
        """Return the guarantee: privacy of one kind, which travels, which clients check and ledgers add up."""
        return self.compute_promise()

    @cached_property
    def composable(self) -> Guarantee:
        """Return `promise` in the form that several of them add up by: an (ε, δ) gets its Rényi curve as well.

        Of a batch of a stream, return a guarantee of kind "none": `BatchStream.joint` says what several cost.
        """
        promise = self.promise
        if self.stream is not None:
            return no_guarantee(promise.calibration, SEVERAL_BATCHES)
        if promise.kind != "approximate" or promise.rdp:
            return promise
        return promise.model_copy(update={"rdp": self.profile(promise.delta).known})

    def at(self, delta: float) -> Guarantee:
        """Return the promise as (ε, δ) at another δ in [0, 1), of kind "none" where no ε is known there."""
        promise = self.promise
        if promise.kind == "none" or delta == promise.delta:
            return promise
        epsilon = self.profile(delta).approximate.epsilon if delta > 0 else None
        if epsilon is None:
            return no_guarantee(promise.calibration, f"no ε is known at δ = {delta:g}")
        change = {"kind": "approximate", "epsilon": epsilon, "delta": delta, "rdp": ()}
        return promise.model_copy(update=change)

    def profile(self, delta: float = SHOWN_DELTA) -> Profile:
        """Return pure ε, ε at `delta` and Rényi divergences by order, all from the law that is released."""
        return self.compute_profile(delta)


def no_privacy(calibration: Calibration) -> Privacy:
    """Return the privacy of a sum in which no honest client's noise is left: it shows the data."""
    return Privacy(compute_promise=lambda: no_guarantee(calibration), compute_profile=unprotected)


def exact(epsilon: float | None) -> Spent:
    """Return the ε that the law gives, labelled; None or inf say that no ε is enough."""
    return Spent(epsilon=_finite(epsilon), how="exact")


def bound(epsilon: float | None) -> Spent:
    """Return an ε that is enough, labelled; None or inf say that none is known."""
    return Spent(epsilon=_finite(epsilon), how="bound")


def spent_as(epsilon: float | None, how: How) -> Spent:
    """Return an ε with the label `how`; where a search found none, say that none is known."""
    finite = _finite(epsilon)  # the stored law ends at masses of 1e-22, so that a failed search proves nothing
    return Spent(epsilon=finite, how="bound" if finite is None else how)


def curve(rdp: Callable[[float], float]) -> ProfilePairs:
    """Return the (order, ε) pairs of a function of the order, at every order of a profile; inf becomes null."""
    return tuple((order, _finite(rdp(order))) for order in PROFILE_ORDERS)


def filled(pairs: Iterable[tuple[float, float]]) -> ProfilePairs:
    """Return (order, ε) pairs at every order of a profile from `pairs` at some orders.

    An order without a pair gets the ε of the next larger order, which is no less; null above the largest.
    """
    known = sorted(pairs)
    return tuple((order, min((e for a, e in known if a >= order), default=None)) for order in PROFILE_ORDERS)


def tightened(pairs: ProfilePairs, others: Sequence[float]) -> ProfilePairs:
    """Return the lesser of two bounds at every order of a profile.

    Divergences grow with the order, so a smaller bound at a larger order replaces the one at this order.
    """
    known = [math.inf if epsilon is None else epsilon for _, epsilon in pairs]
    least = np.minimum.accumulate(np.minimum(known, others)[::-1])[::-1]
    return tuple((order, _finite(float(one))) for (order, _), one in zip(pairs, least, strict=True))


def unprotected(delta: float, *notes: str) -> Profile:
    """Return the profile of a release without noise, which shows the data: every ε is exactly infinite."""
    nothing = exact(None)
    rdp: ProfilePairs = tuple((order, None) for order in PROFILE_ORDERS)
    return Profile(delta=delta, pure=nothing, approximate=nothing, rdp=rdp, rdp_how="exact", notes=notes)


def of_pure(epsilon: float, delta: float, how: How, *notes: str) -> Profile:
    """Return the profile of randomized response with ε: every ε-pure law is a function of its answer.

    how  "exact" where the released law is randomized response itself, else "bound".
    """
    return Profile(
        delta=delta,
        pure=spent_as(epsilon, how),
        approximate=spent_as(response_epsilon(epsilon, delta), how),
        rdp=curve(lambda order: response_renyi(epsilon, order)),
        rdp_how=how,
        notes=notes,
    )


def response_renyi(epsilon: float, order: float) -> float:
    """Return the Rényi divergence of `order` of randomized response, rounded up and never above ε."""
    rare = -epsilon - math.log1p(math.exp(-epsilon))
    answers = np.array([rare, rare + epsilon])
    return min(epsilon, renyi_divergence(answers, np.array([epsilon, -epsilon]), order) * RAISED)


def response_epsilon(epsilon: float, delta: float) -> float:
    """Return the ε' of randomized response at δ: e^ε' = e^ε - δ (1 + e^ε), rounded up and never above ε."""
    gone = delta * (1 + math.exp(-epsilon))
    return 0.0 if gone >= 1 else min(epsilon, max(0.0, (epsilon + math.log1p(-gone)) * RAISED))


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or math.isinf(epsilon) else epsilon


def law_curve(law: Extensible, shift: int, dimension: int) -> ProfilePairs:
    """Return the Rényi divergences of `dimension` coordinates that all move by `shift`, computed from the law.

    An order is null where the support that it needs is longer than LIMIT.
    """
    margin = math.ceil(15 * law.std) + 60
    fit = [order for order in PROFILE_ORDERS if order * shift + margin <= LIMIT]
    if not fit:
        return tuple((order, None) for order in PROFILE_ORDERS)
    pmf = law.pmf(least=math.ceil(fit[-1] * shift) + margin)
    known = dict(zip(fit, rdp(pmf, shift, fit), strict=True))
    return tuple((order, dimension * known[order] * RAISED if order in known else None) for order in PROFILE_ORDERS)

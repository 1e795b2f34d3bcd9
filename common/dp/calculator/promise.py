"""Computes the promise to a client of one cohort or of several, at any δ, and what is left if all others collude."""

import math
from dataclasses import replace

from distrust.common.bandit.error_law import How
from distrust.common.dp.accounting.composition import LONGEST_SUPPORT, compose, compose_exactly
from distrust.common.dp.accounting.guarantee import Guarantee, no_guarantee
from distrust.common.dp.accounting.ledger import tightened_by
from distrust.common.dp.accounting.profile import SHOWN_DELTA, Privacy, Profile, bound
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms import Mechanism, check_returning, composable_of, promise_of
from distrust.common.dp.mechanisms.families.base import delta_allowed
from distrust.common.dp.noise.law import Pmf
from distrust.common.errors import BadParameter
from distrust.common.wire import Message

NINE_DIGITS = 1e-9
"""Relative difference up to which exact figures of one law agree, whatever they were computed by."""


class LabelledGuarantee(Guarantee):
    """A guarantee; `how` is "exact" where its ε is the profile's own exact one, else "bound"."""

    how: How

    def shown(self) -> str:
        """Return its ε and δ for people, with "≤" before a bound."""
        if self.epsilon is None:
            return "none"
        delta = f", δ = {self.delta:.3g}" if self.delta else ""
        return f"ε {'=' if self.how == 'exact' else '≤'} {self.epsilon:.4g}{delta}"


class Promise(Message):
    """Promise to one client: by the mechanism's one kind of privacy, and by every kind.

    The guarantee's Rényi orders are the profile's where its kind has none of its own.

    alone  what is left of the guarantee if all n clients answer and all others collude; of kind "none" where nothing is
           proven of all the contributions, or at the target δ.
    """

    guarantee: LabelledGuarantee
    alone: LabelledGuarantee
    profile: Profile

    def left(self) -> str:
        """Return what is left of the guarantee if all other clients collude, for people."""
        return "no guarantee" if self.alone.epsilon is None else self.alone.shown()


def promised(mechanism: Mechanism, query: PrivacyQuery) -> Promise:
    """Return the guarantee, what is left of it, and the profile of all the contributions.

    Raises BadParameter as `guaranteed` does.
    """
    guarantee, profile = _promised(mechanism, query)
    if promise_of(mechanism, alone=True) == promise_of(mechanism):  # it counts on no other client
        return Promise(guarantee=guarantee, alone=guarantee, profile=profile)
    try:
        alone, _ = _promised(mechanism, replace(query, survivors=query.clients, colluders=query.clients - 1))
    except BadParameter as unproven:
        nothing = no_guarantee(mechanism.calibration, str(unproven))
        alone = LabelledGuarantee(**dict(nothing), how="bound")
    return Promise(guarantee=guarantee, alone=alone, profile=profile)


def _promised(mechanism: Mechanism, query: PrivacyQuery) -> tuple[LabelledGuarantee, Profile]:
    promise = guaranteed(mechanism, query)
    delta = query.target_delta or (promise.delta if 0 < promise.delta < 1 else SHOWN_DELTA)
    privacy = mechanism.privacy(query.answers, query.colluders)
    profile = privacy.profile(delta)
    if query.contributions > 1 and privacy.stream is not None:
        profile = privacy.stream.joint(query.contributions).profile(delta)
    elif query.contributions > 1:
        whole = promise if promise.delta == delta else _composed(mechanism, query, delta)
        profile = _repeated(profile, query.contributions, whole)
        promise = _better(promise, profile)
    fields = {name: getattr(promise, name) for name in Guarantee.model_fields}
    fields["rdp"] = promise.rdp or profile.known
    return LabelledGuarantee(**fields, how=_how(promise, profile)), profile


def _how(promise: Guarantee, profile: Profile) -> How:
    own = profile.approximate if promise.delta else profile.pure
    if None in (promise.epsilon, own.epsilon):
        return own.how if promise.epsilon == own.epsilon else "bound"
    alike = math.isclose(promise.epsilon or 0.0, own.epsilon or 0.0, rel_tol=NINE_DIGITS)
    return own.how if alike and promise.delta in {0.0, profile.delta} else "bound"


def _better(promise: Guarantee, profile: Profile) -> Guarantee:
    """Return a composed guarantee, with the profile's ε where that is smaller at the same δ.

    The two may rest on different bounds.
    """
    epsilon = profile.approximate.epsilon
    if epsilon is None or promise.epsilon is None or promise.delta != profile.delta or promise.epsilon <= epsilon:
        return promise
    return promise.model_copy(update={"epsilon": epsilon})


def _repeated(once: Profile, contributions: int, composed: Guarantee) -> Profile:
    """Return the profile of so many such cohorts; its ε at δ is by the best composition that is known."""
    profile = once.repeated(contributions)
    known = [epsilon for epsilon in (composed.epsilon, profile.approximate.epsilon) if epsilon is not None]
    return profile.model_copy(update={"approximate": bound(min(known, default=None))})


def guaranteed(mechanism: Mechanism, query: PrivacyQuery) -> Guarantee:
    """Return the guarantee for a client of `query.contributions` such cohorts, composed at `query.target_delta`.

    Where the released law is known and log-concave, its own loss distribution is composed if that is better. Raises
    BadParameter, naming the least δ of the sum, where nothing is proven at the target.
    """
    return _composed(mechanism, query, query.target_delta)


def _composed(mechanism: Mechanism, query: PrivacyQuery, target_delta: float | None) -> Guarantee:
    """Return `guaranteed` at another target."""
    contributions = query.contributions
    check_returning(mechanism.name, contributions, mechanism.stream_length)
    privacy = mechanism.privacy(query.answers, query.colluders)
    if contributions == 1:
        return privacy.promise if target_delta is None else _once_at(privacy, target_delta)
    if privacy.stream is not None:
        joint = privacy.stream.joint(contributions)
        return joint.promise if target_delta is None else joint.at(target_delta)
    once = composable_of(mechanism, privacy)
    composed = compose(((once, contributions),), target_delta)
    if target_delta is not None and target_delta < contributions * once.delta:
        composed = _below(composed, privacy, contributions, target_delta)
        if composed.kind == "none" != once.kind:
            least = contributions * once.delta
            raise BadParameter("target_delta", target_delta, f"{contributions} contributions need at least {least:g}")
    composed = tightened_by(privacy.repeated, once, contributions, composed, target_delta)
    pmf = released(mechanism, query.answers, query.colluders)
    delta = composed.delta or target_delta
    if pmf is None or not delta:
        return composed
    exact = compose_exactly(pmf, mechanism.precision, contributions, delta)
    if exact >= (math.inf if composed.epsilon is None else composed.epsilon):
        return composed
    return composed.model_copy(update={"kind": "approximate", "epsilon": exact, "delta": delta, "rdp": ()})


def _once_at(privacy: Privacy, target: float) -> Guarantee:
    """Return the guarantee of one release at another δ, by what its kind or its law says there."""
    composed = compose(((privacy.promise, 1),), target)
    own = privacy.at(target)
    if own.epsilon is None or own.epsilon >= (math.inf if composed.epsilon is None else composed.epsilon):
        own = composed
    if own.kind == "none" != privacy.promise.kind:
        raise BadParameter("target_delta", target, f"one contribution needs at least {privacy.promise.delta:g}")
    return own


def _below(composed: Guarantee, privacy: Privacy, contributions: int, target: float) -> Guarantee:
    """Return a guarantee at a target below what the mechanism's own δ adds up to.

    Each release counts with its ε at an equal share of half the target.
    """
    share = target / (2 * contributions)
    if not delta_allowed(share):
        return composed
    epsilon = privacy.profile(share).approximate.epsilon
    if epsilon is None:
        return composed
    change = {"kind": "approximate", "epsilon": epsilon, "delta": share, "rdp": ()}
    other = compose(((privacy.promise.model_copy(update=change), contributions),), target)
    return min(composed, other, key=lambda one: math.inf if one.epsilon is None else one.epsilon)


def released(mechanism: Mechanism, survivors: int | None, colluders: int = 0) -> Pmf | None:
    """Return the law of the noise that the guarantee rests on; None for vectors, and where it is too long to store."""
    law = mechanism.privacy(survivors, colluders).law if mechanism.dimension == 1 else None
    try:
        pmf = None if law is None else law.pmf()
    except BadParameter:  # longer than any that is stored
        return None
    return None if pmf is None or pmf.logs.size > LONGEST_SUPPORT else pmf

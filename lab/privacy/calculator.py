"""What a mechanism promises and costs for one cohort, in both calibrations; no cohort needed."""

import math
from dataclasses import asdict
from typing import Any, get_args

from distrust.common.bandit.error_law import How, ScaledErrorLaw
from distrust.common.errors import BadParameter
from distrust.common.mechanisms import Calibration, Mechanism, check_returning
from distrust.common.mechanisms.base import DELTA_RULE, delta_allowed
from distrust.common.noise.law import Pmf
from distrust.common.privacy.composition import LONGEST, compose, compose_exactly
from distrust.common.privacy.guarantee import Guarantee
from distrust.common.privacy.profile import SHOWN_DELTA, Profile, bound
from distrust.lab.privacy.query import WRAP, PrivacyQuery

MOST = 10_000  # contributions
NINE_DIGITS = 1e-9
"""To which exact figures of one law agree, whatever they were computed by."""

TAILS = (0.5, 0.1, 0.01, 1e-3, 1e-6, 1e-9, 1e-12)

NOISE = {"variance": "variance", "scale": "scale"}
"""Size of the noise that the guarantee rests on, in grid steps: every mechanism that has the field."""


def report(
    name: str,
    *,
    survivors: int | None,
    colluders: int,
    contributions: int = 1,
    target_delta: float | None = None,
    **words: Any,
) -> dict[str, Any]:
    """One JSON-able object: parameters, guarantee, profile, bits and error of `exact` and of `paper`.

    words      of a `PrivacyQuery`.
    survivors  who answered, for the guarantee and the error; t and n when None. colluders: those of them, or of the
               least that may answer, who tell their noise.
    contributions  cohorts like this that one client takes part in; `target_delta`: δ that their sum is shown at.
    Raises     BadParameter, naming the field. Where only `paper` is refused, its place says why.
    """
    asked = PrivacyQuery(**words)
    answers = asked.answers(survivors, colluders)
    both: dict[str, Any] = {}
    for calibration in get_args(Calibration):
        try:
            made = asked.planned(name, calibration)
            both[calibration] = {
                **_one(made, survivors),
                **promised(made, answers, colluders, contributions, target_delta),
            }
        except BadParameter as error:
            if calibration == "exact":
                raise
            both[calibration] = {"refused": str(error)}
    taken = {"survivors": survivors, "colluders": colluders, "contributions": contributions}
    said = described(asked, **taken, target_delta=target_delta)
    return {"mechanism": name, **said, **both}


def described(asked: PrivacyQuery, **taken: float | None) -> dict[str, Any]:
    """The question, JSON-able, the same in every report: the cohort, what was `taken` of it, and what follows."""
    fixed = {"least": asked.least, "floor": asked.floor, "wrap": WRAP}
    survivors = taken["survivors"]
    return {**asdict(asked), **fixed, **taken, "notes": asked.notes(None if survivors is None else int(survivors))}


def promised(
    mechanism: Mechanism, survivors: int | None, colluders: int, contributions: int, target: float | None
) -> dict[str, Any]:
    """`guarantee`, of the mechanism's one kind, and `profile`, of every kind; its RDP stands in the former too.

    `how` of a guarantee: "exact" where its ε is the profile's own exact one, else "bound".
    """
    promise = guaranteed(mechanism, survivors, colluders, contributions, target)
    delta = target or (promise.delta if 0 < promise.delta < 1 else SHOWN_DELTA)
    profile = mechanism.profile(survivors, colluders, delta)
    if contributions > 1:
        known = promise.delta == delta
        whole = promise if known else guaranteed(mechanism, survivors, colluders, contributions, delta)
        profile = _repeated(profile, contributions, whole)
        promise = _better(promise, profile)
    shown = promise.model_dump(mode="json")
    shown["rdp"] = shown["rdp"] or [list(pair) for pair in profile.known]
    shown["how"] = _how(promise, profile)
    return {"guarantee": shown, "profile": profile.model_dump(mode="json")}


def _how(promise: Guarantee, profile: Profile) -> How:
    own = profile.approximate if promise.delta else profile.pure
    if None in (promise.epsilon, own.epsilon):
        return own.how if promise.epsilon == own.epsilon else "bound"
    alike = math.isclose(promise.epsilon or 0.0, own.epsilon or 0.0, rel_tol=NINE_DIGITS)
    return own.how if alike and promise.delta in {0.0, profile.delta} else "bound"


def _better(promise: Guarantee, profile: Profile) -> Guarantee:
    """A composed guarantee, by the profile's ε where that is smaller at the same δ: they may rest on other bounds."""
    epsilon = profile.approximate.epsilon
    if epsilon is None or promise.epsilon is None or promise.delta != profile.delta or promise.epsilon <= epsilon:
        return promise
    return promise.model_copy(update={"epsilon": epsilon})


def _repeated(once: Profile, contributions: int, composed: Guarantee) -> Profile:
    """The profile for a client of so many such cohorts; ε at δ by the best composition that is known."""
    profile = once.repeated(contributions)
    known = [epsilon for epsilon in (composed.epsilon, profile.approximate.epsilon) if epsilon is not None]
    return profile.model_copy(update={"approximate": bound(min(known, default=None))})


def check_composed(contributions: int, target_delta: float | None) -> None:
    """Refuse so many contributions, or a δ of all of them, for every mechanism alike."""
    if not 1 <= contributions <= MOST:
        raise BadParameter("contributions", contributions, f"must lie in [1, {MOST}]")
    if target_delta is not None and not delta_allowed(target_delta):
        raise BadParameter("target-delta", target_delta, DELTA_RULE)


def guaranteed(
    mechanism: Mechanism, survivors: int | None, colluders: int, contributions: int, target_delta: float | None
) -> Guarantee:
    """The guarantee for a client that takes part in `contributions` such cohorts, composed at `target_delta`.

    Where the released law is known and log-concave, its own loss distribution is composed if that is better. Raises
    BadParameter, naming the least δ of the sum, where nothing is proven at the target.
    """
    check_composed(contributions, target_delta)
    check_returning(mechanism.name, contributions)
    once = mechanism.guarantee(survivors, colluders)
    if contributions == 1:
        return compose(((once, 1),), target_delta)
    once = mechanism.composable(survivors, colluders)
    composed = compose(((once, contributions),), target_delta)
    if target_delta is not None and target_delta < contributions * once.delta:
        composed = _below(composed, mechanism, (survivors, colluders), contributions, target_delta)
        if composed.kind == "none" != once.kind:
            least = contributions * once.delta
            raise BadParameter("target-delta", target_delta, f"{contributions} contributions need at least {least:g}")
    honest = (mechanism.floor if survivors is None else survivors) - colluders
    pmf = released(mechanism, honest)
    delta = composed.delta or target_delta
    if pmf is None or not delta:
        return composed
    exact = compose_exactly(pmf, mechanism.precision, contributions, delta)
    if exact >= (math.inf if composed.epsilon is None else composed.epsilon):
        return composed
    return composed.model_copy(update={"kind": "approximate", "epsilon": exact, "delta": delta, "rdp": ()})


def _below(
    composed: Guarantee, mechanism: Mechanism, answers: tuple[int | None, int], contributions: int, target: float
) -> Guarantee:
    """Below what the mechanism's own δ adds up to: of each release the ε at its share of half the target."""
    share = target / (2 * contributions)
    if not delta_allowed(share):
        return composed
    epsilon = mechanism.profile(*answers, share).approximate.epsilon
    if epsilon is None:
        return composed
    change = {"kind": "approximate", "epsilon": epsilon, "delta": share, "rdp": ()}
    other = compose(((mechanism.guarantee(*answers).model_copy(update=change), contributions),), target)
    return min(composed, other, key=lambda one: math.inf if one.epsilon is None else one.epsilon)


def released(mechanism: Mechanism, honest: int) -> Pmf | None:
    """The law of the noise that the guarantee rests on, where that is all and short; vectors have no single one."""
    law = mechanism.released_law(honest) if mechanism.dimension == 1 else None
    try:
        pmf = None if law is None else law.pmf()
    except BadParameter:  # longer than any that is stored
        return None
    return None if pmf is None or pmf.logs.size > LONGEST else pmf


def _one(mechanism: Mechanism, survivors: int | None) -> dict[str, Any]:
    """A calibrated mechanism in numbers, in the data's units."""
    answered = mechanism.clients if survivors is None else survivors
    law = mechanism.error(answered)
    return {
        "parameters": _parameters(mechanism),
        "bits": mechanism.bits,
        "via": mechanism.via,
        "error": {
            "survivors": answered,
            "of": "the sum" if mechanism.dimension == 1 else "one coordinate of the sum",
            "std": law.std,
            "rounding_std": math.sqrt(answered) * mechanism.rounding,
            "quantiles": [[p, law.quantile(p)] for p in TAILS],
            "quantiles_how": law.quantile_how if isinstance(law, ScaledErrorLaw) else "bound",
        },
    }


def _parameters(mechanism: Mechanism) -> dict[str, float]:
    """The theorem's letters, where the mechanism has them."""
    shown: dict[str, float] = {"g": mechanism.precision, "m": mechanism.modulus}
    if mechanism.has_room:
        shown["tau"] = (mechanism.modulus - mechanism.clients * mechanism.precision - 1) // 2
    own = {**NOISE, **mechanism.letters}
    return {
        **shown,
        **{letter: getattr(mechanism, field) for field, letter in own.items() if hasattr(mechanism, field)},
    }

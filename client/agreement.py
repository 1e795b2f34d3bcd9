"""Checks a round against the run's configuration, before a client takes part.

The server tells each client a round and a cohort. A client holds the run's configuration, computes what follows from
it, and refuses a round that differs. `first_difference` names the field in which two parties were told different
things; `client.uploader` asks the intermediary for the cohort and compares.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from distrust.common.bandit.statistics import Statistic
from distrust.common.errors import BadParameter, Refused
from distrust.common.mechanisms import AnyMechanism, MechanismSpec, plan
from distrust.common.mechanisms.calibration.roots import SNAPPED_BITS
from distrust.common.messages.cohort import Cohort
from distrust.common.messages.round import Assignment, Round, cohort_terms
from distrust.common.messages.run import RunConfig
from distrust.common.privacy.guarantee import Guarantee

CALIBRATED = 2.0 ** (1 - SNAPPED_BITS)
"""Largest relative difference between a calibrated number that was told and the client's own: one step of the grid.

Two processors get the same snapped number in all but about one of 500,000 searches, and then neighbours on the grid.
The promise is compared beside it. An integer that differs then makes the client refuse.
"""
SEARCHED = frozenset({"variance", "local", "chance", "scale", "escape"})
"""Numbers of a mechanism that a search in floating point ends with. All others must be equal, the modulus too."""
DEEPEST = 64
"""Levels of lists and objects that the terms of a cohort may have; own terms have fewer than ten."""
_statistics: TypeAdapter[Statistic] = TypeAdapter(Statistic)
PROMISE = 1e-6
"""Largest relative excess of a told mechanism's ε or δ over that of the client's own plan."""


def check_config(config: RunConfig, run: str, digest: bytes) -> None:
    """Raise Refused unless this is the configuration of `run` whose SHA-256 the server's round names."""
    _same("config.run", run, config.run)
    if config.digest() != digest:
        raise Refused(f"config: the digest of run {run} is another one than that of the configuration that was served")


def check_round(config: RunConfig, asked: Round, assignment: Assignment) -> None:
    """Compute a cohort again from the run's configuration. Raise Refused, with the field, where it differs.

    What follows from the configuration must be equal: rates, minimum, noise floor, size of the graph
    (client.requirements), decision, statistic, the probability that a sum wraps around, and of the mechanism, which is
    planned again, everything but the numbers in `SEARCHED`. These may differ from the client's own by `CALIBRATED`,
    and only while the promise is kept.

    The configuration fixes neither the number of the round nor n, nor which arms are still in the race: with these the
    parts of a round are compared with one another.
    """
    cohort, mechanism, spec = assignment.cohort, asked.mechanism_of(assignment), config.intermediary
    _same("run", asked.run, config.run)
    _same("cohort.run", cohort.run, config.run)
    if cohort.round != asked.number:
        raise Refused(f"cohort.round = {cohort.round}: the round says round.number = {asked.number}")
    if asked.number > config.horizon:
        raise Refused(f"round.number = {asked.number}: the run has {config.horizon} pulls, and a round at least one")
    name, _, attempt = cohort.cohort.rpartition(".")
    if name != f"{asked.run}.{asked.number}.{assignment.arm or 0}" or not attempt.isdecimal():
        raise Refused(f"cohort.cohort = {cohort.cohort!r}: it is no name of round {asked.number} of run {asked.run}")
    if mechanism.clients != cohort.clients:
        raise Refused(f"cohort.clients = {cohort.clients}: the round says mechanism.clients = {mechanism.clients}")
    _same("cohort.config", cohort.config, config.digest())
    _same("dropout", asked.dropout, spec.dropout)
    _same("corrupt", asked.corrupt, spec.corrupt)
    _same("cohort.stage_seconds", cohort.stage_seconds, spec.stage_seconds)
    _same("cohort.minimum", cohort.minimum, spec.least_survivors(cohort.clients))
    _check_policy(config, asked, assignment)
    if cohort.channel.kind == "dealt":
        seed = None if config.unsafe is None else config.unsafe.noise_seed
        _same("cohort.channel.noise_seed", cohort.channel.noise_seed, seed)
    _check_mechanism(config, asked, cohort.clients, mechanism)
    difference = first_difference(
        json.loads(cohort_terms(asked, assignment.arm, mechanism)), read_terms(cohort), "cohort.terms"
    )
    if difference is not None:
        field, own, told = difference
        raise Refused(f"{field} = {told!r}: the round itself says {own!r}")


def read_terms(cohort: Cohort) -> Any:
    """Return the terms of a cohort as JSON values. Raises Refused for other text and more than `DEEPEST` levels."""
    deep = f"cohort.terms: its lists and objects are nested deeper than {DEEPEST} levels"
    try:
        terms = json.loads(cohort.terms)
    except RecursionError as error:
        raise Refused(deep) from error
    except ValueError as error:
        raise Refused(f"cohort.terms: {error}") from error
    level = _nested([terms])
    for _ in range(DEEPEST):
        level = [child for value in level for child in _nested(value.values() if isinstance(value, dict) else value)]
    if level:  # comparing and printing it would go as deep
        raise Refused(deep)
    return terms


def _nested(values: Iterable[Any]) -> list[Any]:
    """Return the lists and objects among JSON values."""
    return [value for value in values if isinstance(value, dict | list)]


def differing_field(own: Cohort, told: Cohort) -> tuple[str, Any, Any] | None:
    """Return the first field in which two cohorts differ, with both values; terms are compared field by field."""
    values = [{**one.model_dump(mode="json"), "terms": read_terms(one)} for one in (own, told)]
    found = first_difference(values[0], values[1], "cohort")
    return found or (None if own.terms == told.terms else ("cohort.terms", own.terms, told.terms))


def first_difference(own: Any, told: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the path of the first JSON value in which two trees differ, and both values; None for equal trees."""
    if isinstance(own, dict) and isinstance(told, dict):
        for key in sorted(own.keys() | told.keys()):
            found = first_difference(own.get(key), told.get(key), f"{path}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(own, list) and isinstance(told, list) and len(own) == len(told):
        pairs = (first_difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(own, told, strict=True)))
        return next((found for found in pairs if found is not None), None)
    return None if (type(own), own) == (type(told), told) else (path, own, told)


def _check_policy(config: RunConfig, asked: Round, assignment: Assignment) -> None:
    """The decision and the statistic must be ones that the run's policy asks for."""
    policy, decision = config.policy, asked.decision
    if decision.kind not in policy.decisions:
        raise Refused(f"decision = {decision.kind!r}: {policy.name} asks for {' or '.join(policy.decisions)}")
    if asked.statistic.kind != policy.STATISTIC:
        raise Refused(f"statistic = {asked.statistic.kind!r}: {policy.name} asks for {policy.STATISTIC!r}")
    bound = getattr(asked.statistic, "bound", None)
    if bound is not None:
        _same("statistic.bound", bound, getattr(policy, "bound", None))
    if decision.kind == "assigned-arm":
        field, actions = "arm", [-1 if assignment.arm is None else assignment.arm]
    else:
        _same("arm", assignment.arm, None)
        field, actions = "decision.actions", decision.actions
    if not all(0 <= action < config.arms for action in actions):
        raise Refused(f"{field} = {actions!r}: the run has arms 0 to {config.arms - 1}")
    if asked.statistic.kind == "action-means":
        _same("statistic.actions", asked.statistic.actions, len(actions))


def _check_mechanism(config: RunConfig, asked: Round, clients: int, told: AnyMechanism) -> None:
    spec = config.intermediary
    _same("mechanism.floor", told.floor, spec.noise_floor(clients))
    wrap = _overflow_probability(config, asked.number, told.wrap)
    _same("mechanism.wrap", told.wrap, wrap)
    dealt = asked.decision.kind == "assigned-action"
    words = config.mechanism.model_copy(update={"via": "shuffler"}) if dealt else config.mechanism
    try:
        own = _planned(
            words.model_dump_json(),
            clients,
            spec.least_survivors(clients),
            wrap,
            asked.statistic.model_dump_json(),
            floor=told.floor,
            dealt=dealt,
        )
    except BadParameter as error:
        raise Refused(f"the run's mechanism cannot be planned for this cohort: {error.detail}") from error
    _same("mechanism.name", told.name, own.name)
    if config.mechanism.precision is not None:
        _same("mechanism.precision", told.precision, own.precision)
    if told != own:
        _check_close(own, told)


@lru_cache(maxsize=256)
def _planned(
    words: str, clients: int, least: int, wrap: float, statistic: str, *, floor: int, dealt: bool
) -> AnyMechanism:
    """Return the client's own plan. Public values only, so clients of one process share it."""
    spec: MechanismSpec = MechanismSpec.model_validate_json(words)
    found = _statistics.validate_json(statistic)
    return plan(spec, clients=clients, least=least, floor=floor, wrap=wrap, statistic=found, dealt=dealt)


def _overflow_probability(config: RunConfig, number: int, told: float) -> float:
    """Return the p' nearest to the one told that the run's policy may have in this round.

    How many arms are in the race is the learner's word: from 1 to all, and p' is one of as many numbers.
    """
    alone = config.overflow_probability(number, 1)  # with a arms it is this over a, or this with any number of arms
    return config.overflow_probability(number, max(1, round(min(alone / told, config.arms))))


def _check_close(own: AnyMechanism, told: AnyMechanism) -> None:
    mine, theirs = own.model_dump(mode="json"), told.model_dump(mode="json")
    for name in mine:
        if mine[name] != theirs[name] and not _close(name, mine[name], theirs[name]):
            raise Refused(f"mechanism.{name} = {theirs[name]!r}: the run's configuration gives {mine[name]!r}")
    _check_promise(own.guarantee(), told.guarantee())


def _close(field: str, own: Any, told: Any) -> bool:
    """Return whether two numbers of a mechanism are those of one search that ended a step of the grid apart."""
    return field in SEARCHED and type(own) is type(told) is float and abs(told - own) <= CALIBRATED * abs(own)


def _check_promise(own: Guarantee, told: Guarantee) -> None:
    """Calibrated numbers that differ by rounding must keep the promise of the client's own plan."""
    if (own.kind, own.model) != (told.kind, told.model):
        raise Refused(f"mechanism: it gives {told.kind} privacy, and the run's configuration {own.kind}")
    pairs = [("ε", own.epsilon or 0.0, told.epsilon or 0.0), ("δ", own.delta, told.delta)]
    pairs += [(f"RDP({a[0]:g})", a[1], b[1]) for a, b in zip(own.rdp, told.rdp, strict=True)]
    for name, promised, kept in pairs:
        if kept > promised * (1 + PROMISE):
            raise Refused(f"mechanism: {name} = {kept:.9g}, and the run's configuration gives {promised:.9g}")


def _same(field: str, told: object, own: object) -> None:
    if told != own:
        shown = [one.hex() if isinstance(one, bytes) else repr(one) for one in (told, own)]
        raise Refused(f"{field} = {shown[0]}: the run's configuration gives {shown[1]}")

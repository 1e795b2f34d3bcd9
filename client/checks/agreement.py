"""Checks a round against the run's configuration, before a client takes part.

A client receives the run's configuration, and for each round a round and a cohort. It computes what follows from the
configuration, and refuses a round that differs. `differing_field` compares the cohort that the server sent with the
one that the intermediary serves; `client.cohort.uploader` calls it.
"""

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from distrust.client.environments import AnyWorld, ContextualWorld
from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.bandit.statistics import Statistic
from distrust.common.dp.mechanisms import AnyMechanism, MechanismSpec, plan, promise_of
from distrust.common.errors import BadParameter, Refused, two_spellings
from distrust.common.protocol.crypto.context import RUN_ID, run_digest
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.run.config import RunConfig
from distrust.common.protocol.run.round import Assignment, Round, RoundView, cohort_terms
from distrust.common.specs.base import RoundSize
from distrust.common.specs.contextual import ContextualPolicySpec

ROUNDED = 1e-10
"""Relative rounding of a computed guarantee, by which it may be above the configured one.

A search for ε rounds up by 1e-11 (`hockey_stick.DIGITS`). What the last bits of a processor move it by is less again.
"""

FORMULA = 2.0**-48
"""Relative rounding of a number that a paper's formula gives: fewer than 16 operations, each off by a unit at most."""

LONGER = 1 + 1 / 64
"""Factor by which the labelled bits of a message may be more than in the client's own plan.

Searches on two processors end a bit apart at most; other sizes are those of the numbers that were told.
"""

UNHEARD: Any = {"over": "ignore", "divide": "ignore", "invalid": "ignore"}
"""Warnings of NumPy that are off while a client computes with told numbers: it refuses the outcome."""

DEEPEST = 64
"""Levels of lists and objects that the terms of a cohort may have; own terms have fewer than ten."""

LARGEST = 1e100
"""Largest number of a decision. Products of larger ones overflow for some contexts, and which ones would show."""

ROUNDED_UP = 1 + 1e-9
"""Factor on the largest length of the parameters that a residual is taken at, which every policy projects to a ball."""

OWN_WORLD = "this client's own world has"  # the end of a refusal, before the world's value

_statistics: TypeAdapter[Statistic] = TypeAdapter(Statistic)


def check_config(config: RunConfig, view: RoundView) -> None:
    """Raise Refused unless this is the configuration whose SHA-256 the server's answer names, and the run has an id."""
    _same("config.run", view.run, config.run)
    if len(view.run_id) != RUN_ID:
        raise Refused(f"run_id: {len(view.run_id)} bytes, and the id of a run has {RUN_ID}")
    if config.digest() != view.config:
        other = "is another one than that of the configuration that was served"
        raise Refused(f"config: the digest of run {view.run} {other}")


def check_round(config: RunConfig, run_id: bytes, round_: Round, assignment: Assignment) -> None:
    """Compute a cohort again from the run's configuration and id. Raise Refused, with the field, where it differs.

    What follows from the configuration must be equal: rates, minimum, noise floor, decision, statistic, and the
    probability that a sum wraps around (`client.checks.requirements` checks the size of the graph). The mechanism is
    planned again, with the numbers told of the fields that its class calls `searched`, and must be equal. Whatever
    these numbers are, the guarantee that the client computes from them must be at most the configured one.

    The configuration fixes neither the number of the round nor which arms are left, and n for contextual policies only.
    For these, the parts of a round must agree with one another.
    """
    cohort, mechanism, spec = assignment.cohort, round_.mechanism_of(assignment), config.intermediary
    _same("run", round_.run, config.run)
    _same("cohort.run", cohort.run, config.run)
    if cohort.round != round_.number:
        raise Refused(f"cohort.round = {cohort.round}: the round says round.number = {round_.number}")
    if round_.number > config.horizon:
        raise Refused(f"round.number = {round_.number}: the run has {config.horizon} pulls, and a round at least one")
    name, _, attempt = cohort.cohort.rpartition(".")
    if name != f"{round_.run}.{round_.number}.{assignment.arm or 0}" or not attempt.isdecimal():
        raise Refused(f"cohort.cohort = {cohort.cohort!r}: it is no name of round {round_.number} of run {round_.run}")
    if mechanism.clients != cohort.clients:
        raise Refused(f"cohort.clients = {cohort.clients}: the round says mechanism.clients = {mechanism.clients}")
    _same("cohort.run_digest", cohort.run_digest, run_digest(config.digest(), run_id))
    _same("dropout", round_.dropout, spec.dropout)
    _same("corrupt", round_.corrupt, spec.corrupt)
    _same("cohort.stage_seconds", cohort.stage_seconds, spec.stage_seconds)
    _same("cohort.keep_seconds", cohort.keep_seconds, spec.keep_seconds)
    _same("cohort.minimum", cohort.minimum, spec.min_survivors(cohort.clients))
    _check_policy(config, round_, assignment)
    _check_mechanism(config, round_, cohort.clients, mechanism)
    terms = cohort_terms(round_, assignment.arm, mechanism)
    if terms != cohort.terms:
        same_values("cohort.terms", read_terms(cohort), json.loads(terms), "the round itself says")


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


def differing_field(own: Cohort, received: Cohort) -> tuple[str, Any, Any] | None:
    """Return the first field in which two cohorts differ, with both values; terms are compared field by field."""
    if own == received:
        return None
    values = [{**cohort.model_dump(mode="json"), "terms": read_terms(cohort)} for cohort in (own, received)]
    difference = first_difference(values[0], values[1], "cohort")
    return difference or (None if own.terms == received.terms else ("cohort.terms", own.terms, received.terms))


def first_difference(own: Any, received: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the path of the first JSON value in which two trees differ, and both values; None for equal trees."""
    if isinstance(own, dict) and isinstance(received, dict):
        for key in sorted(own.keys() | received.keys()):
            difference = first_difference(own.get(key), received.get(key), f"{path}.{key}")
            if difference is not None:
                return difference
        return None
    if isinstance(own, list) and isinstance(received, list) and len(own) == len(received):
        pairs = (first_difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(own, received, strict=True)))
        return next((difference for difference in pairs if difference is not None), None)
    return None if (type(own), own) == (type(received), received) else (path, own, received)


def _check_policy(config: RunConfig, round_: Round, assignment: Assignment) -> None:
    """Raise Refused unless the run's policy asks for this decision and this statistic."""
    policy, decision = config.policy, round_.decision
    if decision.kind not in policy.decisions:
        raise Refused(f"decision = {decision.kind!r}: {policy.name} asks for {' or '.join(policy.decisions)}")
    if round_.statistic.kind != policy.STATISTIC:
        raise Refused(f"statistic = {round_.statistic.kind!r}: {policy.name} asks for {policy.STATISTIC!r}")
    bound = getattr(round_.statistic, "bound", None)
    if bound is not None:
        _same("statistic.bound", bound, getattr(policy, "bound", None))
    expected = policy.statistic(config.arms, decision)
    if expected is not None and round_.statistic != expected:
        told, source = round_.statistic, f"{policy.name} asks for"
        same_values("statistic", told.model_dump(mode="json"), expected.model_dump(mode="json"), source)
        _same("statistic", told, expected, source)  # in what JSON leaves out
    if decision.kind == "assigned-arm":
        field, actions = "arm", [-1 if assignment.arm is None else assignment.arm]
    else:
        _same("arm", assignment.arm, None)
        if isinstance(decision, ContextualChoice):
            field, actions = "decision.only", [] if decision.only is None else [decision.only]
        else:
            field, actions = "decision.actions", decision.actions
    if not all(0 <= action < config.arms for action in actions):
        raise Refused(f"{field} = {actions!r}: the run has arms 0 to {config.arms - 1}")
    if round_.statistic.kind == "action-means":
        _same("statistic.actions", round_.statistic.actions, len(actions))
    if isinstance(decision, ContextualChoice):
        _check_choice(config, round_.number, assignment.cohort.clients, decision)


def _check_choice(config: RunConfig, number: int, clients: int, decision: ContextualChoice) -> None:
    """Raise Refused for a decision by which a client could not choose whatever its context is.

    A client that fails for some contexts only discloses, by not answering, which kind it has. So every size and every
    field that the policy has no use for is checked before any context is looked at.
    """
    policy = config.policy
    if not isinstance(policy, ContextualPolicySpec):
        raise Refused(f"decision = {decision.kind!r}: {policy.name} is no contextual policy")
    _same("cohort.clients", clients, policy.batch)
    size = RoundSize(config.arms, config.horizon, config.mechanism.calibration, number, config.arms)
    rows = 1 if policy.parameters == "single" else config.arms
    screen = None if decision.screen is None else decision.screen.theta
    fields = {
        "theta": (decision.theta, True),
        "inverse": (decision.inverse, policy.has_bonus),
        "anchor": (decision.anchor, policy.ANCHORED),
        "screen": (screen, policy.has_screen),
    }
    for field, (vectors, known) in fields.items():
        if vectors is None:
            continue
        if not known or len(vectors) != rows:
            raise Refused(f"decision.{field} = {len(vectors)} rows: {policy.name} asks for {rows if known else 'none'}")
        if any(abs(number) > LARGEST for vector in vectors for number in vector):
            raise Refused(f"decision.{field}: no number may exceed {LARGEST:g}")
    _same("decision.theta: numbers a row", len(decision.theta[0]), policy.features)
    taken = decision.anchor or decision.theta
    most = policy.largest_theta
    outside = policy.residual is not None and any(math.hypot(*theta) > most * ROUNDED_UP for theta in taken)
    if decision.beta > LARGEST or outside:
        words = f"a residual's parameters lie in the ball of radius {most:g}"
        raise Refused(f"decision: β may not exceed {LARGEST:g}, and {words}")
    if decision.screen is not None:
        _same("decision.screen.link", decision.screen.link, policy.link)
    _same("decision.only", decision.only, policy.public_arm(size))
    _same("decision.weights", decision.weights, policy.weights)
    _same("decision.link", decision.link, "identity" if policy.weights is None else policy.link)


def check_own_world(config: RunConfig, world: AnyWorld) -> None:
    """Raise Refused unless a client's own world has the sizes that the run's configuration says.

    They are public, and compared before any message is sent: whether a client answers may not depend on its data.
    """
    policy = config.policy
    _same("config.arms", config.arms, world.arms, OWN_WORLD)
    if not isinstance(world, ContextualWorld):
        return
    if not isinstance(policy, ContextualPolicySpec):
        raise Refused(f"config.policy.name = {policy.name!r}: {world.name} is a world of contexts")
    _same("config.policy.features", policy.features, world.dimension, OWN_WORLD)
    _same("config.policy.parameters", policy.parameters, world.parameters, OWN_WORLD)
    _same("config.policy.rewards", list(policy.rewards), list(world.rewards), OWN_WORLD)
    weights = None if world.weights is None else list(world.weights)
    _same("config.policy.weights", policy.weights, weights, OWN_WORLD)


def _check_mechanism(config: RunConfig, round_: Round, clients: int, received: AnyMechanism) -> None:
    spec = config.intermediary
    _same("mechanism.floor", received.floor, spec.min_honest(clients))
    overflow_probability = _overflow_probability(config, round_.number, received.wrap)
    _same("mechanism.wrap", received.wrap, overflow_probability)
    assigned = round_.decision.kind == "assigned-action"
    table = config.mechanism.model_copy(update={"via": "shuffler"}) if assigned else config.mechanism
    sizes = {"clients": clients, "min_survivors": spec.min_survivors(clients), "min_honest": received.floor}
    more = {"overflow_probability": overflow_probability, "assigned": assigned, "printed": config.policy.noise_source}
    planned = partial(_planned, table.model_dump_json(), round_.statistic.model_dump_json(), **sizes, **more)
    try:
        found = own = planned()
    except BadParameter as error:
        raise Refused(f"the run's mechanism cannot be planned for this cohort: {error.detail}") from error
    _same("mechanism.name", received.name, own.name)
    if config.mechanism.precision is not None:
        _same("mechanism.precision", received.precision, own.precision)
    if received != own:
        stated = {name: getattr(received, name) for name in sorted(own.searched)}
        try:
            with np.errstate(**UNHEARD):
                own = planned(stated=tuple(stated.items()))
        except Exception as error:  # a server chose the numbers: whatever fails for them, they are no plan's
            raise Refused(f"mechanism: no plan has {_listed(stated)}: {error}") from error
        _check_equal(own, received)
        _check_length(found, received)
    if own.searched and own.calibration == "paper":
        _check_formula(found, received)
    elif own.searched:
        _check_promise(table, received)


@lru_cache(maxsize=256)
def _planned(table: str, statistic: str, stated: tuple[tuple[str, float], ...] = (), **words: Any) -> AnyMechanism:
    """Return the client's own plan, with the numbers that it was `stated`. Public values only: clients share it."""
    spec = MechanismSpec.model_validate_json(table)
    return plan(spec, statistic=_statistics.validate_json(statistic), stated=dict(stated), **words)


def _overflow_probability(config: RunConfig, number: int, received: float) -> float:
    """Return the probability nearest to the received one that the run's policy may have in this round.

    Only the learner knows how many arms are left: from 1 to all. So the probability is one of as many numbers.
    """
    alone = config.overflow_probability(number, 1)  # with a arms it is this over a, or this with any number of arms
    return config.overflow_probability(number, max(1, round(min(alone / received, config.arms))))


def _check_equal(own: AnyMechanism, received: AnyMechanism) -> None:
    """Raise Refused, with the field, unless a mechanism is the one that the client plans with the numbers told."""
    for name in type(own).model_fields:  # JSON leaves some of them out
        _same(f"mechanism.{name}", getattr(received, name), getattr(own, name))


def _check_length(found: AnyMechanism, received: AnyMechanism) -> None:
    """Raise Refused for a message of many more bits than one of the client's own plan `found` has."""
    own, width = found.width, received.width
    if own is not None and width is not None and width > own * LONGER + 1:
        raise Refused(f"mechanism: its messages have {width} bits a label, and the run's configuration gives {own}")


def _check_formula(found: AnyMechanism, received: AnyMechanism) -> None:
    """Raise Refused unless numbers of `paper` are those of the formula, which is all that it promises."""
    for name in sorted(found.searched):
        stated, own = getattr(received, name), getattr(found, name)
        if abs(stated - own) > FORMULA * abs(own):
            raise Refused(f"mechanism.{name} = {stated!r}: the run's configuration gives {own!r}")


def _check_promise(spec: MechanismSpec, received: AnyMechanism) -> None:
    """Raise Refused unless the guarantee computed here, at the floor, is at most the configured one.

    It is (ε, δ) where the spec has δ. Without, it is pure ε, or RDP(α) ≤ αε²/2 at every order that is known.
    """
    stated = _listed({name: getattr(received, name) for name in sorted(received.searched)})
    try:
        with np.errstate(**UNHEARD):
            promise = promise_of(received)
    except Exception as error:  # a server chose the numbers: whatever fails for them, nothing is known
        raise Refused(f"mechanism: nothing is known of the privacy of {stated}: {error}") from error
    epsilon = spec.epsilon
    if epsilon is None or promise.epsilon is None or promise.kind == "none":
        raise Refused(f"mechanism: {stated} gives no privacy, and the run's configuration ε = {epsilon}")
    if spec.delta is None and promise.kind != "pure":
        spent = [(f"RDP({order:g})", kept, order * epsilon**2 / 2) for order, kept in promise.rdp]
        if not spent:
            raise Refused(f"mechanism: no Rényi divergence of {stated} is known")
    else:
        spent = [("ε", promise.epsilon, epsilon), ("δ", promise.delta, spec.delta or 0.0)]
    for name, kept, promised in spent:
        if not kept <= promised * (1 + ROUNDED):
            shown, most = two_spellings(kept, promised)
            raise Refused(f"mechanism: {stated} gives {name} = {shown}, and the run's configuration {most}")


def _listed(stated: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {number!r}" for name, number in stated.items())


def same_values(path: str, received: object, own: object, source: str) -> None:
    """Raise Refused, with the field, unless two trees of JSON values are equal. source: as in `_same`."""
    difference = first_difference(own, received, path)
    if difference is not None:
        field, computed, told = difference
        raise Refused(f"{field} = {told!r}: {source} {computed!r}")


def _same(field: str, received: object, own: object, source: str = "the run's configuration gives") -> None:
    """Raise Refused unless both values are equal. source: where the own one is from, as the sentence says it."""
    if received != own:
        shown = [value.hex() if isinstance(value, bytes) else repr(value) for value in (received, own)]
        raise Refused(f"{field} = {shown[0]}: {source} {shown[1]}")

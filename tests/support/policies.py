"""Policies by their tables, answers to what they ask for, and the widths that they compute from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Calibration, ErrorLaw
from distrust.common.extensions import load_reference
from distrust.common.specs.policy import POLICIES
from distrust.server.policies.base import Ask, Estimate, Policy, RunFacts
from distrust.server.policies.linear.phases import Phased

Floats = NDArray[np.float64]


def made(
    name: str,
    arms: int,
    *,
    horizon: int = 10**9,
    calibration: Calibration = "exact",
    noise: float = 1.0,
    digest: bytes = b"",
    **table: object,
) -> Any:
    """Return the policy of this name and table, before its first batch; `noise` is the λ that DP-SE plans for."""
    spec = POLICIES[name].model_validate({"name": name, **table})
    return load_reference(spec.POLICY).of(spec, RunFacts(arms, horizon, 1, calibration, noise, digest))


def asked(policy: Policy) -> Ask:
    """Return the next batch; there must be one."""
    ask = policy.ask(10**18)
    assert ask is not None
    return ask


def given_actions(vectors: Floats) -> dict[str, object]:
    """Return the table's action set with these rows."""
    return {"actions": {"kind": "given", "vectors": vectors.tolist()}}


def actions(k: int = 25, d: int = 3) -> Floats:
    drawn = np.random.default_rng(7).normal(size=(k, d))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def played(ask: Ask) -> tuple[list[int], Floats]:
    """Return the actions that clients play for this question, and the number of clients behind each mean."""
    if ask.decision.kind == "play-design":
        return list(ask.decision.actions), np.full(len(ask.decision.actions), float(ask.queries[0].clients))
    pulls = [pull for query in ask.queries for pull in ask.pulls(query)]
    return [arm for arm, _ in pulls], np.array([float(count) for _, count in pulls])


def estimates(ask: Ask, sums: Sequence[float], law: ErrorLaw, clients: Floats, rounding: float = 0.0) -> list[Estimate]:
    """Return sums as the learner tells them to a policy: one estimate, or one for each query that names an arm."""
    counts = tuple(int(count) for count in clients)
    if len(ask.queries) == 1 and ask.queries[0].arm is None:
        return [Estimate(None, tuple(sums), counts, (law,) * len(sums), rounding)]
    rows = zip(ask.queries, sums, counts, strict=True)
    return [Estimate(query.arm, (total,), (count,), (law,), rounding) for query, total, count in rows]


def widths_of(policy: Phased) -> Floats:
    return np.array([(interval.upper - interval.lower) / 2 for interval in policy.intervals])

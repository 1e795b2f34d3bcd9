"""Tests that widths of every policy are positive and finite to the end, at all legal numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.protocol.run.config import RunConfig
from distrust.common.specs.base import LEAST_BETA, PolicySpec
from distrust.common.specs.policy import AnyPolicySpec
from distrust.server.learner.run_config import build_policy
from distrust.server.policies.base import Ask, Estimate, Policy
from distrust.server.policies.linear.phases import LEAST_PRINTED
from tests.support.laws import Laplace, Normal

SPECS: TypeAdapter[PolicySpec] = TypeAdapter(AnyPolicySpec)
LINEAR = ("dp-dpe", "dp-pe", "almost-free")
ONE_ARM = ("ucb1", "adap-ucb", "dp-ucb", "thompson")
OPEN = {"min_value": 0, "max_value": 1, "exclude_min": True, "exclude_max": True}
ROUNDS = 40  # more than any policy plays until T = 10⁹ but those that go on with one arm at a time


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    """Draw a configuration with a policy at any of its legal numbers. The mechanism gives it the calibration."""
    name = draw(st.sampled_from(("successive-elimination", "dp-se", "vb-sdp-ae", *ONE_ARM, *LINEAR)))
    calibration, arms = draw(st.sampled_from(("exact", "paper"))), draw(st.integers(2, 8))
    words: dict[str, object] = {"name": name}
    if name in LINEAR:
        angles = np.linspace(0, math.pi, arms, endpoint=False)
        words["actions"] = {"kind": "given", "vectors": np.column_stack((np.cos(angles), np.sin(angles))).tolist()}
        least = LEAST_BETA if calibration == "exact" else LEAST_PRINTED
        words["beta"] = draw(st.none() | st.floats(least, 1, exclude_max=True))
        words["bound"] = draw(st.floats(1, 10))
        if name == "almost-free":
            words |= {"model": draw(st.sampled_from(("central", "local", "shuffled"))), "core_set": draw(st.booleans())}
        if name == "dp-dpe":
            words |= {"alpha": draw(st.floats(**OPEN)), "deviation": draw(st.floats(1e-6, 1e6))}
            words |= {"noise": draw(st.floats(0, 1e6)), "clients": draw(st.none() | st.integers(1, 1000))}
    elif name != "ucb1":
        least = {"adap-ucb": 1e-12, "dp-ucb": 1e-7, "thompson": 1e-12}.get(name, 1e-13)
        words["failure"] = draw(st.floats(least, 1, exclude_max=True))
        if name == "thompson":
            words["width_scale"] = draw(st.floats(0.01, 1))
        if name not in {"dp-se", "dp-ucb"}:
            words["first_batch"] = draw(st.integers(1, 12))
        if name == "successive-elimination" and calibration == "paper" and draw(st.booleans()):
            words["constants"] = "published-code"
    return RunConfig(
        run="legal",
        arms=arms,
        horizon=draw(st.integers(8, 10**9)),
        policy=SPECS.validate_python(words),
        mechanism={"name": "central-laplace", "epsilon": 1.0, "calibration": calibration},  # type: ignore[arg-type]
    )


def estimates(ask: Ask, means: list[float], law: ErrorLaw, stay: float) -> list[Estimate]:
    """Return answers without chance: a share `stay` of each cohort's clients is left, and each arm has its mean."""
    if ask.decision.kind == "assigned-action":
        counts = tuple(max(1, int(times * stay)) for times in ask.decision.times)
        sums = tuple(count * means[arm] for count, arm in zip(counts, ask.decision.actions, strict=True))
        return [Estimate(None, sums, counts, (law,) * len(counts))]
    if ask.decision.kind == "play-design":
        count = max(1, int(ask.queries[0].clients * stay))
        width = len(ask.decision.actions)
        sums = tuple(count * means[arm] for arm in ask.decision.actions)
        return [Estimate(None, sums, (count,) * width, (law,) * width)]
    clients = [max(1, int(query.clients * stay)) for query in ask.queries]
    return [
        Estimate(query.arm or 0, (count * means[query.arm or 0],), (count,), (law,))
        for query, count in zip(ask.queries, clients, strict=True)
    ]


def check(policy: Policy, left: int, means: list[float], law: ErrorLaw, stay: float) -> None:
    for _ in range(ROUNDS):
        ask = policy.ask(left)
        if ask is None:
            return
        left -= ask.size
        policy.tell(estimates(ask, means, law, stay))
        for interval in policy.intervals:
            assert interval.lower < interval.mean < interval.upper, interval
            assert math.isfinite(interval.upper - interval.lower), interval


@given(config=runs(), data=st.data(), stay=st.sampled_from((1.0, 0.6)))
@settings(max_examples=150, deadline=None)
def test_every_width_is_positive_and_finite_until_the_run_ends(
    config: RunConfig, data: st.DataObject, stay: float
) -> None:
    means = data.draw(st.lists(st.floats(-1, 1), min_size=config.arms, max_size=config.arms))
    law = data.draw(st.sampled_from((Normal(0.0), Laplace(1e-6), Laplace(5.0), Normal(1e5))))
    check(build_policy(config), config.horizon, means, law, stay)


@pytest.mark.parametrize("model", ["central", "local", "shuffled"])
@pytest.mark.parametrize("beta", [1e-300, 1e-6, 0.1, 0.3, 0.9, math.nextafter(1, 0)])
def test_the_papers_width_with_a_given_beta_stays_positive_when_one_action_is_left(model: str, beta: float) -> None:
    """Ten actions at first: with ln(|A|/(kβ)) the width is void from β = 1/10 on."""
    angles = np.linspace(0, math.pi, 10, endpoint=False)
    vectors = np.column_stack((np.cos(angles), np.sin(angles)))
    actions = {"kind": "given", "vectors": vectors.tolist()}
    config = RunConfig(
        run="one-left",
        arms=10,
        horizon=3000,
        policy=SPECS.validate_python({"name": "almost-free", "model": model, "beta": beta, "actions": actions}),
        mechanism={"name": "central-laplace", "epsilon": 1.0, "calibration": "paper"},  # type: ignore[arg-type]
    )
    policy = build_policy(config)
    check(policy, config.horizon, (1e6 * vectors @ vectors[3]).tolist(), Laplace(1e-3), 1.0)
    assert len(policy.active) == 1

"""Tests that bad input is answered with one line that names field, value and what is allowed."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from distrust.common.explain import explain, explain_all, first
from distrust.common.protocol.run.config import RunConfig

MULTI = {"name": "ldp-ols", "features": 2, "parameters": "multi"}


def _run(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"run": "demo", "arms": 5, "horizon": 1000, "mechanism": {"name": "identity"}}
    return whole | changes


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        pytest.param({"arms": 1}, "arms = 1: must be at least 2", id="one-arm"),
        pytest.param({"arms": 2.5}, "arms = 2.5: must be a whole number", id="half-an-arm"),
        pytest.param({"horizon": 3}, "horizon = 3: must be at least arms = 5, one client an arm", id="T-below-K"),
        pytest.param(
            {"policy": {"failure": 1.0}}, "policy.failure = 1.0: must be below 1.0", id="failure-probability-one"
        ),
        pytest.param(
            {"mechanism": {"name": "identity", "epsilon": float("nan")}},
            "mechanism.epsilon = nan: must be a finite number",
            id="nan",
        ),
        pytest.param({"run": "A B"}, "run = 'A B': must match ^[a-z0-9][a-z0-9._-]{0,79}$", id="identifier"),
        pytest.param({"unsafe": {}}, "unsafe.noise_seed: is required", id="missing"),
        pytest.param(
            {"policy": {"failures": 0.1}},
            "policy.failures = 0.1: unknown key, did you mean failure?; "
            "allowed keys are name, first_batch, failure, base, constants",
            id="unknown-key-in-a-table",
        ),
        pytest.param(
            {"unsafe": {"noise_seed": 1, "x": 2}},
            "unsafe.x = 2: unknown key; allowed keys are noise_seed",
            id="unknown-key-in-an-optional-table",
        ),
        pytest.param(
            {"policy": {"name": "ucb1", "failure": 0.1}},
            "policy.failure = 0.1: unknown key; allowed keys are name",
            id="unknown-key-under-a-name-without-a-dash",
        ),
        pytest.param({"policy": {"name": "dp-pe", "beta": 2.0}}, "policy.actions: is required", id="one-of-many"),
        *(
            pytest.param(
                {"policy": {**MULTI, "margin": bad}},
                f"policy.margin = {bad!r}: must be {allowed} or 'inf'",
                id=f"a-number-or-a-word-{bad}",
            )
            for bad, allowed in ((-1, "at least 0.0"), ("x", "a number"), (float("nan"), "a finite number"))
        ),
        pytest.param(
            {"policy": {**MULTI, "parameters": "single", "margin": 1}},
            'policy.margin = 1.0: goes with parameters = "multi"; leave it out',
            id="a-field-that-the-whole-table-refuses",
        ),
        pytest.param(
            {"path": 3},
            "path = 3: unknown key; allowed keys are version, run, arms, horizon, policy, mechanism, intermediary, "
            "unsafe, budget, returning",
            id="unknown-key-called-like-a-part-of-a-request",
        ),
        pytest.param(
            {"policy": 3}, "policy = 3: must be a table of keys and values, with a name", id="no-table-of-many"
        ),
        pytest.param({"mechanism": 3}, "mechanism = 3: must be a table of keys and values", id="no-table"),
    ],
)
def test_a_bad_run_file_is_answered_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(_run(**changes))
    assert line == first(caught.value, RunConfig)


def test_every_fault_has_its_own_line() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(_run(arms=1, colour="red"))
    lines = explain(caught.value, RunConfig)
    assert len(lines) == 2
    assert all("\n" not in line for line in lines)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(_run(run="A" * 5000))
    assert len(first(caught.value)) < 160


def test_a_long_key_is_cut() -> None:
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(_run(**{"a" * 100_000: 1}))
    assert len(first(caught.value, RunConfig)) < 400


def test_a_switch_of_an_address_that_is_no_switch_is_told_in_our_words() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(dict[str, bool]).validate_python({"open": "maybe"})
    assert first(caught.value) == "open = 'maybe': must be true or false"


def test_the_web_frameworks_prefix_is_left_out() -> None:
    entry = {"type": "greater_than", "loc": ("body", "mechanism", "epsilon"), "input": -1, "ctx": {"gt": 0}, "msg": ""}
    assert explain_all([entry]) == ["mechanism.epsilon = -1: must be above 0"]

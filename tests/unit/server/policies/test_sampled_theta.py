"""Tests policies that draw a θ a batch: around which estimate, with whose coins, and what their results say."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from distrust.common.bandit.contextual_choice import ContextualChoice
from distrust.common.specs.contextual import ContextualPolicySpec, LdpGlocSpec
from distrust.common.specs.linucb import LinUcbSpec
from distrust.common.specs.thompson import GlocThompsonSpec, LinearThompsonSpec
from distrust.lab.play import in_process
from distrust.lab.play.result import facts as result_facts
from distrust.lab.play.run_file import BadRunFile, RunFile, parse
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import Core, first_run
from distrust.server.policies.contextual.baselines import GlocCore, GlocThompson
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.linucb import LinearThompson, LinUcbCore
from tests.support.lockstep import Lockstep, facts, spec_for, sphere, uniform_regret

PAIRS = [
    pytest.param(LinearThompson, LinearThompsonSpec, LinUcbSpec, LinUcbCore, "single", id="linear"),
    pytest.param(GlocThompson, GlocThompsonSpec, LdpGlocSpec, GlocCore, "single", id="gloc"),
    pytest.param(GlocThompson, GlocThompsonSpec, LdpGlocSpec, GlocCore, "multi", id="gloc-multi"),
]


def runs(count: int, first: int = 0) -> list[RunFacts]:
    """Return the facts of runs that differ in their digests."""
    return [replace(facts(3, 100), digest=bytes([first + number])) for number in range(count)]


def table(kind: type[ContextualPolicySpec], parameters: str, **fields: object) -> Any:
    return spec_for(kind, sphere(parameters=parameters, arms=3, dimension=2), **fields)


def taught(core: Core, spec: ContextualPolicySpec, rows: int, *, deviation: float = 3.0) -> Core:
    """Return the core after twelve batches of random sums, whose first `rows` rows are always the same."""
    rng, dimension = np.random.default_rng(8), spec.statistic(3, None).dimension
    for _ in range(12):
        core.learn(deviation * rng.standard_normal((5, dimension))[:rows], RoundNoise(1, deviation))
    return core


@pytest.mark.parametrize(("policy", "kind", "base", "plain", "parameters"), PAIRS)
def test_without_a_width_the_estimate_itself_decides(
    policy: Any, kind: Any, base: Any, plain: Any, parameters: str
) -> None:
    spec = table(kind, parameters, width_scale=0.0)
    own = taught(policy.of(spec, runs(1)[0]).core(runs(2)), spec, 2).rule
    other = taught(plain(table(base, parameters), facts(3, 100), 2), spec, 2).rule
    assert np.array_equal(own.theta, other.theta)
    assert (own.inverse, other.inverse is None) == (None, False)
    assert (own.anchor is None) == (other.anchor is None)
    assert own.anchor is None or np.array_equal(own.anchor, other.anchor)  # type: ignore[arg-type]  # both or none


@pytest.mark.parametrize(("policy", "kind", "base", "plain", "parameters"), PAIRS)
def test_a_draw_is_as_far_from_the_estimate_as_the_width_says(
    policy: Any, kind: Any, base: Any, plain: Any, parameters: str
) -> None:
    """‖θ̃ - θ̂‖ in the norm of V is w β times the length of d standard normal variables, for each θ: χ² in the mean."""
    spec, many = table(kind, parameters, width_scale=0.5), 250
    center = taught(plain(table(base, parameters), facts(3, 100), 1), spec, 1).rule
    assert center.inverse is not None
    core = policy.of(spec, runs(1)[0]).core(runs(many))
    rng, dimension = np.random.default_rng(8), spec.statistic(3, None).dimension
    for _ in range(12):  # the sums of `taught`, in each run
        core.learn(np.tile(3.0 * rng.standard_normal((5, dimension))[:1], (many, 1)), RoundNoise(1, 3.0))
    away = core.rule.theta - center.theta
    squares = np.einsum("rbd,bde,rbe->rb", away, np.linalg.inv(center.inverse[0]), away)
    squares /= (0.5 * float(np.ravel(center.beta)[0])) ** 2
    count = squares.size
    assert squares.mean() == pytest.approx(2, abs=5 * (4 / count) ** 0.5)
    assert away.mean(axis=0) == pytest.approx(0, abs=5 * away.std(axis=0).max() / many**0.5)


@pytest.mark.parametrize(("policy", "kind", "base", "plain", "parameters"), PAIRS)
def test_each_run_has_the_coins_of_its_own_digest_whatever_runs_are_beside_it(
    policy: Any, kind: Any, base: Any, plain: Any, parameters: str
) -> None:
    del base, plain
    spec = table(kind, parameters)
    together = taught(policy.of(spec, runs(1)[0]).core(runs(5)), spec, 5).rule
    for number in range(5):
        core, rng = policy.of(spec, runs(1, number)[0]).core(runs(1, number)), np.random.default_rng(8)
        for _ in range(12):
            sums = 3.0 * rng.standard_normal((5, spec.statistic(3, None).dimension))
            core.learn(sums[number : number + 1], RoundNoise(1, 3.0))
        assert np.array_equal(core.rule.theta[0], together.theta[number])
    first = policy.of(spec, runs(1)[0]).core(runs(5)).rule.theta
    assert len({tuple(np.ravel(one)) for one in first}) == 5, "before any data all runs chose alike"


def test_a_decision_has_a_drawn_theta_and_no_width() -> None:
    spec = table(LinearThompsonSpec, "single")
    policy = LinearThompson.of(spec, runs(1)[0])
    ask = policy.ask(100)
    assert ask is not None
    assert isinstance(ask.decision, ContextualChoice)
    assert (ask.decision.inverse, ask.decision.beta) == (None, 0.0)
    core = policy.core(runs(1))
    assert ask.decision.theta == first_run(core.rule).theta.tolist()


def test_a_scaled_draw_regrets_less_than_uniform_play() -> None:
    """2000 clients of 10 runs: below 0.6 of the regret of uniform play, with local noise of 1 an entry."""
    world = sphere(arms=5, dimension=2)
    spec = spec_for(LinearThompsonSpec, world, width_scale=0.1)
    own = [replace(facts(5, 2000), digest=bytes([number])) for number in range(10)]
    game = Lockstep(LinearThompson.of(spec, own[0]).core(own), spec, world, 10, deviation=1.0)  # type: ignore[arg-type]
    assert game.play(2000).mean() < 0.6 * uniform_regret(world, 2000)


def run_file(policy: str, name: str = "drawn") -> RunFile:
    return parse(
        f"""
run = "{name}"
horizon = 200
policy = {{batch = 20, {policy}}}
mechanism = {{name = "local-gaussian", epsilon = 2.0, delta = 0.01}}
unsafe = {{noise_seed = 3}}
environment = {{name = "contextual-synthetic", arms = 20, dimension = 3, seed = 11}}
"""
    )


@pytest.mark.parametrize("name", ["linear-thompson", "gloc-thompson"])
def test_the_result_says_that_no_theorem_bounds_the_regret(name: str) -> None:
    result, again = (in_process.run(run_file(f'name = "{name}"')) for _ in range(2))
    assert result.unproven == "a sampled θ: no theorem bounds the regret of one draw a batch on noised sums"
    assert ("unproven", result.unproven) in result_facts(result)
    assert (result.events.widths, result.events.failure) == (0, None)
    assert [record.decision for record in again.rounds] == [one.decision for one in result.rounds]
    other = in_process.run(run_file(f'name = "{name}"', "drawn-again"))
    assert other.rounds[0].decision != result.rounds[0].decision


def test_numbers_of_the_policy_that_it_is_after_hold_for_it() -> None:
    scaled = table(LinearThompsonSpec, "single", width_scale=0.5)
    assert scaled.unproven.endswith("; width_scale = 0.5: a width that is scaled down is no guarantee of regret")
    published = table(LinearThompsonSpec, "single", constants="published-code")
    assert published.unproven.startswith('constants = "published-code": no theorem states the widths')
    for field, value in (("parameters", "multi"), ("link", "logistic")):
        with pytest.raises(ValidationError, match=rf"{field}\n.* should be '(single|identity)'"):
            LinearThompsonSpec.model_validate({"name": "linear-thompson", "features": 2, field: value})
    with pytest.raises(BadRunFile, match=r"policy\.width_scale = 2\.0: must be at most 1"):
        run_file('name = "gloc-thompson", width_scale = 2.0')

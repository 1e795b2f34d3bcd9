"""Tests the warm-up with many parameters: schedule, screen, synthetic updates, runs, and refusals."""

import json
import math

import numpy as np
import pytest

from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice, Screen
from distrust.common.bandit.contextual_sum import ContextualSum, Observation
from distrust.common.errors import BadParameter
from distrust.common.protocol.run.config import RunConfig
from distrust.common.randomness import UnsafeSeededStream
from distrust.common.specs.contextual import GreedySpec, LdpOlsSpec, LdpSgdSpec
from distrust.lab.play import in_process
from distrust.lab.play.run_file import parse
from distrust.server.policies.base import Estimate
from distrust.server.policies.contextual.base import first_run
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.glm_ols import LdpOls, OlsCore
from distrust.server.policies.contextual.glm_sgd import LdpSgd, SgdCore
from distrust.server.policies.contextual.warm_up import WarmUp
from tests.support.laws import Laplace
from tests.support.lockstep import Lockstep, facts, mechanism_for, spec_for, sphere, uniform_regret

pytestmark = pytest.mark.slow

CORES = {LdpOlsSpec: OlsCore, LdpSgdSpec: SgdCore}
POLICIES = {LdpOlsSpec: LdpOls, LdpSgdSpec: LdpSgd}
KINDS = pytest.mark.parametrize("kind", CORES, ids=["ols", "sgd"])


def many(kind: type[GreedySpec], **fields: object) -> GreedySpec:
    name = "ldp-ols" if kind is LdpOlsSpec else "ldp-sgd"
    told = {"features": 2, "parameters": "multi", "rewards": [-1.0, 1.0]}
    return kind.model_validate({"name": name, **told, **fields})


@KINDS
@pytest.mark.parametrize("batch", [1, 3])
def test_arms_take_turns_in_public_and_then_all_blocks_are_asked_for(kind: type[GreedySpec], batch: int) -> None:
    """K = 3, a warm-up of 8 rounds, two an arm; round t plays arm t mod K. A report has one block, then K."""
    policy = POLICIES[kind].of(many(kind, warm_up=8, batch=batch), facts(3, 300))  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    for t in range(1, 20):
        ask = policy.ask(300)
        assert ask is not None
        assert isinstance(ask.decision, ContextualChoice)
        assert isinstance(ask.statistic, ContextualSum)
        assert not ask.cumulative  # sums of two lengths are no stream
        assert (ask.decision.only, ask.statistic.blocks) == ((t % 3, 1) if t <= 6 else (None, 3))
        assert [query.clients for query in ask.queries] == [batch]
        width = ask.statistic.dimension
        assert width == (1 if t <= 6 else 3) * (5 if kind is LdpOlsSpec else 2)
        policy.tell([Estimate(None, tuple(rng.standard_normal(width)), (batch,) * width, (Laplace(1.0),) * width)])


@KINDS
@pytest.mark.parametrize(
    ("words", "horizon", "refusal"),
    [
        ({"warm_up": 50}, 50, "policy.warm_up = 50: must be less than all 50 rounds of horizon / batch"),
        ({"warm_up": 10, "batch": 10}, 100, "policy.warm_up = 10: must be less than all 10 rounds"),
        ({"warm_up": 3}, 50, "policy.warm_up = 3: each of the 4 arms needs a round"),
        ({}, 39, "policy.warm_up = '1/10 of 39 rounds': each of the 4 arms needs a round"),
        ({"batch": 60}, 50, "policy.batch = 60: must be at most horizon = 50"),
    ],
)
def test_a_warm_up_must_fit_the_horizon(
    kind: type[GreedySpec], words: dict[str, object], horizon: int, refusal: str
) -> None:
    with pytest.raises(BadParameter) as caught:
        POLICIES[kind].of(many(kind, **words), facts(4, horizon))  # type: ignore[arg-type]
    assert str(caught.value).startswith(refusal)


@KINDS
@pytest.mark.parametrize("words", [{"warm_up": 20}, {"margin": 0.5}])
def test_one_parameter_takes_no_warm_up(kind: type[GreedySpec], words: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f'{next(iter(words))} = .*: goes with parameters = "multi"'):
        many(kind, parameters="single", **words)


def test_a_tenth_of_the_rounds_warms_up_where_nothing_else_is_said() -> None:
    assert WarmUp.of(many(LdpSgdSpec), facts(4, 1000)) == WarmUp(4, 25)
    assert WarmUp.of(many(LdpSgdSpec, batch=5), facts(4, 1000)) == WarmUp(4, 5)


@pytest.mark.parametrize(("kind", "paper"), [(LdpOlsSpec, False), (LdpSgdSpec, True)], ids=["exact-ols", "paper-sgd"])
def test_the_best_arm_survives_the_default_screen(kind: type[GreedySpec], paper: bool) -> None:  # noqa: FBT001
    """The margin rests on an event of probability 1 - α/2 at least; α = 0.1, and 20 runs of 40 contexts each.

    A run of bad luck loses some contexts: more than 6 runs would with probability 3e-5.
    """
    world = sphere(parameters="multi", arms=3)
    spec = spec_for(kind, world, warm_up=4500, failure=0.1, batch=20)
    core = CORES[kind](spec, facts(3, 200_000, paper=paper), 20)  # type: ignore[arg-type]
    Lockstep(core, spec, world, 20, deviation=0.02).play(4500)
    screen = core.rule.screen
    assert screen is not None
    features = world.contexts(40, UnsafeSeededStream(9, "contexts")).features
    allowed = screen.allowed(np.broadcast_to(features, (20, *features.shape)))
    best = world.means(features).argmax(axis=-1)
    lost = ~np.take_along_axis(allowed, np.broadcast_to(best[None, :, None], (20, 40, 1)), axis=-1)
    assert lost.any(axis=(1, 2)).sum() <= 6
    assert 1 / 3 < allowed.mean() < 0.95  # others are screened out
    away = np.linalg.norm(screen.theta - world.theta, axis=-1).max(axis=-1)  # type: ignore[attr-defined]
    assert (4 * away > screen.margin).sum() <= 6  # h/2 = 4 times the bound on the error
    assert np.shape(screen.margin) == (20,)


def test_the_screen_is_frozen_and_choices_are_by_the_latest_estimates() -> None:
    spec = many(LdpSgdSpec, warm_up=9, margin=0.3)
    core, rng = SgdCore(spec, facts(3, 200), 2), np.random.default_rng(2)  # type: ignore[arg-type]
    for _ in range(9):
        core.learn(rng.standard_normal((2, 2)) / 3, RoundNoise(1, 0.1))
    frozen, features = core.rule.theta.copy(), rng.standard_normal((2, 50, 1, 2)) / 3
    for _ in range(5):
        core.learn(rng.standard_normal((2, 6)), RoundNoise(1, 0.1))
    means, latest = (features @ theta[:, None].swapaxes(-1, -2) for theta in (frozen, core.rule.theta))
    means, latest = means[..., 0, :], latest[..., 0, :]
    allowed = means >= means.max(axis=-1, keepdims=True) - 0.3
    arms, predictors = core.rule.choose(features)
    assert arms.tolist() == np.where(allowed, latest, -np.inf).argmax(axis=-1).tolist()
    assert predictors == pytest.approx(np.take_along_axis(latest, arms[..., None], axis=-1)[..., 0])
    assert (arms != latest.argmax(axis=-1)).any()
    sent = ContextualChoice.model_validate_json(ContextualChoice.of(first_run(core.rule)).model_dump_json())
    assert sent.rule.choose(features[0])[0].tolist() == arms[0].tolist()


def test_a_screen_has_the_margin_of_each_run() -> None:
    theta = np.array([[[1.0], [0.5]], [[1.0], [0.5]]])
    rule = ChoiceRule(theta, screen=Screen(theta, "identity", np.array([0.4, 0.6])))
    assert rule.screen is not None
    assert rule.screen.allowed(np.ones((2, 1, 1, 1))).tolist() == [[[True, False]], [[True, True]]]


@KINDS
def test_no_arm_is_screened_out_by_an_infinite_margin_or_a_useless_bound(kind: type[GreedySpec]) -> None:
    for words in ({"margin": math.inf}, {"margin": "inf"}, {"margin": 2.0}, {}):
        spec = many(kind, warm_up=12, **words)
        core = CORES[kind](spec, facts(3, 200))  # type: ignore[arg-type]
        for _ in range(12):
            core.learn(np.zeros((1, 5 if kind is LdpOlsSpec else 2)), RoundNoise(1, 5.0))
        assert core.rule.only is None
        assert core.rule.screen is None
    for margin in (-1.0, math.nan, -math.inf, "none"):
        with pytest.raises(ValueError, match="margin"):
            many(kind, margin=margin)


def run_file(policy: str, mechanism: str, more: str = "arms = 3\nparameters = 'multi'", horizon: int = 2500) -> str:
    return (
        f'run = "many"\nhorizon = {horizon}\n[policy]\n{policy}\n[mechanism]\n{mechanism}\n'
        f'[environment]\nname = "glm-sphere"\nseed = 3\n{more}\n[unsafe]\nnoise_seed = 4\n'
    )


def test_an_infinite_margin_travels_as_json() -> None:
    config = parse(run_file('name = "ldp-sgd"\nmargin = inf', 'name = "identity"')).config
    again = RunConfig.model_validate_json(config.canonical())
    assert again == config
    assert json.loads(config.canonical())["policy"]["margin"] == "inf"


@pytest.mark.parametrize("policy", ["ldp-ols", "ldp-sgd"])
def test_a_run_in_process_records_the_warm_up_apart(policy: str) -> None:
    """Three rounds of one client are one record. The 400 of the warm-up are no multiple of three."""
    result = in_process.run(parse(run_file(f'name = "{policy}"\nwarm_up = 400', 'name = "identity"')))
    assert result.fault is None
    widths = [len(cohort.estimate or ()) for record in result.rounds for cohort in record.cohorts]
    block = 5 if policy == "ldp-ols" else 2
    assert set(widths) == {block, 3 * block}
    assert widths == sorted(widths)
    pulls = [cohort.clients for one in result.rounds for cohort in one.cohorts]
    assert sum(pulls) == 2500
    assert sum(count for count, width in zip(pulls, widths, strict=True) if width == block) == 399  # 133 an arm
    assert result.pulls == [133, 133, 133]
    assert result.hidden == 2500 - 399


@pytest.mark.parametrize(
    ("policy", "mechanism"),
    [
        ("ldp-ols", 'name = "local-gaussian"\nepsilon = 1.0\ndelta = 0.1'),
        ("ldp-sgd", 'name = "local-sphere"\nepsilon = 1.0'),
        ("ldp-ucb", 'name = "tree"\nepsilon = 1.0\ndelta = 0.1\nbatches = 100'),
        ("ldp-gloc", 'name = "distributed-discrete-gaussian"\nepsilon = 1.0\ndelta = 0.1'),
    ],
)
@pytest.mark.parametrize("parameters", ["single", "multi"])
def test_batches_run_in_process_on_every_kind_of_mechanism(policy: str, mechanism: str, parameters: str) -> None:
    more = f"arms = 3\nparameters = '{parameters}'"
    result = in_process.run(parse(run_file(f'name = "{policy}"\nbatch = 40', mechanism, more, horizon=2000)))
    assert result.fault is None
    assert len(result.rounds) == 50
    assert result.hidden + sum(result.pulls) == 2000
    assert 0 < result.regret.final < 4000


@KINDS
def test_synthetic_updates_hide_the_arm(kind: type[GreedySpec]) -> None:
    """Clients of two arms differ by no more than the sensitivity, and noise is the same in every block.

    Of 3000 reports, the variance of each block's entries is compared with that of the chosen block. A ratio of two
    such variances is off by more than 15 % with probability below 1e-7 (five standard deviations of √(4/3000)).
    """
    statistic = many(kind).statistic(3, ContextualChoice(theta=[[0.0, 0.0]] * 3))
    assert isinstance(statistic, ContextualSum)
    one = Observation(np.array([0]), np.array([[1.0, 0.0]]), np.array([1.0]), np.array([-1.0]))
    other = Observation(np.array([2]), np.array([[0.0, 1.0]]), np.array([1.0]), np.array([-1.0]))
    first, second = statistic.vectors(one), statistic.vectors(other)
    assert np.linalg.norm(first - second) <= statistic.sensitivity + 1e-12
    assert np.linalg.norm(first) == pytest.approx(statistic.radius)
    mechanism = mechanism_for(statistic, 1, name="local-gaussian", epsilon=1.0, delta=0.1)
    stream = UnsafeSeededStream(6, "synthetic")
    rows = mechanism.randomize(np.repeat(first, 3000, axis=0), stream)
    answers = np.stack([mechanism.estimate(row, 1, stream) for row in rows])
    means, spreads = answers.mean(axis=0), answers.var(axis=0)
    assert means == pytest.approx(first[0], abs=6 * float(np.sqrt(spreads.max() / 3000)))
    assert spreads / spreads[0] == pytest.approx(np.ones(statistic.dimension), abs=0.15)


@KINDS
def test_without_noise_many_parameters_are_learned(kind: type[GreedySpec]) -> None:
    """The seed is fixed. Over ten other seeds each share of the uniform regret was below two thirds of its limit."""
    world = sphere(parameters="multi", arms=4)
    spec = spec_for(kind, world, warm_up=400)
    game = Lockstep(CORES[kind](spec, facts(4, 3000), 5), spec, world, 5)  # type: ignore[arg-type]
    warm = game.play(400).mean()
    assert 0.8 < warm / uniform_regret(world, 400) < 1.25
    assert game.play(1600).mean() < 0.02 * uniform_regret(world, 1600)

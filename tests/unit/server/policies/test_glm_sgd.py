"""Tests LDP-SGD against its definition: steps, projection, curvature, error bound, regret."""

import math

import numpy as np
import pytest

from distrust.common.errors import BadParameter
from distrust.common.specs.base import RoundSize
from distrust.common.specs.contextual import LdpSgdSpec
from distrust.lab.play import in_process
from distrust.lab.play.run_file import BadRunFile, parse
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.glm_sgd import SgdCore, greedy_curvature
from tests.support.lockstep import Floats, Lockstep, facts, same_alone, spec_for, sphere, uniform_regret

ZETA = {"identity": 1.0, "logistic": math.exp(1) / (1 + math.exp(1)) ** 2, "poisson": math.exp(-1)}


def spec(**fields: object) -> LdpSgdSpec:
    return LdpSgdSpec.model_validate({"name": "ldp-sgd", "features": 2, "rewards": [-1.0, 1.0], **fields})


def project(theta: Floats) -> Floats:
    length = float(np.linalg.norm(theta))
    return theta / length if length > 1 else theta


@pytest.mark.parametrize(("arms", "size"), [(10, 2), (2, 2), (10, 3), (5, 7), (100, 4)])
@pytest.mark.few(2)
def test_the_curvature_is_that_of_greedy_choices_on_the_sphere(arms: int, size: int) -> None:
    """Against many choices. Eigenvalues of the mean of n xxᵀ with 0 ≤ (xᵀv)² ≤ 1 are off by 2.5/√n: five sigma."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((200_000, arms, size)) if arms * size < 100 else rng.standard_normal((40_000, arms, size))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    chosen = np.take_along_axis(x, (x @ np.eye(size)[0]).argmax(axis=1)[:, None, None], axis=1)[:, 0]
    simulated = np.linalg.eigvalsh(chosen.T @ chosen / len(chosen))[0]
    assert greedy_curvature(arms, size) == pytest.approx(simulated, abs=2.5 / math.sqrt(len(chosen)))


def test_known_curvatures() -> None:
    assert greedy_curvature(10, 2) == pytest.approx(0.121815349)
    assert greedy_curvature(10, 1) == 1.0
    assert greedy_curvature(1, 3) == pytest.approx(1 / 3)  # nothing to choose


@pytest.mark.parametrize("link", ["identity", "logistic", "poisson"])
@pytest.mark.parametrize("step", [None, 3.0])
def test_single_steps_are_step_over_zeta_t(link: str, step: float | None) -> None:
    table = spec(link=link, rewards=[0.0, 1.0], step=step, batch=4)
    core, rng = SgdCore(table, facts(10, 400), runs=2), np.random.default_rng(2)
    theta = np.zeros((2, 2))
    size = (1 / greedy_curvature(10, 2) if step is None else step) / ZETA[link]
    for t in range(1, 51):
        sums = rng.standard_normal((2, 2))
        core.learn(sums, RoundNoise(4, 1.0))
        theta = np.stack([project(theta[i] - size / t * sums[i] / 4) for i in (0, 1)])
        assert core.rule.theta[:, 0] == pytest.approx(theta)
        assert core.rule.inverse is None


def test_steps_of_many_parameters_follow_the_proof() -> None:
    """K = 3, s₀ = 4: the arm's own count until t = 12, then K/(ζκt') with t' = t - (K-1)s₀; κ = 1/d by default."""
    arms, each = 3, 4
    table = spec(parameters="multi", warm_up=13, margin="inf")  # one round of 13 is left over
    core, rng = SgdCore(table, facts(arms, 200), runs=1), np.random.default_rng(3)
    theta, updates = np.zeros((arms, 2)), [0] * arms
    for t in range(1, 60):
        if t <= arms * each:
            arm = t % arms
            assert core.rule.only == arm
            sums = rng.standard_normal((1, 2))
            updates[arm] += 1
            theta[arm] = project(theta[arm] - 2 / updates[arm] * sums[0])
        else:
            assert core.rule.only is None
            sums = rng.standard_normal((1, 6))
            steps = 2 * arms / (t - (arms - 1) * each) * sums.reshape(arms, 2)
            theta = np.stack([project(one) for one in theta - steps])
        core.learn(sums, RoundNoise(1, 1.0))
        assert core.rule.theta[0] == pytest.approx(theta)
    assert updates == [each] * arms


@pytest.mark.parametrize("most", [1.0, 7.0])
def test_estimates_stay_in_their_ball_whatever_the_noise(most: float) -> None:
    """The gradients' bound R rests on |⟨φ, θ̂⟩| ≤ S."""
    core, rng = SgdCore(spec(features=3, theta_norm=most), facts(4, 400), runs=50), np.random.default_rng(4)
    for _ in range(100):
        core.learn(1000 * rng.standard_normal((50, 3)), RoundNoise(1, 1000.0))
        lengths = np.linalg.norm(core.rule.theta, axis=-1)
        assert lengths.max() <= most * (1 + 1e-12)
    assert lengths.max() > 0.9 * most


@pytest.mark.parametrize(
    ("link", "more", "horizon", "most"),
    [
        ("identity", {}, 1500, 0.05),
        ("logistic", {}, 1500, 0.17),
        ("poisson", {"largest": 10.0}, 1500, 0.1),
    ],
)
def test_without_noise_every_link_is_learned(link: str, more: dict[str, object], horizon: int, most: float) -> None:
    """The seed is fixed. Over ten other seeds each share of the uniform regret was below two thirds of its limit."""
    world = sphere(link=link, **more)
    table = spec_for(LdpSgdSpec, world)
    game = Lockstep(SgdCore(table, facts(10, horizon), 5), table, world, 5)
    assert game.play(horizon).mean() < most * uniform_regret(world, horizon)
    away = np.linalg.norm(game.core.rule.theta[:, 0] - world.theta, axis=-1)  # type: ignore[attr-defined]
    assert away.max() < 0.6


@pytest.mark.parametrize(
    ("mechanism", "most"),
    [
        ({"name": "local-sphere", "epsilon": 20.0}, 0.6),
        ({"name": "local-gaussian", "epsilon": 20.0, "delta": 0.1}, 0.2),
    ],
    ids=["local-sphere", "local-gaussian"],
)
def test_with_weak_privacy_regret_is_far_below_uniform_play(mechanism: dict[str, object], most: float) -> None:
    """The sphere's answers have a length of 3.1 at any ε.

    The seed is fixed. Over ten other seeds each share of the uniform regret was below two thirds of its limit.
    """
    world = sphere()
    table = spec_for(LdpSgdSpec, world)
    game = Lockstep(SgdCore(table, facts(10, 1000), 5), table, world, 5, mechanism=mechanism)
    assert game.play(1000).mean() < most * uniform_regret(world, 1000)


def test_a_run_learns_the_same_alone() -> None:
    same_alone(lambda runs: SgdCore(spec(features=3), facts(3, 100), runs), [3] * 30, 0.5)
    many = spec(parameters="multi", warm_up=9)
    same_alone(lambda runs: SgdCore(many, facts(3, 100), runs), [2] * 9 + [6] * 30, 0.5)


def test_a_mini_batch_steps_along_its_mean_gradient() -> None:
    """20 clients a batch and 100 batches: noise of 1 a client is 0.22 in the mean.

    The seed is fixed. Over ten other seeds the share of the uniform regret was below two fifths of the limit.
    """
    world = sphere()
    table = spec_for(LdpSgdSpec, world, batch=20)
    game = Lockstep(SgdCore(table, facts(10, 2000), 5), table, world, 5, deviation=1.0)
    game.play(50)
    assert game.play(50).mean() < 0.1 * uniform_regret(world, 1000)


@pytest.mark.parametrize(("deviation", "batch"), [(0.0, 1), (1.0, 1), (0.3, 10)])
def test_the_error_bound_of_the_warm_up_holds(deviation: float, batch: int) -> None:
    """It fails with probability α = 0.2 at most; of 60 runs more than 26 would fail with probability 3e-5."""
    world = sphere(parameters="multi", arms=3, link="logistic")
    table = spec_for(LdpSgdSpec, world, warm_up=120, failure=0.2, batch=batch)
    core = SgdCore(table, facts(3, 2000 * batch), 60)
    Lockstep(core, table, world, 60, deviation=deviation).play(120)
    away = np.linalg.norm(core.rule.theta - world.theta, axis=-1).max(axis=-1)  # type: ignore[attr-defined]
    assert (away > core._error()).sum() <= 26
    assert core._error() < 200 * (1 + deviation)


def test_the_error_bound_falls_with_the_root_of_the_warm_up() -> None:
    bounds = []
    for length in (300, 30_000):
        table = spec(parameters="multi", warm_up=length, failure=0.01)
        core = SgdCore(table, facts(3, 10**6), 1)
        core.learn(np.zeros((1, 2)), RoundNoise(1, 2.0))
        bounds.append(core._error())
    assert 7 < bounds[0] / bounds[1] < 10  # √100 less a logarithm


@pytest.mark.parametrize(
    ("policy", "world", "refusal"),
    [
        ("", 'link = "poisson"', "environment.largest is missing: the poisson link's counts are unbounded"),
        ("rewards = [0.0, inf]", 'link = "poisson"\nlargest = 5.0', "policy.rewards"),
        ("rewards = [0.0, 3.0]", 'link = "poisson"\nlargest = 5.0', "policy.rewards = [0.0, 3.0]: the environment has"),
        ("step = 0.0", "", "policy.step = 0.0"),
        ("step = nan", "", "policy.step"),
        ("theta_norm = 0.5", "", "policy.theta_norm = 0.5"),
        ("theta_norm = 4.0", 'link = "logistic"', "step = None: its default is proven for theta_norm = 1"),
        ("theta_norm = 4.0\nstep = 1.0", 'link = "logistic"\nparameters = "multi"', "margin = None: its default is"),
        ("clip = 2.0", "", "clip = 2: must be below 2, the longest gradient; leave it out"),
        ("clip = 0.0", "", "policy.clip = 0.0"),
        ("clip = 1.0", 'parameters = "multi"', "margin = None: its default is proven without clip, and clip = 1"),
        ("warm_up_share = 0.5", "", "warm_up_share = 0.5: goes with parameters"),
        ("warm_up_share = 1.0", 'parameters = "multi"', "policy.warm_up_share = 1.0: must be below 1.0"),
        ("warm_up_share = 0.02", 'parameters = "multi"', "policy.warm_up_share = 0.02: each of the 10 arms needs"),
        ("warm_up_share = 0.999", 'parameters = "multi"', "policy.warm_up_share = 0.999: must be less than all 100"),
        ("warm_up = 20\nwarm_up_share = 0.2", 'parameters = "multi"', "warm_up_share = 0.2: goes without warm_up = 20"),
    ],
)
def test_a_run_file_with_unbounded_rewards_or_steps_is_refused(policy: str, world: str, refusal: str) -> None:
    text = (
        f'run = "x"\nhorizon = 100\n[policy]\nname = "ldp-sgd"\n{policy}\n[mechanism]\nname = "identity"\n'
        f'[environment]\nname = "glm-sphere"\nseed = 1\n{world}\n'
    )
    with pytest.raises((BadParameter, BadRunFile)) as caught:
        parse(text)
    assert refusal in str(caught.value)


def test_a_warm_up_given_as_a_share_has_as_many_rounds_as_one_given_in_rounds() -> None:
    """0.29 of 100 rounds is 28.999… in floating point, and 29 rounds; three arms have nine each."""
    share, rounds = spec(parameters="multi", warm_up_share=0.29), spec(parameters="multi", warm_up=29)
    assert (share.warm_up_length(200), share.warm_up_length(100)) == (58, 29)
    for number in (1, 27, 28, 29):
        size = RoundSize(3, 100, "exact", number, 3)
        assert share.public_arm(size) == rounds.public_arm(size)
    cores = [SgdCore(one, facts(3, 100)) for one in (share, rounds)]
    for dimension in [2] * 27 + [6] * 3:
        assert cores[0].rule.only == cores[1].rule.only
        for core in cores:
            core.learn(np.ones((1, dimension)), RoundNoise(1, 1.0))
    assert "warm_up_share" not in rounds.model_dump()


@pytest.mark.parametrize("mechanism", ['name = "local-sphere", epsilon = 1.0', 'name = "identity"'])
def test_a_clipped_run_reports_gradients_of_that_length_and_says_that_their_mean_is_biased(mechanism: str) -> None:
    """Ψ's answers are as long as the bound on the gradients asks for: half as long at half the bound."""
    text = (
        'run = "x"\nhorizon = 60\npolicy = {{name = "ldp-sgd"{}}}\nmechanism = {{{}}}\n'
        'environment = {{name = "glm-sphere", seed = 1}}\nunsafe = {{noise_seed = 1}}\n'
    )
    whole, clipped = (in_process.run(parse(text.format(more, mechanism))) for more in ("", ", clip = 1.0"))
    longest = [max(np.linalg.norm(round_.cohorts[0].estimate) for round_ in one.rounds) for one in (whole, clipped)]
    assert longest[1] <= (0.55 if "sphere" in mechanism else 1.0) * longest[0] * (1 + 1e-3)
    assert (whole.unproven, whole.events.failure, clipped.events.failure) == (None, None, None)
    assert (
        clipped.unproven == "clip = 1: shortened gradients have a biased mean, for which no theorem bounds the regret"
    )

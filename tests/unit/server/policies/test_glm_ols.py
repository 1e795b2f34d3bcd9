"""Tests LDP-OLS against its definition, its shift against the noise, and its regret in simulated worlds."""

import math
from typing import Any

import numpy as np
import pytest

from distrust.common.bandit.contextual_choice import packed_triangle
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import LdpOlsSpec
from distrust.server.policies.contextual.designs import Designs, RoundNoise
from distrust.server.policies.contextual.glm_ols import LdpOls, OlsCore
from tests.support.lockstep import Floats, Lockstep, facts, same_alone, spec_for, sphere, uniform_regret


def spec(features: int = 2, **fields: Any) -> LdpOlsSpec:
    return LdpOlsSpec(name="ldp-ols", features=features, rewards=[-1.0, 1.0], **fields)


def report(u: Floats, matrix: Floats) -> Floats:
    """Return the vector that carries u and a symmetric matrix. The triangle's off-diagonal entries are times √2."""
    size = len(u)
    rows, columns = np.triu_indices(size)
    return np.concatenate([u, packed_triangle(matrix) * np.where(rows == columns, 1, math.sqrt(2))])


def drawn(seed: int, size: int, rounds: int) -> tuple[Floats, Floats]:
    """Return u and M of single clients with some noise, shapes (rounds, size) and (rounds, size, size)."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rounds, size))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = rng.standard_normal((rounds, size, size)) * 0.3
    u = x * rng.uniform(-1, 1, (rounds, 1)) + 0.3 * rng.standard_normal((rounds, size))
    return u, x[:, :, None] * x[:, None, :] + (noise + noise.swapaxes(1, 2)) / 2


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_theta_is_the_papers_shifted_least_squares_after_every_batch(size: int) -> None:
    """`paper`, C_B = c_r = 1: ξ has the standard deviation σ and W has 2σ, and the shift is c̃√t."""
    horizon, sigma = 400, 0.15
    core = OlsCore(spec(features=size, failure=0.05), facts(4, horizon, paper=True), runs=2)
    streams = [drawn(seed, size, 60) for seed in (1, 2)]
    constant = 2 * sigma * (4 * math.sqrt(size) + 2 * math.log(2 * horizon / 0.05))
    for t in range(1, 61):
        core.learn(np.stack([report(u[t - 1], m[t - 1]) for u, m in streams]), RoundNoise(1, 2 * sigma))
        expected = [
            np.linalg.solve(m[:t].sum(axis=0) + constant * math.sqrt(t) * np.eye(size), u[:t].sum(axis=0))
            for u, m in streams
        ]
        assert core.rule.theta[:, 0] == pytest.approx(np.array(expected), rel=1e-9)
        assert core.rule.inverse is None  # greedy
        assert core.rule.screen is None
    assert core.indefinite.tolist() == [0, 0]


def test_a_prefix_sum_replaces_what_was_summed_before() -> None:
    """A tree's prefix sums have noise of at most `nodes` terms, and so has the shift."""
    u, m = drawn(3, 2, 30)
    core = OlsCore(spec(), facts(4, 400, paper=True))
    for t in range(1, 31):
        prefix = report(u[:t].sum(axis=0), m[:t].sum(axis=0))
        core.learn(prefix[None], RoundNoise(1, 0.2, prefix=True, nodes=5))
    shift = 0.2 * math.sqrt(5) * (4 * math.sqrt(2) + 2 * math.log(2 * 400 * 400))
    expected = np.linalg.solve(m.sum(axis=0) + shift * np.eye(2), u.sum(axis=0))
    assert core.rule.theta[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("paper", [False, True], ids=["exact", "paper"])
def test_the_shift_outweighs_the_noise_of_all_batches(paper: bool) -> None:  # noqa: FBT001
    """With α = 0.5 a run may fail with 0.25; of 400 runs more than 140 would fail with probability 3e-6."""
    rounds, runs = 100, 400
    core = OlsCore(spec(failure=0.5), facts(4, rounds, paper=paper), runs)
    rng, failed = np.random.default_rng(5), np.zeros(runs, dtype=bool)
    total = np.zeros((runs, 2, 2))
    for t in range(1, rounds + 1):
        sums = rng.standard_normal((runs, 5))
        core.learn(sums, RoundNoise(1, 1.0))
        total += np.stack([[s[[2, 3]] * [1, 0.5**0.5], s[[3, 4]] * [0.5**0.5, 1]] for s in sums])
        shift = core._unit * math.sqrt(t)
        failed |= np.abs(np.linalg.eigvalsh(total)).max(axis=-1) > shift
    assert failed.sum() <= 140
    # A matrix is indefinite only where the noise is larger than the shift: here Σ xxᵀ is 0.
    assert (core.indefinite > 0).sum() <= failed.sum()


@pytest.mark.parametrize("size", [2, 3])
def test_indefinite_matrices_are_counted_and_lifted_never_inverted(size: int) -> None:
    core = OlsCore(spec(features=size, shift="none"), facts(4, 400), runs=40)
    rng, width = np.random.default_rng(6), size + size * (size + 1) // 2
    expected, total = np.zeros(40, dtype=np.int64), np.zeros((40, width))
    unpack = Designs(size, 1, 40).unpacked
    for t in range(1, 31):
        sums = 2 * rng.standard_normal((40, width))
        total += sums
        core.learn(sums, RoundNoise(1, 2.0))
        lowest = np.linalg.eigvalsh(unpack(total))[:, 0, 0]
        expected += lowest < 0
        lifted = unpack(total)[:, 0] + np.where(lowest < 0, 2 * math.sqrt(t) - lowest, 0)[:, None, None] * np.eye(size)
        assert core.rule.theta[:, 0] == pytest.approx(np.linalg.solve(lifted, total[:, :size, None])[..., 0], rel=1e-6)
    assert core.indefinite.tolist() == expected.tolist()
    assert core.indefinite.min() > 0


def test_without_noise_a_singular_design_is_no_failure_and_theta_is_finite() -> None:
    """Until the third round Σxxᵀ of three features is singular; then least squares fit all rewards."""
    world = sphere(dimension=3, noiseless=True)
    core = OlsCore(spec(features=3), facts(10, 400), runs=4)
    game = Lockstep(core, spec(features=3), world, 4)
    for _ in range(2):
        game.play(1)
        assert np.abs(core.rule.theta).max() <= 1  # the lift to 1 keeps ‖θ̂‖ below ‖Σrx‖/2
    game.play(1)
    assert core.rule.theta[:, 0] == pytest.approx(np.broadcast_to(world.theta, (4, 3)))  # type: ignore[attr-defined]
    assert core.indefinite.tolist() == [0] * 4


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shift", ["noise", "none"])
def test_a_run_learns_the_same_alone(size: int, shift: str) -> None:
    """A run learns the same alone and beside others, one of which has an indefinite matrix."""
    width = size + size * (size + 1) // 2
    one, many = spec(features=size, shift=shift), spec(features=size, shift=shift, parameters="multi", warm_up=9)
    same_alone(lambda runs: OlsCore(one, facts(3, 100), runs), [width] * 30, 3.0)
    same_alone(lambda runs: OlsCore(many, facts(3, 100), runs), [width] * 9 + [3 * width] * 30, 3.0)


def test_closed_and_general_solutions_agree() -> None:
    designs = Designs(2, 3, 4)
    rng = np.random.default_rng(1)
    contexts = rng.standard_normal((50, 4, 3, 2))
    matrices = np.einsum("trbd,trbe->rbde", contexts, contexts)
    u = rng.standard_normal((4, 3, 2))
    sums = np.concatenate([u, packed_triangle(matrices) * [1, math.sqrt(2), 1]], axis=-1)
    designs.add(sums.reshape(4, -1), RoundNoise(50, 0.0))
    shift = np.array([0.0, 1.0, 2.5])
    theta, inverse = designs.solve(shift, invert=True)
    whole = matrices + shift[:, None, None] * np.eye(2)
    assert inverse == pytest.approx(np.linalg.inv(whole))
    assert theta == pytest.approx(np.linalg.solve(whole, u[..., None])[..., 0])
    assert designs.least_eigenvalues(shift) == pytest.approx(np.linalg.eigvalsh(whole)[..., 0])


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ({}, 0.05),
        ({"deviation": 0.3}, 0.15),
        ({"mechanism": {"name": "local-gaussian", "epsilon": 20.0, "delta": 0.1}}, 0.15),
    ],
    ids=["identity", "little-noise", "local-gaussian"],
)
def test_regret_is_far_below_uniform_play(words: dict[str, object], most: float) -> None:
    """The seed is fixed. Over ten other seeds each share of the uniform regret was below two thirds of its limit."""
    world, horizon = sphere(), 1000
    table = spec_for(LdpOlsSpec, world)
    game = Lockstep(OlsCore(table, facts(10, horizon), 5), table, world, 5, **words)  # type: ignore[arg-type]
    assert game.play(horizon).mean() < most * uniform_regret(world, horizon)
    away = np.linalg.norm(game.core.rule.theta[:, 0] - world.theta, axis=-1)  # type: ignore[attr-defined]
    assert away.max() < 0.5


def test_batches_of_many_clients_learn_from_their_sums() -> None:
    """20 clients a batch, 50 batches: the regret of the first batches is that of ignorance."""
    world = sphere()
    table = spec_for(LdpOlsSpec, world, batch=20)
    game = Lockstep(OlsCore(table, facts(10, 1000), 5), table, world, 5, deviation=0.3)
    assert game.play(50).mean() < 0.25 * uniform_regret(world, 1000)


@pytest.mark.parametrize(
    ("words", "horizon", "refusal"),
    [
        ({"features": 30}, 20, "policy.features = 30: the horizon has 20 clients, and 30 features need as many"),
        ({"batch": 100}, 50, "must be at most horizon = 50"),
        (
            {"features": 5, "parameters": "multi", "warm_up": 8},
            100,
            "policy.warm_up = 8: each arm's warm-up has 2 clients, and 5 features need as many",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(words: dict[str, object], horizon: int, refusal: str) -> None:
    with pytest.raises(BadParameter) as caught:
        LdpOls.of(spec(**words), facts(4, horizon))
    assert refusal in str(caught.value)


def test_least_squares_is_for_the_identity_only() -> None:
    with pytest.raises(ValueError, match="link"):
        spec(link="logistic")

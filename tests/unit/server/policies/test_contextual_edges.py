"""Tests contextual policies with few rounds, one arm, one feature, indefinite matrices, short streams."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.dp.accounting.laws.gaussian_sums import sum_epsilon
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.specs.contextual import ContextualPolicySpec, LdpGlocSpec, LdpUcbSpec
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from distrust.server.learner.learner import Learner
from distrust.server.policies.contextual.base import ContextualPolicy
from distrust.server.policies.contextual.baselines import GlocCore, UcbCore
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.noise_bounds import Regularizer
from tests.support.lockstep import facts
from tests.support.planned import planned

POLICIES = ("linucb", "sblb", "ldp-ols", "ldp-sgd", "ldp-ucb", "ldp-gloc")
QUIET, LOUD = 'name = "identity"', 'name = "local-gaussian"\nepsilon = 1.0\ndelta = 0.1'
TREE = 'name = "tree"\nepsilon = 1.0\ndelta = 0.1\nbatches = {}'


def run_file(policy: str, mechanism: str, world: str, horizon: int = 40, more: str = "") -> RunFile:
    return parse(
        f'run = "edge"\nhorizon = {horizon}\n[policy]\nname = "{policy}"\n{more}\n[mechanism]\n{mechanism}\n'
        f'[unsafe]\nnoise_seed = 5\n[environment]\nname = "glm-sphere"\nseed = 3\n{world}\n'
        "[intermediary]\ndropout = 0.0\ncorrupt = 0.0\nminimum = 1\n"
    )


def rules(file: RunFile) -> Iterable[ChoiceRule]:
    """Play a run, and return its rules after every round."""
    result: list[ChoiceRule] = []

    def note(learner: Learner) -> None:
        assert isinstance(learner.policy, ContextualPolicy)
        result.append(learner.policy._core.rule)

    learner = in_process.play_learner(file, note)
    assert learner.fault is None
    assert len(result) == len(learner.rounds)
    return result


@pytest.mark.parametrize("mechanism", [QUIET, LOUD], ids=["quiet", "loud"])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "ldp-ols"])
@pytest.mark.parametrize("features", [1, 31])
def test_one_feature_and_more_features_than_clients_are_learned_with_finite_numbers(
    policy: str, mechanism: str, features: int
) -> None:
    """Ridges keep V positive definite, and gradient steps invert nothing. (`ldp-ols` has no ridge without noise.)"""
    horizon = 12
    for rule in rules(run_file(policy, mechanism, f"arms = 3\ndimension = {features}", horizon)):
        assert rule.theta.shape[-1] == features
        assert np.isfinite(rule.theta).all()
        if rule.inverse is not None:
            assert (np.linalg.eigvalsh(rule.inverse) > 0).all()


@pytest.mark.parametrize("calibration", ["exact", "paper"])
def test_least_squares_refuses_more_features_than_clients_and_learns_one(calibration: str) -> None:
    words = LOUD + f'\ncalibration = "{calibration}"'
    why = r"environment\.dimension = 30: the horizon has 12 clients, and 30 features need as many"
    with pytest.raises(BadParameter, match=why):
        in_process.run(run_file("ldp-ols", words, "arms = 3\ndimension = 30", 12))
    with pytest.raises(BadParameter, match=r"policy\.features = 30: the horizon has 12 clients"):  # as it was written
        in_process.run(run_file("ldp-ols", words, "arms = 3\ndimension = 30", 12, more="features = 30"))
    for mechanism in (QUIET, words):
        words = mechanism.replace("epsilon = 1.0", "epsilon = 0.9")  # GLB's constants end below 1
        for rule in rules(run_file("ldp-ols", words, "arms = 3\ndimension = 1", 12)):
            assert np.isfinite(rule.theta).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_one_arm_is_refused(policy: str) -> None:
    with pytest.raises(ProtocolError, match=r"environment\.arms = 1: must be at least 2"):
        run_file(policy, QUIET, "arms = 1\ndimension = 2")


@pytest.mark.parametrize("policy", POLICIES)
def test_fewer_clients_than_a_batch_are_refused(policy: str) -> None:
    with pytest.raises(ProtocolError, match=r"policy\.batch = 50: must be at most horizon = 40"):
        in_process.run(run_file(policy, QUIET, "arms = 3\ndimension = 2", more="batch = 50"))


@pytest.mark.parametrize("policy", ["ldp-ols", "ldp-sgd"])
def test_a_horizon_inside_the_warm_up_is_refused(policy: str) -> None:
    with pytest.raises(ProtocolError, match=r"policy\.warm_up = 40: must be less than all 40 rounds"):
        in_process.run(run_file(policy, QUIET, 'arms = 3\nparameters = "multi"', more="warm_up = 40"))


@pytest.mark.parametrize("parameters", ["single", "multi"])
@pytest.mark.parametrize("kind", [LdpUcbSpec, LdpGlocSpec])
def test_a_matrix_that_noise_made_indefinite_is_counted_and_lifted_in_the_baselines(
    kind: type[LdpUcbSpec] | type[LdpGlocSpec], parameters: str
) -> None:
    """Two runs: the matrix of the second has an eigenvalue of -10⁶, far beyond what its shift outweighs."""
    spec: ContextualPolicySpec = kind.model_validate(
        {"name": "ldp-ucb" if kind is LdpUcbSpec else "ldp-gloc", "features": 2, "parameters": parameters}
    )
    blocks = 1 if parameters == "single" else 3
    core = (UcbCore if kind is LdpUcbSpec else GlocCore)(spec, facts(3, 100), 2)  # type: ignore[arg-type]
    good, bad = [1.0, 0.0, 1.0, 0.0, 1.0], [1.0, 0.0, -1e6, 0.0, 2.0]
    core.learn(np.array([good * blocks, bad + good * (blocks - 1)]), RoundNoise(1, 1.0))
    assert core.indefinite.tolist() == [0, 1]
    assert core.rule.inverse is not None
    assert (np.linalg.eigvalsh(core.rule.inverse) > 0).all()
    assert np.isfinite(core.rule.theta).all()


@pytest.mark.parametrize("policy", ["linucb", "sblb", "ldp-ucb", "ldp-gloc"])
def test_without_noise_a_singular_design_is_learned_and_is_no_failure(policy: str) -> None:
    """Three features and two clients: Σφφᵀ has rank two at most."""
    learner = in_process.play_learner(run_file(policy, QUIET, "arms = 2\ndimension = 3", 2))
    assert isinstance(learner.policy, ContextualPolicy)
    core = learner.policy._core
    assert core.indefinite.tolist() == [0]  # type: ignore[attr-defined]
    assert np.isfinite(core.rule.theta).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stream_shorter_than_the_run_is_refused_by_every_contextual_policy(policy: str) -> None:
    world = "arms = 3\ndimension = 2"
    why = r"mechanism\.batches = 7: must be at least 8, the cohorts of this run"
    with pytest.raises(ProtocolError, match=why):
        in_process.run(run_file(policy, TREE.format(7), world, more="batch = 5"))
    assert in_process.run(run_file(policy, TREE.format(8), world, more="batch = 5")).fault is None


@pytest.mark.parametrize("policy", ["ldp-ols", "ldp-sgd"])
def test_a_warm_up_counts_as_part_of_the_stream(policy: str) -> None:
    world = 'arms = 2\nparameters = "multi"'
    with pytest.raises(ProtocolError, match=r"mechanism\.batches = 7: must be at least 8"):
        in_process.run(run_file(policy, TREE.format(7), world, more="batch = 5\nwarm_up = 4"))


def test_batches_of_a_stream_that_are_released_alone_tell_less_than_the_stream() -> None:
    """Policies that take no prefix sums release leaves: one coordinate, exactly, for one and for three batches."""
    spec = MechanismSpec(name="tree", epsilon=1.0, delta=1e-3, batches=8)
    statistic = LdpUcbSpec(name="ldp-ucb", features=2).statistic(3, None)
    tree = planned(spec, 20, statistic=statistic)
    assert isinstance(tree, Tree)
    stream = tree.privacy().stream
    assert stream is not None
    for times in (1, 3):
        alone = sum_epsilon(tree.variance / times, 1, tree.grid, 1e-3)  # t moves at once: as √t moves, of √t less noise
        assert alone < (stream.joint(times).promise.epsilon or math.inf)


def test_a_factorization_takes_the_trees_place_with_less_regularization() -> None:
    """λ follows the noise of the worst prefix sum: at 8 batches 1.72 deviations of one release, for 2.99."""
    values = []
    for name in ("tree", "prefix-factorization"):
        run = run_file("linucb", TREE.replace("tree", name).format(8), "", more="batch = 5")
        assert in_process.run(run).fault is None
        (first, *_) = in_process.play_learner(run).rounds
        mechanism = first.mechanism
        law, rounding = mechanism.error(5), mechanism.rounding**2
        noise = RoundNoise(5, law.std, True, mechanism.nodes, law.std, 5 * rounding)
        values.append(Regularizer.against(noise, 3, 8, 0.1, exact=True).value)
    assert values[1] < 0.6 * values[0]

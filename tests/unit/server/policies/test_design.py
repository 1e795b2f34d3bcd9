"""Tests that designs keep g(π) ≤ 2m on few actions, whatever the actions are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distrust.common.bandit.actions import BallActions, GivenActions, SphereActions, action_vectors
from distrust.common.errors import BadParameter
from distrust.server.policies.linear import design as designs
from distrust.server.policies.linear.design import ActionDesign, near_optimal, support_bound, uniform

Vectors = NDArray[np.float64]


def sphere(k: int, d: int, seed: int) -> Vectors:
    drawn = np.random.default_rng(seed).normal(size=(k, d))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def independent_spread(actions: Vectors, design: ActionDesign) -> float:
    """Return g(π) from its definition, with a pseudo-inverse in the original coordinates."""
    used = actions[list(design.support)]
    inverse = np.linalg.pinv((used.T * design.weights) @ used, rcond=1e-9, hermitian=True)
    return float(max(x @ inverse @ x for x in actions))


@settings(max_examples=60, deadline=None)
@given(k=st.integers(1, 120), d=st.integers(1, 24), seed=st.integers(0, 10**6), flat=st.integers(0, 3))
def test_g_is_at_most_twice_the_rank_on_few_actions(k: int, d: int, seed: int, flat: int) -> None:
    actions = sphere(k, d, seed)
    if d > flat:
        actions[:, d - flat :] = 0  # only a subspace is spanned
    design = near_optimal(actions)
    assert design.rank == np.linalg.matrix_rank(actions)
    assert len(design.support) <= support_bound(design.rank)
    assert independent_spread(actions, design) <= 2 * design.rank * (1 + 1e-6)
    assert design.spread == pytest.approx(independent_spread(actions, design), rel=1e-6)
    assert design.weights.sum() == pytest.approx(1)
    assert (design.weights > 0).all()


def test_a_design_that_does_not_keep_its_promise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frank-Wolfe without its steps: g(π) and the support are checked on what came out, whatever computed it."""
    monkeypatch.setattr(designs, "_frank_wolfe", lambda flat, _weights: np.full(len(flat), 1 / len(flat)))
    with pytest.raises(BadParameter, match=r"on 200 actions.*needs g ≤ 6 on at most 17"):
        near_optimal(sphere(200, 3, 1))
    lopsided = np.array([0.999, 0.0005, 0.0005])
    monkeypatch.setattr(designs, "_frank_wolfe", lambda _flat, _weights: lopsided)
    with pytest.raises(BadParameter, match=r"g = 2000 on 3 actions.*needs g ≤ 6"):
        near_optimal(np.eye(3))


@given(rows=st.lists(st.lists(st.sampled_from([0.0, 0.5, -0.5, 1e-7]), min_size=3, max_size=3), min_size=1, max_size=8))
def test_degenerate_sets_are_served_in_their_span(rows: list[list[float]]) -> None:
    actions = np.array(rows)
    if not actions.any():
        with pytest.raises(BadParameter, match="zero vectors"):
            near_optimal(actions)
        return
    design = near_optimal(actions)
    assert design.spread <= 2 * design.rank * (1 + 1e-6)


def test_the_paper_instance_of_a_thousand_actions_needs_few() -> None:
    design = near_optimal(sphere(1000, 20, 1))
    assert design.spread <= 40
    assert 20 <= len(design.support) <= 103


def test_the_support_bound_is_the_papers_where_its_logarithm_exists() -> None:
    assert [support_bound(rank) for rank in (1, 2, 3, 20)] == [1, 13, 17, 103]


def test_orthogonal_actions_are_all_played_alike() -> None:
    design = near_optimal(np.eye(4))
    assert design.support == (0, 1, 2, 3)
    assert design.weights == pytest.approx([0.25] * 4)


def test_without_a_core_set_every_action_is_played() -> None:
    actions = sphere(50, 2, 3)
    design = uniform(actions)
    assert len(design.support) == 50
    assert design.spread == pytest.approx(independent_spread(actions, design))


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        pytest.param([], "0 vectors", id="empty"),
        pytest.param([[1.0, 0.0], [1.0]], "must have 2 numbers", id="ragged"),
        pytest.param([[2.0, 0.0]], "norm must be at most 1", id="outside-the-ball"),
        pytest.param([[0.0, 0.0]], "zero vectors", id="no-direction"),
        pytest.param([[1.0, 0.0], [-0.5, 0.0]], "of rank 1.*span all 2 dimensions", id="rank-deficient"),
        pytest.param([[1.0, 0.0], [1.0, 1e-12]], "of rank 1", id="all-but-rank-deficient"),
        pytest.param([[]], "at least one number", id="no-dimension"),
    ],
)
def test_a_bad_action_set_is_refused(vectors: list[list[float]], message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        action_vectors(GivenActions(vectors=vectors))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(BadParameter, match="must be finite"):
        near_optimal(np.array([[value, 0.0]]))


def test_every_point_of_the_ball_is_near_the_net() -> None:
    net = action_vectors(BallActions(dimension=3, spacing=0.25))
    points = sphere(500, 3, 4) * np.random.default_rng(5).random((500, 1)) ** (1 / 3)
    assert max(np.linalg.norm(net - point, axis=1).min() for point in points) <= 0.25
    assert np.linalg.norm(net, axis=1).max() <= 1 + 1e-9


def test_a_net_that_is_too_fine_is_refused() -> None:
    with pytest.raises(BadParameter, match="spacing"):
        action_vectors(BallActions(dimension=6, spacing=0.05))


def test_actions_of_a_sphere_come_from_their_public_seed() -> None:
    spec = SphereActions(count=5, dimension=3, seed=9)
    assert (action_vectors(spec) == action_vectors(spec.model_copy())).all()
    assert np.linalg.norm(action_vectors(spec), axis=1) == pytest.approx(1)

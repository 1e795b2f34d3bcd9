"""Tests of the inputs that an audit chooses, and of the numbers that it observes."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.noise.polya import PolyaDifference
from distrust.common.errors import BadParameter
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.audit.observation import (
    evidence,
    evidence_names,
    likelihood_ratio,
    most_replicas,
    observed,
    replicated,
)
from distrust.lab.audit.setting import Setting
from tests.support.planned import planned


def planned_mechanism(
    name: str, dimension: int = 1, norm: str = "linf", epsilon: float = 1.0, **fields: Any
) -> Mechanism:
    spec = MechanismSpec(name=name, epsilon=epsilon, **fields)
    ball = BoundedVector(dimension=dimension, norm=norm, bound=1.0)
    statistic = ball if dimension > 1 else Reward()
    return planned(spec, 6, statistic=statistic)


BALLS = [("linf", np.inf), ("l1", 1), ("l2", 2)]


@pytest.mark.parametrize(("norm", "order"), BALLS)
@pytest.mark.parametrize("name", ["local-laplace-discrete", "distributed-skellam", "local-sphere"])
def test_neighbours_are_as_far_apart_as_the_ball_allows(name: str, norm: str, order: float) -> None:
    setting = Setting(planned_mechanism(name, 5, norm), 6)
    assert np.linalg.norm(setting.ends, ord=order, axis=1) == pytest.approx([1.0, 1.0])
    assert np.linalg.norm(setting.ends[1] - setting.ends[0], ord=order) == pytest.approx(2.0)


def test_noise_that_pays_by_the_sum_of_moves_gets_the_largest_sum() -> None:
    """In an ℓ₂ ball Σ|moves| is 2√D on the diagonal, and 2 on an axis."""
    ends = Setting(planned_mechanism("distributed-polya", 4, "l2"), 6).ends
    assert np.abs(ends[1] - ends[0]).sum() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("words", "view"),
    [
        ({"name": "local-laplace"}, "message"),
        ({"name": "distributed-polya"}, "sum"),
        ({"name": "central-laplace"}, "estimate"),
        ({"name": "shuffled-laplace", "delta": 0.1}, "records"),
        ({"name": "shuffled-sphere", "delta": 0.1}, "records"),
        ({"name": "relaxed-secagg-shuffle"}, "sum"),
        ({"name": "tree", "delta": 0.1, "batches": 5}, "stream"),
        ({"name": "prefix-factorization", "delta": 0.1, "batches": 5}, "stream"),
    ],
)
def test_what_is_looked_at_is_what_the_guarantee_is_about(words: dict[str, Any], view: str) -> None:
    assert Setting(planned_mechanism(**words), 6).view == view


@pytest.mark.parametrize(("via", "view"), [("aggregator", "sum"), ("shuffler", "message")])
def test_the_aggregator_hands_over_no_single_message(via: str, view: str) -> None:
    assert Setting(planned_mechanism("local-laplace", via=via), 6, transport="http").view == view


def test_the_ratio_is_that_of_the_noise() -> None:
    """Lap_Z(g/ε) on both ends of the range: ln(P₁/P₀) goes from -ε to ε in steps of 2ε/g, and stays there."""
    mechanism = planned_mechanism("local-laplace-discrete", precision=4)
    table = likelihood_ratio(Setting(mechanism, 6))
    assert table is not None
    assert table.of(np.arange(-3.0, 8.0)) == pytest.approx([-1, -1, -1, -1, -0.5, 0, 0.5, 1, 1, 1, 1])


def test_a_sum_is_told_by_the_law_of_the_sum() -> None:
    mechanism = planned_mechanism("distributed-polya", 3)
    table = likelihood_ratio(Setting(mechanism, 6, 2))
    assert table is not None
    pmf, g = PolyaDifference(Fraction(4, 6), getattr(mechanism, "scale")).pmf(), mechanism.precision  # noqa: B009
    at = np.array([-g, 0, g, 2 * g])
    assert table.of(at.astype(float)) == pytest.approx(pmf.logs[at - g - pmf.first] - pmf.logs[at - pmf.first])


def test_permuted_records_are_told_by_the_mean_of_their_ratios() -> None:
    setting = Setting(planned_mechanism("shuffled-laplace", delta=0.1), 6)
    table = likelihood_ratio(setting)
    assert table is not None
    assert evidence_names(setting) == ("sum", "likelihood")
    records = np.array([[[0.0], [1], [0], [2], [-1], [0]]])
    result = evidence(setting, records)
    assert result[0, 0] == 2
    assert result[0, 1] == pytest.approx(math.log(np.exp(table.of(records)).mean()))
    assert evidence(setting, records[:, ::-1]) == pytest.approx(result)


def test_a_stream_is_told_by_its_nodes() -> None:
    """Of five batches' prefixes 1, 2 and 4 are single nodes with the first batch in them, as `paper` releases them."""
    setting = Setting(planned_mechanism("tree", epsilon=0.5, delta=0.1, batches=5, calibration="paper"), 6)
    seen = np.array([[[1.0], [2], [4], [8], [16], [32], [64], [128], [256], [512]]])
    assert evidence(setting, seen).tolist() == [[32 + 64 + 256, 1023]]


def test_a_stream_behind_a_factorization_is_told_by_the_column_of_the_first_batch() -> None:
    """C times the batches, and the first column of C times that."""
    mechanism = planned_mechanism("prefix-factorization", delta=0.1, batches=3)
    assert isinstance(mechanism, PrefixFactorization)
    one, two, three = mechanism.factors.column()
    matrix = np.array([[one, 0, 0], [two, one, 0], [three, two, one]])
    seen = np.array([[[1.0], [2], [4], [8], [16], [32]]])
    told = evidence(Setting(mechanism, 6), seen)[0]
    assert told == pytest.approx([matrix[:, 0] @ matrix @ [1, 2, 4], 63])


def test_estimates_of_a_stream_are_told_by_what_each_adds_to_the_others() -> None:
    """Two batches: the node has 2/3 of its own number, and 1/3 of the sum of both leaves, which are known."""
    setting = Setting(planned_mechanism("tree", delta=0.1, batches=2), 6)
    first, second, node = 5.0, 11.0, 23.0
    prefix = 2 / 3 * node + (first + second) / 3
    told = evidence(setting, np.array([[[first], [second], [first], [prefix]]]))[0, 0]
    assert told == pytest.approx(first + node)


@pytest.mark.parametrize("batches", [1, 2, 5, 8])
def test_a_stream_shows_sums_that_are_right_but_for_noise(batches: int) -> None:
    mechanism = planned_mechanism("tree", delta=0.1, batches=batches)
    setting = Setting(mechanism, 6)
    sums = np.full((batches, 400, 1, 1), 3, dtype=np.uint64)
    means = observed(setting, sums, UnsafeSeededStream(1))[:, :, 0].mean(axis=0)
    error = 6 * mechanism.error(6).std * mechanism.precision * math.sqrt(mechanism.batches.bit_length() / 400)  # type: ignore[attr-defined]
    assert means[:batches] == pytest.approx(3, abs=error)
    assert means[batches:] == pytest.approx(3 * np.arange(1, batches + 1), abs=error)


@pytest.mark.parametrize("name", ["local-laplace", "distributed-polya", "central-laplace", "shuffled-laplace"])
@pytest.mark.parametrize(("dimension", "norm"), [(1, "linf"), (3, "l2")])
def test_copies_side_by_side_keep_their_noise(name: str, dimension: int, norm: str) -> None:
    words = {"delta": 0.1} if name == "shuffled-laplace" else {}
    alone = planned_mechanism(name, dimension, norm, **words)
    wide = replicated(alone, 7)
    assert wide.dimension == 7 * dimension
    assert wide.scale == pytest.approx(alone.scale, rel=1e-12)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "replicas"),
    [
        pytest.param({"name": "distributed-skellam"}, 64, id="any-number"),
        pytest.param({"name": "local-laplace", "epsilon": 6.0}, 8, id="50-over-6"),
        pytest.param({"name": "local-sphere"}, 1, id="one-answer"),
        pytest.param({"name": "local-gaussian", "delta": 0.1, "dimension": 3, "norm": "l2"}, 1, id="one-ball"),
    ],
)
def test_as_many_copies_as_the_mechanism_allows(words: dict[str, Any], replicas: int) -> None:
    assert most_replicas(planned_mechanism(**words)) == replicas


def test_the_sphere_has_no_copies() -> None:
    with pytest.raises(BadParameter, match="replicas need noise of their own"):
        replicated(planned_mechanism("local-sphere"), 2)


def test_a_stream_too_long_to_be_run_is_refused() -> None:
    with pytest.raises(BadParameter, match="1024"):
        Setting(planned_mechanism("tree", delta=0.1, batches=2000), 6)

"""Tests that the plots of a notebook show the numbers of the results."""

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from distrust.common.errors import BadParameter
from distrust.lab.figures import plot
from distrust.lab.play.in_process import run
from distrust.lab.play.result import Result
from distrust.lab.sweep.engine import SweepOutcome, sweep


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def played(seed: int, horizon: int = 20_000, policy: str = "successive-elimination", **mechanism: Any) -> Result:
    world = {"name": "gaussian-easy", "seed": seed, "arms": 3}
    fields = {"mechanism": mechanism or {"name": "identity"}, "environment": world, "policy": {"name": policy}}
    return run({"run": "trial", "horizon": horizon, **fields}, unsafe={"noise_seed": seed})


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [played(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SweepOutcome:
    return sweep("smoke", quick=True, out=tmp_path_factory.mktemp("sweeps"), jobs=1)


def labels(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def test_regret_of_one_result_is_its_curve_from_zero_without_a_band(results: list[Result], axes: Axes) -> None:
    assert plot.regret(results[0], axes=axes) is axes
    (line,) = axes.get_lines()
    assert np.array_equal(np.asarray(line.get_xydata()), [(0, 0), *results[0].regret.curve])
    assert not [one for one in axes.collections if isinstance(one, PolyCollection)]
    assert labels(axes) == ["successive-elimination by identity"]


def test_repetitions_are_a_mean_and_a_band_of_one_deviation(results: list[Result], axes: Axes) -> None:
    plot.regret({"SE": results, "one": results[0]}, axes=axes)
    assert labels(axes) == ["SE (3 runs)", "one"]
    mean = np.asarray(axes.get_lines()[0].get_ydata())
    finals = np.array([result.regret.final for result in results])
    assert mean[-1] == pytest.approx(finals.mean())
    (band,) = [one for one in axes.collections if isinstance(one, PolyCollection)]
    ends = np.asarray(band.get_paths()[0].vertices)
    at_end, deviation = ends[ends[:, 0] == results[0].horizon][:, 1], finals.std(ddof=1)
    assert deviation > 1
    assert [at_end.min(), at_end.max()] == pytest.approx([finals.mean() - deviation, finals.mean() + deviation])


def test_a_sweep_is_a_curve_for_each_panel_and_series(outcome: SweepOutcome, axes: Axes) -> None:
    plot.regret(outcome, spread="error", axes=axes)
    pairs = [f"{series.label}, {panel.label} (2 runs)" for panel, series in outcome.experiment.all_pairs()]
    assert labels(axes) == pairs
    ends = [np.asarray(line.get_ydata())[-1] for line in axes.get_lines()]
    assert ends == pytest.approx(outcome.frame("summary")["regret"].tolist())


def test_bits_against_regret_has_a_point_for_each_result(results: list[Result], axes: Axes) -> None:
    noisy = played(1, name="distributed-polya", epsilon=2.0)
    plot.bits_against_regret({"SE": results}, noisy, axes=axes)
    bars = [container for container in axes.containers if isinstance(container, ErrorbarContainer)]
    points = [np.asarray(one[0].get_xydata())[0] for one in bars]
    means = np.mean([(result.bits.payload, result.regret.final) for result in results], axis=0)
    assert points[0] == pytest.approx(means)
    assert points[1] == pytest.approx([noisy.bits.payload, noisy.regret.final])


@pytest.mark.parametrize("by", ["round", "pulls"])
def test_intervals_are_those_of_the_result_with_a_cross_where_an_arm_fell(
    results: list[Result], by: str, axes: Axes
) -> None:
    result = results[0]
    plot.intervals(result, by=by, axes=axes)
    low, high = axes.get_ylim()
    bars = [container for container in axes.containers if isinstance(container, ErrorbarContainer)]
    assert len(bars) == 3
    for arm, bar in zip(result.arms, bars, strict=True):
        ends = np.asarray(bar[2][0].get_segments())[:, :, 1]
        assert ends[-1] == pytest.approx([arm.lower, arm.upper])
        assert low < ends[-1][0] < ends[-1][1] < high
    crosses = [line for line in axes.get_lines() if line.get_marker() == "X"]
    fallen = [arm for arm in result.arms if not arm.active]
    assert [np.asarray(line.get_ydata())[0] for line in crosses] == pytest.approx([arm.mean for arm in fallen])
    assert fallen
    assert [label for label in labels(axes) if "out after round" in label] == [
        f"arm {arm.arm}, out after round {arm.eliminated}" for arm in fallen
    ]


def test_what_cannot_be_drawn_is_refused(results: list[Result], axes: Axes) -> None:
    pulls = played(1, policy="ucb1", horizon=60)
    with pytest.raises(BadParameter, match="formed no intervals of arms"):
        plot.intervals(pulls, axes=axes)
    with pytest.raises(BadParameter, match="arms = 7: must be one of 0, 1, 2"):
        plot.intervals(results[0], arms=[7], axes=axes)
    with pytest.raises(BadParameter, match="must name 1 to 28 arms"):
        plot.intervals(results[0], arms=[], axes=axes)
    with pytest.raises(BadParameter, match="by = 'rounds': must be round or pulls"):
        plot.intervals(results[0], by="rounds", axes=axes)
    with pytest.raises(BadParameter, match="result = 'list': must be the result of one run"):
        plot.intervals(results, axes=axes)  # type: ignore[arg-type]
    for wrong in (5, [5], {"a": 5}):
        with pytest.raises(BadParameter, match=r"results = '\w+': must be a result, a list"):
            plot.regret(wrong, axes=axes)  # type: ignore[arg-type]
    with pytest.raises(BadParameter, match="give at least one result"):
        plot.regret(axes=axes)
    with pytest.raises(BadParameter, match="two have this label"):
        plot.regret(results[0], results[1], axes=axes)
    with pytest.raises(BadParameter, match="have one horizon"):
        plot.regret([results[0], pulls], axes=axes)

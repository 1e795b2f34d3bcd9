"""Tests of the lines with which figures compare: uniform play, and what never learns."""

import numpy as np
import pytest

from distrust.client.environments import read_spec
from distrust.common.errors import BadParameter
from distrust.lab.figures import drawing
from distrust.lab.figures.draw import figure
from distrust.lab.figures.drawing import stamp, uniform_play
from tests.support.drawn import POINTS, axes_of, experiment, rows


def test_what_never_learns_is_a_straight_line_of_its_regret_a_round() -> None:
    shown = experiment(kind="regret", lines={"fixed": 0.05})
    axes = axes_of(shown, rows(shown))[1]
    line = axes.get_lines()[-1]
    assert line.get_label() == "fixed"
    np.testing.assert_allclose(line.get_xydata(), [[200 * at, 10 * at] for at in range(1, POINTS + 1)])


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        pytest.param("time-average", [0.3] * 5, id="a-pull"),
        pytest.param("regret", [60, 120, 180, 240, 300], id="cumulated"),
        pytest.param("by-panel", [300, 300], id="at-T"),
        pytest.param("trade-off", [300, 300], id="over-bits"),
    ],
)
def test_uniform_play_is_a_line_without_a_marker_and_the_last_name_of_the_legend(kind: str, line: list[float]) -> None:
    """Arms of the world pay 0.2 and 0.8, and T is 1,000."""
    shown = experiment(kind=kind, uniform=True)
    above = figure(shown, rows(shown)).subfigs[0]
    for axes in above.axes:
        (drawn,) = (one for one in axes.get_lines() if one.get_label() == "uniform play")
        np.testing.assert_allclose(drawn.get_ydata(), line)
        assert drawn.get_marker() == "None"
    assert [text.get_text() for text in above.legends[0].get_texts()] == ["A", "A, exact", "uniform play"]


def test_uniform_play_is_no_line_on_axes_of_other_columns() -> None:
    shown = experiment(kind="by-panel", value=["bits", "regret"], uniform=True)
    bits, regret = axes_of(shown, rows(shown))
    assert len(bits.get_lines()) == len(regret.get_lines()) - 1 == 2


def test_uniform_play_is_a_mean_over_the_worlds_of_the_rows() -> None:
    world = {"name": "gaussian-easy", "arms": 3}
    shown = experiment(panels=(0.5,), uniform=True).model_copy(update={"run": {"horizon": 1000, "environment": world}})
    worlds = [read_spec({**world, "seed": seed}).uniform_regret() for seed in range(3)]
    assert uniform_play(shown, rows(shown)) == {"ε = 0.5": pytest.approx(1000 * np.mean(worlds))}
    assert len(set(worlds)) == 3


def test_uniform_play_is_part_of_the_stamp_but_for_its_last_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = experiment(panels=(0.5,), uniform=True)
    stamps = []
    for regret in (300.0, 300.0 + 1e-9, 301.0):
        monkeypatch.setattr(drawing, "uniform_play", lambda *_, regret=regret: {"ε = 0.5": regret})
        stamps.append(stamp(shown, rows(shown)))
    assert stamps[0] == stamps[1] != stamps[2]


def test_uniform_play_is_refused_where_series_play_different_worlds() -> None:
    shown = experiment(uniform=True)
    other = shown.series[1].model_copy(update={"run": {"environment": {"means": [0.1, 0.9]}}})
    with pytest.raises(BadParameter, match=r"the series of panel 'ε = 0\.5' differ in their world or T"):
        figure(shown.model_copy(update={"series": [shown.series[0], other]}), rows(shown))

"""Tests that figures show the rows that they are given, and state what they leave out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from distrust.common.errors import BadParameter
from distrust.lab.figures.draw import draw, exponent, figure
from distrust.lab.figures.drawing import matched, stamp
from distrust.lab.figures.sheet import DPI, LINES, styles
from distrust.lab.sweep.cells import known_experiments, read_experiment
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Row
from tests.support.drawn import POINTS, WORLD, axes_of, experiment, row, rows
from tests.support.published import drawn_from


def edges(axes: Axes, place: int) -> tuple[float, float]:
    """Return the lowest and highest point of a band at the right end of the x axis."""
    (path,) = axes.collections[place].get_paths()
    corners = np.asarray(path.vertices)
    right = corners[corners[:, 0] == corners[:, 0].max(), 1]
    return float(right.min()), float(right.max())


def test_time_averages_are_the_mean_of_the_curves_over_the_rounds() -> None:
    shown = experiment()
    first, second = axes_of(shown, rows(shown))
    xs, ys = first.get_lines()[0].get_data()
    assert list(xs) == [200, 400, 600, 800, 1000]
    np.testing.assert_allclose(ys, 0.2)
    np.testing.assert_allclose(second.get_lines()[1].get_ydata(), 4.0)
    assert [axes.get_title() for axes in (first, second)] == ["ε = 0.5", "ε = 2.0"]


def test_by_panel_the_number_that_tells_panels_apart_is_the_x_axis() -> None:
    shown = experiment(kind="by-panel", x="log")
    (axes,) = axes_of(shown, rows(shown))
    xs, ys = axes.get_lines()[0].get_data()
    assert list(xs) == [0.5, 2.0]
    np.testing.assert_allclose(ys, [200, 2000])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_another_column_can_be_drawn_with_its_exponent() -> None:
    shown = experiment(kind="by-panel", value="regret", x="log", slope=True)
    (axes,) = axes_of(shown, rows(shown))
    assert axes.get_lines()[0].get_label() == f"A (∝ ε^{np.log(10) / np.log(4):.2f})"


def test_several_columns_have_axes_of_their_own_and_one_legend() -> None:
    shown = experiment(kind="by-panel", value=["bits", "regret"], x="log", slope=True)
    drawn = figure(shown, rows(shown)).subfigs[0]
    bits, regret = drawn.axes
    assert (bits.get_ylabel(), regret.get_ylabel()) == ("bits of all reports", "regret at T")
    np.testing.assert_allclose(bits.get_lines()[0].get_ydata(), 8000)
    np.testing.assert_allclose(regret.get_lines()[0].get_ydata(), [200, 2000])
    slope = np.log(10) / np.log(4)
    legend = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert legend == [f"{name} (∝ ε^0.00, ε^{slope:.2f})" for name in ("A", "A, exact")]


def test_the_axis_says_what_time_counts() -> None:
    rounds, pulls = (experiment(panels=(0.5,), unit=unit) for unit in ("rounds", "pulls"))
    assert [axes_of(one, rows(one))[0].get_xlabel() for one in (rounds, pulls)] == ["rounds t", "pulls t"]
    assert [axes_of(one, rows(one))[0].get_ylabel() for one in (rounds, pulls)] == [
        "regret per round",
        "regret per pull",
    ]


def test_each_variant_can_have_axes_of_its_own_and_the_ends_too() -> None:
    shown = experiment(split=True, finals=True)
    axes = axes_of(shown, rows(shown))
    titles = [f"ε = {e}{ending}" for ending in ("", ", exact", ", at T") for e in (0.5, 2.0)]
    assert [one.get_title() for one in axes] == titles
    assert [len(one.get_lines()) for one in axes[:4]] == [1] * 4
    ends = [container.lines[0] for container in axes[5].containers]
    assert [float(line.get_ydata()[0]) for line in ends] == [2000, 4000]


def test_four_panels_lie_two_by_two_where_two_columns_are_wanted() -> None:
    """Positions are those of the grid: the first two panels share a row, the first and the third a column."""
    shown = experiment(panels=(0.5, 1.0, 2.0, 4.0), columns=2)
    places = [axes.get_subplotspec() for axes in axes_of(shown, rows(shown))]
    assert [(place.rowspan.start, place.colspan.start) for place in places if place] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_the_ends_alone_have_a_column_for_each_name_and_a_legend() -> None:
    shown = experiment(kind="finals", spread="error")
    drawn = figure(shown, rows(shown)).subfigs[0]
    assert [axes.get_title() for axes in drawn.axes] == ["ε = 0.5, at T", "ε = 2.0, at T"]
    ends = [container.lines[0] for container in drawn.axes[0].containers]
    assert [float(line.get_ydata()[0]) for line in ends] == [200, 400]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["A", "A, exact"]


def test_by_panel_each_variant_can_have_axes_of_its_own_and_the_bits_below_them() -> None:
    """A curve has its name alone, as the axes have the variant, and all axes have one scale of regret."""
    shown = experiment(panels=(2.0, 0.5), kind="by-panel", x="log", split=True, bits=True)
    table = [one.model_copy(update={"payload_bits": 8 * one.epsilon}) for one in rows(shown) if one.epsilon]
    drawn = figure(shown, table).subfigs[0]
    assert [axes.get_title() for axes in drawn.axes] == ["", "exact"] * 2
    curves = [axes.get_lines()[0].get_xydata().tolist() for axes in drawn.axes]
    assert curves[:2] == [[[0.5, 2000], [2, 200]], [[0.5, 4000], [2, 400]]]
    assert curves[2:] == [[[4, 2000], [16, 200]], [[4, 4000], [16, 400]]]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["A"]
    assert len({axes.get_ylim() for axes in drawn.axes}) == 1


def test_a_trade_off_has_the_bits_of_a_report_across_and_the_regret_at_t_upwards() -> None:
    shown = experiment(kind="trade-off", x="log")
    table = [one.model_copy(update={"payload_bits": 32.0}) if one.series == "A" else one for one in rows(shown)]
    first, second = axes_of(shown, table)
    assert [axes.get_title() for axes in (first, second)] == ["ε = 0.5", "ε = 2.0"]
    assert (first.get_xlabel(), first.get_ylabel()) == ("bits of one report", "regret at T")
    points = [container.lines[0].get_xydata().tolist() for container in second.containers]
    assert points == [[[32, 2000]], [[8, 4000]]]
    (way,) = (line for line in second.get_lines() if len(line.get_xydata()) == 2)
    assert way.get_xydata().tolist() == [[32, 2000], [8, 4000]]  # between the variants of A
    (low, high) = second.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == (1000, 3000)  # one deviation of 1000, 2000 and 3000


@pytest.mark.parametrize(("spread", "half"), [("deviation", 100.0), ("error", 100 / np.sqrt(3))])
def test_a_band_is_one_deviation_or_one_standard_error_and_the_caption_says_which(spread: str, half: float) -> None:
    shown = experiment(kind="regret", spread=spread)
    drawn = figure(shown, rows(shown))
    assert edges(drawn.subfigs[0].axes[0], 0) == pytest.approx((200 - half, 200 + half))
    captions = {"deviation": "Mean and standard deviation, 3", "error": "Mean and its standard error, 3"}
    assert captions[spread] in drawn.subfigs[1].texts[0].get_text()


def test_checkpoints_on_a_log_scale_are_where_the_curve_was_read() -> None:
    shown = experiment(panels=(0.5,), x="log").model_copy(update={"spacing": "log"})
    (axes,) = axes_of(shown, rows(shown))
    assert list(axes.get_lines()[0].get_xdata()) == [25, 63, 158, 398, 1000]


def test_of_equal_curves_each_one_can_be_seen() -> None:
    """Without any one line the picture is another one: it is not hidden behind the others."""
    shown = experiment(panels=(0.5,))
    table = [row("ε = 0.5", label, r, 100.0) for label in ("A", "A, exact") for r in range(2)]
    drawn = figure(shown, table)
    canvas = FigureCanvasAgg(drawn)
    canvas.draw()
    whole = np.asarray(canvas.buffer_rgba()).copy()
    for line in drawn.subfigs[0].axes[0].get_lines():
        line.set_visible(False)
        canvas.draw()
        assert (np.asarray(canvas.buffer_rgba()) != whole).any(axis=2).sum() > 100
        line.set_visible(True)


def test_the_exponent_of_a_power_is_the_power() -> None:
    xs = np.array([10.0, 100.0, 1e4])
    assert exponent(xs, 7 * xs**1.2) == pytest.approx(1.2)


def caption(shown: Experiment, table: list[Row]) -> str:
    (note,) = figure(shown, table).subfigs[1].texts
    return note.get_text().replace("\n", " ")


def test_the_caption_says_source_horizon_spread_repetitions_and_note() -> None:
    shown = experiment()
    first, *others = table = rows(shown)
    spread = "Mean and standard deviation, 3 repetitions"
    assert caption(shown, table) == f"no paper. T = 1,000 pulls. {spread}. Smaller than life."
    assert "T = " not in caption(shown, [first.model_copy(update={"horizon": 2000}), *others])
    fewer = [row for row in table if row.series == "A" or row.repetition == 0]
    assert f"{spread} (1 of A, exact). Smaller" in caption(shown, fewer)
    assert caption(shown.model_copy(update={"quick": True}), table).startswith("QUICK VERSION. ")


@pytest.mark.parametrize(("other", "bottom"), [(5.0, 5 / 1000 / 2), (0.0, 0.0)])
def test_regret_of_zero_has_a_place_on_a_log_axis(other: float, bottom: float) -> None:
    """Half of the least mean that is not 0; zeros alone get a linear axis."""
    shown = experiment(panels=(0.5,))
    table = [row("ε = 0.5", label, r, 0.0 if label == "A" else other) for label in ("A", "A, exact") for r in range(2)]
    (axes,) = axes_of(shown, table)
    assert axes.get_ylim()[0] == pytest.approx(bottom)


@pytest.mark.parametrize("name", known_experiments())
@pytest.mark.few(8)
def test_title_and_note_of_every_figure_fit_its_paper(name: str) -> None:
    shown = read_experiment(name).model_copy(update={"quick": True, "points": POINTS})
    table = [row(p.label, s.label, 0, 1.0) for p, s in shown.all_pairs()]
    drawn = figure(shown, table)
    drawn.set_dpi(DPI)  # the letters' widths are whole pixels
    FigureCanvasAgg(drawn)
    above, foot = drawn.subfigs
    for axes in above.axes:
        axes.set_visible(False)  # their layout costs most, and moves neither text
    drawn.draw_without_rendering()
    for text in (above._suptitle, *foot.texts):
        assert text is not None
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1
        assert 0 <= box.y0 < box.y1 <= drawn.bbox.y1


def test_a_variant_shares_its_names_colour_and_has_a_line_of_its_own() -> None:
    looks = styles(["A", "B", "A, exact", "B, exact"])
    assert looks["A"].colour == looks["A, exact"].colour != looks["B"].colour
    assert [looks[label].line for label in ("A", "B", "A, exact", "B, exact")] == [LINES[0], LINES[0], *[LINES[1]] * 2]
    assert looks["A"].marker != looks["B"].marker


def test_rows_of_another_experiment_are_not_drawn() -> None:
    shown = experiment()
    table = [one.model_copy(update={"experiment": "other"}) for one in rows(shown)]
    with pytest.raises(BadParameter, match=r"rows are missing: panel 'ε = 0\.5', series 'A'"):
        matched(shown, table)


@pytest.mark.parametrize(
    "change",
    [{"run": {"horizon": 1001, "environment": WORLD}}, {"points": POINTS + 1}, {"name": "other"}],
    ids=["horizon", "points", "seeds"],
)
def test_rows_of_an_experiment_that_was_changed_since_are_refused(change: dict[str, object]) -> None:
    table = [one.model_copy(update={"experiment": str(change.get("name", "pair"))}) for one in rows(experiment())]
    with pytest.raises(BadParameter, match=r"panel 'ε = 0\.5', series 'A', repetition 0: a row of another run file"):
        matched(experiment().model_copy(update=change), table)


def test_the_rows_of_an_experiment_are_its_rows() -> None:
    shown = experiment()
    assert matched(shown, rows(shown)) == rows(shown)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        pytest.param({"kind": "pie"}, "kind", id="unknown-kind"),
        pytest.param({"colour": "red"}, "colour", id="unknown-key"),
        pytest.param({"kind": "by-panel", "value": []}, "must be one of the columns", id="no-value"),
        pytest.param({"kind": "by-panel", "value": ["bits", "bits"]}, "different ones", id="a-value-twice"),
        pytest.param({"kind": "by-panel", "key": "mechanism.name"}, "has no number there", id="key-without-a-number"),
        pytest.param({"kind": "finals", "uniform": True}, r"draw\.uniform = True: needs axes", id="uniform-at-T-alone"),
        pytest.param(
            {"kind": "by-panel", "value": "bits", "uniform": True}, "needs axes of regret", id="uniform-without-regret"
        ),
        pytest.param({"lines": {"fixed": 5.0}}, r'goes with kind = "regret"', id="a-line-over-averages"),
        pytest.param({"bits": True}, r"draw\.bits = True: needs kind", id="bits-over-time"),
        pytest.param({"kind": "by-panel", "bits": True}, "and split", id="bits-without-split"),
        pytest.param(
            {"kind": "by-panel", "split": True, "value": "bits"}, "must be 'regret'", id="a-split-of-other-columns"
        ),
        pytest.param({"face": "other"}, r"draw\.face = .other.: must be one of SE without privacy", id="no-algorithm"),
    ],
)
def test_a_bad_draw_table_is_refused_by_name(table: dict[str, object], fault: str) -> None:
    shown = experiment(**table)
    with pytest.raises(BadParameter, match=fault):
        figure(shown, rows(shown))


def test_the_same_rows_give_the_same_png_svg_and_pdf(tmp_path: Path) -> None:
    shown = experiment(panels=(0.5,))
    table = rows(shown)
    first, second = (draw(shown, table, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["one.png", "one.svg", "one.pdf"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert b"Smaller than life." in first[1].read_bytes()
    assert first[2].read_bytes().startswith(b"%PDF")
    assert b"/Subtype /Image" not in first[2].read_bytes()  # lines and letters, no picture of them


def test_a_png_and_a_pdf_say_which_rows_and_which_experiment_they_were_drawn_from(tmp_path: Path) -> None:
    shown = experiment(panels=(0.5,))
    table = rows(shown)
    png, _, pdf = draw(shown, table, tmp_path / "one")
    assert [drawn_from(one) for one in (png, pdf)] == [stamp(shown, table)] * 2
    slower = [one.model_copy(update={"seconds": 9.0}) for one in table]
    assert stamp(shown, slower) == stamp(shown, table)
    assert stamp(shown, [table[0].model_copy(update={"regret": 101.0}), *table[1:]]) != stamp(shown, table)
    assert stamp(shown.model_copy(update={"title": "Three curves"}), table) != stamp(shown, table)

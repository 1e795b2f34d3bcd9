"""Figures show the rows that they are given, and say what they leave out."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from common.errors import BadParameter
from lab.figures import draw, figure, matched
from lab.figures.draw import DPI, exponent
from lab.figures.stamp import stamp
from lab.figures.style import LINES, styles
from lab.sweep import Cell, Experiment, Row, known, load
from lab.sweep.cells import digest
from tests.published import drawn_from

POINTS = 5
WORLD = {"name": "bernoulli", "means": [0.2, 0.8]}


def experiment(panels: tuple[float, ...] = (0.5, 2.0), **draw_: object) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "pair",
            "title": "Two curves",
            "source": "nobody",
            "claim": "none",
            "note": "Smaller than life.",
            "repetitions": 3,
            "points": POINTS,
            "run": {"horizon": 1000, "environment": WORLD},
            "panels": [{"label": f"ε = {e}", "run": {"mechanism": {"name": "m", "epsilon": e}}} for e in panels],
            "series": [{"label": "A"}, {"label": "A, exact"}],
            "draw": {"kind": "time-average", **draw_},
        }
    )


def row(panel: str, series: str, repetition: int, regret: float) -> Row:
    return Row(
        experiment="pair",
        panel=panel,
        series=series,
        digest="",
        repetition=repetition,
        seed=repetition,
        policy="p",
        mechanism="m",
        calibration="exact",
        epsilon=float(panel.rpartition(" ")[2]) if panel.startswith("ε = ") else None,
        horizon=1000,
        clients=1000,
        regret=regret,
        chosen=0,
        best=0,
        best_dropped=False,
        best_dropped_at=None,
        widths=1,
        width_failures=0,
        failure=0.1,
        aborted=0,
        unfinished=0,
        payload_bits=8.0,
        modulus_bits=8.0,
        bits=8000.0,
        seconds=1.0,
        curve=[regret * (at + 1) / POINTS for at in range(POINTS)],
    )


def rows(shown: Experiment) -> list[Row]:
    """Regrets 100, 200, 300 for A, twice that for the other; ten times that in the second panel."""
    return [
        row(panel.label, series.label, r, 100.0 * (r + 1) * (1 + s) * 10**p).model_copy(
            update={"digest": digest(shown, Cell(panel.label, series.label, r))}
        )
        for p, panel in enumerate(shown.panels)
        for s, series in enumerate(shown.series)
        for r in range(3)
    ]


def axes_of(shown: Experiment, table: list[Row]) -> list[Axes]:
    return list(figure(shown, table).subfigs[0].axes)


def edges(axes: Axes, place: int) -> tuple[float, float]:
    """Lowest and highest point of a band at the right end of the x axis."""
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


def test_a_band_is_one_standard_deviation_of_a_repetition_on_either_side() -> None:
    shown = experiment(kind="regret")
    assert edges(axes_of(shown, rows(shown))[0], 0) == pytest.approx((100, 300))


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


def test_the_exponent_of_a_power_is_the_power() -> None:
    xs = np.array([10.0, 100.0, 1e4])
    assert exponent(xs, 7 * xs**1.2) == pytest.approx(1.2)


def test_regret_of_zero_has_a_place_on_a_log_axis() -> None:
    shown = experiment(panels=(0.5,))
    table = [row("ε = 0.5", label, r, 0.0 if label == "A" else 5.0) for label in ("A", "A, exact") for r in range(2)]
    (axes,) = axes_of(shown, table)
    assert axes.get_ylim()[0] == pytest.approx(5 / 1000 / 2)  # half of the least mean that is not 0


def test_nothing_but_zero_is_drawn_too() -> None:
    shown = experiment(panels=(0.5,))
    table = [row("ε = 0.5", label, 0, 0.0) for label in ("A", "A, exact")]
    assert len(axes_of(shown, table)) == 1


def test_the_note_the_source_and_the_repetitions_are_on_the_figure() -> None:
    shown = experiment()
    (note,) = figure(shown, rows(shown)).subfigs[1].texts
    assert note.get_text() == "nobody. Mean and standard deviation, 3 repetitions. Smaller than life."


@pytest.mark.parametrize("name", known())
def test_title_and_note_of_every_figure_fit_its_paper(name: str) -> None:
    shown = load(name).model_copy(update={"quick": True})
    table = [row(p.label, s.label, 0, 1.0) for p, s in shown.pairs()]
    drawn = figure(shown, table)
    drawn.set_dpi(DPI)  # the letters' widths are whole pixels
    FigureCanvasAgg(drawn).draw()
    above, foot = drawn.subfigs
    for text in (above._suptitle, *foot.texts):
        assert text is not None
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= drawn.bbox.x1
        assert 0 <= box.y0 < box.y1 <= drawn.bbox.y1


def test_a_quick_version_says_so() -> None:
    shown = experiment().model_copy(update={"quick": True})
    (note,) = figure(shown, rows(shown)).subfigs[1].texts
    assert note.get_text().startswith("QUICK VERSION. ")


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
        pytest.param({"kind": "by-panel", "key": "mechanism.name"}, "has no number there", id="key-without-a-number"),
    ],
)
def test_a_bad_draw_table_is_refused_by_name(table: dict[str, object], fault: str) -> None:
    shown = experiment(**table)
    with pytest.raises(BadParameter, match=fault):
        figure(shown, rows(shown))


def test_the_same_rows_give_the_same_png_and_svg(tmp_path: Path) -> None:
    shown = experiment(panels=(0.5,))
    table = rows(shown)
    first, second = (draw(shown, table, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == ["one.png", "one.svg"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert b"Smaller than life." in first[1].read_bytes()


def test_a_png_says_which_rows_and_which_experiment_it_was_drawn_from(tmp_path: Path) -> None:
    shown = experiment(panels=(0.5,))
    table = rows(shown)
    assert drawn_from(draw(shown, table, tmp_path / "one")[0]) == stamp(shown, table)
    slower = [one.model_copy(update={"seconds": 9.0}) for one in table]
    assert stamp(shown, slower) == stamp(shown, table)
    assert stamp(shown, [table[0].model_copy(update={"regret": 101.0}), *table[1:]]) != stamp(shown, table)
    assert stamp(shown.model_copy(update={"title": "Three curves"}), table) != stamp(shown, table)

"""Tests that charts as SVG draw every requested interval at its numbers."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from distrust.server.dashboard.charts import (
    DRAWN_ROUNDS,
    MOST_ARMS,
    Bar,
    Line,
    Scale,
    curves,
    intervals,
    nice_ticks,
    thinned,
)

SVG = "{http://www.w3.org/2000/svg}"


def shapes(markup: str, kind: str) -> list[dict[str, str]]:
    """Return the attributes of the elements with a class."""
    tree = ET.fromstring(markup)
    return [dict(one.attrib) for one in tree.iter() if kind in one.get("class", "").split()]


def test_each_interval_is_a_bar_from_its_lower_to_its_upper_end() -> None:
    rounds = [
        (1, [Bar(0, 0.1, 0.4, 0.7, "chosen"), Bar(1, 0.0, 0.3, 0.6, "dropped", last=True)]),
        (2, [Bar(0, 0.3, 0.45, 0.6, "chosen")]),
    ]
    drawn = shapes(intervals(rounds), "bar")
    ends = nice_ticks(0.0, 0.7)
    y = Scale(ends[0], ends[-1], 340 - 44, 12)
    assert [(float(one["y1"]), float(one["y2"])) for one in drawn] == [
        (y(low), y(high)) for low, high in ((0.1, 0.7), (0.0, 0.6), (0.3, 0.6))
    ]
    assert [one["class"] for one in drawn] == ["bar chosen", "bar dropped", "bar chosen"]
    assert float(drawn[0]["x1"]) < float(drawn[1]["x1"]) < float(drawn[2]["x1"])


def test_early_intervals_that_are_far_wider_are_cut_so_that_later_ones_can_be_read() -> None:
    widths = [8.0, 4.0, 0.4, 0.2]
    rounds = [(n, [Bar(0, 0.5 - w / 2, 0.5, 0.5 + w / 2, "active")]) for n, w in enumerate(widths, start=1)]
    markup = intervals(rounds)
    heights = [float(shape["y1"]) - float(shape["y2"]) for shape in shapes(markup, "bar")]
    assert heights[0] == heights[1] == 340 - 44 - 12
    assert heights[3] == pytest.approx(heights[2] / 2, abs=0.02)
    assert heights[2] > 0.9 * heights[1]
    assert "arm 0, round 1: 0.5000 in [-3.5000, 4.5000]" in markup
    assert "Wider ones are cut at the edges." in markup
    assert "mean reward; wider intervals cut" in markup


@pytest.mark.parametrize("highest", [1.0, 0.0008, 2.5e-05, -0.0125, 987654.0])
def test_the_name_of_the_upright_axis_stands_beside_its_numbers(highest: float) -> None:
    markup = curves("t", "x", "y", [Line("a", "first", [(0, 0.0), (5, highest)])])
    ticks = [one for one in ET.fromstring(markup).iter() if one.get("class") == "tick"]
    numbers = [one for one in ticks if one.get("text-anchor") == "end"]
    assert len(numbers) > 2
    for one in numbers:
        # A digit of 12 px is 7 wide. The name is 13 high, around x = 11.
        assert float(one.get("x", "0")) - 7 * len(one.text or "") > 11 + 4


def test_names_of_arms_do_not_cover_each_other() -> None:
    rounds = [
        (n, [Bar(arm, 0.5 - 1 / n, 0.5, 0.5 + 1 / n, "active") for arm in range(10) if arm < 9 or n < 9])
        for n in range(1, 11)
    ]
    places = [(float(shape["x"]), float(shape["y"])) for shape in shapes(intervals(rounds), "arm")]
    assert len(places) == 10
    assert all(abs(x - u) >= 44 or abs(y - v) >= 14 for i, (x, y) in enumerate(places) for u, v in places[:i])


def test_names_of_curves_that_fall_to_the_axis_cover_neither_axis() -> None:
    short, long = [(0.0, 9.0), (300.0, 0.5)], [(0.0, 9.0), (15_000.0, 0.2)]
    markup = curves("widths", "pulls", "width", [Line("short", "first", short), Line("long", "second", long)])
    names = shapes(markup, "mark")
    assert all(float(name["y"]) < 340 - 44 for name in names)
    assert [one["text-anchor"] for one in names] == ["start", "end"]
    assert float(names[0]["x"]) > 56


def test_an_arm_that_fell_has_a_cross_at_its_last_estimate_and_the_others_dots() -> None:
    rounds = [(1, [Bar(0, 0.1, 0.4, 0.7, "chosen"), Bar(1, 0.0, 0.3, 0.6, "dropped", last=True)])]
    markup = intervals(rounds)
    assert len(shapes(markup, "fell")) == 1
    assert "arm 1 was dropped after round 1" in markup
    assert [shape["class"] for shape in shapes(markup, "chosen") if "cx" in shape] == ["chosen"]


def test_the_picture_is_described_for_readers_who_do_not_see_it() -> None:
    markup = intervals([(1, [Bar(0, 0.0, 0.5, 1.0, "active")]), (2, [Bar(0, 0.4, 0.6, 0.8, "active")])])
    text = re.search(r"<desc[^>]*>(.*?)</desc>", markup)
    assert text is not None
    assert text[1] == (
        "Intervals of 1 arms over 2 rounds. The widest goes from 1 to 0.4, narrower each round. "
        "Arm 0 has the largest estimate, 0.6000."
    )


def test_of_many_rounds_and_arms_the_last_round_and_the_best_arms_are_drawn() -> None:
    rounds = [(number, [Bar(arm, 0.0, arm / 100, 1.0, "active") for arm in range(40)]) for number in range(1, 1001)]
    kept = thinned(rounds)
    assert (len(kept), kept[0][0], kept[-1][0]) == (DRAWN_ROUNDS, 1, 1000)
    markup = intervals(rounds)
    assert len(shapes(markup, "bar")) == DRAWN_ROUNDS * MOST_ARMS
    assert "arm 39, round 1000" in markup
    assert "arm 15, " not in markup


def test_a_curve_goes_through_its_points() -> None:
    line = Line("a", "first", [(0, 0.0), (50, 10.0), (100, 15.0)])
    (path,) = shapes(curves("t", "pulls", "regret", [line]), "curve")
    ends = nice_ticks(0, 15)
    x, y = Scale(0, 100, 56, 720 - 24), Scale(ends[0], ends[-1], 340 - 44, 12)
    assert path["d"] == "M" + "L".join(f"{x(a)} {y(b)}" for a, b in line.points)


def test_a_long_curve_is_drawn_to_its_end_with_fewer_points() -> None:
    line = Line("a", "first", [(pulls, float(pulls)) for pulls in range(1, 10_001)])
    (path,) = shapes(curves("t", "pulls", "regret", [line]), "curve")
    assert path["d"].count("L") == DRAWN_ROUNDS - 1
    assert path["d"].endswith("L696.0 12.0")


def test_names_are_escaped_in_a_chart() -> None:
    markup = curves("<b>", "x", "y", [Line("</svg><script>", "first", [(1, 1.0)])])
    assert "<script>" not in markup
    assert "&lt;/svg&gt;&lt;script&gt;" in markup
    ET.fromstring(markup)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-0.31, 0.72), (0, 31000), (1e-7, 3e-7), (5, 5), (0, 0), (-3, -3), (0, 1e9)]
)
def test_ticks_cover_the_range_evenly(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    steps = [later - earlier for earlier, later in pairwise(ticks)]
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 8
    assert all(step == pytest.approx(steps[0]) for step in steps)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 5e-324), (0, 1e-300), (0, 1e-13), (0, 2.0**-62), (0.3, 0.1 + 0.2), (1.0, 1 + 1e-11), (1e17, 1e17 + 16)],
)
def test_ends_of_an_axis_differ_however_close_its_values_are(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 12
    for value in (low, high):
        assert 0 <= Scale(ticks[0], ticks[-1], 0, 100)(value) <= 100

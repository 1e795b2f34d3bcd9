"""Charts as SVG: every interval that is asked for is drawn, where its numbers say."""

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from distrust.server.dashboard.charts import (
    MOST_ARMS,
    MOST_ROUNDS,
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


def test_an_arm_that_fell_has_a_cross_at_its_last_estimate_and_the_others_dots() -> None:
    rounds = [(1, [Bar(0, 0.1, 0.4, 0.7, "chosen"), Bar(1, 0.0, 0.3, 0.6, "dropped", last=True)])]
    markup = intervals(rounds)
    assert len(shapes(markup, "fell")) == 1
    assert "arm 1 was dropped after round 1" in markup
    assert [one["class"] for one in shapes(markup, "chosen") if "cx" in one] == ["chosen"]


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
    assert (len(kept), kept[0][0], kept[-1][0]) == (MOST_ROUNDS, 1, 1000)
    markup = intervals(rounds)
    assert len(shapes(markup, "bar")) == MOST_ROUNDS * MOST_ARMS
    assert "arm 39, round 1000" in markup
    assert "arm 15, " not in markup


def test_a_curve_goes_through_its_points() -> None:
    line = Line("a", "first", [(0, 0.0), (50, 10.0), (100, 15.0)])
    (path,) = shapes(curves("t", "pulls", "regret", [line]), "curve")
    ends = nice_ticks(0, 15)
    x, y = Scale(0, 100, 56, 720 - 16), Scale(ends[0], ends[-1], 340 - 44, 12)
    assert path["d"] == "M" + "L".join(f"{x(a)} {y(b)}" for a, b in line.points)


def test_a_long_curve_is_drawn_to_its_end_with_fewer_points() -> None:
    line = Line("a", "first", [(pulls, float(pulls)) for pulls in range(1, 10_001)])
    (path,) = shapes(curves("t", "pulls", "regret", [line]), "curve")
    assert path["d"].count("L") == MOST_ROUNDS - 1
    assert path["d"].endswith("L704.0 12.0")


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

"""Tests that figures have the best numbers of one grid for all policies that have them, on other instances.

The grids are experiments of lab/experiments/tuning. Their rows are published, and generalized-linear.md shows the
means of GLB's, docs/concepts/contextual.md those of CTX's.
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from distrust.common.specs.contextual import WARM_UP_SHARE
from distrust.lab.play.lock_step import play_together
from distrust.lab.play.run_file import parse_table
from distrust.lab.sweep.cells import cell_run_file, load_experiment, run_table
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell
from tests.support.claims import PublishedRows, published
from tests.support.published import ROOT, TUNINGS

PAGES = {
    paper: (ROOT / "docs/concepts" / page).read_text("utf-8")
    for paper, page in {"ctx": "contextual.md", "glb": "generalized-linear.md"}.items()
}

Words = dict[str, Any]


class Tuning(NamedTuple):
    """A grid and the figure that has the best of it.

    labels  policies, as the tuning's series begin.
    grid    what the policies' tables differ in, in the order of the series.
    ending  of the labels of the figure's series.
    later   keys of the figure's policies that the tuning has at another value: they were tuned after it.
    """

    figure: str
    labels: tuple[str, ...]
    grid: list[Words]
    ending: str = ""
    later: tuple[str, ...] = ()


LINUCB = (
    "LinUCB",
    "LinUCB-JDP",
    "LinUCB-SDP-Amp",
    "LinUCB-JDP by factorization",
    "LinUCB-SDP-Vec",
    "secure aggregation",
    "LinUCB-LDP",
)
WIDTHS: list[Words] = [{"width_scale": scale} for scale in (1.0, 0.5, 0.25, 0.125, 0.0625, 0.0)]
TUNED = {
    "ctx-1-widths": Tuning("ctx-1", LINUCB, WIDTHS, ", batched, β tuned"),
    "glb-1-clips": Tuning(
        "glb-1",
        ("LDP-SGD",),
        [{"clip": clip, "step": step} for clip in (0.25, 0.5, 1.0) for step in (1.0, 3.0, 10.0, 30.0)],
        ", clipped",
    ),
    "glb-1-margins": Tuning(
        "glb-1",
        ("LDP-OLS", "LDP-SGD"),
        [{"margin": margin} for margin in (0.01, 0.03, 0.1, 0.3, "inf")],
        later=("warm_up_share",),
    ),
    "glb-1-steps": Tuning(
        "glb-1",
        ("LDP-SGD", "LDP-GLOC"),
        [{"step": step} for step in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)],
        later=("margin", "warm_up_share"),  # played with a margin of 0.1, before the margins were compared
    ),
    "glb-1-warm-ups": Tuning(
        "glb-1", ("LDP-OLS", "LDP-SGD"), [{"warm_up_share": share} for share in (0.003, 0.01, 0.03, 0.1, 0.3)]
    ),
    "glb-f1-steps": Tuning(
        "glb-f1", ("LDP-SGD", "LDP-GLOC"), [{"step": step} for step in (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)]
    ),
}


@cache
def loaded(name: str) -> Experiment:
    return load_experiment(TUNINGS.get(name, name))


def tried(name: str, label: str) -> list[str]:
    """Return the series of one policy, in the grid's order."""
    return [one.label for one in loaded(name).series if one.label.startswith(f"{label}, ")]


def best(name: str, panel: str, label: str) -> str:
    """Return the series of one policy that has the least mean regret."""
    table = published(name)
    return min(tried(name, label), key=lambda series: table.mean(panel, series))


def table_of(name: str, panel: str, series: str) -> Words:
    """Return the run file of a panel and series, without its name and seeds."""
    experiment = loaded(name)
    (first,) = (one for one in experiment.panels if one.label == panel)
    (second,) = (one for one in experiment.series if one.label == series)
    return experiment.table(first, second)


def without(table: Words, keys: tuple[str, ...]) -> Words:
    """Return a run file whose policy lacks these keys, and a share of the warm-up that is the default."""
    policy = {key: value for key, value in table["policy"].items() if key not in keys}
    if policy.get("warm_up_share") == 1 / WARM_UP_SHARE:
        del policy["warm_up_share"]
    return {**table, "policy": policy}


def test_every_tuning_is_named_here() -> None:
    assert list(TUNINGS) == list(TUNED)


@pytest.mark.parametrize("name", TUNED)
def test_every_policy_has_one_grid_and_the_figure_has_the_best_of_it(name: str) -> None:
    """The tuning's run files are the figure's, but for their seeds, the numbers, and what was tuned later."""
    tuning = TUNED[name]
    for panel in published(name).panels:
        for label in tuning.labels:
            policies = [table_of(name, panel, series)["policy"] for series in tried(name, label)]
            assert [{key: policy[key] for key in tuning.grid[0]} for policy in policies] == tuning.grid
            drawn = table_of(tuning.figure, panel, label + tuning.ending)
            chosen = table_of(name, panel, best(name, panel, label))
            assert without(drawn, tuning.later) == without(chosen, tuning.later)


def test_tunings_meet_other_clients_than_their_figures_and_each_other() -> None:
    names = [*TUNED, *{tuning.figure for tuning in TUNED.values()}]
    firsts = [(loaded(name), Cell(*published(name).rows[0].cell)) for name in names]
    seeds = {cell_run_file(experiment, cell).environment.seed for experiment, cell in firsts}
    assert len(seeds) == len(names)


def test_no_linucb_is_best_with_its_proven_width_or_greedy_and_the_grid_is_wide_enough() -> None:
    for panel in published("ctx-1-widths").panels:
        for label in LINUCB:
            places = tried("ctx-1-widths", label)
            assert places.index(best("ctx-1-widths", panel, label)) in {1, 2, 3}


def spread(table: PublishedRows, panel: str, series: str) -> str:
    """Return mean regret and its standard error, as in `1,234 (56)`."""
    regret = table.regret(panel, series)
    return f"{regret.mean():,.0f} ({regret.std(ddof=1) / np.sqrt(len(regret)):,.0f})"


def lines(name: str) -> Iterator[str]:
    """Yield the lines of one tuning on the page: a policy and panel each, the least mean in bold."""
    table = published(name)
    for label in TUNED[name].labels:
        for panel in table.panels:
            cells = []
            for series in tried(name, label):
                mean, _, error = spread(table, panel, series).partition(" ")
                chosen = series == best(name, panel, label)
                cells.append(f"**{mean}** {error}" if chosen else f"{mean} {error}")
            yield f"| {label}, {panel} | {' | '.join(cells)} |"


@pytest.mark.parametrize("name", TUNED)
def test_the_page_shows_the_means_of_the_published_rows(name: str) -> None:
    expected, page = list(lines(name)), PAGES[name.partition("-")[0]]
    assert expected
    assert [one for one in expected if f"\n{one}\n" not in page] == []


@pytest.mark.parametrize(
    ("name", "panel", "series", "points"),
    [
        ("glb-1-steps", "one parameter, ε = 5", "LDP-SGD, step 10", 1),
        ("glb-1-steps", "one parameter, ε = 1", "LDP-GLOC, step 0.03", 1),
        ("glb-1-margins", "one an arm, ε = 5", "LDP-SGD, margin 0.3", 2),
        ("ctx-1-widths", "ε = 1", "secure aggregation, width 0.25", 1),
        ("glb-f1-steps", "ε = 5", "LDP-SGD, step 256", 1),
    ],
)
@pytest.mark.few(2)
def test_the_first_tenths_of_a_run_that_is_played_again_are_those_of_its_row(
    name: str, panel: str, series: str, points: int
) -> None:
    """A shorter run begins like the whole one if all that follows from T is kept.

    These are the warm-up's length, the failure probability of each round, and LDP-GLOC's steps over √T.
    """
    cell = Cell(panel, series, 0)
    words = run_table(loaded(name), cell)
    policy, horizon, share = dict(words["policy"]), words["horizon"], points / loaded(name).points
    if words["environment"].get("parameters") == "multi":
        policy["warm_up"] = horizon // 10
    if policy["name"] == "ldp-gloc":
        policy["step"] *= math.sqrt(share)
    policy["failure"] = share / horizon
    (played,) = play_together([parse_table({**words, "policy": policy, "horizon": round(share * horizon)})])
    (row,) = (one for one in published(name).rows if one.cell == cell)
    result = played.regret[[len(played.regret) * (point + 1) // points - 1 for point in range(points)]]
    assert result == pytest.approx(row.curve[:points], rel=1e-12)

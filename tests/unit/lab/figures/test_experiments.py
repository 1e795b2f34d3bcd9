"""The experiments that come with the package are the papers': horizons, sizes, repetitions."""

from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from lab.figures.drawing import drawing
from lab.sweep import Experiment, known, load

ROOT = Path(__file__).parents[4]
PAPERS = [name for name in known() if name != "smoke"]


@pytest.fixture(scope="module")
def loaded() -> dict[str, Experiment]:
    with threadpool_limits(1):
        return {name: load(name) for name in PAPERS}


def test_every_figure_of_mab_dlb_and_free_is_there() -> None:
    mab = [f"mab-{number}" for number in range(1, 6)]
    dlb = ["dlb-2a", "dlb-2b", "dlb-2c", "dlb-table-1", "dlb-table-2"]
    assert sorted([*mab, *dlb, "free-2", "free-3", "free-4"]) == PAPERS


@pytest.mark.parametrize(
    ("name", "horizon", "arms"),
    [
        ("mab-2", 10**6, 10),
        ("mab-3", 10**7, 10),
        ("mab-4", 10**6, 10),
        ("mab-5", 10**6, 50),
        ("dlb-2a", 10**6, 1000),
        ("dlb-2b", 10**6, 1000),
        ("dlb-2c", 10**6, 1000),
        ("free-2", 10**6, 10),
        ("free-3", 10**7, 1000),
        ("free-4", 10**6, 1000),
    ],
)
def test_a_figure_has_the_papers_horizon_arms_and_repetitions(
    name: str, horizon: int, arms: int, loaded: dict[str, Experiment]
) -> None:
    experiment = loaded[name]
    tables = [experiment.table(panel, series) for panel, series in experiment.pairs()]
    assert {table["horizon"] for table in tables} == {horizon}
    assert {table["environment"].get("arms", 10) for table in tables} == {arms}
    assert experiment.repetitions == 20


def test_a_figure_says_what_it_shows_and_how_it_is_drawn(loaded: dict[str, Experiment]) -> None:
    for experiment in loaded.values():
        assert experiment.source
        assert experiment.claim
        assert drawing(experiment).kind in {"time-average", "by-panel"}


def test_nobody_drops_out_and_nobody_colludes_as_in_the_papers(loaded: dict[str, Experiment]) -> None:
    for experiment in loaded.values():
        for panel, series in experiment.pairs():
            spec = experiment.table(panel, series)["intermediary"]
            assert (spec["dropout"], spec["corrupt"], spec["minimum"]) == (0.0, 0.0, 1)


@pytest.mark.slow
def test_every_quick_version_is_smaller() -> None:
    with threadpool_limits(1):
        for name in PAPERS:
            whole, quick = load(name), load(name, quick=True)
            assert len(list(quick.pairs())) * quick.repetitions < len(list(whole.pairs())) * whole.repetitions


def test_docs_show_every_figure_with_its_command() -> None:
    text = (ROOT / "docs" / "figures.md").read_text("utf-8")
    for name in PAPERS:
        assert f"distrust figure {name}`" in text
        assert f"(figures/{name}.png)" in text
        assert (ROOT / "docs" / "figures" / f"{name}.png").stat().st_size > 10_000

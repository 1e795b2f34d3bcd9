"""Tests that the shipped experiments have the papers' horizons, sizes and repetitions."""

import math
from functools import cache
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from distrust.common.errors import BudgetExceeded
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.figures.drawing import drawing
from distrust.lab.play.run_file import parse_table
from distrust.lab.sweep.cells import known_experiments, load_experiment, read_experiment
from distrust.lab.sweep.experiment import Experiment, Overlay, merged
from distrust.server.learner.learner import Learner

ROOT = Path(__file__).parents[4]
OURS = ["ctx-bits", "ctx-code", "glb-1-40", "mab-2-200", "mab-returning", "mab-scale", "mab-shuffle", "models"]
"""Experiments of what no figure of the papers shows."""
PAPERS = [name for name in known_experiments() if name != "smoke"]


PURE, RENYI, ADVANCED = "Dist-DP-SE", "Dist-RDP-SE", "Dist-RDP-SE, advanced composition"


@pytest.fixture(scope="module")
def loaded() -> dict[str, Experiment]:
    """Return the experiments by name. tests/unit/lab/sweep/test_experiment.py tests that each can be played."""
    return {name: read_experiment(name) for name in PAPERS}


def test_every_figure_of_the_papers_is_there() -> None:
    mab = [f"mab-{number}" for number in range(1, 6)]
    dlb = ["dlb-2a", "dlb-2b", "dlb-2c", "dlb-table-1", "dlb-table-2"]
    assert sorted(["ctx-1", "ctx-2", *mab, *dlb, "free-2", "free-3", "free-4", "glb-1", "glb-f1", *OURS]) == PAPERS


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
        ("ctx-1", 20_000, 100),
        ("ctx-2", 20_000, 100),
        ("glb-1", 10**5, 10),
        ("glb-f1", 10**5, 25),
    ],
)
def test_a_figure_has_the_papers_horizon_arms_and_repetitions(
    name: str, horizon: int, arms: int, loaded: dict[str, Experiment]
) -> None:
    experiment = loaded[name]
    tables = [experiment.table(panel, series) for panel, series in experiment.all_pairs()]
    assert {table["horizon"] for table in tables} == {horizon}
    worlds = [table["environment"] for table in tables]
    assert {world.get("arms", 25 if world["name"] == "auto-lending" else 10) for world in worlds} == {arms}
    assert experiment.repetitions == {"ctx-1": 50, "ctx-2": 50, "glb-1": 10, "glb-f1": 10}.get(name, 20)


def test_a_figure_says_what_it_shows_and_how_it_is_drawn(loaded: dict[str, Experiment]) -> None:
    for experiment in loaded.values():
        assert experiment.source
        assert experiment.claim
        assert drawing(experiment).kind in {"time-average", "by-panel", "finals", "regret", "trade-off"}


@pytest.mark.parametrize(("series", "delta"), [(PURE, 0.0), (f"{PURE}, composed at δ", 1e-6), (RENYI, 1e-6)])
def test_a_returning_client_spends_its_budget_and_no_more(series: str, delta: float) -> None:
    """ε = 0.5 in all for R contributions; a five-hundredth more for each of them is refused before the first round."""
    with threadpool_limits(1):
        for panel in returning().panels:
            Learner(budgeted(panel, series, delta))
            with pytest.raises(BudgetExceeded):
                Learner(budgeted(panel, series, delta, more=1.002))


def test_advanced_composition_is_the_papers_and_stays_within_the_budget() -> None:
    """Equation 14, to four digits; R = 1 needs no composition."""
    with threadpool_limits(1):
        for panel in returning().panels:
            config = budgeted(panel, ADVANCED, 1e-6)
            times, each = config.contributions, config.mechanism
            assert each.epsilon is not None
            assert each.delta is not None
            if times > 1:
                assert each.epsilon == pytest.approx(0.5 / (2 * math.sqrt(2 * times * math.log(2e6))), rel=1e-3)
                assert each.delta == pytest.approx(1e-6 / (2 * times))
            Learner(config)


@cache
def returning() -> Experiment:
    return load_experiment("mab-returning")


def budgeted(panel: Overlay, series: str, delta: float, *, more: float = 1.0) -> RunConfig:
    """Return a pair's run with a declared budget, the system's randomness, and batches of 4,096 clients at first."""
    (overlay,) = (one for one in returning().series if one.label == series)
    plain = returning().table(panel, overlay)
    epsilon = plain["mechanism"]["epsilon"] * more
    whole = merged(
        plain,
        {
            "run": "budgeted",
            "environment": {"seed": 1},
            "mechanism": {"epsilon": epsilon},
            "policy": {"first_batch": 12},
            "budget": {"epsilon": 0.5, "delta": delta},
        },
    )
    return parse_table(whole).config


def test_no_client_drops_out_and_none_colludes_as_in_the_papers(loaded: dict[str, Experiment]) -> None:
    for experiment in loaded.values():
        for panel, series in experiment.all_pairs():
            spec = experiment.table(panel, series)["intermediary"]
            assert (spec["dropout"], spec["corrupt"], spec["minimum"]) == (0.0, 0.0, 1)


@pytest.mark.slow
def test_every_quick_version_is_smaller() -> None:
    with threadpool_limits(1):
        for name in PAPERS:
            whole, quick = load_experiment(name), load_experiment(name, quick=True)
            assert len(list(quick.all_pairs())) * quick.repetitions < len(list(whole.all_pairs())) * whole.repetitions


def test_docs_show_every_figure_with_its_command() -> None:
    index = (ROOT / "docs" / "figures.md").read_text("utf-8")
    for name in PAPERS:
        page = f"figures/{name.partition('-')[0]}.md"
        assert f"({page})" in index
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert f"distrust figure {name}`" in text
        assert f"({name}.png)" in text
        assert (ROOT / "docs" / "figures" / f"{name}.png").stat().st_size > 10_000

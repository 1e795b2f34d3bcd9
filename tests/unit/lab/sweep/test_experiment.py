"""Tests that an experiment's tables give run files, seeds and digests, and that bad ones are refused."""

import copy
from pathlib import Path
from typing import Any

import pytest

from distrust.common.errors import ProtocolError
from distrust.lab.play import in_process
from distrust.lab.sweep.cells import (
    BadExperiment,
    all_cells,
    cell_digest,
    cell_run_file,
    known_experiments,
    load_experiment,
    read_experiment,
    run_table,
)
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.experiment import removed
from distrust.lab.sweep.row import Cell
from tests.support.experiments import small

POOR = """
[[panels]]
label = "poor"
run.budget.epsilon = 0.5"""


@pytest.mark.parametrize("name", known_experiments())
@pytest.mark.few(8)
def test_every_experiment_that_comes_along_can_be_run_whole_and_quick(name: str) -> None:
    for quick in (False, True):
        experiment = load_experiment(name, quick=quick)
        assert (experiment.name, experiment.quick) == (name, quick)
        each = sum(experiment.repetitions_of(series) for series in experiment.series)
        assert len(list(all_cells(experiment))) == len(experiment.panels) * each


def test_panels_are_laid_on_the_run_and_series_on_both(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path))
    private = cell_run_file(experiment, Cell("wide", "private", 0)).config.mechanism
    public = cell_run_file(experiment, Cell("wide", "public", 0)).config.mechanism
    assert (private.name, private.epsilon) == ("distributed-polya", 4.0)
    assert (public.name, public.epsilon) == ("identity", None)
    assert cell_run_file(experiment, Cell("narrow", "private", 0)).config.mechanism.epsilon == 1.0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run.environment.means = [0.5]", {"name": "bernoulli", "means": [0.5]}),
        ("run.environment = 7", 7),
        ("run.horizon.of = 1", {"name": "bernoulli", "means": [0.2, 0.5, 0.9]}),
    ],
    ids=["lists-are-replaced", "a-table-by-a-number", "a-number-by-a-table"],
)
def test_what_is_no_table_is_replaced_and_the_run_stays_what_it_was(line: str, expected: Any, tmp_path: Path) -> None:
    experiment = read_experiment(small(tmp_path, ('label = "wide"', f'label = "wide"\n{line}')))
    before = copy.deepcopy(experiment.run)
    (wide, _), series = experiment.panels, experiment.series[0]
    assert experiment.table(wide, series)["environment"] == expected
    assert experiment.run == before


def test_a_key_that_is_left_out_may_be_missing_and_the_table_stays_what_it_was() -> None:
    table = {"a": {"x": 1, "y": [1, 2]}, "b": 2}
    assert removed(table, ["a.x", "a.z", "b.e", "c.d"]) == {"a": {"y": [1, 2]}, "b": 2}
    assert table["a"] == {"x": 1, "y": [1, 2]}


PAIR = ("[quick]", '[[pairs]]\npanel = "wide"\nseries = "private"\nrun.mechanism.epsilon = 2.5\n\n[quick]')


def test_a_pair_is_laid_on_panel_and_series_and_on_no_other(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path, PAIR))
    result = {cell[:2]: cell_run_file(experiment, cell).config.mechanism.epsilon for cell in all_cells(experiment)}
    assert [result[pair] for pair in result] == [2.5, None, 1.0, None]


def test_a_series_may_be_played_less_often_than_the_others(tmp_path: Path) -> None:
    path = small(tmp_path, ('label = "public"', 'label = "public"\nrepetitions = 2'))
    played = [(cell.series, cell.repetition) for cell in all_cells(load_experiment(path)) if cell.panel == "wide"]
    assert played == [("private", 0), ("private", 1), ("private", 2), ("public", 0), ("public", 1)]
    assert len(list(all_cells(load_experiment(path, repetitions=1)))) == 4
    assert load_experiment(path).digest == load_experiment(small(tmp_path)).digest


def test_checkpoints_on_a_log_scale_cover_two_decades_in_whole_pulls(tmp_path: Path) -> None:
    even, log = (
        load_experiment(small(tmp_path, *change)) for change in ((), [("points = 4", 'points = 4\nspacing = "log"')])
    )
    assert even.places(2000).tolist() == [500, 1000, 1500, 2000]
    assert log.places(2000).tolist() == [63, 200, 632, 2000]
    assert log.places(20).tolist() == [1, 2, 6, 20]
    cell = next(all_cells(even))
    assert cell_digest(even, cell) != cell_digest(log, cell)


def test_quick_is_laid_over_the_whole_experiment(tmp_path: Path) -> None:
    path = small(tmp_path)
    whole, quick = load_experiment(path), load_experiment(path, quick=True)
    assert (whole.repetitions, whole.run["horizon"]) == (3, 2000)
    assert (quick.repetitions, quick.run["horizon"], quick.points) == (1, 500, 4)
    assert load_experiment(path, quick=True, repetitions=2).repetitions == 2
    assert whole.digest != quick.digest


def test_a_repetition_is_one_world_for_all_and_its_noise_is_each_cells_own(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path))
    tables = {cell: run_table(experiment, cell) for cell in all_cells(experiment)}
    seeds = {cell: one["environment"]["seed"] for cell, one in tables.items()}
    assert len(set(seeds.values())) == experiment.repetitions
    assert {(cell.repetition, seed) for cell, seed in seeds.items()} == {
        (repetition, seeds[Cell("wide", "public", repetition)]) for repetition in range(3)
    }
    assert len({table["unsafe"]["noise_seed"] for table in tables.values()}) == len(tables)


def test_series_of_a_panel_get_the_same_rewards_and_other_panels_others(tmp_path: Path) -> None:
    same = ("without = [", 'run.mechanism.calibration = "paper"\nwithout = [')
    experiment = load_experiment(
        small(
            tmp_path,
            (
                'run.mechanism.name = "distributed-polya"',
                'run.mechanism.name = "identity"\nwithout = ["mechanism.epsilon"]',
            ),
            same,
        )
    )
    played = {
        cell: in_process.run(cell_run_file(experiment, cell)) for cell in all_cells(experiment) if cell.repetition == 0
    }
    first = {cell: result.rounds[0].cohorts for cell, result in played.items()}
    assert first[Cell("wide", "private", 0)] == first[Cell("wide", "public", 0)]
    estimates = [[one.estimate for one in first[Cell(panel, "public", 0)]] for panel in ("wide", "narrow")]
    assert estimates[0] != estimates[1]


def test_the_digest_is_of_what_cells_depend_on(tmp_path: Path) -> None:
    digest = load_experiment(small(tmp_path)).digest
    for same in ('title = "small"', 'title = "other"'), ("repetitions = 3", "repetitions = 9"), ('"regret"', '"table"'):
        assert load_experiment(small(tmp_path, same)).digest == digest
    for other in ("horizon = 2000", "horizon = 2001"), ("points = 4", "points = 5"), ("epsilon = 4.0", "epsilon = 3.0"):
        assert load_experiment(small(tmp_path, other)).digest != digest
    assert load_experiment(small(tmp_path, name="renamed")).digest != digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(("repetitions = 3", "repetitions = 0"), r"repetitions = 0: must be at least 1", id="repetitions"),
        pytest.param(("run.mechanism.epsilon = 4.0", "run = 4"), "run = 4: must be a table of keys", id="no-table"),
        pytest.param(("points = 4", "pionts = 4"), "pionts = 4: unknown key, did you mean points", id="misspelt"),
        pytest.param(("horizon = 2000", "horizon = ["), "not TOML", id="not-toml"),
        pytest.param(("horizon = 2000", "horizon = 3"), "panel 'wide', series 'private': horizon = 3: must be", id="T"),
        pytest.param(
            ("first_batch", "fisrt"), "panel 'wide', series 'private': policy.fisrt = 4: unknown", id="policy"
        ),
        pytest.param(
            ("run.mechanism.epsilon = 4.0", "run.mechanism.epsilon = -4.0"),
            "small, panel 'wide', series 'private': mechanism.epsilon = -4.0: must lie in",
            id="epsilon",
        ),
        pytest.param(
            ('without = ["mechanism.epsilon"]', 'run.policy = { name = "dp-pe" }\nwithout = ["policy.first_batch"]'),
            "series 'public': policy.name = 'dp-pe': dp-pe needs a linear environment",
            id="a-policy-that-does-not-fit",
        ),
        pytest.param(
            ('without = ["mechanism.epsilon"]', 'without = ["mechanism.epsilom"]'), "no such key", id="nothing-to-leave"
        ),
        pytest.param(('label = "narrow"', 'label = "wide"'), "two are labelled 'wide'", id="labels"),
        pytest.param((PAIR[0], PAIR[1].replace("wide", "width")), "there is no panel 'width'", id="pair-of-nothing"),
        pytest.param((PAIR[0], PAIR[1].replace("[quick]", PAIR[1])), "two are of panel 'wide'", id="pair-twice"),
        pytest.param(('label = "wide"', 'label = "wide"\nrepetitions = 2'), "only a series may", id="panel-repeats"),
        pytest.param(("points = 4", 'points = 4\nspacing = "odd"'), "spacing = 'odd': must be", id="spacing"),
        pytest.param(("horizon = 2000", 'run = "x"\nhorizon = 2000'), "run.run: is derived", id="named"),
        pytest.param(("means =", "seed = 3\nmeans ="), "run.environment.seed: is derived", id="seeded"),
        pytest.param(("horizon = 2000", "unsafe = {noise_seed = 3}\nhorizon = 2000"), "unsafe: is derived", id="noise"),
        pytest.param(('name = "bernoulli"', 'name = "moon"'), "environment.name = 'moon': must be one of", id="world"),
    ],
)
def test_a_bad_experiment_is_refused_in_one_line_that_names_the_place(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadExperiment, match=message) as refused:
        load_experiment(small(tmp_path, change))
    assert "\n" not in str(refused.value)


def test_a_first_round_that_cannot_be_planned_is_refused_before_anything_runs(tmp_path: Path) -> None:
    experiment = load_experiment(small(tmp_path, ('[[panels]]\nlabel = "narrow"', POOR)))
    why = r"panel 'poor', series 'private': unsafe\.noise_seed = \d+: noise from a seed leaves no privacy"
    with pytest.raises(BadExperiment, match=why):
        run_sweep(experiment, tmp_path, jobs=1)
    assert not list(tmp_path.glob("*/rows.parquet"))


def test_a_file_that_is_not_there_and_a_quick_version_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match="No such file"):
        load_experiment(str(tmp_path / "nowhere.toml"))
    with pytest.raises(BadExperiment, match=r"has no \[quick\] table"):
        load_experiment(small(tmp_path, ("[quick]", "[draw.other]")), quick=True)


def test_a_name_that_seeds_cannot_be_derived_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="name = 'Not A Name': must match"):
        load_experiment(small(tmp_path, name="Not A Name"))

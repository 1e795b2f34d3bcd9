"""Tests that each algorithm has one colour and one marker in all published figures."""

from collections import defaultdict

import pytest

from distrust.lab.figures.drawing import drawing
from distrust.lab.figures.faces import BLUE, COLOURS, FACES, ORANGE, faces
from distrust.lab.figures.sheet import name_of, styles
from distrust.lab.sweep.cells import read_experiment
from distrust.lab.sweep.experiment import Experiment
from tests.support.published import PUBLISHED, rows

ALIASES = {  # ctx-bits names mechanisms, ctx-1 the algorithms that they make of LinUCB
    "LinUCB": "no privacy",
    "LinUCB-JDP": "central tree",
    "LinUCB-SDP-Amp": "sealed Gaussian",
    "LinUCB-SDP-Vec": "labelled bits",
    "LinUCB-LDP": "local Gaussian",
    "secure aggregation": "secure aggregation (discrete Gaussian)",
}
SETTINGS = "mab-scale"  # its series are values of ε, of two algorithms


@pytest.fixture(scope="module")
def loaded() -> dict[str, Experiment]:
    return {name: read_experiment(name) for name in PUBLISHED}


def names(experiment: Experiment) -> list[str]:
    return list(dict.fromkeys(name_of(series.label) for series in experiment.series))


def test_each_algorithm_has_one_face_in_all_figures(loaded: dict[str, Experiment]) -> None:
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for name, experiment in loaded.items():
        if name == SETTINGS:
            continue
        labels = [series.label for series in experiment.series]
        for label, look in styles(labels, drawing(experiment).face).items():
            seen[name_of(label)].add((look.colour, look.marker))
    assert {name: len(looks) for name, looks in seen.items()} == dict.fromkeys(seen, 1)
    assert seen.keys() <= FACES.keys()
    for name, other in ALIASES.items():
        assert seen[name] == seen[other]


def test_rows_of_one_policy_and_mechanism_have_one_face_in_the_figures_of_a_paper(
    loaded: dict[str, Experiment],
) -> None:
    """The names are the pages'; what was played is in the rows. Settings of one algorithm may have own names."""
    played: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for name in loaded:
        for row in rows(name):
            if name_of(row.series) in FACES:
                played[name.partition("-")[0], row.policy, row.mechanism].add(name_of(row.series))
    several = {key: found for key, found in played.items() if len({FACES[name] for name in found}) > 1}
    assert several == {
        # CTX's authors' code adds local Gaussian noise in both models: less where there is a shuffler.
        ("ctx", "linucb", "local-gaussian"): {"LinUCB-LDP", "LinUCB-SDP-Amp", "local Gaussian"},
        ("dlb", "dp-dpe", "identity"): {"DPE", "DPE-FixedU"},
        ("free", "almost-free", "central-laplace"): {"Alg. 1 (central)", "core set", "no core set"},
    }


def test_no_two_algorithms_of_one_figure_share_a_colour(loaded: dict[str, Experiment]) -> None:
    for name, experiment in loaded.items():
        if name != SETTINGS:
            colours = [FACES[one].colour for one in names(experiment)]
            assert len(set(colours)) == len(colours), name


def test_settings_of_one_algorithm_have_its_colour_and_a_marker_each(loaded: dict[str, Experiment]) -> None:
    looks = styles([series.label for series in loaded[SETTINGS].series], drawing(loaded[SETTINGS]).face)
    for epsilon in ("0.1", "0.5", "1"):
        own, other = looks[f"ε = {epsilon}"], looks[f"ε = {epsilon}, Dist-DP-SE"]
        assert (own.colour, other.colour) == (FACES["Dist-RDP-SE"].colour, FACES["Dist-DP-SE"].colour)
        assert own.marker == other.marker
    assert len({look.marker for look in looks.values()}) == 3


def test_names_that_are_no_algorithms_take_what_those_of_the_figure_leave() -> None:
    looks = faces(["mine", "DP-SE", "yours", *map(str, range(6))])
    assert looks["DP-SE"] == FACES["DP-SE"]
    assert BLUE == FACES["DP-SE"].colour not in {looks["mine"].colour, looks["yours"].colour}
    assert looks["mine"] != looks["yours"]
    assert [look.colour for look in faces(list("abcdefgh")).values()] == [*COLOURS, COLOURS[0]]
    assert ORANGE in COLOURS

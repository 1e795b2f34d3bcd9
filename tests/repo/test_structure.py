"""The structure does not fall back: no cycles, no file too long, no name that is worse shared than it is."""

import pytest

from tests.support.structure import figures, longest_chain, mutual_folders, on_cycles

MOST = {
    "files over 400 lines": 0,
    "modules on cycles": 0,
    "suppressed unused arguments": 0,
    "files under 60 lines": 40,
    "modules with exactly one importer": 42,
    "longest chain of imports": 22,
    "longest chain inside common/mechanisms": 6,
    "pairs of folders that import each other": 0,
    "public names defined in two or more modules": 3,
}
"""Upper limits, a little above today's figures. docs/architecture.md has these."""


@pytest.mark.parametrize("what", MOST)
def test_a_figure_of_the_structure_stays_within_its_limit(what: str) -> None:
    assert figures()[what] <= MOST[what]  # type: ignore[operator]  # counts


def test_the_counts_find_what_they_look_for() -> None:
    graph = {"a.x": {"b.y"}, "b.y": {"a.z"}, "a.z": set(), "c": {"d"}, "d": {"c"}}
    assert on_cycles(graph) == {"c", "d"}
    assert longest_chain({name: graph[name] for name in ("a.x", "b.y", "a.z")}) == ["a.x", "b.y", "a.z"]
    assert mutual_folders(graph) == [("a", "b")]

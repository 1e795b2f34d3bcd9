"""Tests that the tables of `mslr` can be built again, and that the shipped ones hold what their README states."""

from pathlib import Path

import numpy as np
import pytest

from distrust.client.environments import build_environment, read_spec
from distrust.client.environments.letor import build_counts
from distrust.client.environments.mslr import Mslr, read_counts, write_counts
from distrust.common.errors import BadParameter

CORNERS = [(0, 0), (900, 5), (30, 80000)]
"""Features 1 and 2 of three far clusters."""


def _letor(path: Path, order: list[int]) -> Path:
    """Write rows around the corners, and return their path. Rows of corner c have the labels c and c + 1 in turn."""
    noise = np.random.default_rng(4).uniform(0, 0.1, (len(order), 2))
    lines = [
        f"{corner + index % 2} qid:{index} 1:{CORNERS[corner][0] + a:.4f} 2:{CORNERS[corner][1] + b:.4f}"
        for index, (corner, (a, b)) in enumerate(zip(order, noise.tolist(), strict=True))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


def test_rows_are_counted_by_arm_and_label_with_arms_in_order_of_appearance(tmp_path: Path) -> None:
    path = _letor(tmp_path / "a.txt", [2] * 6 + [0] * 4 + [1] * 8)
    table = build_counts([path], 3)
    assert table.tolist() == [[0, 0, 3, 3, 0], [2, 2, 0, 0, 0], [0, 4, 4, 0, 0]]


def test_the_numbering_does_not_hang_on_the_seed(tmp_path: Path) -> None:
    path = _letor(tmp_path / "a.txt", [1] * 5 + [2] * 5 + [0] * 5)
    assert all((build_counts([path], 3, seed) == build_counts([path], 3)).all() for seed in (1, 2, 3))


def test_several_files_are_one_table_and_small_clusters_can_be_dropped(tmp_path: Path) -> None:
    paths = [_letor(tmp_path / "a.txt", [0] * 6 + [1] * 2), _letor(tmp_path / "b.txt", [2] * 6)]
    assert build_counts(paths, 3).sum() == 14
    assert build_counts(paths, 3, minimum_rows=3).sum(axis=1).tolist() == [6, 6]


def test_too_many_clusters_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("1 qid:1 1:5\n" * 9 + "2 qid:2 1:6\n", encoding="ascii")
    with pytest.raises(BadParameter, match="only 2 different rows"):
        build_counts([path], 3)
    with pytest.raises(BadParameter, match="at least 2 arms"):
        build_counts([path], 1)


def test_a_table_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    table = np.array([[1, 2, 3, 4, 5], [0, 0, 0, 0, 9]])
    write_counts(table, tmp_path / "counts.csv")
    assert (read_counts(tmp_path / "counts.csv") == table).all()
    world = build_environment(read_spec({"name": "mslr", "file": str(tmp_path / "counts.csv")}))
    assert world.means.tolist() == [40 / 60, 1.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "line 1 must be", id="empty"),
        pytest.param("2 qid:1 1:3\n", "line 1 must be", id="a-letor-file"),
        pytest.param("arm,label0,label1,label2,label3,label4\n0,1,1,1,1,1\n", "at least 2 arms", id="one-arm"),
        pytest.param("arm,label0,label1,label2,label3,label4\n1,1,1,1,1,1\n", "line 2 must be arm 0", id="order"),
        pytest.param("arm,label0,label1,label2,label3,label4\n0,1,1,-1,1,1\n", "line 2", id="negative"),
        pytest.param("arm,label0,label1,label2,label3,label4\n0,1,1,1,1\n", "line 2", id="short-row"),
        pytest.param("arm,label0,label1,label2,label3,label4\n0,0,0,0,0,0\n", "arm 0 has no rows", id="empty-arm"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "counts.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadParameter, match=words):
        read_counts(path, "environment.file")


@pytest.mark.parametrize("arms", [10, 50])
def test_the_shipped_tables_hold_all_rows_of_the_samples(arms: int) -> None:
    """Label counts of the 10,000 source rows: 5639, 2900, 1244, 153, 64, whatever the number of arms."""
    world = build_environment(read_spec({"name": "mslr", "arms": arms}))
    assert isinstance(world, Mslr)
    assert world.arms == arms
    assert world.counts.sum(axis=0).tolist() == [5639, 2900, 1244, 153, 64]
    assert ((world.means >= 0) & (world.means <= 1)).all()


def test_the_table_of_the_demo_has_a_clear_best_arm() -> None:
    means = np.sort(build_environment(read_spec({"name": "mslr"})).means)
    assert means[-1] - means[-2] > 0.025

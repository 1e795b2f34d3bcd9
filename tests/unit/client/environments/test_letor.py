"""Tests that LETOR files are read as published, in blocks as line by line, and that bad lines are named."""

from pathlib import Path

import numpy as np
import pytest

from distrust.client.environments import letor
from distrust.client.environments.letor import FEATURES, build_counts, letor_blocks
from distrust.common.errors import BadParameter
from tests.support.letor import letor_rows


def dense(label: int, seed: int, end: str = "") -> str:
    """Return a line as MSLR-WEB10K has them: all features, in order."""
    values = np.random.default_rng(seed).normal(size=FEATURES) * 10.0 ** (seed % 7)
    cells = " ".join(f"{place}:{value:.6g}" for place, value in enumerate(values.tolist(), start=1))
    return f"{label} qid:{seed} {cells}{end}"


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "rows.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def swapped(line: str, old: str, new: str) -> str:
    assert line.count(old) == 1
    return line.replace(old, new)


FILES = {
    "all-features": [dense(seed % 5, seed) for seed in range(40)],
    "spaces-at-the-end": [dense(seed % 5, seed, " ") for seed in range(40)],
    "some-features-left-out": [f"{seed % 5} qid:1 {1 + seed}:2.5 136:-1e3" for seed in range(40)],
    "comments-and-blank-lines": ["# from a page", "", *(dense(1, seed, " # page 9") for seed in range(9)), "  "],
    "zeros-in-front": [swapped(dense(seed % 5, seed), " 7:", " 07:") for seed in range(9)],
    "tabs": [dense(seed % 5, seed).replace(" ", "\t") for seed in range(9)],
    "both-kinds": [dense(0, 1), "2 qid:4 7:1", dense(3, 2)],
    "fewer-here-more-there": ["0 qid:1 1:5", dense(1, 3) + " # 9", "4 qid:2"],
}


@pytest.mark.parametrize("size", [1, 3000, 1 << 22])
@pytest.mark.parametrize("name", FILES)
def test_blocks_hold_the_same_rows(name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, FILES[name])
    monkeypatch.setattr(letor, "BLOCK", size)
    one_by_one, at_once = list(letor_rows(path)), list(letor_blocks(path))
    assert np.concatenate([block.labels for block in at_once]).tolist() == [row.label for row in one_by_one]
    assert (np.concatenate([block.features for block in at_once]) == [row.features for row in one_by_one]).all()


def test_rows_carry_label_query_and_features_with_zeros_for_absent_ones(tmp_path: Path) -> None:
    path = written(tmp_path, ["2 qid:13 1:0.5 3:-7 136:226244459 # page 9", "", "0 qid:14"])
    first, second = letor_rows(path)
    assert (first.label, first.query, second.label, second.query) == (2, 13, 0, 14)
    assert {index: value for index, value in enumerate(first.features) if value} == {0: 0.5, 2: -7.0, 135: 226244459.0}
    assert not second.features.any()


LINE = "2 qid:8 " + " ".join(f"{place}:{place / 4}" for place in range(1, FEATURES + 1))


@pytest.mark.parametrize("size", [1000, 1 << 22])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("5" + LINE[1:], "relevance label", id="label-5"),
        pytest.param("2.0" + LINE[1:], "relevance label", id="label-with-a-point"),
        pytest.param("-1 qid:1 1:0", "relevance label", id="negative-label"),
        pytest.param("\x00\ufffd", "relevance label", id="binary"),
        pytest.param("1", "qid:NUMBER", id="no-query"),
        pytest.param("1 1:0 2:1", "qid:NUMBER", id="feature-where-the-query-belongs"),
        pytest.param(swapped(LINE, "qid:8", "qid:x"), "qid:NUMBER", id="query-in-words"),
        pytest.param(swapped(LINE, "qid:8", "8:qid"), "qid:NUMBER", id="query-turned-round"),
        pytest.param(swapped(LINE, " 7:1.75", " 7:nan"), "finite number", id="not-a-number"),
        pytest.param(swapped(LINE, " 7:1.75", " 7:1e999"), "finite number", id="infinite"),
        pytest.param(swapped(LINE, " 7:1.75", " 7:"), "finite number", id="no-value"),
        pytest.param(swapped(LINE, " 7:1.75", " 7 1.75"), "finite number|INDEX:VALUE", id="no-colon"),
        pytest.param(swapped(LINE, " 7:1.75", " 7:1.75:3"), "finite number", id="two-colons"),
        pytest.param(swapped(LINE, " 7:1.75", " 8:1.75"), "rising order", id="an-index-twice"),
        pytest.param("1 qid:1 3:1 2:1", "rising order", id="features-out-of-order"),
        pytest.param("1 qid:1 7:x", "finite number", id="value-in-words"),
        pytest.param("1 qid:1 0:3", "index from 1 to 136", id="feature-zero"),
        pytest.param(swapped(LINE, " 136:34.0", " 137:34.0"), "index from 1 to 136", id="feature-137"),
        pytest.param(swapped(LINE, " 7:1.75", " x:1.75"), "INDEX:VALUE", id="index-in-words"),
        *(
            pytest.param(swapped(LINE, " 7:1.75", f" {index}:1.75"), "index from 1 to 136", id=f"index-{index}")
            for index in ("7.0", "7e0", "+7", "7.", "0007", "-7", "07e0", "7d")
        ),
        pytest.param(swapped(LINE, " 100:25.0", " 1e2:25.0"), "index from 1 to 136", id="index-1e2"),
        pytest.param(swapped(LINE, " 7:1.75", " 7:1_750"), "finite number", id="digits-in-groups"),
        pytest.param(LINE.rpartition(":")[0], "finite number", id="cut-short"),
        pytest.param(LINE + " " + LINE, "INDEX:VALUE|finite", id="two-rows-in-a-line"),
    ],
)
def test_a_bad_line_among_many_is_named(
    line: str, words: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letor, "BLOCK", size)
    good = [dense(seed % 5, seed) for seed in range(12)]
    path = written(tmp_path, [*good, line, *good])
    with pytest.raises(BadParameter, match=words) as caught:
        list(letor_blocks(path))
    assert f"{path} line 13" in str(caught.value)


def test_the_number_of_a_bad_line_counts_the_lines_of_earlier_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letor, "BLOCK", 4000)
    path = written(tmp_path, [*(dense(1, seed) for seed in range(100)), "", "rubbish"])
    with pytest.raises(BadParameter, match=rf"{path} line 102"):
        build_counts([path], 2)


def test_many_rows_are_clustered_from_starts_on_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three far groups, in single precision and begun on 40 of 300 rows: the same table as the thorough way."""
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 3, 300)
    values = np.eye(3)[groups] * 1000 + rng.uniform(0, 1, (300, 3))
    labelled = zip(groups.tolist(), values.tolist(), strict=True)
    path = written(tmp_path, [f"{group} qid:1 1:{a} 2:{b} 3:{c}" for group, (a, b, c) in labelled])
    thorough = build_counts([path], 3)
    monkeypatch.setattr(letor, "MANY", 100)
    monkeypatch.setattr(letor, "SAMPLE", 40)
    assert (build_counts([path], 3) == thorough).all()
    assert sorted(thorough.max(axis=1).tolist()) == sorted(np.bincount(groups).tolist())


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadParameter, match=r"nowhere\.txt.*cannot be read"):
        list(letor_blocks(Path("/nowhere.txt")))

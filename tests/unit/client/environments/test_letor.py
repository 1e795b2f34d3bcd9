"""Tests that LETOR files are read as published, and that bad lines are named."""

from pathlib import Path

import pytest

from distrust.common.errors import BadParameter
from tests.support.letor import letor_rows


def _file(folder: Path, text: str) -> Path:
    path = folder / "rows.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_carry_label_query_and_features_with_zeros_for_absent_ones(tmp_path: Path) -> None:
    path = _file(tmp_path, "2 qid:13 1:0.5 3:-7 136:226244459 # page 9\n\n0 qid:14\n")
    first, second = letor_rows(path)
    assert (first.label, first.query, second.label, second.query) == (2, 13, 0, 14)
    assert {index: value for index, value in enumerate(first.features) if value} == {0: 0.5, 2: -7.0, 135: 226244459.0}
    assert not second.features.any()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("5 qid:1 1:0", "relevance label, 0 to 4", id="label-above-4"),
        pytest.param("-1 qid:1 1:0", "relevance label", id="negative-label"),
        pytest.param("1.0 qid:1 1:0", "relevance label", id="label-with-a-point"),
        pytest.param("1", "qid:NUMBER", id="no-query"),
        pytest.param("1 1:0 2:1", "qid:NUMBER", id="feature-where-the-query-belongs"),
        pytest.param("1 qid:x 1:0", "qid:NUMBER", id="query-not-a-number"),
        pytest.param("1 qid:1 0:3", "index from 1 to 136", id="feature-zero"),
        pytest.param("1 qid:1 137:3", "index from 1 to 136", id="feature-137"),
        pytest.param("1 qid:1 a:3", "INDEX:VALUE", id="index-not-a-number"),
        pytest.param("1 qid:1 7", "finite number", id="no-value"),
        pytest.param("1 qid:1 7:x", "finite number", id="value-not-a-number"),
        pytest.param("1 qid:1 7:nan", "finite number", id="nan"),
        pytest.param("1 qid:1 7:1e999", "finite number", id="infinity"),
        pytest.param("1 qid:1 2:1 2:1", "rising order", id="a-feature-twice"),
        pytest.param("1 qid:1 3:1 2:1", "rising order", id="features-out-of-order"),
        pytest.param("\x00\ufffd", "relevance label", id="binary"),
    ],
)
def test_bad_lines_are_named_with_what_was_expected(tmp_path: Path, line: str, words: str) -> None:
    path = _file(tmp_path, f"0 qid:1 1:2\n{line}\n")
    with pytest.raises(BadParameter, match=words) as caught:
        list(letor_rows(path))
    assert f"{path} line 2" in str(caught.value)


def test_rows_before_a_bad_line_are_streamed(tmp_path: Path) -> None:
    stream = letor_rows(_file(tmp_path, "3 qid:1 1:2\nrubbish\n"))
    assert next(stream).label == 3


def test_a_missing_file_is_named() -> None:
    with pytest.raises(BadParameter, match=r"nowhere\.txt.*cannot be read"):
        list(letor_rows(Path("/nowhere.txt")))

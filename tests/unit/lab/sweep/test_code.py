"""Tests that the digest of the code covers the files that play, and no other."""

import cProfile
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from distrust.lab.sweep import code
from distrust.lab.sweep.cells import load_experiment, play_cell
from distrust.lab.sweep.row import Cell, Row

SOURCES = Path(__file__).parents[4] / "src"
PLAYED = (
    ("mab-4", "Dist-CDP-SE"),
    ("mab-4", "Dist-RDP-SE"),
    ("dlb-2a", "SDP-DPE"),
    ("dlb-table-2", "CDP-PE"),
    ("free-2", "Alg. 2 (local)"),
    ("free-2", "Alg. 3 (shuffled)"),
)
"""Experiments and series. Their first cells run code of the same files as all cells of these experiments and dlb-2c."""

SHORT = 10_000  # rounds of dlb-2a: the same files play them as ten times as many


PLAY = """
from distrust.common.law import width

RULE = "distrust.common.rule:Rule"


def play():
    return width(1)
"""


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of a few modules and other files, which takes the place of the project's."""
    for name, text in {
        "distrust/lab/sweep/cells.py": PLAY,
        "distrust/common/rule.py": "LEVEL = 1\n",
        "distrust/common/law.py": '"""Laws."""\n\n\ndef width(x):\n    """In rewards."""\n    return 2 * x  # twice\n',
        "distrust/common/protocol/web.py": "PORT = 80\n",
        "distrust/common/data/rewards.csv": "0,1\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    monkeypatch.setattr(code, "ROOT", tmp_path)
    for cached in (code.parts, code.files_digest):
        cached.cache_clear()
    yield tmp_path
    for cached in (code.parts, code.files_digest):
        cached.cache_clear()


def changed_by(path: Path, old: str, new: str) -> list[str]:
    """Edit a file. Return the parts whose digest differs."""
    before = code.parts()
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    code.parts.cache_clear()
    return code.changed(before)


@pytest.mark.parametrize(
    ("file", "old", "new", "parts"),
    [
        pytest.param("distrust/common/law.py", "2 * x", "3 * x", ["distrust.common.law"], id="a-number"),
        pytest.param(
            "distrust/lab/sweep/cells.py", "width(1)", "width(2)", ["distrust.lab.sweep.cells"], id="the-cell-itself"
        ),
        pytest.param("distrust/common/rule.py", "1", "2", ["distrust.common.rule"], id="a-class-that-is-named"),
        pytest.param("distrust/common/data/rewards.csv", "0,1", "1,1", ["distrust/common/data/rewards.csv"], id="data"),
        pytest.param("distrust/common/law.py", "# twice", "# 2 of them", [], id="a-comment"),
        pytest.param("distrust/common/law.py", "In rewards.", "Not in arms.", [], id="a-docstring"),
        pytest.param("distrust/common/law.py", '    """In rewards."""\n', "", [], id="no-docstring"),
        pytest.param("distrust/common/protocol/web.py", "80", "443", [], id="what-no-cell-reaches"),
    ],
)
def test_what_computes_counts_and_what_does_not_compute_does_not(
    file: str, old: str, new: str, parts: list[str], copied: Path
) -> None:
    before = code.code_digest()
    assert changed_by(copied / file, old, new) == parts
    assert (code.code_digest() == before) == (not parts)


def test_versions_of_the_libraries_and_of_python_count(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code.parts()
    code.parts.cache_clear()
    monkeypatch.setattr(code, "version", lambda name: "0.0" if name == "numpy" else before[name])
    assert code.changed(before) == ["numpy"]
    assert before["python"] == "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("distrust/common/law.py", "# twice", "# 2 of them", id="a-comment"),
        pytest.param("distrust/common/protocol/web.py", "80", "443", id="what-no-cell-reaches"),
        pytest.param("distrust/common/data/rewards.csv", "0,1", "1,1", id="data"),
    ],
)
def test_files_are_equal_only_with_the_same_bytes(file: str, old: str, new: str, copied: Path) -> None:
    before = code.files_digest()
    changed_by(copied / file, old, new)
    code.files_digest.cache_clear()
    assert code.files_digest() != before


def test_files_are_equal_only_with_the_same_names_and_libraries(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {code.files_digest()}
    path = copied / "distrust/common/law.py"
    path.rename(path.with_name("laws.py"))
    code.files_digest.cache_clear()
    result.add(code.files_digest())
    monkeypatch.setattr(code, "version", lambda _name: "0.0")
    code.files_digest.cache_clear()
    assert len(result | {code.files_digest()}) == 3


@pytest.mark.slow
def test_every_module_that_plays_a_cell_is_part_of_it() -> None:
    profile = cProfile.Profile(builtins=False)  # it counts calls in C; a tracing function would take ten times as long
    for name, series in PLAYED:
        experiment = load_experiment(name, quick=True)
        if name == "dlb-2a":
            experiment = experiment.model_copy(update={"run": {**experiment.run, "horizon": SHORT}})
        result = profile.runcall(play_cell, experiment, Cell(experiment.panels[0].label, series, 0))
        assert isinstance(result, Row), result
    ran = {entry.code.co_filename for entry in profile.getstats() if isinstance(entry.code, CodeType)}
    inside = [Path(file).relative_to(SOURCES) for file in ran if file.startswith(str(SOURCES))]
    ours = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in inside]
    reached = {"server.policies.linear.almost_free", "common.dp.noise.polya", "client.environments.linear"}
    assert {f"distrust.{name}" for name in reached} <= set(ours)
    assert set(ours) <= set(code.parts())

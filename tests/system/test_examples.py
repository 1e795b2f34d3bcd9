"""Tests that the notebooks of examples/ print the outputs that they show, and that their pictures are small."""

import base64
from pathlib import Path
from typing import Any

import nbformat
import pytest

from examples.execute import executed, notebooks

pytestmark = pytest.mark.slow

PAPERS = {"ctx", "dlb", "free", "glb", "mab"}
MOST_BYTES = 60_000  # of a picture


def shown(notebook: Any) -> list[tuple[str, Any]]:
    """Return the outputs of all cells: texts as they are, a picture as its kind alone."""
    found: list[tuple[str, Any]] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                found.append((output.name, output.text))
            else:
                texts = {kind: value for kind, value in output.data.items() if kind.startswith("text/")}
                found.append((output.output_type, (sorted(output.data), texts)))
    return found


def test_every_notebook_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # pandas wraps at it
    paths = notebooks()
    assert {path.stem for path in paths} == PAPERS | {"compare_trust_models"}
    for path, now in executed(paths):
        committed = shown(nbformat.read(path, as_version=4))
        assert len(committed) > 3, path.name
        assert shown(now) == committed, path.name


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: Path(path).stem)
def test_a_notebooks_outputs_are_small_and_have_no_errors(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not {"error"} & {output.output_type for output in outputs}
    assert not any(output.get("name") == "stderr" for output in outputs)
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert max(len(base64.b64decode(picture)) for picture in pictures) < MOST_BYTES

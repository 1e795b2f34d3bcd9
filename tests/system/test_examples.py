"""Tests that the notebooks of examples/ print the outputs that they show, and that their pictures are small."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.picked import picked

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
FEW = 1  # notebooks that are executed here; CI executes all
PAPERS = {"ctx", "dlb", "free", "glb", "mab"}
MOST_BYTES = 60_000  # of a picture


def shown(notebook: Any) -> list[tuple[str, Any]]:
    """Return the outputs of all cells: texts as they are, a picture as its kind alone."""
    result: list[tuple[str, Any]] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                result.append((output.name, output.text))
            else:
                texts = {kind: value for kind, value in output.data.items() if kind.startswith("text/")}
                result.append((output.output_type, (sorted(output.data), texts)))
    return result


def test_notebooks_print_what_they_show(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # noqa: PLC0415 - what executes notebooks takes a second to load, in every process that collects

    from examples.execute import executed, notebooks  # noqa: PLC0415

    monkeypatch.delenv("COLUMNS", raising=False)  # pandas wraps at it
    assert notebooks() == NOTEBOOKS
    assert {path.stem for path in NOTEBOOKS} == PAPERS | {"compare_trust_models"}
    for path, now in executed(picked(NOTEBOOKS, FEW, "notebooks")):
        committed = shown(nbformat.read(path, as_version=4))
        assert len(committed) > 3, path.name
        assert shown(now) == committed, path.name


def test_the_notebook_that_asks_which_arm_a_client_played_audits_the_arm() -> None:
    import nbformat  # noqa: PLC0415 - as above

    cells = nbformat.read(next(path for path in NOTEBOOKS if path.stem == "ctx"), as_version=4).cells
    (place,) = [place for place, cell in enumerate(cells) if "distrust.audit(" in cell.source]
    assert "three arms" in cells[place - 1].source
    assert "which arm" in cells[place - 1].source
    assert 'secret="arm", arms=3' in cells[place].source
    page = cells[place].outputs[0].data["text/html"]
    assert "client&#x27;s arm" in page
    assert "15 coordinates" in page  # of three arms, each with φ and φφᵀ


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: Path(path).stem)
def test_a_notebooks_outputs_are_small_and_have_no_errors(path: Path) -> None:
    import nbformat  # noqa: PLC0415 - as above

    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not {"error"} & {output.output_type for output in outputs}
    assert not any(output.get("name") == "stderr" for output in outputs)
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert pictures
    assert max(len(base64.b64decode(picture)) for picture in pictures) < MOST_BYTES

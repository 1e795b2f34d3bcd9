"""Executes the notebooks of this folder and writes them with their outputs.

    python examples/execute.py            all of them
    python examples/execute.py mab ctx    some of them

What is written depends on no clock and no machine: counters, metadata and ids are those of the file that is read. So
that one notebook need not import what another one has, all of them share one kernel, emptied before each.
"""

import base64
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image
from traitlets.config import Config

FOLDER = Path(__file__).parent
SECONDS = 300  # for one cell; none takes more than a few
COLOURS = 96


def notebooks() -> list[Path]:
    """Return the notebooks of this folder, by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(paths: Sequence[Path]) -> Iterator[tuple[Path, NotebookNode]]:
    """Yield each notebook with the outputs that it has now. It runs in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory(prefix="distrust-examples-") as folder:
        # Sockets of files: what the kernel is told does not pass the loopback, where other users could read it.
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        client = NotebookClient(nbformat.v4.new_notebook(), timeout=SECONDS, record_timing=False, config=sockets)
        # One thread of linear algebra, and no folder of settings or fonts that another program wrote.
        own = {"OPENBLAS_NUM_THREADS": "1", "MPLCONFIGDIR": folder}
        with client.setup_kernel(cwd=folder, env={**os.environ, **own}):
            for path in paths:
                _run(client, nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%reset -f")]))
                yield path, cleaned(_run(client, nbformat.read(path, as_version=4)))


def _run(client: NotebookClient, notebook: NotebookNode) -> NotebookNode:
    """Execute all cells of a notebook in the client's kernel, and return it. Raises CellExecutionError."""
    client.nb = notebook
    client.reset_execution_trackers()
    for number, cell in enumerate(notebook.cells):
        client.execute_cell(cell, number)
    return notebook


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook with cells counted from 1, and without what an execution adds to the metadata."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.metadata, cell.execution_count = {}, number
        for output in cell.outputs:
            output.pop("metadata", None) if output.output_type == "stream" else output.update(metadata={})
            if "execution_count" in output:
                output.execution_count = number
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    return notebook


def smaller(picture: str) -> str:
    """Return a PNG, as base64 text, with a palette of COLOURS: a third of its bytes, and to the eye the same."""
    drawn = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(COLOURS)
    packed = io.BytesIO()
    drawn.save(packed, "png", optimize=True)
    return base64.b64encode(packed.getvalue()).decode("ascii")


def main() -> None:
    """Execute the notebooks that are named, or all of them."""
    named = [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or notebooks()
    for path, notebook in executed(named):
        nbformat.write(notebook, path)
        print(path.name, f"{path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()

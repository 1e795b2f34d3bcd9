"""Reads the files that docs/figures/ shows: every experiment's rows, and the pictures drawn from them."""

import re
from functools import cache
from pathlib import Path

from PIL import Image

from distrust.lab.figures.sheet import DRAWN_FROM
from distrust.lab.sweep.cells import known_experiments
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import read_rows

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"
PUBLISHED = [name for name in known_experiments() if name != "smoke"]  # a first look at `distrust sweep`, no figure

TUNINGS = {path.stem: path for path in sorted((ROOT / "lab" / "experiments" / "tuning").glob("*.toml"))}
"""Experiments by which figures have their steps and margins, by name. Their rows have a folder of their own."""


@cache
def rows(name: str) -> list[Row]:
    """Return an experiment's or a tuning's published rows, in the file's order. Every caller gets the same list."""
    folder = FIGURES / "rows" / "tuning" if name in TUNINGS else FIGURES / "rows"
    return read_rows(folder / f"{name}.parquet")


def drawn_from(path: Path) -> str:
    """Return the stamp inside a PNG or a PDF; empty where there is none."""
    if path.suffix == ".pdf":
        result = re.search(rf"/Keywords \({DRAWN_FROM} ([0-9a-f]{{64}})\)", path.read_bytes().decode("latin-1"))
        return result[1] if result else ""
    with Image.open(path) as picture:
        return str(picture.info.get(DRAWN_FROM, ""))

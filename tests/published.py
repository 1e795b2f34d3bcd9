"""What docs/figures.md shows, as it is in the repository: every experiment's rows, and the pictures drawn from them."""

from pathlib import Path

from PIL import Image

from lab.figures.stamp import KEY
from lab.sweep import Row, known, read

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
PUBLISHED = [name for name in known() if name != "smoke"]  # a first look at `distrust sweep`, no figure


def rows(name: str) -> list[Row]:
    """An experiment's, in their order."""
    return read(FIGURES / "rows" / f"{name}.parquet")


def drawn_from(png: Path) -> str:
    """The stamp inside a picture; empty where there is none."""
    with Image.open(png) as picture:
        return str(picture.info.get(KEY, ""))

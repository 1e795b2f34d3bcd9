"""What every figure has around its axes: a title above, one legend below them, and a caption."""

import textwrap
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.figure import Figure, SubFigure

from distrust.lab.figures.stamp import KEY

DPI = 95
SUFFIXES = ("png", "svg", "pdf")
GREY = "#444444"


class Sheet:
    """A figure of width × height inches, without its caption: axes belong into `above`."""

    def __init__(self, width: float, height: float, title: str, caption: str) -> None:
        note = textwrap.fill(caption, int(width * 15))
        below = 0.1 + 0.16 * (note.count("\n") + 1)
        self._width = width
        self.figure = Figure(figsize=(width, height + below), layout="constrained")
        parts = self.figure.subfigures(2, 1, squeeze=False, height_ratios=(height, below))[:, 0]
        self.above: SubFigure = parts[0]
        foot: SubFigure = parts[1]
        self.above.suptitle(textwrap.fill(title, int(width * 12)), fontsize=11)
        foot.text(0.01, 1.0, note, fontsize=8, color=GREY, va="top")

    def legend(self) -> None:
        """Name every series of every axes once, below them."""
        found: dict[str, Artist] = {}
        for axes in self.above.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
        ncols = self._columns(list(found))
        self.above.legend(list(found.values()), list(found), loc="outside lower center", ncols=ncols, fontsize=9)

    def _columns(self, labels: list[str]) -> int:
        """Columns that fit below the axes, evenly filled."""
        fitting = max(1, min(int(self._width * 12 / (max(map(len, labels)) + 8)), len(labels)))
        return -(-len(labels) // -(-len(labels) // fitting))


def save(drawn: Figure, stem: Path, salt: str, stamp: str) -> list[Path]:
    """Write `stem`.png, `stem`.svg and `stem`.pdf; the PNG has `stamp` as a text, the PDF as its keywords.

    The same figure gives the same bytes with the same matplotlib: `salt` takes the place of chance in the SVG's ids,
    and none of the files has a date.
    """
    paths = [Path(f"{stem}.{suffix}") for suffix in SUFFIXES]
    words = {
        "png": {KEY: stamp},
        "svg": {"Date": None},
        "pdf": {"Keywords": f"{KEY} {stamp}", "CreationDate": None},
    }
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        for path, suffix in zip(paths, SUFFIXES, strict=True):
            drawn.savefig(path, dpi=DPI, metadata=words[suffix])
    return paths

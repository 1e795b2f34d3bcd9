"""Sets the look of every figure: title, legend, caption; colours, markers and lines that differ for every eye."""

import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure, SubFigure

from distrust.lab.figures.faces import FACES, faces

DRAWN_FROM = "drawn-from"
"""The name of the PNG's text that holds the stamp, and the word before it in the PDF's keywords."""
DPI = 95  # dots an inch, of PNG
SUFFIXES = ("png", "svg", "pdf")
GREY = "#444444"

LINES = ("-", "--", ":", "-.")

WIDTHS = (3.6, 1.0)
"""Points: the first and the last line of one pair of axes. Equal curves show as a thin line on a thick one."""
SIZES = (6.5, 3.5)
"""Points: their markers."""
PALE = 0.4
"""Share of the colour in a pale marker."""
MARKED = 5
"""Markers on a curve of many points; each series has them at places of its own."""


class Sheet:
    """A figure of width × height inches, without its caption: axes are made in `above`."""

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

    def legend(self, last: str = "") -> None:
        """Name every series of every axes once, below them: the label `last` after the others."""
        handles: dict[str, Artist] = {}
        for axes in self.above.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        labels = sorted(handles, key=lambda label: label == last)
        ncols = self._columns(labels)
        shown = [handles[label] for label in labels]
        self.above.legend(shown, labels, loc="outside lower center", ncols=ncols, fontsize=9)

    def _columns(self, labels: list[str]) -> int:
        """Return how many columns fit below the axes, evenly filled."""
        fitting = max(1, min(int(self._width * 12 / (max(map(len, labels)) + 8)), len(labels)))
        return -(-len(labels) // -(-len(labels) // fitting))


def save(drawn: Figure, stem: Path, salt: str, stamp: str) -> list[Path]:
    """Write `stem`.png, with `stamp` as a text, `stem`.svg, and `stem`.pdf, with it as keywords. Return their paths.

    The same figure gives the same bytes with the same matplotlib: `salt` takes the place of chance in the SVG's ids,
    and none of the files has a date.
    """
    paths = [Path(f"{stem}.{suffix}") for suffix in SUFFIXES]
    fields = {
        "png": {DRAWN_FROM: stamp},
        "svg": {"Date": None},
        "pdf": {"Keywords": f"{DRAWN_FROM} {stamp}", "CreationDate": None},
    }
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        for path, suffix in zip(paths, SUFFIXES, strict=True):
            drawn.savefig(path, dpi=DPI, metadata=fields[suffix])
    return paths


class Style(NamedTuple):
    """Look of one series. `place`: when it is drawn on axes that `among` series share; later ones are thinner."""

    colour: str
    marker: str
    line: str
    place: int = 0
    among: int = 1

    @property
    def face(self) -> str | tuple[float, ...]:
        """Return the fill of a marker: full for the first variant, hollow for the second, pale for others."""
        if self.line in LINES[:2]:
            return self.colour if self.line == LINES[0] else "white"
        return tuple(1 - PALE * (1 - part) for part in to_rgb(self.colour))

    @property
    def width(self) -> float:
        return self._between(WIDTHS)

    @property
    def size(self) -> float:
        return self._between(SIZES)

    def _between(self, ends: tuple[float, float]) -> float:
        thick, thin = ends
        return thick + (thin - thick) * self.place / max(1, self.among - 1)

    def words(self, points: int) -> dict[str, Any]:
        """Return the keywords of `Axes.plot` for a curve of so many points."""
        every = max(1, points // MARKED)
        start = (every - 1 + self.place * every // self.among) % every
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "markevery": (start, every),
            "markersize": self.size,
            "markerfacecolor": self.face,
            "linewidth": self.width,
        }


def styles(labels: list[str], algorithm: str | None = None) -> dict[str, Style]:
    """Return a style for each label. Of "name, variant" the name picks colour and marker, the variant the line.

    algorithm  what the names are settings of, where they are no algorithms: then it picks the colour, or a variant that
               is one does, and the names pick the markers.
    """
    names = list(dict.fromkeys(name_of(label) for label in labels))
    variants = ["", *dict.fromkeys(variant for variant in map(variant_of, labels) if variant)]
    looks, chosen = faces(names), {}
    for at, label in enumerate(labels):
        (colour, marker), variant = looks[name_of(label)], variant_of(label)
        if algorithm is not None:
            colour = FACES.get(variant, FACES[algorithm]).colour
        line = LINES[variants.index(variant) % len(LINES)]
        chosen[label] = Style(colour, marker, line, at, len(labels))
    return chosen


def name_of(label: str) -> str:
    """Return the algorithm: the text before the first comma."""
    return label.partition(", ")[0]


def variant_of(label: str) -> str:
    """Return the constants: the text behind the first comma; empty for the first variant."""
    return label.partition(", ")[2]

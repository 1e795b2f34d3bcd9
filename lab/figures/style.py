"""Colours, markers and lines that stay apart for every eye, and on paper."""

from typing import Any, NamedTuple

from matplotlib.colors import to_rgb

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart under every colour vision deficiency; yellow is left out, it fades on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")

WIDTHS = (3.6, 1.0)
"""Points: the first and the last line of one pair of axes. Equal curves show as a thin line on a thick one."""
SIZES = (6.5, 3.5)
"""Points: their markers."""
PALE = 0.4
"""Share of the colour in a pale marker."""
MARKED = 5
"""Markers on a curve of many points; each series has them at places of its own."""


class Style(NamedTuple):
    """How one series looks. `place`: when it is drawn on axes that `among` series share; later ones are thinner."""

    colour: str
    marker: str
    line: str
    place: int = 0
    among: int = 1

    @property
    def face(self) -> str | tuple[float, ...]:
        """Markers of the first variant are filled, those of the second hollow, those of others pale."""
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


def styles(labels: list[str]) -> dict[str, Style]:
    """A label is a name, or "name, variant": the name picks colour and marker, the variant the line."""
    names = list(dict.fromkeys(name_of(label) for label in labels))
    variants = ["", *dict.fromkeys(variant for variant in map(variant_of, labels) if variant)]
    found: dict[str, Style] = {}
    for at, label in enumerate(labels):
        place, line = names.index(name_of(label)), variants.index(variant_of(label))
        colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
        found[label] = Style(colour, marker, LINES[line % len(LINES)], at, len(labels))
    return found


def name_of(label: str) -> str:
    """Return what stands before the first comma: the algorithm."""
    return label.partition(", ")[0]


def variant_of(label: str) -> str:
    """Return what stands behind it: the constants; empty for the first variant."""
    return label.partition(", ")[2]

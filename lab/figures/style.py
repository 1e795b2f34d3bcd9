"""Colours, markers and lines that stay apart for every eye, and on paper."""

from typing import Any, NamedTuple

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
"""Okabe and Ito's, told apart under every colour vision deficiency; yellow is left out, it fades on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")


class Style(NamedTuple):
    """How one series looks."""

    colour: str
    marker: str
    line: str

    def words(self, points: int) -> dict[str, Any]:
        """For `Axes.plot`: about eight markers on a curve, each on every one of few points."""
        every = max(1, points // 8)
        size = 4.5 if self.line == LINES[0] else 3.5
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.line,
            "markevery": (every - 1, every),
            "markersize": size,
            "markerfacecolor": self.colour if self.line == LINES[0] else "white",
            "linewidth": 1.4,
        }


def styles(labels: list[str]) -> dict[str, Style]:
    """A label is a name, or "name, variant": the name picks colour and marker, the variant the line."""
    names = list(dict.fromkeys(_split(label)[0] for label in labels))
    variants = ["", *dict.fromkeys(variant for _, variant in map(_split, labels) if variant)]
    found: dict[str, Style] = {}
    for label in labels:
        name, variant = _split(label)
        place, line = names.index(name), variants.index(variant)
        found[label] = Style(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], LINES[line % len(LINES)])
    return found


def _split(label: str) -> tuple[str, str]:
    name, _, variant = label.partition(", ")
    return name, variant

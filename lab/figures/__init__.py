"""The papers' figures: an experiment and its rows, drawn as PNG and SVG."""

from lab.figures.draw import draw, figure
from lab.figures.drawing import Drawing, drawing
from lab.figures.rows import matched

__all__ = ["Drawing", "draw", "drawing", "figure", "matched"]

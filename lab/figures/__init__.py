"""The papers' figures: an experiment and its rows, drawn as PNG, SVG and PDF."""

from distrust.lab.figures.draw import draw, figure
from distrust.lab.figures.drawing import Drawing, drawing
from distrust.lab.figures.rows import matched

__all__ = ["Drawing", "draw", "drawing", "figure", "matched"]

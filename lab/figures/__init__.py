"""Figures of the papers: an experiment and its rows, or a computed curve, drawn as PNG, SVG and PDF."""

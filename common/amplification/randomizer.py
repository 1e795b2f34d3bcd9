"""A local randomizer as its blanket bound sees it: cells of outputs, and what every input puts on them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter

SUM = 1e-9  # how far the masses of an input may be from 1

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Randomizer:
    """Laws μ_x of one message for finitely many inputs x, cut into cells of outputs.

    masses    shape (inputs, cells): μ_x of each cell.
    blanket   shape (cells,): mass of a measure below every input's law, all inputs of all users; its sum is γ.
    low, high shape (inputs, cells): bounds of μ_x's density relative to the blanket within a cell; equal for atoms.
    lost      bound on any input's mass outside the cells.
    mirrored  whether x ↔ inputs - 1 - x mirrors the laws.
    Inputs in between are served by randomized rounding to these: mixtures of inputs are never worse (joint convexity).
    """

    masses: Array
    blanket: Array
    low: Array
    high: Array
    lost: float
    mirrored: bool = False

    def __post_init__(self) -> None:
        shape = self.masses.shape
        if len(shape) != 2 or shape[0] < 2 or not self.blanket.shape == shape[1:]:
            raise BadParameter("masses", shape, "shape must be (inputs >= 2, cells), as the blanket's")
        if not (np.isfinite(self.masses).all() and (self.masses >= 0).all()):
            raise BadParameter("masses", "NaN, infinite or negative", "probabilities are allowed")
        if not np.all(np.abs(self.masses.sum(axis=1) + self.lost - 1) <= SUM + self.lost):
            raise BadParameter("masses", self.masses.sum(axis=1).tolist(), "every input's must add up to 1")
        if not (self.blanket > 0).all():
            raise BadParameter("blanket", "0", "cells without a blanket belong to `lost`")

    @property
    def gamma(self) -> float:
        """γ: probability that a message says nothing of its input."""
        return float(self.blanket.sum())

    def pairs(self) -> list[tuple[int, int]]:
        """Pairs of inputs to compare, the farthest apart first; mirror images once."""
        last = len(self.masses) - 1
        every = [(x, y) for x in range(last + 1) for y in range(last + 1) if x != y]
        once = [pair for pair in every if not self.mirrored or pair <= (last - pair[0], last - pair[1])]
        return sorted(once, key=lambda pair: -abs(pair[0] - pair[1]))

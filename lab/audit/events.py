"""Which event to count: chosen on one half of the trials, counted on the other, so that the choice costs nothing.

An outcome is a number. Four families of events: at most c, at least c, exactly one value, and the values that one world
prefers most (a likelihood-ratio test on the histogram). Each is tried in both directions, so that eight events are
counted; each gets an eighth of the false-alarm rate (union bound).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.lab.audit.bound import Counts, epsilon_at_least

CELLS = 2048
"""Finest histogram. Outcomes with more values than that are cut at the quantiles of the training half."""

FAMILIES = ("at most", "at least", "exactly", "likelier")
EVENTS = 2 * len(FAMILIES)

Outcomes = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Event:
    """A set of cells of the histogram. likely: the world (0 or 1) in which it should be the more frequent one."""

    family: str
    likely: int
    edges: Outcomes
    inside: NDArray[np.bool_]

    def hits(self, outcomes: Outcomes) -> int:
        """How many of the outcomes lie in it."""
        return int(self.inside[cell(self.edges, outcomes)].sum())

    def describe(self) -> str:
        """Its range, for people."""
        chosen = np.flatnonzero(self.inside)
        first, last = self.edges[chosen[0]], self.edges[chosen[-1]]
        return f"{self.family}: {chosen.size} of {self.inside.size} cells from {first:.6g} to {last:.6g}"


def cell(edges: Outcomes, outcomes: Outcomes) -> NDArray[np.int64]:
    """The cell of each outcome: the last edge at or below it; what lies below all edges falls into the first."""
    return np.maximum(np.searchsorted(edges, outcomes, side="right") - 1, 0)


def choose(world0: Outcomes, world1: Outcomes, delta: float, alarm: float) -> list[Event]:
    """The best event of each family in each direction, by the bound that this training half would give."""
    edges = _edges(np.concatenate((world0, world1)))
    counts = [np.bincount(cell(edges, one), minlength=edges.size) for one in (world0, world1)]
    trials = len(world0)
    found = []
    for likely in (0, 1):
        a, b = counts[likely], counts[1 - likely]
        for family, order, size in _candidates(a, b):
            taken_a, taken_b = (np.cumsum(one[order]) if size == 0 else one[order] for one in (a, b))
            scores = epsilon_at_least(taken_a, taken_b, trials, delta, alarm)
            best = int(np.argmax(scores))
            inside = np.zeros(edges.size, dtype=np.bool_)
            inside[order[: best + 1] if size == 0 else order[best : best + 1]] = True
            found.append(Event(family, likely, edges, inside))
    return found


def _candidates(a: Counts, b: Counts) -> Iterator[tuple[str, NDArray[np.intp], int]]:
    """Orders of the cells whose beginnings are events (size 0), or whose single cells are (size 1)."""
    forth = np.arange(a.size)
    yield "at most", forth, 0
    yield "at least", forth[::-1], 0
    yield "exactly", forth, 1
    yield "likelier", np.argsort(-(a + 0.5) / (b + 0.5), kind="stable"), 0


def _edges(pooled: Outcomes) -> Outcomes:
    values = np.unique(pooled)
    if values.size <= CELLS:
        return values
    cuts = np.quantile(pooled, np.linspace(0, 1, CELLS, endpoint=False), method="lower")
    return np.unique(np.concatenate((cuts, values[:32], values[-32:])))

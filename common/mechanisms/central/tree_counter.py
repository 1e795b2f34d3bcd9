"""The counter of a tree mechanism: a pure value that takes one batch and gives the next value and what is released."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.central.tree import Tree
from distrust.common.randomness import Stream

Steps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Node:
    """A complete dyadic sum in grid steps: the true one, which stays here, and the noisy one, which was drawn once."""

    level: int
    survivors: int
    true: Steps
    noisy: Steps


@dataclass(frozen=True, slots=True)
class Released:
    """What one more batch lets out: its own sum, and the sum of all batches so far. Estimates in data units."""

    batch: NDArray[np.float64]
    prefix: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counter:
    """The state after `time` batches: the nodes of the binary digits of `time`, largest first.

    Secrets  The true sums are the server's secret; neither they nor a node are ever written where clients can read.
    Rule     `add` draws the noise of every node that the new batch completes, once. Whoever adds the same batch again
             to the same state draws anew, and must not publish both: commit the new state before it is answered.
    """

    mechanism: Tree
    time: int = 0
    nodes: tuple[Node, ...] = ()

    def add(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> tuple[Self, Released]:
        """The batch's sum modulo m. Raises TooSmall below the floor, BadParameter after the last batch."""
        if self.time >= self.mechanism.batches:
            raise BadParameter("batches", self.time + 1, f"the stream is calibrated for {self.mechanism.batches}")
        leaf = self._node(0, survivors, self.mechanism.true_steps(total, survivors), stream)
        nodes, newest = self.nodes, leaf
        while nodes and nodes[-1].level == newest.level:
            nodes, newest = nodes[:-1], self._parent(nodes[-1], newest, stream)
        nodes = (*nodes, newest)
        released = Released(self._estimate((leaf,)), self._estimate(nodes))
        return type(self)(self.mechanism, self.time + 1, nodes), released

    def _parent(self, left: Node, right: Node, stream: Stream) -> Node:
        return self._node(left.level + 1, left.survivors + right.survivors, left.true + right.true, stream)

    def _node(self, level: int, survivors: int, true: Steps, stream: Stream) -> Node:
        noise = self.mechanism.server_law().sample(stream, self.mechanism.dimension)
        return Node(level, survivors, true, true + noise)

    def _estimate(self, nodes: tuple[Node, ...]) -> NDArray[np.float64]:
        """A function of noisy whole numbers, so that no rounding of floating point can tell the true ones."""
        steps = np.sum([node.noisy for node in nodes], axis=0)
        survivors = sum(node.survivors for node in nodes)
        return np.asarray(steps * self.mechanism.step + survivors * self.mechanism.low, dtype=np.float64)

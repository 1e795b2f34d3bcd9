"""Describes an audit: a mechanism and its cohort, the observation, and the two worlds to be told apart."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.guarantee import Guarantee
from distrust.common.dp.mechanisms import Mechanism
from distrust.common.errors import BadParameter
from distrust.common.randomness import SystemStream
from distrust.lab.audit.secret import Secret

Observable = Literal["message", "sum", "records", "estimate", "stream"]
Transport = Literal["in-process", "http"]

LONGEST_STREAM = 1024  # batches of a stream that a trial runs through


@dataclass(frozen=True)
class Setting:
    """A mechanism, how many clients answered, how many of these reveal their noise, and how the messages travel.

    The worlds are neighbours: one client holds `ends[0]` in world 0 and `ends[1]` in world 1, the others the same in
    both.

    secret  what a contextual client hides, whose vectors these are; None for the worst pair of the ball.
    """

    mechanism: Mechanism
    survivors: int
    colluders: int = 0
    transport: Transport = "in-process"
    secret: Secret | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.survivors <= self.mechanism.clients:
            raise BadParameter("survivors", self.survivors, f"must lie in [1, n = {self.mechanism.clients}]")
        if not 0 <= self.colluders < self.survivors:
            raise BadParameter("colluders", self.colluders, f"must lie in [0, survivors = {self.survivors})")
        if self.batches > LONGEST_STREAM:
            raise BadParameter("batches", self.batches, f"an audit runs through {LONGEST_STREAM} at most")
        if self.secret is not None and self.secret.statistic.dimension != self.mechanism.dimension:
            allowed = f"must make vectors of {self.mechanism.dimension} coordinates, as the mechanism takes them"
            raise BadParameter("secret", self.secret.hidden, allowed)

    @cached_property
    def claim(self) -> Guarantee:
        """Return the guarantee for these survivors and colluders."""
        return self.mechanism.privacy(self.survivors, self.colluders).promise

    def check(self) -> None:
        """Raise TooSmall or BadParameter for a sum that the mechanism itself refuses to open."""
        nothing = np.zeros(self.mechanism.dimension, dtype=np.uint64)
        self.mechanism.estimate(nothing, self.survivors, SystemStream())

    @cached_property
    def view(self) -> Observable:
        """Return the view that the guarantee is about; if it stays on the device, the intermediary's first output.

        message   one client's message: local guarantees. Secure aggregation hides it, and over HTTP shows a sum.
        sum       the sum modulo m, or the count of ones under each label.
        records   sealed messages in the shuffler's order.
        estimate  the result that a central mechanism publishes.
        stream    all batches and all prefix sums that are published of a stream.
        """
        if self.mechanism.takes_batches:
            return "stream"
        model = self.mechanism.privacy().promise.model
        if model == "local":
            return "sum" if (self.transport, self.mechanism.via) == ("http", "aggregator") else "message"
        if model == "shuffle" and self.mechanism.width is None:
            return "records"
        return "estimate" if model == "central" else "sum"

    @property
    def visible(self) -> int:
        """Return how many messages hide each other: the colluders' are known and could be taken off again."""
        return 1 if self.view == "message" else self.survivors - self.colluders

    @property
    def batches(self) -> int:
        """Return the cohorts of one trial: of a stream as many as it has, with the client in the first."""
        return self.mechanism.stream_length

    @cached_property
    def telling(self) -> NDArray[np.intp]:
        """Return the places of the coordinates that differ between the worlds."""
        return np.flatnonzero(self.ends[0] != self.ends[1])

    @cached_property
    def direction(self) -> NDArray[np.float64]:
        """Return the unit vector from world 0's vector to world 1's, in the telling coordinates."""
        apart = (self.ends[1] - self.ends[0])[self.telling]
        unit: NDArray[np.float64] = apart / np.linalg.norm(apart)
        return unit

    @cached_property
    def ends(self) -> NDArray[np.float64]:
        """Return the differing client's vector in either world, shape (2, D): the pair that the noise hides worst.

        linf    opposite corners of the box.
        l1      the poles of the first axis: in ℓ₁ nothing is farther apart, and in ℓ₂ neither.
        l2      the poles as well; for noise that pays by ℓ₁ the diagonal, where all coordinates move by 1/√D of it.
                Where clients move fewer steps than the diameter, the ends are that much nearer to the middle.
        secret  the vectors that it makes.
        """
        if self.secret is not None:
            return self.secret.ends
        mechanism, moved = self.mechanism, self._moved
        reach = (mechanism.high - mechanism.low) / 2
        if mechanism.norm == "l2":
            reach /= math.sqrt(moved)
        if mechanism.moved is not None:
            reach *= mechanism.moved / mechanism.precision
        ends = np.full((2, mechanism.dimension), (mechanism.low + mechanism.high) / 2)
        ends[:, :moved] += np.array([[-reach], [reach]])
        return ends

    @property
    def _moved(self) -> int:
        """Return how many coordinates move where no secret is given: the first ones."""
        mechanism = self.mechanism
        whole = mechanism.norm == "linf" or (mechanism.norm == "l2" and mechanism.worst_on_diagonal)
        return mechanism.dimension if whole else 1

    @cached_property
    def others(self) -> NDArray[np.float64]:
        """Return the other clients' vector, shape (D,): that of world 0, on a grid point, as rounding adds noise."""
        mechanism = self.mechanism
        step = (mechanism.high - mechanism.low) / mechanism.precision
        if self.secret is not None:  # the next grid point towards the middle, so that it stays in the ball
            steps = np.round((self.ends[0] - mechanism.low) / step, 9)
            inward = np.where(2 * steps > mechanism.precision, np.floor(steps), np.ceil(steps))
            inside: NDArray[np.float64] = mechanism.low + step * inward
            return inside
        if mechanism.norm != "l2" or self._moved == 1:
            own: NDArray[np.float64] = self.ends[0]
            return own
        return np.full(mechanism.dimension, mechanism.low + step * (mechanism.precision // 2))

    def vectors(self, world: int, count: int) -> NDArray[np.float64]:
        """Return the differing client's vector, `count` times."""
        return np.repeat(self.ends[world : world + 1], count, axis=0)

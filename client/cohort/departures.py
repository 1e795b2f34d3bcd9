"""Draws simulated departures from a seed, like simulated rewards: the stage before which a client leaves."""

import math

import numpy as np
from numpy.typing import NDArray

from distrust.common.protocol.messages.upload import Stage
from distrust.common.randomness import Stream, generator

STAGES: tuple[Stage, ...] = ("keys", "shares", "masked", "unmask")
"""The stages of secure aggregation, in order: a client leaves before it has answered the stage of its number."""

NEVER = len(STAGES)
_UNMASK = STAGES.index("unmask")


def departures(count: int, rate: float, stream: Stream) -> NDArray[np.int64]:
    """Return for each slot the stage that it leaves at: 0 keys, 1 shares, 2 masked, 3 unmask, 4 never. Shape (count,).

    Exactly ⌊rate·count⌋ clients leave, chosen uniformly, each at a stage chosen uniformly. No cohort aborts at a rate
    that the run's configuration tolerates; at a higher rate it may. `rate` lies in [0, 1].
    """
    leaves = np.full(count, NEVER, dtype=np.int64)
    if not rate:
        return leaves
    chance = generator(stream)
    leaving = chance.permutation(count)[: math.floor(rate * count)]
    leaves[leaving] = chance.integers(0, len(STAGES), len(leaving))
    return leaves


def survives(leaves: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the flags of the clients whose vectors are in the sum, shape (count,).

    At the aggregator these are the clients whose masked input arrives, as those do that leave before `unmask`. At the
    shuffler the same clients report.
    """
    return leaves >= _UNMASK

"""Simulated departures: which stage a client leaves before. Environments may be seeded; so may these."""

import math

import numpy as np
from numpy.typing import NDArray

from distrust.common.messages.upload import Stage
from distrust.common.randomness import Stream, generator

STAGES: tuple[Stage, ...] = ("keys", "shares", "masked", "unmask")
"""The stages of secure aggregation, in order: a client leaves before it has answered the stage of its number."""

NEVER = len(STAGES)
_UNMASK = STAGES.index("unmask")


def departures(count: int, rate: float, stream: Stream) -> NDArray[np.int64]:
    """For each slot the stage that it leaves at: 0 keys, 1 shares, 2 masked, 3 unmask, 4 never. Shape (count,).

    Exactly ⌊rate·count⌋ clients leave, chosen uniformly, each at a stage chosen uniformly. So a rate that the run's
    configuration tolerates never costs a cohort, and a higher one may. `rate` lies in [0, 1].
    """
    chance = generator(stream)
    leaves = np.full(count, NEVER, dtype=np.int64)
    gone = chance.permutation(count)[: math.floor(rate * count)]
    leaves[gone] = chance.integers(0, len(STAGES), len(gone))
    return leaves


def survives(leaves: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which clients' vectors are in the sum: those whose masked input arrives, or, at the shuffler, whose report does.

    A client that would leave before `unmask` has sent its vector already; at the shuffler that is one that reports.
    """
    return leaves >= _UNMASK

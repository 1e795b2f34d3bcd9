"""Many releases of one cohort in this process, as whoever should learn nothing sees them."""

import numpy as np
from numpy.typing import NDArray

from distrust.common.modular import Vector, add
from distrust.common.randomness import Stream
from distrust.lab.audit.evidence import evidence
from distrust.lab.audit.observation import shown
from distrust.lab.audit.setting import Setting

AT_ONCE = 1 << 18
"""Coordinates of messages that are held at a time."""


def outcomes(setting: Setting, world: int, trials: int, stream: Stream) -> NDArray[np.float64]:
    """The evidence of `trials` releases, one row a trial, through randomize, the sum modulo m and estimate.

    Raises TooSmall or BadParameter from the mechanism's own `estimate` where such a cohort must not be opened.
    """
    setting.check()
    messages = setting.visible if setting.view == "records" else 1
    at_once = max(1, AT_ONCE // (setting.mechanism.dimension * setting.batches * messages))
    counts = [min(at_once, trials - start) for start in range(0, trials, at_once)]
    parts = [shown(setting, _contents(setting, world, count, stream), stream) for count in counts]
    return np.concatenate([evidence(setting, part) for part in parts])


def _contents(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    """What S hands over in each of `count` trials, shape (batches, count, messages, D).

    The differing client is in the first batch. Records stay in their places: nothing that is looked at minds the order.
    """
    batches = [_cohort(setting, world if number == 0 else 0, count, stream) for number in range(setting.batches)]
    return np.stack(batches)


def _cohort(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    mechanism = setting.mechanism
    messages = [mechanism.randomize(setting.vectors(world, count), stream)]
    others = np.tile(setting.others, (count, 1))
    if setting.view == "records":
        messages += [mechanism.randomize(others, stream) for _ in range(setting.visible - 1)]
        return np.stack(messages, axis=1)
    sums = messages[0]
    for _ in range(setting.visible - 1):
        sums = add(sums, mechanism.randomize(others, stream), mechanism.modulus)
    return (sums % np.uint64(mechanism.modulus))[:, np.newaxis]

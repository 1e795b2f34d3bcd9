"""Run both worlds of an audit in this process: many releases of one cohort, as its adversary sees them."""

import numpy as np
from numpy.typing import NDArray

from distrust.common.mechanisms import Mechanism
from distrust.common.modular import Vector, add
from distrust.common.randomness import Stream
from distrust.lab.audit.observation import evidence, observed
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import ALARM, Finding, check_trials, judge_worlds

AT_ONCE = 1 << 18
"""Coordinates of messages that are held at a time."""


def audit(
    mechanism: Mechanism,
    *,
    stream: Stream,
    trials: int = 100_000,
    survivors: int | None = None,
    colluders: int = 0,
    alarm: float = ALARM,
) -> Finding:
    """Run both worlds in this process, through randomize, the sum modulo m and estimate, and test the claim.

    trials     of each world.
    survivors  clients that answered, the mechanism's floor by default; `colluders` of them reveal their noise.
    Raises     TooSmall or BadParameter where the mechanism refuses to release.
    """
    setting = Setting(mechanism, mechanism.floor if survivors is None else survivors, colluders)
    check_trials(setting, trials, alarm)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge_worlds(setting, worlds[0], worlds[1], alarm=alarm)


def outcomes(setting: Setting, world: int, trials: int, stream: Stream) -> NDArray[np.float64]:
    """Return the evidence of `trials` releases, a row a trial, through randomize, the sum modulo m and estimate.

    Raises TooSmall or BadParameter from the mechanism's own `estimate` where such a cohort must not be opened.
    """
    setting.check()
    messages = setting.visible if setting.view == "records" else 1
    at_once = max(1, AT_ONCE // (setting.mechanism.dimension * setting.batches * messages))
    counts = [min(at_once, trials - start) for start in range(0, trials, at_once)]
    parts = [observed(setting, _contents(setting, world, count, stream), stream) for count in counts]
    return np.concatenate([evidence(setting, part) for part in parts])


def _contents(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    """Return what the intermediary hands over in each of `count` trials, shape (batches, count, messages, D).

    The differing client is in the first batch. Records keep their order: no evidence depends on it.
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

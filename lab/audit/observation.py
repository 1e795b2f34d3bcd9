"""From what S handed over to what the mechanism shows of it: numbers in grid steps, without the modulus."""

import numpy as np
from numpy.typing import NDArray

from distrust.common.mechanisms import Mechanism
from distrust.common.mechanisms.central.tree import Counter, Tree
from distrust.common.modular import Vector
from distrust.common.randomness import Stream
from distrust.lab.audit.replicas import in_lanes
from distrust.lab.audit.setting import Setting

Shown = NDArray[np.float64]


def shown(setting: Setting, contents: Vector, stream: Stream) -> Shown:
    """What is seen of T trials, shape (T, pieces, D), in grid steps.

    contents  in Z_m, shape (batches, T, messages, D): sums (one message), or a trial's messages.
    stream    for the noise of mechanisms that add it here.
    """
    if setting.view == "stream":
        return _released(setting, contents, stream)
    if setting.view == "estimate":
        return _estimates(setting, contents[0, :, 0], stream)[:, np.newaxis]
    return centred(setting.mechanism, contents[0], setting.visible if setting.view == "sum" else 1)


def centred(mechanism: Mechanism, sums: Vector, clients: int) -> Shown:
    """Sums in Z_m as integers in a window around 0 … clients · g, of the same shape.

    Counts of ones never wrap, and stay as they are.
    """
    whole = sums.astype(np.float64)
    if mechanism.width is None:
        spread = clients * mechanism.precision
        room = max(0, mechanism.modulus - spread - 1) // 2
        whole[sums > np.uint64(spread + room)] -= mechanism.modulus
    return whole


def _estimates(setting: Setting, sums: Vector, stream: Stream) -> Shown:
    """A's own estimates of all trials at once, shape (T, D)."""
    wide = in_lanes(setting.mechanism, len(sums))
    found = wide.estimate(sums.ravel(), setting.survivors, stream).reshape(sums.shape)
    return _steps(setting.mechanism, found, setting.survivors)


def _released(setting: Setting, contents: Vector, stream: Stream) -> Shown:
    """Batches, then prefix sums, of T streams that one counter counts side by side: shape (T, 2 batches, D)."""
    mechanism, shape = setting.mechanism, contents[0, :, 0].shape
    assert isinstance(mechanism, Tree)
    counter = Counter(in_lanes(mechanism, len(contents[0])))
    batches, prefixes = [], []
    for number, batch in enumerate(contents, 1):
        counter, out = counter.add(batch.ravel(), setting.survivors, stream)
        batches.append(_steps(mechanism, out.batch.reshape(shape), setting.survivors))
        prefixes.append(_steps(mechanism, out.prefix.reshape(shape), number * setting.survivors))
    return np.stack([*batches, *prefixes], axis=1)


def _steps(mechanism: Mechanism, estimates: NDArray[np.float64], survivors: int) -> Shown:
    steps = mechanism.precision / (mechanism.high - mechanism.low)
    return np.asarray((estimates - survivors * mechanism.low) * steps, dtype=np.float64)

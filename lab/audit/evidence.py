"""A few numbers for each trial, among whose values events are looked for: the finest are likelihood ratios.

Whatever a number is worth, the test stays exact: it only sees fewer or more differences between the worlds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import BadParameter
from distrust.common.noise.law import Law
from distrust.lab.audit.observation import Shown
from distrust.lab.audit.setting import Setting

LEAST = 1e-300
"""Stands for a probability of nothing."""

DIGITS = 9
"""Of a likelihood ratio, so that equal ones are equal whatever they were added up from."""


def names(setting: Setting) -> tuple[str, ...]:
    """What `evidence` has for a trial.

    sum         of all telling coordinates; of all records.
    likelihood  ln of the two worlds' likelihood ratio, by the noise's own law: for several coordinates, where no sum
                tells as much unless noise is Gaussian; for permuted records, the mean of their ratios.
    nodes       of a stream: the prefix sums that are single nodes and hold the first batch, added up. Their ratio, as
                every node has Gaussian noise of its own.
    everything  of a stream: all batches and prefixes, for noise that should be there once and is not.
    """
    if setting.view == "stream":
        return ("nodes", "everything")
    finer = setting.view == "records" or setting.telling > 1
    return ("sum", "likelihood") if finer and ratio(setting) is not None else ("sum",)


def evidence(setting: Setting, seen: Shown) -> NDArray[np.float64]:
    """One row a trial, shape (T, len(names)), of what was shown, shape (T, pieces, D)."""
    telling = seen[..., : setting.telling]
    whole: NDArray[np.float64] = telling.sum(axis=(1, 2))
    if setting.view == "stream":
        count = setting.batches
        nodes = [count + (1 << level) - 1 for level in range(count.bit_length())]
        return np.column_stack((telling[:, nodes].sum(axis=(1, 2)), whole))
    if len(names(setting)) == 1:
        return whole[:, np.newaxis]
    table = ratio(setting)
    assert table is not None
    logs = table.of(telling).sum(axis=2)
    mixed = np.logaddexp.reduce(logs, axis=1) - np.log(logs.shape[1])
    return np.column_stack((whole, np.round(mixed, DIGITS)))


@dataclass(frozen=True, slots=True)
class Ratio:
    """ln P₁(y)/P₀(y) of one telling coordinate, for y from `first` on; beyond its ends it stays what it is there."""

    first: int
    logs: NDArray[np.float64]

    def of(self, values: Shown) -> NDArray[np.float64]:
        """Entry by entry; what is no integer counts as the nearest one."""
        found: NDArray[np.float64] = self.logs[np.clip(np.rint(values) - self.first, 0, self.logs.size - 1).astype(int)]
        return found


def ratio(setting: Setting) -> Ratio | None:
    """From the law of the noise in what is seen, where that is known."""
    law = _noise(setting)
    try:
        pmf = None if law is None else law.pmf()
    except BadParameter:  # too long for a table
        pmf = None
    if pmf is None:
        return None
    first, masses = pmf.first + _center(setting), pmf.masses
    both = [_likelihood(masses, steps, setting.mechanism.precision) for steps in _clean(setting)]
    return Ratio(first, np.log(both[1]) - np.log(both[0]))


def _likelihood(masses: NDArray[np.float64], steps: float, most: int) -> NDArray[np.float64]:
    """The law of noise + randomized rounding of `steps`, on a support that is longer by all possible steps."""
    whole = min(int(steps), most - 1)
    chances = np.zeros(most + 1)
    chances[whole : whole + 2] = 1 - (steps - whole), steps - whole
    return np.maximum(np.convolve(masses, chances) if most < masses.size else np.convolve(chances, masses), LEAST)


def _clean(setting: Setting) -> NDArray[np.float64]:
    """The differing client's first coordinate in either world, in grid steps, shape (2,)."""
    mechanism = setting.mechanism
    steps = (setting.ends[:, 0] - mechanism.low) * (mechanism.precision / (mechanism.high - mechanism.low))
    return np.clip(steps, 0, mechanism.precision)


def _center(setting: Setting) -> int:
    """What the others' values, and ones that say nothing, add to a sum."""
    mechanism, others = setting.mechanism, setting.visible - 1
    if setting.view not in {"sum", "estimate"}:
        return 0
    step = (mechanism.high - mechanism.low) / mechanism.precision
    still = round(float(setting.others[0] - mechanism.low) / step)
    return others * still + mechanism.silent_ones * setting.visible


def _noise(setting: Setting) -> Law | None:
    """The noise of one coordinate of what is seen. Continuous noise is told by the discrete law of its size."""
    mechanism = setting.mechanism
    if setting.view == "estimate":
        return getattr(mechanism, "server_law", lambda: None)()
    if setting.view in {"message", "records"}:
        return getattr(mechanism, "client_law", lambda: None)()
    law = getattr(mechanism.error(setting.visible), "law", None)
    return law if hasattr(law, "pmf") else None

"""Many releases of one cohort, as whoever should learn nothing sees them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter
from common.mechanisms import Mechanism
from common.modular import Vector, add
from common.randomness import Stream

View = Literal["sum", "message", "estimate"]
VIEWS: dict[str, View] = {"central": "estimate", "local": "message"}

AT_ONCE = 1 << 18
"""Coordinates of messages that are held at a time."""


@dataclass(frozen=True)
class Setting:
    """What is audited: a mechanism, how many answered, and how many of these tell their noise.

    Neighbours  one client holds one end of its domain in world 0 and the other in world 1, the others the first one:
                the lowest and the highest vector of a box, the poles of the first axis of an l1 or l2 ball.
    """

    mechanism: Mechanism
    survivors: int
    colluders: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.colluders < self.survivors:
            raise BadParameter("colluders", self.colluders, f"must lie in [0, survivors = {self.survivors})")

    @cached_property
    def view(self) -> View:
        """What the guarantee is about: the published estimate, one client's message, or the sum that S hands over."""
        return VIEWS.get(self.mechanism.guarantee().model, "sum")

    @property
    def visible(self) -> int:
        """Messages that are added up: the colluders' are known and could be taken off again."""
        return 1 if self.view == "message" else self.survivors - self.colluders

    def vectors(self, world: int, count: int) -> NDArray[np.float64]:
        """The differing client's vector, `count` times."""
        mechanism = self.mechanism
        values = np.full((count, mechanism.dimension), (mechanism.low + mechanism.high) / 2)
        values[:, : self.telling] = mechanism.high if world else mechanism.low
        return values

    @property
    def telling(self) -> int:
        """Coordinates that differ between the worlds: the first ones."""
        return self.mechanism.dimension if self.mechanism.norm == "linf" else 1


def outcomes(setting: Setting, world: int, trials: int, stream: Stream) -> NDArray[np.float64]:
    """One number a trial, shape (trials,): the telling coordinates added up, in grid steps or in data units.

    Raises TooSmall or BadParameter from the mechanism's own `estimate` where such a cohort must not be opened.
    """
    at_once = max(1, AT_ONCE // setting.mechanism.dimension)
    counts = [min(at_once, trials - start) for start in range(0, trials, at_once)]
    return np.concatenate([seen(setting, _sums(setting, world, count, stream), stream) for count in counts])


def seen(setting: Setting, sums: Vector, stream: Stream) -> NDArray[np.float64]:
    """Sums in Z_m, shape (trials, D), as the view shows them, shape (trials,)."""
    mechanism, survivors = setting.mechanism, setting.survivors
    mechanism.estimate(sums[0], survivors, stream)  # refuses what must not be opened
    if setting.view == "estimate":
        return np.array([mechanism.estimate(one, survivors, stream)[: setting.telling].sum() for one in sums])
    return centred(mechanism, sums[:, : setting.telling], setting.visible)


def centred(mechanism: Mechanism, sums: Vector, clients: int) -> NDArray[np.float64]:
    """Sums in Z_m, shape (…, D), as integers in a window around 0 … clients · g, coordinates added: shape (…,).

    Counts of ones never wrap, and stay as they are.
    """
    whole = sums.astype(np.float64)
    if mechanism.width is None:
        spread = clients * mechanism.precision
        room = max(0, mechanism.modulus - spread - 1) // 2
        whole[sums > np.uint64(spread + room)] -= mechanism.modulus
    return np.asarray(whole.sum(axis=-1), dtype=np.float64)


def _sums(setting: Setting, world: int, count: int, stream: Stream) -> Vector:
    """Σ of the visible messages mod m in each of `count` cohorts, shape (count, D)."""
    mechanism = setting.mechanism
    sums = mechanism.randomize(setting.vectors(world, count), stream)
    for _ in range(setting.visible - 1):
        sums = add(sums, mechanism.randomize(setting.vectors(0, count), stream), mechanism.modulus)
    return sums % np.uint64(mechanism.modulus)

"""What statistics have in common: how far a client's vector reaches, and that it is made of numbers."""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import BadParameter


class HasBound(Protocol):
    """Something with a largest absolute value B."""

    @property
    def bound(self) -> float: ...


class Symmetric:
    """Every coordinate lies in [-B, B]."""

    @property
    def low(self: HasBound) -> float:
        return -self.bound

    @property
    def high(self: HasBound) -> float:
        return self.bound


class Box:
    """A client may move all its coordinates at once, each from end to end."""

    @property
    def norm(self) -> Literal["l1", "l2", "linf"]:
        return "linf"


def finite(field: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values. Raises BadParameter for NaN and infinities among them."""
    if not np.isfinite(values).all():
        raise BadParameter(field, "NaN or infinity", "finite numbers are allowed")
    return values

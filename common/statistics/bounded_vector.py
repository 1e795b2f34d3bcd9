"""A vector with a bounded norm, as it is: for mechanisms that serve more than one coordinate."""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.errors import BadParameter
from common.messages.base import Message
from common.statistics.bounds import Symmetric, finite


class BoundedVector(Symmetric, Message):
    """A client's vector of `dimension` coordinates whose `norm` is at most `bound`, in data units.

    Domain  float64, shape (n, dimension); NaN and infinities are refused, longer vectors are shortened later.
    """

    kind: Literal["bounded-vector"] = "bounded-vector"
    dimension: Annotated[int, Field(ge=1, le=1_000_000, description="D: coordinates")]
    norm: Literal["l1", "l2", "linf"] = "l2"
    bound: Annotated[float, Field(gt=0, le=1e100, description="largest norm of a client's vector")] = 1.0

    def vectors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values themselves, shape (n, dimension)."""
        if values.ndim != 2 or values.shape[1] != self.dimension:
            raise BadParameter("vectors", values.shape, f"shape must be (n, {self.dimension})")
        return finite("vectors", values)

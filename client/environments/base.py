"""What a world of rewards is. True means never leave the client's side, so regret is computed here."""

from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.randomness import Stream

Seed = Annotated[int, Field(ge=0, lt=2**63, description="rewards (and drawn means) from a seed")] | None
"""None: whoever starts the run draws one."""


class Environment(Protocol):
    """K arms, and a law of rewards for each: in [0, 1], or in [-B, B] for linear ones."""

    @property
    def name(self) -> str:
        """The name that a run file calls it by."""
        ...

    @property
    def arms(self) -> int:
        """K."""
        ...

    @property
    def means(self) -> NDArray[np.float64]:
        """True mean reward of each arm, shape (K,)."""
        ...

    @property
    def best(self) -> int:
        """The arm of the largest mean; the first of them on ties."""
        ...

    def rewards(self, arm: int, count: int, stream: Stream) -> NDArray[np.float64]:
        """Independent rewards of `arm`, shape (count,); the same stream gives the same rewards."""
        ...

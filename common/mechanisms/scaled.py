"""An error law: noise in grid steps, seen in the data's units."""

from dataclasses import dataclass
from typing import Protocol


class Spread(Protocol):
    """What an error law needs of the noise."""

    @property
    def std(self) -> float: ...

    def quantile(self, p: float) -> float:
        """The least q with P(|noise| > q) ≤ p."""
        ...


@dataclass(frozen=True, slots=True)
class Scaled:
    """`law` times `step`, the width of a grid step in data units; `law` None is no noise at all."""

    law: Spread | None
    step: float
    sub_exponential: tuple[float, float]

    @property
    def std(self) -> float:
        return 0.0 if self.law is None else self.step * self.law.std

    def quantile(self, p: float) -> float:
        return 0.0 if self.law is None else self.step * self.law.quantile(p)

"""An error law: noise in grid steps, seen in the data's units."""

from dataclasses import dataclass
from typing import Protocol

from distrust.common.bandit.error_law import How


class Spread(Protocol):
    """What an error law needs of the noise."""

    @property
    def std(self) -> float: ...

    def quantile(self, p: float) -> float:
        """The least q with P(|noise| > q) ≤ p."""
        ...


@dataclass(frozen=True, slots=True)
class ScaledErrorLaw:
    """`law` times `step`, the width of a grid step in data units; `law` None is no noise at all."""

    law: Spread | None
    step: float
    sub_exponential: tuple[float, float]

    @property
    def std(self) -> float:
        return 0.0 if self.law is None else self.step * self.law.std

    @property
    def quantile_how(self) -> How:
        """Whether `quantile` is exact, or a bound where the law is too long or depends on the data."""
        how: How = getattr(self.law, "quantile_how", "exact")
        return how

    def quantile(self, p: float) -> float:
        return 0.0 if self.law is None else self.step * self.law.quantile(p)

"""An error law: integer noise, seen in the data's units."""

from dataclasses import dataclass

from common.noise import Law


@dataclass(frozen=True, slots=True)
class Scaled:
    """`law` times `step`, the width of a grid step in data units; `law` None is no noise at all."""

    law: Law | None
    step: float
    sub_exponential: tuple[float, float]

    @property
    def std(self) -> float:
        return 0.0 if self.law is None else self.step * self.law.std

    def quantile(self, p: float) -> float:
        return 0.0 if self.law is None else self.step * self.law.quantile(p)

"""How far a private sum may lie from the truth."""

from typing import Literal, Protocol

How = Literal["exact", "bound"]
"""Of a figure: what the law gives, or something that is no smaller."""


class ErrorLaw(Protocol):
    """The law of estimate - true sum that the privacy noise causes, in the data's units; rounding excluded."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise in one coordinate of the sum."""
        ...

    def quantile(self, p: float) -> float:
        """The least q with P(|noise| > q) ≤ p, exactly, for p down to 1e-12."""
        ...

    @property
    def sub_exponential(self) -> tuple[float, float]:
        """(σ, h) of the paper's Assumption 1: |noise| ≤ σ√ln(2/p) + h ln(2/p) with probability 1 - 2p."""
        ...

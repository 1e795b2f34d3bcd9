"""Implements DP-SE: elimination in epochs that halve the gap they look for (Sajed & Sheffet 2019, MAB's baseline)."""

import math
from typing import Self

from typing_extensions import override

from distrust.common.bandit.error_law import Calibration
from distrust.common.specs.policy import DpSeSpec
from distrust.server.policies.base import ArmKey, Estimate, RunFacts
from distrust.server.policies.elimination import Elimination, check_failure, exact_radius


class DpSe(Elimination):
    """Epoch e looks for gaps of D = 2⁻ᵉ: ⌊max(32 L₈/D², 8 λ L₄/D)⌋ + 1 new clients an arm, L_c = ln(c|S|e²/p).

    noise    λ ≥ 0: the scale of the Laplace noise that a sum is expected to carry; 1/ε in the paper. It sets lengths
             only: an interval rests on the law of the actual noise.
    failure  p: every interval of every epoch holds with probability > 1 - p.
    exact    `exact_radius`. paper: √(L₈/(2R)) + q/R, q the noise's quantile at p/(4|S|e²); for Laplace's law, which the
             paper has, that is its λL₄.
    The end  the last active arm is played until the horizon.
    """

    def __init__(self, *, arms: int, noise: float, failure: float = 0.1, calibration: Calibration = "exact") -> None:
        super().__init__(arms)
        self._noise, self._failure, self._paper = noise, failure, calibration == "paper"

    @classmethod
    def of(cls, spec: DpSeSpec, run: RunFacts) -> Self:
        check_failure(run.arms, spec.failure)
        return cls(arms=run.arms, noise=run.laplace_scale, failure=spec.failure, calibration=run.calibration)

    @property
    def going_on(self) -> bool:
        return len(self._active) > 1

    @property
    def clients(self) -> int:
        gap = 2.0**-self._batch
        sampling = 32 * math.log(2 / self._each) / gap**2
        return math.floor(max(sampling, 8 * self._noise * math.log(1 / self._each) / gap)) + 1

    @override
    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        (total,), (survivors,), (law,) = estimate.sums, estimate.counts, estimate.laws
        if not self._paper:
            return total / survivors, exact_radius(survivors, law, len(self._active), self._batch, self._failure)
        sampled = math.sqrt(math.log(2 / self._each) / (2 * survivors))
        return total / survivors, sampled + law.quantile(self._each) / survivors

    def leftover(self, left: int) -> dict[ArmKey, int]:
        """Return the last pulls, shared evenly as an epoch plays the arms in turn; the last active arm gets all."""
        each, more = divmod(left, len(self._active))
        counts = {arm: each + (place < more) for place, arm in enumerate(self._active)}
        return {arm: count for arm, count in counts.items() if count}

    @property
    def _each(self) -> float:
        """Return the paper's p/(4|S|e²): its sampling errors and its noise have one each, 0.83p in all."""
        return self._failure / (4 * len(self._active) * self._batch**2)

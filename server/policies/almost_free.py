"""Privacy (almost) for free in linear bandits (FREE Algorithms 1 to 3, ALGORITHMS 2.2)."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from common.decisions import AssignedAction
from common.errors import BadParameter
from common.statistics import BoundedReward
from server.policies.base import Ask, Estimate, Query
from server.policies.design import Design, near_optimal, uniform
from server.policies.dp_pe import OneRewardEach, answered
from server.policies.least_squares import Readings
from server.policies.phases import Phase
from server.policies.radius import Calibration

Floats = NDArray[np.float64]
Model = Literal["central", "local", "shuffled"]
LEAST = 8  # ⌊ln T⌋ - 1 is below 1 for fewer


class AlmostFree(OneRewardEach):
    """Batches i = 1 … ⌊ln T⌋ - 1 of length about qⁱ, q = (2T)^{1/ln T}; then the best action for the rest.

    model     shuffled: one cohort of Σ n_a clients whose actions are permuted; else a cohort of n_a for each action.
    core_set  off: all the active actions are played alike.
    paper     γ = B√(4m L/qⁱ) + (2|C|m + 2mL) b/qⁱ (central), B√(4m L/qⁱ) + (2m/qⁱ) √(Σ b_a² L) (local, shuffled), with
              b_a = std/√2 of the noise in action a's sum, the scale of a Laplace law, and L = ln(|A|/(kβ)), which is
              the paper's ln(4|A|T²) for β = 1/(4kT²). Without a core set 2m gives way to g(π).
    """

    def __init__(
        self,
        actions: Floats,
        *,
        horizon: int,
        model: Model,
        core_set: bool,
        bound: float,
        beta: float,
        calibration: Calibration,
        smallest: int = 1,
    ) -> None:
        super().__init__(actions, bound=bound, beta=beta, calibration=calibration, smallest=smallest)
        if horizon < LEAST:
            raise BadParameter("horizon", horizon, f"must be at least {LEAST}, for one batch")
        self._base, self._last = (2 * horizon) ** (1 / math.log(horizon)), math.floor(math.log(horizon)) - 1
        self._model, self._core_set = model, core_set

    @property
    def going_on(self) -> bool:
        return self._number <= self._last

    def length(self, number: int) -> float:
        return float(self._base**number)

    def design(self, candidates: Floats) -> Design:
        return near_optimal(candidates) if self._core_set else uniform(candidates)

    def plan(self, phase: Phase) -> Ask:
        if self._model != "shuffled":
            return super().plan(phase)
        decision = AssignedAction(actions=list(phase.support), times=list(phase.plays))
        statistic = BoundedReward(bound=self._bound)
        return Ask(phase.number, (Query(None, sum(phase.plays)),), self._beta, decision, statistic)

    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        if self._model != "shuffled":
            return super().read(phase, estimates)
        (one,) = estimates.values()
        clients = np.array(one.counts, dtype=np.float64)
        means = np.array(one.sums) / np.maximum(clients, 1)
        return Readings(phase.vectors, clients, means, clients, one.laws, one.rounding, joint=one.joint)

    def paper_width(self, phase: Phase, readings: Readings) -> float:
        rank, length = max(phase.design.rank, phase.design.spread / 2), answered(phase, readings)
        if length == 0:
            return math.inf
        log = math.log(len(phase.active) / (len(self._actions) * self._beta))
        scales = np.array([law.std for law in readings.laws]) / math.sqrt(2)
        sampled = self._bound * math.sqrt(4 * rank / length * log)
        if self._model == "central":
            noise = (2 * len(phase.support) * rank + 2 * rank * log) * scales.max() / length
        else:
            noise = 2 * rank / length * math.sqrt((scales**2).sum() * log)
        return float(sampled + noise)

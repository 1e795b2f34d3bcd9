"""Implements privacy (almost) for free in linear bandits (FREE Algorithms 1 to 3)."""

import math

import numpy as np

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.error_law import Floats
from distrust.common.bandit.statistics import BoundedReward
from distrust.common.errors import BadParameter
from distrust.common.specs.policy import AlmostFreeSpec
from distrust.server.policies.base import ArmKey, Ask, Estimate, Query, RunFacts
from distrust.server.policies.linear.design import ActionDesign, near_optimal, uniform
from distrust.server.policies.linear.phases import OneRewardEach, Phase, Readings, answered_length

LEAST_HORIZON = 8  # pulls; below it ⌊ln T⌋ - 1 batches are none


class AlmostFree(OneRewardEach):
    """Batches i = 1 … ⌊ln T⌋ - 1 that grow by q = (2T)^{1/ln T}; then the best action for the rest.

    lengths   paper: qⁱ, as printed. exact: q^{i-1+f}, f the fractional part of ln T.
    the end   exact: pulls that no batch has room for go to the best action known. paper: to the unfinished batch.
    model     shuffled: one cohort of Σ n_a clients whose actions are permuted; else a cohort of n_a for each action.
    core_set  off: all the active actions are played alike.
    paper     γ = B√(4m L/qⁱ) + (2|C|m + 2mL) b/qⁱ (central), B√(4m L/qⁱ) + (2m/qⁱ) √(Σ b_a² L) (local, shuffled), with
              b_a = std/√2 of the noise in action a's sum, the scale of a Laplace law. L = ln(4|A|T²) as printed, A the
              active actions: each side of an event has 1/(4|A|T²). Without a core set 2m gives way to g(π).
    own_beta  whether β is the run file's own. Then the `paper` L is ln(2/β), however many actions are left.
    """

    def __init__(self, spec: AlmostFreeSpec, run: RunFacts) -> None:
        super().__init__(spec, run)
        horizon = run.horizon
        if horizon < LEAST_HORIZON:
            raise BadParameter("horizon", horizon, f"must be at least {LEAST_HORIZON}, for one batch")
        log = math.log(horizon)
        self._base, self._last = (2 * horizon) ** (1 / log), math.floor(log) - 1
        # The printed lengths qⁱ sum to nearly 2T/(q - 1) > T as f falls to 0: the horizon then cuts the last batch off,
        # and it teaches nothing. With q^{i-1+f} the last batch has q^{ln T - 2} = 2T/q² for every T, and all of them
        # sum to less than 2T/(q(q-1)) < 0.43 T: they fit, as rounding adds less than one pull an action and batch.
        # Where ln T passes a whole number the lengths stay as they are, and one batch of length 1 comes first.
        self._shift = 0.0 if self._paper else log - math.floor(log) - 1
        self._model, self._core_set, self._own_beta = spec.model, spec.core_set, spec.beta is not None

    @property
    def going_on(self) -> bool:
        return self._number <= self._last

    def length(self, number: int) -> float:
        return float(self._base ** (number + self._shift))

    def leftover(self, left: int) -> dict[ArmKey, int]:
        if self._paper or self._chosen is None:
            return super().leftover(left)
        return {self._chosen: left} if left else {}

    def design(self, candidates: Floats) -> ActionDesign:
        return near_optimal(candidates) if self._core_set else uniform(candidates)

    def plan(self, phase: Phase) -> Ask:
        if self._model != "shuffled":
            return super().plan(phase)
        decision = AssignedAction(actions=list(phase.support), times=list(phase.plays))
        statistic = BoundedReward(bound=self._bound)
        return Ask(phase.number, (Query(None, sum(phase.plays)),), decision, statistic)

    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        if self._model != "shuffled":
            return super().read(phase, estimates)
        (estimate,) = estimates.values()
        clients = np.array(estimate.counts, dtype=np.float64)
        means = np.array(estimate.sums) / np.maximum(clients, 1)
        return Readings(phase.vectors, clients, means, clients, estimate.laws, estimate.rounding, joint=estimate.joint)

    def paper_width(self, phase: Phase, readings: Readings) -> float:
        rank, length = max(phase.design.rank, phase.design.spread / 2), answered_length(phase, readings)
        if length == 0:
            return math.inf
        # The printed L with 4T² = 1/(kβ), k actions in all, is ln(|A|/(kβ)). It falls below 0 for a β that is not so
        # small: with the run file's own β each side of an event has β/2 instead.
        log = math.log(2 / self._beta if self._own_beta else len(phase.active) / (len(self._actions) * self._beta))
        scales = np.array([law.std for law in readings.laws]) / math.sqrt(2)
        sampled = self._bound * math.sqrt(4 * rank / length * log)
        if self._model == "central":
            noise = (2 * len(phase.support) * rank + 2 * rank * log) * scales.max() / length
        else:
            noise = 2 * rank / length * math.sqrt((scales**2).sum() * log)
        return float(sampled + noise)

"""Implements phased elimination with one reward a client, one cohort an action of the design (DLB Algorithm 3)."""

import math
from abc import abstractmethod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedReward
from distrust.common.messages.policy import DpPeSpec
from distrust.server.policies.base import Ask, Estimate, Query, RunFacts
from distrust.server.policies.elimination import Calibration
from distrust.server.policies.linear.design import ActionDesign, support_bound
from distrust.server.policies.linear.phases import Phase, Phased, Readings, arm_vectors, event_failure, noise_tail
from distrust.server.policies.noise_width import noise_width

Floats = NDArray[np.float64]


class OneRewardEach(Phased):
    """Phases whose clients play one action and report one reward in [-B, B]; a cohort for each action of the design."""

    def __init__(
        self, actions: Floats, *, bound: float, beta: float, calibration: Calibration, smallest: int = 1
    ) -> None:
        super().__init__(actions, bound=bound, beta=beta, smallest=smallest)
        self._paper = calibration == "paper"

    def times(self, length: float, design: ActionDesign) -> tuple[int, ...]:
        return tuple(max(self._smallest, count) for count in super().times(length, design))

    def plan(self, phase: Phase) -> Ask:
        queries = tuple(Query(arm, clients) for arm, clients in zip(phase.support, phase.plays, strict=True))
        return Ask(phase.number, queries, self._beta, statistic=BoundedReward(bound=self._bound))

    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        ordered = [estimates[arm] for arm in phase.support]
        first = ordered[0]
        sums = np.array([one.sums[0] for one in ordered])
        clients = np.array([one.counts[0] for one in ordered], dtype=np.float64)
        laws = [one.laws[0] for one in ordered]
        return Readings(phase.vectors, clients, sums / clients, clients, laws, first.rounding, joint=first.joint)

    def widths(self, phase: Phase, readings: Readings) -> Floats:
        """Return the widths; exact: √(2 ln(2/β)) B ‖x‖_{V⁻¹} (Hoeffding) plus the noise's width at β."""
        if self._paper:
            return np.full(len(phase.active), self.paper_width(phase, readings))
        weights, clients = readings.influence(phase.candidates), np.maximum(readings.clients, 1)
        # A reward that is rounded before noise is added is a reward. A joint answer is rounded afterwards: that counts.
        size = math.hypot(self._bound, readings.rounding if readings.joint else 0)
        sampled = size * np.sqrt(2 * math.log(2 / self._beta) * (weights**2 / clients).sum(axis=1))
        # Cohorts have different clients, so that their noises are independent, also where each is joint.
        return np.asarray(sampled + noise_width(readings.laws, weights / clients, self._beta))

    @abstractmethod
    def paper_width(self, phase: Phase, readings: Readings) -> float:
        """Return one width for all actions, by the paper's formula."""


class PrivatePhasedElimination(OneRewardEach):
    """h doubles from `support_bound(d)` = ⌊4d ln ln d + 16⌋; T(x) = ⌈hπ(x)⌉ clients for action x.

    h      is not whole in DLB Algorithm 3. The proof asks that the first one is no less than the number of actions that
           a design has (Σ T(x) ≤ h + |supp π| ≤ 2h), which is whole, so that rounding down keeps it; widths take the h
           and the T(x) that are played. For d = 1, where that logarithm is void, both are 1.
    paper  W = (B√(2m/h) + σ_n) √(2 ln(1/β)), σ_n = 2m √s std/h (Table 4), std the largest of a sum's noise,
           s = |supp π|. The table's local row has room for 2h clients an action; std is that of the survivors,
           one step earlier in the proof. B, where the paper assumes noise that is 1-sub-Gaussian: bounded is all it is.
    """

    @classmethod
    def of(cls, spec: DpPeSpec, run: RunFacts) -> Self:
        actions, beta = arm_vectors(spec, run), event_failure(spec, run)
        return cls(actions, bound=spec.bound, beta=beta, calibration=run.calibration, smallest=run.smallest)

    def length(self, number: int) -> float:
        first = max(1, support_bound(self._actions.shape[1]))
        return first * 2.0 ** (number - 1)

    def paper_width(self, phase: Phase, readings: Readings) -> float:
        rank, log, length = phase.design.rank, math.log(1 / self._beta), answered_length(phase, readings)
        if length == 0:
            return math.inf
        noise = 2 * rank * math.sqrt(len(phase.support)) / length * max(noise_tail(law, log) for law in readings.laws)
        return self._bound * math.sqrt(4 * rank / length * log) + noise


def answered_length(phase: Phase, readings: Readings) -> float:
    """Return the h for which every action of the design has hπ(x) answers: the phase's own unless clients left."""
    return float(min(phase.length, (readings.clients / phase.design.weights).min()))

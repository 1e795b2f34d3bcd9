"""Implements distributed phased elimination: the clients of a phase play all of it side by side (DLB Algorithm 1)."""

import math

import numpy as np

from distrust.common.bandit.decisions import PlayDesign
from distrust.common.bandit.error_law import Floats
from distrust.common.bandit.statistics import ActionMeans
from distrust.common.specs.policy import DpDpeSpec
from distrust.server.policies.base import Ask, Estimate, Query, RunFacts
from distrust.server.policies.linear.design import support_bound
from distrust.server.policies.linear.phases import Phase, Phased, Readings, noise_tail
from distrust.server.policies.noise_width import noise_width


class DistributedPhasedElimination(Phased):
    """h doubles from 2; every client of the phase plays action x ⌈hπ(x)⌉ times and reports the vector of averages.

    Horizon  counts rounds of play: the clients of a phase play them together.
    paper    W = (R√(2m/(|U|h)) + σ/√|U| + σ_n) √(2 ln(1/β)), σ_n = 2 √(Sm) std/|U|, S = `support_bound(m)`, m the
             dimension of the active actions' span; the noise's own (σ, h) where it is not Gaussian; R = 1 as printed,
             or more where more is said.
    exact    for each action x, c its weights: √(2 ln(2/β) (R²‖x‖²_{V⁻¹} + σ²‖x‖² + r²‖c‖²)/|U|), r the rounding,
             plus the noise's `noise_width` at β. An action's failure probability in a phase is at most 2β.
    """

    def __init__(self, spec: DpDpeSpec, run: RunFacts) -> None:
        super().__init__(spec, run)
        self._spec = spec

    def length(self, number: int) -> float:
        return 2.0**number

    def plan(self, phase: Phase) -> Ask:
        clients = self._spec.clients or math.ceil(2 ** (self._spec.alpha * phase.number))  # |U_l|
        clients = max(self._smallest, clients)
        decision = PlayDesign(actions=list(phase.support), times=list(phase.plays))
        statistic = ActionMeans(actions=len(phase.support), bound=self._bound)
        return Ask(phase.number, (Query(None, clients),), decision, statistic)

    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        (estimate,) = estimates.values()
        clients = np.array(estimate.counts, dtype=np.float64)
        means = np.array(estimate.sums) / clients
        plays = np.array(phase.plays, dtype=np.float64)
        return Readings(phase.vectors, plays, means, clients, estimate.laws, estimate.rounding, joint=estimate.joint)

    def widths(self, phase: Phase, readings: Readings) -> Floats:
        if self._paper:
            return np.full(len(phase.active), self._paper_width(phase, readings))
        weights, survivors = readings.influence(phase.candidates), readings.clients[0]
        played = (weights**2 / readings.plays).sum(axis=1) * self._spec.noise**2
        client = (phase.candidates**2).sum(axis=1) * self._spec.deviation**2
        rounded = (weights**2).sum(axis=1) * readings.rounding**2
        sampled = np.sqrt(2 * math.log(2 / self._beta) * (played + client + rounded) / survivors)
        return np.asarray(sampled + noise_width(readings.laws, weights / survivors, self._beta, joint=readings.joint))

    def _paper_width(self, phase: Phase, readings: Readings) -> float:
        rank, survivors, log = phase.design.rank, float(readings.clients[0]), math.log(1 / self._beta)
        played = max(1.0, self._spec.noise) * math.sqrt(2 * rank / (survivors * phase.length))
        sampled = played + self._spec.deviation / math.sqrt(survivors)
        spread = 2 * math.sqrt(support_bound(rank) * rank) / survivors
        return sampled * math.sqrt(2 * log) + spread * max(noise_tail(law, log) for law in readings.laws)

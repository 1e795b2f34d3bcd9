"""Phases of linear bandits: play a design, estimate θ* by least squares, drop actions by the widths of their values."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.actions import action_vectors
from distrust.common.bandit.error_law import ErrorLaw, Floats
from distrust.common.bandit.statistics import BoundedReward
from distrust.common.errors import BadParameter
from distrust.common.specs.base import LEAST_BETA, RoundSize
from distrust.common.specs.policy import LinearPolicySpec
from distrust.server.policies.base import ArmKey, Ask, Estimate, Interval, Query, RunFacts
from distrust.server.policies.elimination import EliminationBase
from distrust.server.policies.linear.design import ActionDesign, near_optimal, support_bound
from distrust.server.policies.noise_width import noise_width

SMALL = 1e-12  # singular values of √plays x below this share of the largest count as 0
ASTRAY = 1e-6  # share of an action's length that may lie outside the span of the played actions

LEAST_PRINTED = 1e-300
"""Smallest β for the papers' widths: 1/β and its logarithm are finite."""


@dataclass(frozen=True)
class Readings:
    """Estimated means of some actions, in one order, and the least-squares estimate of θ* from them.

    vectors   shape (s, d); they may span less than R^d, and then everything happens in their span.
    plays     shape (s,): weights in V = Σ plays x xᵀ, at least 0.
    means     shape (s,): estimates of ⟨θ*, x⟩.
    clients   shape (s,): how many clients each mean is over.
    laws      of the noise in each sum, that is in clients * mean.
    rounding  standard deviation of one client's rounding error.
    joint     the noises are not independent, but a combination of them with weights c has ‖c‖₂ times the law of one.
    """

    vectors: Floats
    plays: Floats
    means: Floats
    clients: Floats
    laws: Sequence[ErrorLaw]
    rounding: float
    joint: bool = False

    @cached_property
    def root(self) -> Floats:
        """Return the pseudo-inverse of √plays x, shape (d, s).

        V⁻¹ = root rootᵀ. V itself would lose half of the digits.
        """
        return np.asarray(np.linalg.pinv(self._weighted, rcond=SMALL), dtype=np.float64)

    @cached_property
    def theta(self) -> Floats:
        """Return θ̃ = V⁻¹ Σ plays x mean(x), shape (d,)."""
        return np.asarray(self.root @ (np.sqrt(self.plays) * self.means), dtype=np.float64)

    def influence(self, actions: Floats) -> Floats:
        """Return C, shape (k, s), with ⟨x, θ̃⟩ = Σ_j c_j mean_j for each row x of `actions`."""
        shares: Floats = (actions @ self.root) * np.sqrt(self.plays)
        return shares

    def spans(self, actions: Floats) -> NDArray[np.bool_]:
        """Return for each action whether it lies in the span of the played ones, shape (k,). Others stay unknown."""
        across = actions - (actions @ self.root) @ self._weighted
        inside: NDArray[np.bool_] = np.linalg.norm(across, axis=1) <= ASTRAY * np.linalg.norm(actions, axis=1)
        return inside

    @property
    def _weighted(self) -> Floats:
        return np.sqrt(self.plays)[:, np.newaxis] * self.vectors


def arm_vectors(spec: LinearPolicySpec, run: RunFacts) -> Floats:
    """Return the action set, row a for arm a. Raises BadParameter where it has not K rows."""
    actions = action_vectors(spec.actions)
    if len(actions) != run.arms:
        raise BadParameter("arms", run.arms, f"policy.actions has {len(actions)}")
    return actions


def event_failure(spec: LinearPolicySpec, run: RunFacts) -> float:
    """Return β, the same in every round. Raises BadParameter for one that the widths have no quantiles for."""
    exact = run.calibration == "exact"
    least, widths = (LEAST_BETA, "exact widths") if exact else (LEAST_PRINTED, "the paper's widths")
    if spec.beta is not None and spec.beta < least:
        raise BadParameter("policy.beta", spec.beta, f"must be at least {least} for {widths}")
    return spec.event_probability(RoundSize(run.arms, run.horizon, run.calibration, 1, run.arms))


def noise_tail(law: ErrorLaw, log: float) -> float:
    """Return σ√L + hL for the law's (σ, h): std √(2L) for Gaussian noise, as in DLB."""
    sigma, h = law.sub_exponential
    return sigma * math.sqrt(log) + h * log


@dataclass(frozen=True)
class Phase:
    """One phase, before it is played.

    number      from 1.
    length      h, the pulls that the design shares out.
    support     the design's actions as arms of the run.
    vectors     theirs, shape (s, d).
    plays       times that each is played: ⌈h π(x)⌉, or more where a cohort would be too small.
    active      arms not yet dropped.
    candidates  their vectors, shape (k, d).
    """

    number: int
    length: float
    design: ActionDesign
    support: tuple[int, ...]
    vectors: Floats
    plays: tuple[int, ...]
    active: tuple[int, ...]
    candidates: Floats


class Phased(EliminationBase):
    """Elimination in phases.

    Each plays a design on the active actions, estimates θ*, and drops actions far below the best.

    An estimate rests on its own phase alone.

    The run's `smallest` is the least number of clients of a cohort: smaller ones would never be released.
    """

    def __init__(self, spec: LinearPolicySpec, run: RunFacts) -> None:
        super().__init__(run.arms)
        self._actions, self._beta = arm_vectors(spec, run), event_failure(spec, run)
        self._bound, self._smallest, self._paper = spec.bound, run.smallest, run.calibration == "paper"
        self._number = 1

    def tell(self, estimates: Sequence[Estimate]) -> None:
        readings = self.read(self._phase, self._ask.by_arm(estimates))
        values = self._phase.candidates @ readings.theta
        widths = self._known(readings, values, self.widths(self._phase, readings))
        self._note(values, widths)
        kept = values + widths >= np.max(values - widths)
        self._chosen = self._active[int(np.argmax(values))]  # the lowest arm on a tie
        self._active = tuple(arm for arm, stays in zip(self._active, kept.tolist(), strict=True) if stays)
        self._number += 1
        self.__dict__.pop("_phase", None)
        self.__dict__.pop("_ask", None)

    def leftover(self, left: int) -> dict[ArmKey, int]:
        """Return the last pulls: the unfinished phase until the horizon; after the last phase, the best action."""
        if self.going_on:
            return self._ask.spend(self._ask.queries, left)
        assert self._chosen is not None
        return {self._chosen: left} if left else {}

    @abstractmethod
    def length(self, number: int) -> float:
        """Return the h of a phase."""

    @abstractmethod
    def plan(self, phase: Phase) -> Ask:
        """Return the cohorts of a phase."""

    @abstractmethod
    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        """Return the cohorts' estimates for the support, in its order."""

    @abstractmethod
    def widths(self, phase: Phase, readings: Readings) -> Floats:
        """Return W for each active action, shape (k,): |⟨θ̃ - θ*, x⟩| ≤ W unless an event fails."""

    def design(self, candidates: Floats) -> ActionDesign:
        """Return a design on the active actions."""
        return near_optimal(candidates)

    def times(self, length: float, design: ActionDesign) -> tuple[int, ...]:
        """Return ⌈h π(x)⌉ for each action of the design."""
        return tuple(np.ceil(length * design.weights - 1e-9).astype(int).clip(1).tolist())

    @cached_property
    def _phase(self) -> Phase:
        candidates = self._actions[list(self._active)]
        length = self.length(self._number)
        design = self.design(candidates) if candidates.any() else ActionDesign((0,), np.ones(1), 1, 0.0)
        support = tuple(self._active[place] for place in design.support)
        plays = self.times(length, design)
        vectors = self._actions[list(support)]
        return Phase(
            number=self._number,
            length=length,
            design=design,
            support=support,
            vectors=vectors,
            plays=plays,
            active=self._active,
            candidates=candidates,
        )

    @cached_property
    def _ask(self) -> Ask:
        return self.plan(self._phase)

    def _next(self) -> Ask:
        return self._ask

    def _known(self, readings: Readings, values: Floats, widths: Floats) -> Floats:
        """Return the widths; for an action without survivors' reports one that covers [-B, B] in any case."""
        known = readings.spans(self._phase.candidates) & np.isfinite(widths)
        return np.where(known, widths, np.abs(values) + self._bound)

    def _note(self, values: Floats, widths: Floats) -> None:
        for arm, value, width in zip(self._active, values.tolist(), widths.tolist(), strict=True):
            self._latest[arm] = Interval(arm, self._number, value, value - width, value + width)


class OneRewardEach(Phased):
    """Phases whose clients play one action and report one reward in [-B, B]; a cohort for each action of the design."""

    def times(self, length: float, design: ActionDesign) -> tuple[int, ...]:
        return tuple(max(self._smallest, count) for count in super().times(length, design))

    def plan(self, phase: Phase) -> Ask:
        queries = tuple(Query(arm, clients) for arm, clients in zip(phase.support, phase.plays, strict=True))
        return Ask(phase.number, queries, statistic=BoundedReward(bound=self._bound))

    def read(self, phase: Phase, estimates: dict[int | None, Estimate]) -> Readings:
        ordered = [estimates[arm] for arm in phase.support]
        first = ordered[0]
        sums = np.array([estimate.sums[0] for estimate in ordered])
        clients = np.array([estimate.counts[0] for estimate in ordered], dtype=np.float64)
        laws = [estimate.laws[0] for estimate in ordered]
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

"""Defines what contextual policies share: learning as arrays, and the policy that plans its rounds.

A `Core` learns several runs in lock step: all its arrays begin with an axis of runs. Services and runs in process have
one run; figures play all repetitions of a series as one core.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.server.policies.base import ArmKey, Ask, Estimate, Interval, MadeOfSpec, Query, RunFacts
from distrust.server.policies.contextual.designs import Designs, RoundNoise

LEAST_FACTOR = 1e-300
"""Least factor of growth that a logarithm is taken of: rounding alone makes smaller ones."""


class HeldRules:
    """Holds the rule of each of R runs until V has grown by the factor 1 + C since the rule was formed.

    V has grown if its determinant has, which is the condition of Abbasi-Yadkori et al. 2011, section 5.1, or if φᵀVφ
    has for any φ. Without noise the first follows from the second: V only grows, and det V grows by the product of the
    factors of d directions, of which none is below 1. Noise makes V smaller in some directions, and then det V tells
    less than the regret needs. By the second condition, which is ours, ‖φ‖ in the norm of the held V⁻¹ is at most
    √(1 + C) times that in the newest one for every φ. So what bounds a client's regret grows by that factor at most.

    switches  batches after which a run got another rule, the first batch among them, by run, shape (R,).
    """

    def __init__(self, switch: float, runs: int) -> None:
        self._growth = math.log1p(switch)
        self.switches = np.zeros(runs, dtype=np.int64)

    def choose(self, held: ChoiceRule, newest: ChoiceRule) -> ChoiceRule:
        """Return the newest rule of the runs whose V has grown, else the held one.

        Both have one V a run, but for a first rule without one, which is not held.
        """
        assert newest.inverse is not None
        if held.inverse is None:
            self.switches += 1
            return newest
        logarithms = np.log(_growth_factors(held.inverse[:, 0], newest.inverse[:, 0]))
        grown = np.maximum(logarithms.sum(axis=-1), logarithms.max(axis=-1)) > self._growth
        self.switches += grown
        return ChoiceRule(
            theta=np.where(grown[:, np.newaxis, np.newaxis], newest.theta, held.theta),
            inverse=np.where(grown[:, np.newaxis, np.newaxis, np.newaxis], newest.inverse, held.inverse),
            beta=np.where(grown, newest.beta, held.beta),
        )


def _growth_factors(before: Floats, now: Floats) -> Floats:
    """Return the stationary values of φᵀVφ/φᵀUφ, shape (R, d), for U⁻¹ = `before` and V⁻¹ = `now`, shape (R, d, d).

    They are the eigenvalues of U⁻¹V. Their product is det V/det U, and their largest the most that any direction grew.
    """
    lower = np.linalg.cholesky(now)
    half = np.linalg.solve(lower, before)
    factors: Floats = np.linalg.eigvalsh(np.linalg.solve(lower, half.mT))
    return np.maximum(factors, LEAST_FACTOR)


class Core(ABC):
    """The state of R runs of one policy. Deterministic: the same sums give the same rules.

    A class of it is called with the policy's spec, the facts of the run, and R. The runs do not touch each other: a run
    has the same rules whichever others are learned with it. Only `rule.only` is one for all, as it is public.

    rule        that the next batch's clients choose by; its arrays begin with the axis of runs.
    cumulative  whether it takes the sums over all batches so far, where a mechanism counts a stream.
    """

    rule: ChoiceRule
    cumulative: bool = True
    _designs: Designs | None = None
    _held: HeldRules | None = None

    @abstractmethod
    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        """Take a batch's released sums, shape (R, D)."""

    @property
    def indefinite(self) -> NDArray[np.int64] | None:
        """Return the batches after which noise made a matrix indefinite, by run, shape (R,); None without matrices."""
        return None if self._designs is None else self._designs.indefinite

    @property
    def switches(self) -> NDArray[np.int64] | None:
        """Return the batches after which a run got another rule, shape (R,); None where each batch brings one."""
        return None if self._held is None else self._held.switches


class ContextualPolicy(MadeOfSpec):
    """A policy that asks one cohort of `batch` clients a round, and lets a core of one run learn from its sum.

    CORE  the class of the core, called as a `Core`'s is.
    """

    CORE: ClassVar[type[Any]]

    active: tuple[int, ...]
    intervals: tuple[Interval, ...] = ()
    latest_intervals: tuple[Interval, ...] = ()
    chosen: int | None = None

    def __init__(self, spec: ContextualPolicySpec, run: RunFacts) -> None:
        self._spec, self._run, self._batch = spec, run, 1
        self._core = self.core([run])
        rounds_of(spec, run)
        if spec.weights is not None and len(spec.weights) != run.arms:
            raise BadParameter("policy.weights", len(spec.weights), f"one for each of the {run.arms} arms is needed")
        self.active = tuple(range(run.arms))

    def core(self, runs: Sequence[RunFacts]) -> Core:
        """Return the core of runs of this policy, which differ in their digests only, before their first batch."""
        core: Core = self.CORE(self._spec, self._run, len(runs))
        return core

    @property
    def indefinite(self) -> int | None:
        """Return the batches after which noise made a matrix of the core indefinite; None for a core without one."""
        counts = self._core.indefinite
        return None if counts is None else int(counts[0])

    @property
    def switches(self) -> int | None:
        """Return the batches after which clients got another decision; None where each batch brings one."""
        counts = self._core.switches
        return None if counts is None else int(counts[0])

    def ask(self, left: int) -> Ask | None:
        return self.ask_by(self._core.rule) if left >= self._spec.batch else None

    def ask_by(self, rule: ChoiceRule) -> Ask:
        """Return the batch whose clients choose by the first run's part of a core's rule."""
        decision = ContextualChoice.of(clients_rule(first_run(rule), self._spec))
        statistic = self._spec.statistic(self._run.arms, decision)
        query = Query(None, self._spec.batch)
        return Ask(self._batch, (query,), decision, statistic, cumulative=self._core.cumulative)

    def tell(self, estimates: Sequence[Estimate]) -> None:
        if len(estimates) != 1:
            raise ValueError(f"{len(estimates)} estimates, and the round has one cohort")
        self._core.learn(np.array([estimates[0].sums]), RoundNoise.of(estimates[0]))
        self._batch += 1

    def leftover(self, left: int) -> dict[ArmKey, int]:
        return {None: left} if left else {}


def reward_spread(spec: ContextualPolicySpec, *, exact: bool) -> float:
    """Return R with which rewards are sub-Gaussian: half of their range, and at least 1 as printed."""
    low, high = spec.rewards
    return (high - low) / 2 if exact else max(1.0, (high - low) / 2)


def rounds_of(spec: ContextualPolicySpec, run: RunFacts) -> int:
    """Return the full batches of a run, at least one. Raises BadParameter."""
    if run.horizon < spec.batch:
        raise BadParameter("policy.batch", spec.batch, f"must be at most horizon = {run.horizon}")
    return run.horizon // spec.batch


def first_run(rule: ChoiceRule) -> ChoiceRule:
    """Return the rule of the first run of a core."""
    inverse, anchor = (None if array is None else array[0] for array in (rule.inverse, rule.anchor))
    screen = rule.screen
    if screen is not None:
        screen = replace(screen, theta=screen.theta[0], margin=float(np.ravel(screen.margin)[0]))
    beta = float(np.ravel(rule.beta)[0])
    return replace(rule, theta=rule.theta[0], inverse=inverse, beta=beta, screen=screen, anchor=anchor)


def clients_rule(rule: ChoiceRule, spec: ContextualPolicySpec) -> ChoiceRule:
    """Return the rule that clients are given: a core's own, with its width scaled and its arms' weights by the spec."""
    if rule.inverse is not None and spec.bonus_scale != 1:
        inverse = rule.inverse if spec.has_bonus else None
        rule = replace(rule, inverse=inverse, beta=spec.bonus_scale * rule.beta)
    if spec.weights is None:
        return rule
    return replace(rule, weights=np.array(spec.weights), link=spec.link)

"""Defines what contextual policies share: learning as arrays, and the policy that plans its rounds.

A `Core` learns several runs in lock step: all its arrays begin with an axis of runs. Services and runs in process have
one run; figures play all repetitions of a series as one core.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice, Screen
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.server.policies.base import Ask, Estimate, Interval, Key, Query, RunFacts

LEAST_FACTOR = 1e-300
"""Least factor of growth that a logarithm is taken of: rounding alone makes smaller ones."""


@dataclass(frozen=True, slots=True)
class RoundNoise:
    """Facts of a released sum besides its value.

    clients    that it is over: of this batch, also for a prefix sum.
    deviation  standard deviation of one entry's noise, rounding included; for a prefix sum of one node, without it.
    prefix     the sum is over all batches so far.
    nodes      the most noise that any prefix sum has, in squares of `deviation`.
    most       `deviation` if every client answers, as noise that clients add grows with their number. 0: the same.
    rounded    variance that rounding a whole batch adds to an entry of a prefix sum.
    """

    clients: int
    deviation: float
    prefix: bool = False
    nodes: float = 1
    most: float = 0.0
    rounded: float = 0.0

    @classmethod
    def of(cls, estimate: Estimate) -> "RoundNoise":
        """Return what an estimate says of itself."""
        survivors, law, square = estimate.counts[0], estimate.laws[0], estimate.rounding**2
        clients, whole = max(estimate.clients, survivors), estimate.whole or law
        if estimate.prefix:
            return cls(survivors, law.std, True, estimate.nodes, whole.std, clients * square)
        own, most = law.std**2 + survivors * square, whole.std**2 + clients * square
        return cls(survivors, float(np.sqrt(own)), False, estimate.nodes, float(np.sqrt(most)))

    def variance_after(self, batches: int) -> float:
        """Return the largest variance of one entry's noise in the sum over `batches` batches, rounding included."""
        terms = self.nodes if self.prefix else batches
        return terms * max(self.deviation, self.most) ** 2 + batches * self.rounded


class Core(Protocol):
    """The state of R runs of one policy. Deterministic: the same sums give the same rules.

    A class of it is called with the policy's spec, the facts of the run, and R. The runs do not touch each other: a run
    has the same rules whichever others are learned with it. Only `rule.only` is one for all, as it is public.
    """

    @property
    def rule(self) -> ChoiceRule:
        """Return the rule that the next batch's clients choose by; its arrays begin with the axis of runs."""
        ...

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        """Take a batch's released sums, shape (R, D)."""
        ...


def counts_of(core: Core, what: Literal["indefinite", "switches"] = "indefinite") -> NDArray[np.int64] | None:
    """Return a core's counts of that name, by run, shape (R,); None for a core without them.

    indefinite  batches after which noise made a matrix indefinite; of a core that has matrices.
    switches    batches after which a run got another rule; of a core that holds its rules (`HeldRules`).
    """
    counts: NDArray[np.int64] | None = getattr(core, what, None)
    return counts


class ContextualPolicy:
    """A policy that asks one cohort of `batch` clients a round, and lets a core of one run learn from its sum.

    cumulative  whether the core takes the sums over all batches so far, where a mechanism counts a stream.
    """

    active: tuple[int, ...]
    intervals: tuple[Interval, ...] = ()
    formed: tuple[Interval, ...] = ()
    chosen: int | None = None

    def __init__(self, spec: ContextualPolicySpec, run: RunFacts, core: Core, *, cumulative: bool = True) -> None:
        rounds_of(spec, run)
        if spec.weights is not None and len(spec.weights) != run.arms:
            raise BadParameter("policy.weights", len(spec.weights), f"one for each of the {run.arms} arms is needed")
        self._spec, self._run, self._core = spec, run, core
        self.active = tuple(range(run.arms))
        self._batch, self._cumulative = 1, cumulative

    def core(self, runs: Sequence[RunFacts]) -> Core:
        """Return the core of runs of this policy, which differ in their digests only, before their first batch."""
        core: Core = type(self._core)(self._spec, self._run, len(runs))  # type: ignore[call-arg]
        return core

    @property
    def indefinite(self) -> int | None:
        """Return the batches after which noise made a matrix of the core indefinite; None for a core without one."""
        counts = counts_of(self._core)
        return None if counts is None else int(counts[0])

    @property
    def switches(self) -> int | None:
        """Return the batches after which clients got another decision; None where each batch brings one."""
        counts = counts_of(self._core, "switches")
        return None if counts is None else int(counts[0])

    def ask(self, left: int) -> Ask | None:
        return self.ask_by(self._core.rule) if left >= self._spec.batch else None

    def ask_by(self, rule: ChoiceRule) -> Ask:
        """Return the batch whose clients choose by the first run's part of a core's rule."""
        decision = ContextualChoice.of(clients_rule(first_run(rule), self._spec))
        statistic = self._spec.statistic(self._run.arms, decision)
        query = Query(None, self._spec.batch)
        return Ask(self._batch, (query,), decision, statistic, cumulative=self._cumulative)

    def tell(self, estimates: Sequence[Estimate]) -> None:
        if len(estimates) != 1:
            raise ValueError(f"{len(estimates)} estimates, and the round has one cohort")
        self._core.learn(np.array([estimates[0].sums]), RoundNoise.of(estimates[0]))
        self._batch += 1

    def leftover(self, left: int) -> dict[Key, int]:
        return {None: left} if left else {}


def rounds_of(spec: ContextualPolicySpec, run: RunFacts) -> int:
    """Return the full batches of a run, at least one. Raises BadParameter."""
    if run.horizon < spec.batch:
        raise BadParameter("policy.batch", spec.batch, f"must be at most horizon = {run.horizon}")
    return run.horizon // spec.batch


def first_run(rule: ChoiceRule) -> ChoiceRule:
    """Return the rule of the first run of a core."""
    screen = None
    if rule.screen is not None:
        screen = Screen(rule.screen.theta[0], rule.screen.link, float(np.ravel(rule.screen.margin)[0]))
    inverse = None if rule.inverse is None else rule.inverse[0]
    anchor = None if rule.anchor is None else rule.anchor[0]
    return ChoiceRule(
        theta=rule.theta[0],
        inverse=inverse,
        beta=float(np.ravel(rule.beta)[0]),
        screen=screen,
        only=rule.only,
        anchor=anchor,
    )


def clients_rule(rule: ChoiceRule, spec: ContextualPolicySpec) -> ChoiceRule:
    """Return the rule that clients are given: a core's own, with its width scaled and its arms' weights by the spec."""
    if rule.inverse is not None and spec.bonus_scale != 1:
        inverse = rule.inverse if spec.has_bonus else None
        rule = replace(rule, inverse=inverse, beta=spec.bonus_scale * rule.beta)
    if spec.weights is None:
        return rule
    return replace(rule, weights=np.array(spec.weights), link=spec.link)


class RidgeSums:
    """Σ sφ and Σ φφᵀ over all batches so far, with their noise; shapes (R, blocks, d) and (R, blocks, d, d)."""

    def __init__(self, statistic: ContextualSum, runs: int) -> None:
        self._statistic, self._total = statistic, np.zeros((runs, statistic.dimension))
        self.batches, self.clients = 0, 0

    def add(self, sums: Floats, noise: RoundNoise) -> tuple[Floats, Floats]:
        """Take a batch's sums, shape (R, D), and return the totals."""
        self.batches += 1
        self.clients += noise.clients
        self._total = sums if noise.prefix else self._total + sums
        linear, moments = self._statistic.parts(self._total)
        assert moments is not None
        return linear, moments


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

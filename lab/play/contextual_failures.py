"""Counts the regret and the failures of a contextual run: plays its clients' choices again, with the true parameters.

The rounds of a run are public, and a simulated world meets the same clients again, so this works for a run in process
and, from its published rounds, for a run over services.
"""

import numpy as np
from numpy.typing import NDArray

from distrust.client.environments import ContextualWorld
from distrust.client.environments.contextual import experience_of, longer_by_client
from distrust.common.bandit.contextual_choice import ChoiceRule, ContextualChoice
from distrust.common.protocol.run.config import RunConfig
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.lab.play.result import PolicyFailures, Regret, Truth
from distrust.lab.play.run_file import RunFile
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import RoundRecord
from distrust.server.policies.contextual.base import ContextualPolicy

ROUNDED = 1 + 1e-9
"""Factor that a distance may exceed β by: at first θ̂ = 0 and β = ‖θ*‖ = 1, up to rounding."""


class ContextualTracker:
    """Watches a learner from cohort to cohort. A round's regret is counted when its cohorts are planned.

    Widths  A rule with a bonus states ‖θ* - θ̂‖ ≤ β in the norm of V. Each rule is compared with the true parameters
            once, and counts as one interval.
    """

    def __init__(self, file: RunFile, world: ContextualWorld) -> None:
        self._file, self._world = file, world
        self._cohorts: set[str] = set()
        self._rounds: dict[int, float] = {}
        self._pulls: dict[int, int] = {}
        self._widths, self._missed = 0, 0
        self._clipped, self._clipped_last = world.clipped, 0

    def __call__(self, learner: Learner) -> None:
        """Look at the learner after a cohort: at the round that ended, and at the one that it opened."""
        newest = max(self._rounds, default=0)
        for record in reversed(learner.rounds):
            if record.number < newest:
                break
            self._look(record)

    def regret(self, learner: Learner) -> Regret:
        """Return the regret of all clients, and of the last pulls that no round takes."""
        counted, total, curve = 0, 0.0, []
        for number in sorted(self._rounds):
            counted += self._pulls[number]
            total += self._rounds[number]
            curve.append((counted, total))
        rest = learner.spent - counted
        if rest > 0:
            last = learner.rounds[-1].ask.decision
            assert isinstance(last, ContextualChoice)
            regret, self._clipped_last = self._met(last.rule, rest, "leftover")
            total += regret
            curve.append((learner.spent, total))
        return Regret(final=total, curve=curve)

    def truth(self, learner: Learner) -> Truth:
        """Return the regret and the failures so far; the best arm depends on the client."""
        regret = self.regret(learner)  # first: it plays the last pulls
        own = learner.policy if isinstance(learner.policy, ContextualPolicy) else None
        indefinite, switches = (None, None) if own is None else (own.indefinite, own.switches)
        events = width_failures(learner.config, self._widths, self._missed, indefinite)
        return Truth(None, regret, events, self._clipped + self._clipped_last, switches=switches)

    def _look(self, record: RoundRecord) -> None:
        decision = record.ask.decision
        if not isinstance(decision, ContextualChoice):
            return
        if record.number not in self._rounds:
            self._judge(decision.rule)
        for cohort in record.cohorts:
            if cohort.cohort not in self._cohorts:
                self._cohorts.add(cohort.cohort)
                regret, clipped = self._met(decision.rule, cohort.clients, cohort.cohort, "rewards")
                self._clipped += clipped
                self._rounds[record.number] = self._rounds.get(record.number, 0.0) + regret
                self._pulls[record.number] = self._pulls.get(record.number, 0) + cohort.clients

    def _met(self, rule: ChoiceRule, clients: int, *labels: str) -> tuple[float, int]:
        """Return the clients' regret, and how many contexts they shortened."""
        met = self._world.contexts(clients, self._file.world_stream(*labels))
        regrets = experience_of(self._world, rule, clients, met)[1]
        return float(regrets.sum()), int(longer_by_client(met.features, clients).sum())

    def _judge(self, rule: ChoiceRule) -> None:
        """Count one interval if the rule has one and the policy's theorem states it."""
        if not states_widths(self._file.config):
            return
        missed = missed_widths(rule, getattr(self._world, "theta", None))
        if missed is not None:
            self._widths += 1
            self._missed += bool(missed)


def width_failures(config: RunConfig, widths: int, missed: int, indefinite: int | None) -> PolicyFailures:
    """Return the failures of a contextual run, with α where its policy's theorem states it for the widths."""
    policy = config.policy
    assert isinstance(policy, ContextualPolicySpec)
    return PolicyFailures(
        best_dropped=False,
        best_dropped_at=None,
        widths=widths,
        width_failures=missed,
        failure=policy.failure_of(config.horizon) if widths else None,
        indefinite=indefinite,
    )


def states_widths(config: RunConfig) -> bool:
    """Return whether a theorem of the run's policy bounds the probability that a decision's width misses θ*."""
    policy = config.policy
    if not isinstance(policy, ContextualPolicySpec) or config.unproven is not None:
        return False
    return policy.states_widths(config.mechanism.calibration)


def missed_widths(rule: ChoiceRule, theta: NDArray[np.float64] | None) -> NDArray[np.bool_] | None:
    """Return whether ‖θ* - θ̂‖ > β in the norm of V for any arm, shape (…); None for a rule that states no width.

    theta  θ*, of the shape of the rule's; None where there is no such vector.
    """
    if rule.inverse is None or theta is None or theta.shape[-2:] != rule.theta.shape[-2:]:
        return None
    away = rule.theta - theta
    if away.shape[-1] == 2:  # LAPACK's calls for small systems are a third of a round's time in lock step
        x, y, entries = away[..., 0], away[..., 1], rule.inverse
        determinant = entries[..., 0, 0] * entries[..., 1, 1] - entries[..., 0, 1] ** 2
        numerator = entries[..., 1, 1] * x * x - 2 * entries[..., 0, 1] * x * y + entries[..., 0, 0] * y * y
        squares = numerator / determinant
    else:
        squares = (away * np.linalg.solve(rule.inverse, away[..., np.newaxis])[..., 0]).sum(axis=-1)
    distances = np.sqrt(np.maximum(squares, 0)).max(axis=-1)
    missed: NDArray[np.bool_] = ~(distances <= np.asarray(rule.beta) * ROUNDED)  # NaN is a miss, too
    return missed

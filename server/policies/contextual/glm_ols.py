"""LDP-OLS: greedy play by least squares on private sums (GLB Algorithms 1 and 2, equations 3.3 and 3.4).

    θ̂_t = (ΣM + shift_t I)⁻¹ Σu

The noise of ΣM grows like √t, and so does the shift that outweighs it. With noise of standard deviation ς in every
entry of one batch, the shift is ς√n times

    paper   4√d + 2 ln(2TK/α), Theorems 3.1 and 4.1 (ς is their 2σ; K = 1 for parameters that all arms share)
    exact   q of `matrix_bound`, failing with probability α/(2MK) in each of M batches

after n batches that carry the block's noise. The theorems are for single clients; here batches of several are summed. A
batch of B reports at one θ̂ has the same mean and covariance as B single ones. So the shift's event and Lemma C.3 hold
unchanged. θ̂ is older by up to B clients.
"""

import math

import numpy as np

from distrust.common.bandit.contextual_choice import ChoiceRule, Screen
from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.specs.contextual import LdpOlsSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core, reward_spread, rounds_of
from distrust.server.policies.contextual.designs import Designs, RoundNoise
from distrust.server.policies.contextual.noise_bounds import matrix_bound, vector_bound
from distrust.server.policies.contextual.warm_up import WarmUp, stated_length


class OlsCore(Core):
    """LDP-OLS of R runs. `indefinite` counts batches after which noise made a matrix indefinite, by run."""

    _designs: Designs

    def __init__(self, spec: LdpOlsSpec, run: RunFacts, runs: int = 1) -> None:
        self._spec, self._warm_up = spec, WarmUp.of(spec, run)
        # A warm-up has sums of another length than the rest, so that no stream of them can be counted.
        self.cumulative = spec.parameters == "single"
        self._blocks = 1 if spec.parameters == "single" else run.arms
        self._rounds, self._exact = rounds_of(spec, run), run.calibration == "exact"
        self._clients = (self._warm_up.each or self._rounds) * spec.batch
        if self._clients < spec.features:
            field, value = stated_length(spec) if self._blocks > 1 else ("policy.features", spec.features)
            each = "each arm's warm-up" if self._blocks > 1 else "the horizon"
            raise BadParameter(
                field, value, f"{each} has {self._clients} clients, and {spec.features} features need as many"
            )
        self._failure = spec.failure_of(run.horizon)
        self._unit = self._shift_of_unit_noise()
        self._designs = Designs(spec.features, self._blocks, runs)
        self._done = 0
        self._screen: Screen | None = None
        self.rule = ChoiceRule(np.zeros((runs, self._blocks, spec.features)), only=self._warm_up.arm(1))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        self._done += 1
        self._designs.add(sums, noise, self.rule.only)
        after = self._warm_up.arm(self._done + 1)
        if after is not None:  # nothing depends on θ̂ before the warm-up ends
            self.rule = ChoiceRule(self.rule.theta, only=after)
            return
        shift = self._unit * np.sqrt(self._designs.variances)
        theta, _ = self._designs.solve(shift)
        if self._done == self._warm_up.rounds:
            self._screen = self._warm_up.screen(self._spec, theta, self._errors(shift))
        self.rule = ChoiceRule(theta, screen=self._screen)

    def _shift_of_unit_noise(self) -> float:
        size, many = self._spec.features, self._rounds * self._blocks
        if self._spec.shift == "none":
            return 0.0
        if self._exact:
            return matrix_bound(size, self._failure / (2 * many), exact=True)
        return 4 * math.sqrt(size) + 2 * math.log(2 * many / self._failure)

    def _errors(self, shift: Floats) -> Floats:
        """Return bounds on ‖θ̂_a - θ_a‖ at the end of the warm-up, shape (R, K), all of them together up to α/2.

        With A = Σxxᵀ + N + sI, θ̂ - θ = A⁻¹(Σxe + ξ - Nθ - sθ), and ‖θ‖ ≤ 1. The rewards' errors e are sub-Gaussian, and
        the warm-up's arms do not depend on contexts: ‖Σxe‖ ≤ R√n (1 + √(2 ln(1/p))) for n contexts of length 1 (Hsu,
        Kakade & Zhang 2012, Theorem 1). The least eigenvalue of A is known.
        """
        size, arms = self._spec.features, self._blocks
        each = self._failure / (6 * arms)  # three events an arm
        spread = reward_spread(self._spec, exact=self._exact)
        noise = np.sqrt(self._designs.variances)
        rewards = spread * np.sqrt(self._designs.clients) * (1 + math.sqrt(2 * math.log(1 / each)))
        vector = noise * vector_bound(size, each, exact=self._exact)
        matrix = noise * matrix_bound(size, each, exact=self._exact)
        least = self._designs.least_eigenvalues(shift)
        with np.errstate(divide="ignore"):
            return np.where(least > 0, (rewards + vector + matrix + shift) / np.maximum(least, 0), np.inf)


class LdpOls(ContextualPolicy):
    """The policy `ldp-ols` of one run."""

    CORE = OlsCore

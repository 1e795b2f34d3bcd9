"""LDP-SGD: greedy play by noisy gradient steps (GLB Algorithms 1 and 2, equations 3.5 and 3.6).

    θ̂_t = Π(θ̂_{t-1} - η_t Z_t),   Π the projection to the ball of radius S, 1 unless a run file says more

Z_t estimates the gradient (μ(xᵀθ̂) - r)x without bias. The projection keeps |xᵀθ̂| ≤ S, which the gradients' bound R
rests on; the paper has none (docs/concepts/privacy/errata.md). With `step` = 1/(κ_l p_*/d), the curvature's inverse,

    single          η_t = step/(ζt), Theorem 3.1 with c' = 1
    multi, warm-up  η = step/(ζn) at the arm's n-th update, Lemma D.12
    multi, later    η = K step/(ζt'), t' = t - (K-1)s₀, section D.3 with K_opt = K; Theorem 4.1 prints the inverse

Batches of more than one client are mini-batches: the mean of a batch's gradients is one gradient, t counts batches,
and the theorems hold with the smaller variance of the mean.
"""

import math
from functools import lru_cache

import numpy as np

from distrust.common.bandit.contextual_choice import ChoiceRule, Screen, least_slope
from distrust.common.bandit.contextual_sum import ContextualSum, shortened
from distrust.common.bandit.error_law import Floats
from distrust.common.extras import integrate, stats
from distrust.common.specs.contextual import LdpSgdSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.noise_bounds import vector_bound
from distrust.server.policies.contextual.warm_up import WarmUp


@lru_cache(maxsize=64)
def greedy_curvature(arms: int, size: int) -> float:
    """Return λ* = λ_min E[xxᵀ] of the context x that is chosen among `arms` ones, uniform on the unit sphere of R^size.

    Greedy play by any u ≠ 0 takes the largest ⟨x, u⟩ = m. Along u the second moment is E m²; the rest, 1 - E m², is
    shared evenly by the other directions. m = 2b - 1, b the largest of `arms` Beta((d-1)/2, (d-1)/2).
    """
    if size == 1:
        return 1.0
    law = stats.beta((size - 1) / 2, (size - 1) / 2)
    along = float(integrate.quad(lambda v: (2 * law.ppf(v ** (1 / arms)) - 1) ** 2, 0, 1, limit=200)[0])
    return min(along, (1 - along) / (size - 1))


class SgdCore(Core):
    """LDP-SGD of R runs."""

    cumulative = False  # a gradient belongs to the θ̂ of its own batch

    def __init__(self, spec: LdpSgdSpec, run: RunFacts, runs: int = 1) -> None:
        self._spec, self._warm_up = spec, WarmUp.of(spec, run)
        many = spec.parameters == "multi"
        self._blocks = run.arms if many else 1
        uniform = spec.features if many else 1 / greedy_curvature(run.arms, spec.features)
        self._step = (uniform if spec.step is None else spec.step) / least_slope(spec.link)
        self._failure = spec.failure_of(run.horizon)
        self._done = 0
        self._loudest, self._fewest = 0.0, spec.batch  # of the warm-up's batches: noise of a mean, clients
        self._screen: Screen | None = None
        self.rule = ChoiceRule(np.zeros((runs, self._blocks, spec.features)), only=self._warm_up.arm(1))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        self._done += 1
        arm, warm = self.rule.only, self._warm_up
        if arm is None:
            gradients = sums.reshape(self.rule.theta.shape)
            t = self._done - (warm.arms - 1) * warm.each
            size = self._step * self._blocks / t
            theta = shortened(self.rule.theta - (size / noise.clients) * gradients, self._spec.theta_norm)
        else:
            self._loudest = max(self._loudest, noise.deviation / noise.clients)
            self._fewest = min(self._fewest, noise.clients)
            size = self._step / (1 + (self._done - 1) // warm.arms)  # each arm's updates are one of every K rounds
            theta = self.rule.theta.copy()
            stepped = theta[:, arm] - (size / noise.clients) * sums
            theta[:, arm] = shortened(stepped, self._spec.theta_norm)
        after = warm.arm(self._done + 1)
        if self._done == warm.rounds:
            errors = np.full(theta.shape[:2], self._error())
            self._screen = warm.screen(self._spec, theta, errors)
        self.rule = ChoiceRule(theta, screen=None if after is not None else self._screen, only=after)

    def _error(self) -> float:
        """Return a bound on all ‖θ̂_a - θ_a‖ at the end of the warm-up, which fails with probability α at most.

        The argument of Rakhlin et al. 2012, Proposition 1, which Lemma D.12 cites, with constants of our own. Write
        V_n = ‖θ̂_n - θ‖² after n updates, λ = ζ/step, η_n = 1/(λn). All gradients have ‖Z‖ ≤ G. Along any direction
        Z - E Z is sub-Gaussian with v, given the past. The projection brings θ̂ no farther from θ, hence

            n(n-1) V_n ≤ (n-1)(n-2) V_{n-1} + 2(n-1)/λ ⟨E Z - Z, θ̂_{n-1} - θ⟩ + G²(n-1)/(nλ²).

        Sum up. While V_k ≤ D/k for all k < n, the middle terms are a martingale whose variance proxy is at most
        4v²D n(n-1)/(2λ²), so that with probability 1 - p it stays below 2v √(D n(n-1) ln(1/p))/λ. As n(n-1) ≥ n²/2,
        V_n ≤ D/n follows for √D = (2√2 v √ln(1/p) + G)/λ, by induction over all n ≤ s₀, with p = α/(2Ks₀). It begins
        with V_1 ≤ -V_0 + 2v √(2V_0 ln(1/p))/λ + G²/λ² ≤ (2v² ln(1/p) + G²)/λ² < D.

        The bound holds if `step` is at least the curvature's inverse. It takes the noise as Gaussian, as
        `noise_bounds` does.
        """
        statistic = self._spec.statistic(1, None)
        assert isinstance(statistic, ContextualSum)
        updates, size = self._warm_up.each, self._spec.features
        each = self._failure / (2 * self._blocks * updates)
        largest = statistic.factor + self._loudest * vector_bound(size, each, exact=True)
        # A residual lies in an interval of length 2R; the mean of n of them is sub-Gaussian with R/√n.
        spread = math.hypot(statistic.factor / math.sqrt(self._fewest), self._loudest)
        root = (2 * math.sqrt(2) * spread * math.sqrt(math.log(1 / each)) + largest) * self._step
        return root / math.sqrt(updates)


class LdpSgd(ContextualPolicy):
    """The policy `ldp-sgd` of one run."""

    CORE = SgdCore

"""The baselines of GLB section 5: LDP-UCB and LDP-GLOC, after Zheng et al. 2020.

Their own paper's text is not at hand: the `paper` numbers are those of GLB's published code. The noise is that which is
really there: σ is its standard deviation in every entry of one batch, and N = tσ² its variance after t of them. D = d,
or dK where each arm has parameters of its own. Then the contexts are e_a ⊗ x in R^{dK}, and V has one block an arm. Let
A = ΣM + 2Υ_t I. Clients choose argmax ⟨x, θ̃⟩ + β_t ‖x‖ in the norm of A⁻¹.

    UCB, paper   Υ_t = √N (4√D + 2 ln(2T/α)), β_t = 2σ√(D ln T) + (√(3Υ_t) + √(N D/Υ_t)) D ln T, θ̃ = A⁻¹ Σu
    UCB, exact   CTX Lemma A.2 for this A, so that 2Υ_t is twice the bound on the noise so far. Bounds are for Gaussian
                 noise; heavier tails leave them more often, and with these no width is stated (`LdpUcbSpec.GAUSSIAN`)
    GLOC         the same A, β_t = √(√(N D)/ζ) and θ̃ = A⁻¹ Σ M_t θ̂ʰ_{t-1}: of an online learner's predictions, which
                 steps θ̂ʰ_t = Π(θ̂ʰ_{t-1} - step g_t/√T), g the noisy gradient at θ̂ʰ, Π to the ball of radius S

GLOC's regressand is public, so that clients report xxᵀ and the gradient only. Its published code does not project θ̂ʰ;
without that no gradient would be bounded. Batches of more than one client count as one step of their mean gradient.
"""

import math

import numpy as np

from distrust.common.bandit.contextual_choice import ChoiceRule, least_slope
from distrust.common.bandit.contextual_sum import ContextualSum, shortened
from distrust.common.bandit.error_law import Floats
from distrust.common.specs.contextual import ContextualPolicySpec, LdpGlocSpec, LdpUcbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core, reward_spread, rounds_of
from distrust.server.policies.contextual.designs import Designs, RoundNoise
from distrust.server.policies.contextual.noise_bounds import Regularizer, matrix_bound, vector_bound
from distrust.server.policies.contextual.sampled import SampledPolicy


class GrowingRegularizer:
    """λ_t = 2Υ_t and what follows from it, for noise that has the variance N in every entry of the sums so far.

    `exact`: each of M batches and of the blocks may fail with a share of α/8 by its matrix, and of α/8 by its vector.
    Wrapped sums have α/4 (`event_probability`), and the self-normalized bound α/2.
    """

    def __init__(self, spec: ContextualPolicySpec, run: RunFacts, blocks: int) -> None:
        self._size = spec.features * blocks
        self._failure, self._exact = spec.failure_of(run.horizon), run.calibration == "exact"
        self._logarithm = math.log(run.horizon)
        batches = rounds_of(spec, run)
        if self._exact:
            self._matrix = matrix_bound(spec.features, self._failure / (8 * batches * blocks), exact=True)
            self._vector = vector_bound(self._size, self._failure / (8 * batches), exact=True)
        else:
            self._matrix = 4 * math.sqrt(self._size) + 2 * math.log(2 * batches / self._failure)
        self._spread = reward_spread(spec, exact=self._exact)

    def value(self, variance: float) -> float:
        """Return λ_t: twice the bound on the noise. At least 1 for `exact`, and without any noise."""
        doubled = 2 * math.sqrt(variance) * self._matrix
        return max(doubled, 1.0) if self._exact or variance == 0 else doubled

    def width(self, variance: float, batches: int, clients: int) -> float:
        """Return β_t of LDP-UCB after these batches and clients; N is `variance`."""
        if variance > 0 and not self._exact:
            bound, log = math.sqrt(variance) * self._matrix, self._size * self._logarithm
            deviation = math.sqrt(variance / batches)
            return (
                2 * deviation * math.sqrt(log) + (math.sqrt(3 * bound) + math.sqrt(variance * self._size / bound)) * log
            )
        if variance == 0:
            return Regularizer().width(self._size, clients, self._failure / 2, self._spread)
        value, bound = self.value(variance), math.sqrt(variance) * self._matrix
        drift = math.sqrt(variance) * self._vector / math.sqrt(value - bound)
        # Lemma A.2 has one λ for the whole run, and this one grows. The self-normalized bound holds for all batches at
        # once with a number in its determinant that noise never leaves less of: λ - bound = max(bound, 1 - bound).
        fixed = Regularizer(value, 0.5, value + bound, drift)
        return fixed.width(self._size, clients, self._failure / 2, self._spread)


class UcbCore(Core):
    """LDP-UCB of R runs. `indefinite` counts batches after which noise made A indefinite, by run."""

    _designs: Designs

    def __init__(self, spec: LdpUcbSpec, run: RunFacts, runs: int = 1) -> None:
        blocks = 1 if spec.parameters == "single" else run.arms
        self._designs = Designs(spec.features, blocks, runs)
        self._regularizer = GrowingRegularizer(spec, run, blocks)
        self._batches = 0
        # All scores are 0 before anything is known, and the first arm is chosen.
        self.rule = ChoiceRule(np.zeros((runs, blocks, spec.features)))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        self._batches += 1
        designs = self._designs
        designs.add(sums, noise)
        variance = designs.variances.item(0)
        theta, inverse = designs.solve(self._regularizer.value(variance), invert=True)
        beta = self._regularizer.width(variance, self._batches, designs.clients.item(0))
        self.rule = ChoiceRule(theta, inverse, beta)


class GlocCore(Core):
    """LDP-GLOC of R runs. `indefinite` counts batches after which noise made A indefinite, by run."""

    _designs: Designs
    cumulative = False  # a gradient belongs to the θ̂ʰ of its own batch

    def __init__(self, spec: LdpGlocSpec, run: RunFacts, runs: int = 1) -> None:
        blocks = 1 if spec.parameters == "single" else run.arms
        statistic = spec.statistic(run.arms, None)
        assert isinstance(statistic, ContextualSum)
        self._statistic, self._designs = statistic, Designs(spec.features, blocks, runs)
        self._regularizer = GrowingRegularizer(spec, run, blocks)
        self._step = spec.step / math.sqrt(rounds_of(spec, run))
        self._size, self._slope = spec.features * blocks, least_slope(spec.link)
        self._predicted = np.zeros((runs, blocks, spec.features))
        self.rule = ChoiceRule(np.zeros_like(self._predicted), anchor=np.zeros_like(self._predicted))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        designs, before = self._designs, self.rule.anchor
        assert before is not None
        designs.add(sums, noise)
        blocks = sums.reshape(len(sums), before.shape[1], -1)
        self._predicted += designs.products(sums, before)
        stepped = before - (self._step / noise.clients) * blocks[..., : before.shape[2]]
        anchor = shortened(stepped, self._statistic.theta_norm)
        variance = designs.variances.item(0)
        theta, inverse = designs.solve(self._regularizer.value(variance), self._predicted, invert=True)
        beta = math.sqrt(math.sqrt(variance * self._size) / self._slope)
        self.rule = ChoiceRule(theta, inverse, beta, anchor=anchor)


class LdpUcb(ContextualPolicy):
    """The policy `ldp-ucb` of one run."""

    CORE = UcbCore


class LdpGloc(ContextualPolicy):
    """The policy `ldp-gloc` of one run."""

    CORE = GlocCore


class GlocThompson(SampledPolicy):
    """The policy `gloc-thompson` of one run."""

    CORE = GlocCore

"""SBLB (Garcelon et al. 2022, Algorithm 1): LinUCB on sums of shuffled batches, with decisions that change rarely.

The clients of a batch of fixed length randomize their own vectors, and the server is told their sum. Let q and h bound
the noise of the summed matrix and of the summed vector after t clients. Then

    V = Σφφᵀ + N + (λ + 2q) I,   θ̂ = V⁻¹ (Σyφ + n)
    β = R √(2 ln(2/α) + d ln(1 + t/(dλ))) + √(λ + 3q) + h/√(λ + q)

and clients choose by θ̂, V and β until V has grown by the factor 1 + η (`HeldRules`).

From the paper: what is added to V, λ at first and then twice what the bound on the noise grows by; ridge regression;
the condition det V ≥ (1 + η) det V of the decision that is held; η = 1/2 and λ = √T of Corollary 9. Its V has φφᵀ/2, so
that its λ is doubled here.

Ours, and why:

- q, h and β go by the variance of the noise that is released, of any mechanism, as if it were Gaussian. The paper's
  λ_j and β_j are for its own bits, one randomized response for each of m steps of each entry (Algorithm 2), which no
  mechanism here sends. Its Lemma 10 bounds vᵀNv for one v, and uses the bound for all v at once.
- A decision changes also if φᵀVφ has grown by 1 + η for any φ. The paper's regret goes by det V alone, as if noise
  never made V smaller.
- The first batch's decision is not held back. Before it, clients play the first arm, as those of `linucb` do.
- A client is in one batch, and what it is promised is that batch's privacy. The paper composes over all batches
  (Theorem 5).

Of Gaussian noise every decision's ellipsoid has θ* with probability 1 - α, and a client's regret is at most 2√(1 + η) β
‖φ‖ in the norm of the newest V⁻¹. q and h must hold for one draw already, and heavier tails, such as Laplace noise's,
leave them more often: no width is stated (`SblbSpec.unproven`). Corollary 9, a regret of Õ(T^⅔/ε^⅓), is for the paper's
noise, calibrated for all batches together, and is not claimed here.
"""

import math

import numpy as np

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.error_law import Floats
from distrust.common.specs.linucb import SblbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core, HeldRules, reward_spread, rounds_of
from distrust.server.policies.contextual.designs import Designs, RoundNoise
from distrust.server.policies.contextual.noise_bounds import Regularizer, matrix_bound, vector_bound


class SblbCore(Core):
    """SBLB of R runs. `indefinite` counts batches after which noise made V indefinite, by run, shape (R,).

    Of α, the self-normalized bound has half and wrapped sums a quarter (`event_probability`). The noise has the last
    quarter: each of M batches an equal share of α/8 by its matrix, and of α/8 by its vector.
    """

    _designs: Designs
    _held: HeldRules

    def __init__(self, spec: SblbSpec, run: RunFacts, runs: int = 1) -> None:
        self._designs, self._held = Designs(spec.features, 1, runs), HeldRules(spec.switch, runs)
        self._size, self._first = spec.features, spec.first_regularizer(run.horizon)
        failure = spec.failure_of(run.horizon)
        each, self._own = failure / (8 * rounds_of(spec, run)), failure / 2
        self._matrix = matrix_bound(spec.features, each, exact=True)  # q and h of noise of deviation 1
        self._vector = vector_bound(spec.features, each, exact=True)
        self._spread = reward_spread(spec, exact=True)
        # All scores are 0 before anything is known, and the first arm is chosen.
        self.rule = ChoiceRule(np.zeros((runs, 1, spec.features)))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        designs = self._designs
        designs.add(sums, noise)
        regularizer = self._against(math.sqrt(designs.variances.item(0)))
        theta, inverse = designs.solve(regularizer.value, invert=True)
        beta = regularizer.width(self._size, designs.clients.item(0), self._own, self._spread)
        self.rule = self._held.choose(self.rule, ChoiceRule(theta, inverse, np.full(len(theta), beta)))

    def _against(self, deviation: float) -> Regularizer:
        """Return what is added to V, and what β counts for it, against noise of this deviation in every entry so far.

        The self-normalized bound holds for all batches at once with λ in its determinant: noise within q leaves λ + q.
        """
        q, first = deviation * self._matrix, self._first
        drift = deviation * self._vector / math.sqrt(first + q)
        return Regularizer(value=first + 2 * q, least=first, largest=first + 3 * q, drift=drift)


class Sblb(ContextualPolicy):
    """The policy `sblb` of one run."""

    CORE = SblbCore

"""LinUCB on private sums (CTX, Algorithm 1): regularized by as much as the noise can take away.

Lemma A.2. Let N_m be the noise of the summed matrix and h_m that of the summed vector, with ‖N_m‖ ≤ q and ‖h_m‖ ≤ q_h
in all batches m. With λ = 2q the noisy V lies between λ_min = q and λ_max = 3q above the true Σφφᵀ. Then
‖θ* - θ̂‖ ≤ β_m in the norm of V, with ν = q_h/√λ_min and

    β_m = R √(2 ln(2/α) + d ln(1 + t_m/(d λ_min))) + √λ_max + ν.

`constants = "published-code"` has the authors' λ and β instead (`PublishedRegularizer`), which no theorem states.

`switch = C` is the LinUCB that switches rarely (Abbasi-Yadkori et al. 2011, section 5.1): θ̂, V and β stay until V has
grown by the factor 1 + C (`HeldRules`). Their Theorem 4 has √(1 + C) times the main term of the regret of a decision
each round. They hold the optimistic θ; here the ellipsoid is held, as each client has contexts of its own. Sums are
released after every batch all the same, so that no promise depends on when a decision changes.

Lemma A.4, which takes one λ for both ends and no ν, is unproved: its derivation leaves √λ 1.93 times too short where
q_h = q, and noise within its bounds reaches 4/√6 = 1.633.
"""

import numpy as np

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.error_law import Floats
from distrust.common.specs.linucb import LinUcbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, Core, HeldRules, reward_spread
from distrust.server.policies.contextual.designs import Designs, RoundNoise
from distrust.server.policies.contextual.noise_bounds import PublishedRegularizer, Regularizer
from distrust.server.policies.contextual.sampled import SampledPolicy


class LinUcbCore(Core):
    """LinUCB of R runs. `indefinite` counts the batches after which noise made V indefinite, by run, shape (R,)."""

    _designs: Designs

    def __init__(self, spec: LinUcbSpec, run: RunFacts, runs: int = 1) -> None:
        self._size, self._designs = spec.features, Designs(spec.features, 1, runs)
        self._batches, self._exact = run.horizon // spec.batch, run.calibration == "exact"
        self._failure = spec.failure_of(run.horizon)
        self._published, self._horizon = spec.constants is not None, run.horizon
        # Of α, the self-normalized bound has half; the authors' code gives it all of α.
        self._own = self._failure if self._published else self._failure / 2
        self._spread = reward_spread(spec, exact=self._exact or self._published)
        self._regularizer: Regularizer | PublishedRegularizer | None = None
        self._held = None if spec.switch is None else HeldRules(spec.switch, runs)
        # Before anything is known all scores are 0, and the first arm is chosen. Bonuses of equally long contexts would
        # differ by rounding only, so that processors would choose different arms.
        self.rule = ChoiceRule(np.zeros((runs, 1, self._size)))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        designs, regularizer = self._designs, self._regularizer or self._against(noise)
        self._regularizer = regularizer
        designs.add(sums, noise)
        # Under Lemma A.2's event no V is indefinite, so each is counted as a failure.
        theta, inverse = designs.solve(regularizer.value, invert=True, least=regularizer.least)
        beta = regularizer.width(self._size, designs.clients.item(0), self._own, self._spread)
        newest = ChoiceRule(theta, inverse, np.full(len(theta), beta))
        self.rule = newest if self._held is None else self._held.choose(self.rule, newest)

    def _against(self, noise: RoundNoise) -> Regularizer | PublishedRegularizer:
        if self._published:
            return PublishedRegularizer.against(noise, self._size, self._batches, self._horizon)
        # The two noises have a quarter of α, and wrapped sums another (`event_probability`). The paper counts no wraps.
        left = self._failure / (4 if self._exact else 2)
        return Regularizer.against(noise, self._size, self._batches, left, exact=self._exact)


class LinUcb(ContextualPolicy):
    """The policy `linucb` of one run."""

    CORE = LinUcbCore


class LinearThompson(SampledPolicy):
    """The policy `linear-thompson` of one run."""

    CORE = LinUcbCore

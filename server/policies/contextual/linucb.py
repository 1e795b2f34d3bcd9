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

from typing import Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.error_law import Floats
from distrust.common.specs.linucb import LinUcbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, HeldRules, RidgeSums, RoundNoise
from distrust.server.policies.contextual.noise_bounds import PublishedRegularizer, Regularizer
from distrust.server.policies.contextual.sampled import SampledPolicy

VANISHING = 1e-9
"""Share of λ - q below which a least eigenvalue counts as none: it is there by rounding."""


class LinUcbCore:
    """LinUCB of R runs. `indefinite` counts the batches after which noise made V indefinite, by run, shape (R,)."""

    def __init__(self, spec: LinUcbSpec, run: RunFacts, runs: int = 1) -> None:
        statistic = spec.statistic(run.arms, None)
        assert isinstance(statistic, ContextualSum)
        self._size, self._sums = spec.features, RidgeSums(statistic, runs)
        self._batches, self._exact = run.horizon // spec.batch, run.calibration == "exact"
        self._failure = spec.failure_of(run.horizon)
        low, high = spec.rewards
        half = (high - low) / 2
        self._published, self._horizon = spec.constants is not None, run.horizon
        # Of α, the self-normalized bound has half; the authors' code gives it all of α.
        self._own = self._failure if self._published else self._failure / 2
        self._spread = half if self._exact or self._published else max(1.0, half)
        self._regularizer: Regularizer | PublishedRegularizer | None = None
        self._held = None if spec.switch is None else HeldRules(spec.switch, runs)
        self.indefinite = np.zeros(runs, dtype=np.int64)
        # Before anything is known all scores are 0, and the first arm is chosen. Bonuses of equally long contexts would
        # differ by rounding only, so that processors would choose different arms.
        self.rule = ChoiceRule(np.zeros((runs, 1, self._size)))

    @property
    def switches(self) -> NDArray[np.int64] | None:
        """Return the batches after which each run got another rule; None without `switch`: each batch brings one."""
        return None if self._held is None else self._held.switches

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        linear, moments = self._sums.add(sums, noise)
        if self._regularizer is None:
            self._regularizer = self._against(noise)
        matrix = moments[:, 0] + self._regularizer.value * np.eye(self._size)
        matrix = self._positive(matrix, self._regularizer.least)
        inverse = np.linalg.inv(matrix)
        inverse = (inverse + np.swapaxes(inverse, -1, -2)) / 2
        theta = (inverse @ linear[:, 0, :, np.newaxis])[..., 0]
        beta = self._regularizer.width(self._size, self._sums.clients, self._own, self._spread)
        newest = ChoiceRule(theta[:, np.newaxis], inverse[:, np.newaxis], np.full(len(theta), beta))
        self.rule = newest if self._held is None else self._held.choose(self.rule, newest)

    def _against(self, noise: RoundNoise) -> Regularizer | PublishedRegularizer:
        if self._published:
            return PublishedRegularizer.against(noise, self._size, self._batches, self._horizon)
        # The two noises have a quarter of α, and wrapped sums another (`event_probability`). The paper counts no wraps.
        left = self._failure / (4 if self._exact else 2)
        return Regularizer.against(noise, self._size, self._batches, left, exact=self._exact)

    def _positive(self, matrix: Floats, least: float) -> Floats:
        """Return matrices whose eigenvalues are positive: an indefinite one is shifted until its least is `least`.

        Under Lemma A.2's event no V is indefinite, so each is counted as a failure.
        """
        try:
            np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            lowest = np.linalg.eigvalsh(matrix)[:, 0]
            broken = lowest <= VANISHING * least
            self.indefinite += broken
            lift = np.where(broken, least - lowest, 0.0)
            matrix = matrix + lift[:, np.newaxis, np.newaxis] * np.eye(self._size)
        return matrix


class LinUcb(ContextualPolicy):
    """The policy `linucb` of one run."""

    @classmethod
    def of(cls, spec: LinUcbSpec, run: RunFacts) -> Self:
        """Return the policy before its first batch. Raises BadParameter."""
        return cls(spec, run, LinUcbCore(spec, run))


class LinearThompson(SampledPolicy):
    """The policy `linear-thompson` of one run."""

    CORE = LinUcbCore

"""LinUCB on private sums (CTX, Algorithm 1): regularized by as much as the noise can take away.

Lemma A.2. If the noise N_m of the summed matrix and h_m of the summed vector keep ‖N_m‖ ≤ q and ‖h_m‖ ≤ q_h in all
batches m, then with λ = 2q the noisy V lies between λ_min = q and λ_max = 3q above the true Σφφᵀ, and
‖θ* - θ̂‖ ≤ β_m in the norm of V, with ν = q_h/√λ_min and

    β_m = R √(2 ln(2/α) + d ln(1 + t_m/(d λ_min))) + √λ_max + ν.

Lemma A.4, which takes one λ for both ends and no ν, is asymptotic: its √λ is up to 1.93 times too short.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.contextual_choice import ChoiceRule
from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.messages.contextual_policy import LinUcbSpec
from distrust.server.policies.base import RunFacts
from distrust.server.policies.contextual.base import ContextualPolicy, RidgeSums, RoundNoise
from distrust.server.policies.contextual.noise_bounds import matrix_bound, vector_bound

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Regularizer:
    """λ, the least and largest of what noise leaves of it, and ν, which noise adds to the width."""

    value: float = 1.0
    least: float = 1.0
    largest: float = 1.0
    drift: float = 0.0

    @classmethod
    def against(cls, noise: RoundNoise, size: int, batches: int, failure: float, *, exact: bool) -> Self:
        """Return the regularizer for noise that may fail with probability `failure` in `batches` batches.

        noise  of one batch; the sums over all batches are what counts. `paper` uses a union over the batches, and for
               prefix sums the constants of Shariff & Sheffet's code (2018). `exact` splits the failure in two.
        """
        if noise.deviation == 0:
            return cls()
        terms = noise.nodes if noise.prefix else batches
        largest = noise.deviation * math.sqrt(terms)  # of one entry's noise, after any batch
        if exact:
            # Sums of symmetric independent batches: Lévy's inequality, P(max_m ‖N_m‖ > x) ≤ 2 P(‖N_M‖ > x). Prefix
            # sums of a tree have at most `nodes` terms each, and a union over the batches.
            each = failure / 2 / (batches if noise.prefix else 2)
            q = largest * matrix_bound(size, each, exact=True)
            drift = largest * vector_bound(size, each, exact=True)
        elif noise.prefix:
            logarithm = 2 * math.log(2 * batches / failure)
            q = largest * math.sqrt(2) * (4 * math.sqrt(size) + logarithm)
            drift = largest * (math.sqrt(size) + math.sqrt(logarithm))
        else:
            q = largest * matrix_bound(size, failure / (2 * batches), exact=False)
            drift = largest * vector_bound(size, failure / (2 * batches), exact=False)
        value = max(2 * q, 1.0)  # 1: the least, as without noise
        return cls(value, value - q, value + q, drift / math.sqrt(value - q))

    def width(self, size: int, clients: int, failure: float, spread: float) -> float:
        """Return β after `clients` clients; the self-normalized bound may fail with probability `failure`.

        spread  R: the rewards are sub-Gaussian with it. Source: Abbasi-Yadkori et al. 2011, Theorem 2.
        """
        logarithm = 2 * math.log(1 / failure) + size * math.log(1 + clients / (size * self.least))
        return spread * math.sqrt(logarithm) + math.sqrt(self.largest) + self.drift


class LinUcbCore:
    """LinUCB of R runs. `indefinite` counts the batches after which noise made V indefinite, by run, shape (R,)."""

    def __init__(self, spec: LinUcbSpec, run: RunFacts, runs: int = 1) -> None:
        statistic = spec.statistic(run.arms, None)
        assert isinstance(statistic, ContextualSum)
        self._size, self._sums = spec.features, RidgeSums(statistic, runs)
        self._batches, self._exact = run.horizon // spec.batch, run.calibration == "exact"
        self._failure = spec.failure_of(run.horizon)
        low, high = spec.rewards
        self._spread = (high - low) / 2 if self._exact else 1.0
        self._regularizer: Regularizer | None = None
        self.indefinite = np.zeros(runs, dtype=np.int64)
        eye = np.broadcast_to(np.eye(self._size), (runs, 1, self._size, self._size))
        # Before anything is known the longest context is chosen, whatever λ and β are.
        self.rule = ChoiceRule(np.zeros((runs, 1, self._size)), eye, np.ones(runs))

    def learn(self, sums: Floats, noise: RoundNoise) -> None:
        linear, moments = self._sums.add(sums, noise)
        if self._regularizer is None:
            # α is split in half: the self-normalized bound, and the two noises together.
            self._regularizer = Regularizer.against(
                noise, self._size, self._batches, self._failure / 2, exact=self._exact
            )
        matrix = moments[:, 0] + self._regularizer.value * np.eye(self._size)
        matrix = self._positive(matrix, self._regularizer.least)
        inverse = np.linalg.inv(matrix)
        inverse = (inverse + np.swapaxes(inverse, -1, -2)) / 2
        theta = (inverse @ linear[:, 0, :, np.newaxis])[..., 0]
        beta = self._regularizer.width(self._size, self._sums.clients, self._failure / 2, self._spread)
        self.rule = ChoiceRule(theta[:, np.newaxis], inverse[:, np.newaxis], np.full(len(theta), beta))

    def _positive(self, matrix: Floats, least: float) -> Floats:
        """Return matrices whose eigenvalues are positive: an indefinite one is shifted until its least is `least`.

        Under Lemma A.2's event no V is indefinite, so each is counted as a failure.
        """
        try:
            np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            lowest = np.linalg.eigvalsh(matrix)[:, 0]
            self.indefinite += lowest <= 0
            lift = np.where(lowest <= 0, least - lowest, 0.0)
            matrix = matrix + lift[:, np.newaxis, np.newaxis] * np.eye(self._size)
        return matrix


class LinUcb(ContextualPolicy):
    """The policy `linucb` of one run."""

    @classmethod
    def of(cls, spec: LinUcbSpec, run: RunFacts) -> Self:
        """Return the policy before its first batch. Raises BadParameter."""
        return cls(spec, run, LinUcbCore(spec, run))

"""Implements VB-SDP-AE: elimination in growing batches that keeps all past data (Tenenbaum et al. 2021, as in MAB)."""

import math
from functools import lru_cache
from typing import cast

import numpy as np

from distrust.common.bandit.error_law import ErrorLaw, Whole
from distrust.common.specs.base import event_share
from distrust.common.specs.policy import VbSdpAeSpec
from distrust.server.policies.base import Estimate, RunFacts
from distrust.server.policies.elimination import Elimination, check_failure
from distrust.server.policies.noise_inversion import whole_quantile
from distrust.server.policies.noise_width import noise_width


class VbSdpAe(Elimination):
    """Batch b gives every active arm to 2ᵇ new clients; an estimate pools all the batches that the arm was in.

    failure  p: every interval of every batch holds with probability > 1 - p.
    Width    √(ln(2/p₁)/(2N)) + w/N for N clients in all: Hoeffding, and w the `noise_width` at p₁ of the sum of the
             batches' independent noises. p₁ = p/(5Kb²) with all K arms: how many are active depends on the data itself.
    Source   the papers that we have do not print the authors' constants, so both calibrations have this width.
    """

    def __init__(self, spec: VbSdpAeSpec, run: RunFacts) -> None:
        super().__init__(run.arms, spec.first_batch)
        check_failure(run.arms, spec.failure)
        self._failure = spec.failure
        self._sums, self._counts = np.zeros(run.arms), np.zeros(run.arms, dtype=np.int64)
        self._laws: list[list[ErrorLaw]] = [[] for _ in range(run.arms)]

    @property
    def clients(self) -> int:
        return int(2**self._batch)

    def read(self, arm: int, estimate: Estimate) -> tuple[float, float]:
        self._sums[arm] += estimate.sums[0]
        self._counts[arm] += estimate.counts[0]
        self._laws[arm].append(estimate.laws[0])
        clients, share = int(self._counts[arm]), event_share(len(self._laws), self._batch, self._failure)
        # Hoeffding: the mean of N rewards in [0, 1] is further off with probability at most p₁. The noise has p₁ of its
        # own; summed over arms and batches, `event_share` keeps both events together below p.
        sampled = math.sqrt(math.log(2 / share) / (2 * clients))
        return float(self._sums[arm]) / clients, sampled + pooled_noise(tuple(self._laws[arm]), share) / clients


@lru_cache(maxsize=256)
def pooled_noise(laws: tuple[ErrorLaw, ...], allowed: float) -> float:
    """Return w that the absolute sum of independent noises with these laws passes with probability ≤ `allowed`.

    The least w where all batches have one grid. Cached, because arms whose batches had the same survivors share it.
    """
    steps, transforms = (
        {getattr(law, "step", None) for law in laws},
        [getattr(law, "transformed", None) for law in laws],
    )
    if len(laws) > 1 and len(steps) == 1 and all(law is not None and law.lattice for law in transforms):
        found = float(steps.pop() or 0) * whole_quantile(cast("list[Whole]", transforms), allowed)
        if math.isfinite(found):
            return found
    return float(noise_width(laws, np.ones((1, len(laws))), allowed)[0])

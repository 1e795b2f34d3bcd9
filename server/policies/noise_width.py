"""How far a weighted sum of independent noises may lie from 0: Chernoff's bound on the laws' exact quantiles."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.error_law import ErrorLaw

Floats = NDArray[np.float64]

FAR = 1e-12  # tails up to here are read off the law
LEVELS = np.concatenate((np.linspace(0.98, 0.02, 49), np.geomspace(0.015, FAR, 80)))
PLACES = np.geomspace(1e-4, 60, 240)  # s in units of 1/std
TRIALS = np.geomspace(0.05, 60, 70)  # t in the same units of the weighted sum


@dataclass(frozen=True)
class Moments:
    """`logs`: an upper bound of ln E[e^{sX}; |X| ≤ q(FAR)] at s = PLACES / std, X noise of mean 0."""

    std: float
    logs: Floats

    def log_generating(self, s: Floats) -> Floats:
        """At any s ≥ 0; linear between the places, which is an upper bound of a convex function. +inf beyond them."""
        at = s * self.std
        places = np.concatenate(([0.0], PLACES))
        inside = np.interp(at, places, np.concatenate(([0.0], self.logs)))
        bound: Floats = np.where(at > PLACES[-1], np.inf, inside)
        return bound


@lru_cache(maxsize=4096)
def moments(law: ErrorLaw) -> Moments | None:
    """From quantiles: |X| is below a variable that takes the upper end of each step between LEVELS.

    E e^{sX} ≤ 1 + sE X + E(e^{s|X|} - 1 - s|X|), symmetric or not, and that grows with |X|. Cut off at q(FAR), E X may
    leave 0 by std √FAR (Cauchy-Schwarz). None: no noise.
    """
    if law.std == 0:
        return None
    ends = np.array([law.quantile(float(level)) for level in LEVELS])
    masses = np.diff(np.concatenate(([0.0], 1 - LEVELS)))
    scaled = PLACES[:, np.newaxis] / law.std * ends
    with np.errstate(over="ignore"):
        values = (np.expm1(scaled) - scaled) @ masses
    return Moments(law.std, np.log1p(np.maximum(values, 0) + PLACES * math.sqrt(FAR)))


def noise_width(laws: Sequence[ErrorLaw], weights: Floats, allowed: float) -> Floats:
    """W with P(|Σ_j c_j X_j| > w) ≤ `allowed` for each row c of `weights`, shape (k, s); the result has shape (k,).

    laws  of X_1 … X_s, independent, of mean 0. A single noisy coordinate is answered by its exact quantile; more of
          them by the smaller of Chernoff's bound (tails beyond q(FAR) given their own share) and the union bound.
    """
    sizes = np.abs(weights)
    found = [moments(law) for law in laws]  # type: ignore[arg-type]  # laws are frozen values
    noisy = [j for j, one in enumerate(found) if one is not None]
    if not noisy:
        return np.zeros(len(weights))
    quantiles = _quantiles(tuple(laws[j] for j in noisy), allowed / len(noisy))
    union: Floats = sizes[:, noisy] @ quantiles
    lost = len(noisy) * FAR
    if len(noisy) == 1 or allowed < 4 * lost:
        return union
    return np.minimum(union, _chernoff([m for m in found if m is not None], sizes[:, noisy], allowed - lost))


def _quantiles(laws: Sequence[ErrorLaw], p: float) -> Floats:
    known: dict[ErrorLaw, float] = {}
    return np.array([known[law] if law in known else known.setdefault(law, law.quantile(p)) for law in laws])


def _chernoff(found: Sequence[Moments], sizes: Floats, allowed: float) -> Floats:
    """Min over t of (Σ_j ln E e^{t c_j X_j} + ln(2/p)) / t; any t gives a bound."""
    stds = np.array([one.std for one in found])
    total = np.maximum(np.sqrt((sizes * stds) ** 2 @ np.ones(len(stds))), 1e-300)
    least = np.full(len(sizes), np.inf)
    groups: dict[int, tuple[Moments, list[int]]] = {}
    for j, one in enumerate(found):
        groups.setdefault(id(one), (one, []))[1].append(j)
    for trial in TRIALS:
        t = trial / total
        logs = sum(one.log_generating(t[:, np.newaxis] * sizes[:, js]).sum(axis=1) for one, js in groups.values())
        least = np.minimum(least, (logs + np.log(2 / allowed)) / t)
    return least

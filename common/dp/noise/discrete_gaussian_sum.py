"""Defines the sum of many clients' shares of discrete Gaussian noise.

It is no discrete Gaussian itself, and far from one for small shares.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Complexes, Floats
from distrust.common.dp.noise.discrete_gaussian import (
    POISSON,
    DiscreteGaussian,
    check_variance,
    gaussian_log_moment,
    gaussian_log_size,
    gaussian_logs,
    gaussian_reach,
    transform_reach,
)
from distrust.common.dp.noise.law import SymmetricLaw, check_length
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream

DRAWS_AT_ONCE = 1 << 20  # draws held at once
TRUSTED = 1e-5  # least mass, as a share of the largest, that a window of the Fourier sum is believed for
SMOOTH = 34.0  # nats by which the theta series' terms must stay below 1


@dataclass(frozen=True, slots=True)
class DiscreteGaussianSum(SymmetricLaw):
    """X_1 + … + X_terms, independent N_Z(0, variance) each: the convolved law itself, to relative error 1e-10.

    Where `is_gaussian`, the sum is N_Z(0, terms · variance) in double precision.
    """

    variance: float
    terms: int

    def __post_init__(self) -> None:
        check_variance(self.variance)
        if self.terms < 1:
            raise BadParameter("terms", self.terms, "must be at least 1")

    @property
    def std(self) -> float:
        return math.sqrt(self.terms) * DiscreteGaussian(self.variance).std

    @property
    def reach(self) -> float:
        return transform_reach(self.variance)

    def log_moment(self, s: Floats, t: Floats) -> Complexes:
        return self.terms * gaussian_log_moment(self.variance, s, t)

    def log_size(self, s: Floats, t: Floats) -> Floats:
        return self.terms * gaussian_log_size(self.variance, s, t)

    def _reach(self, lost: float) -> int:
        return gaussian_reach(self.terms * self.variance, lost)

    def _logs(self, last: int) -> Floats:
        return gaussian_sum_logs(self.variance, self.terms, last)

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Return `count` draws, added up term by term: time grows with the number of clients."""
        one = DiscreteGaussian(self.variance)
        draws = np.zeros(count, dtype=np.int64)
        for start in range(0, count, rows := max(1, DRAWS_AT_ONCE // self.terms)):
            part = draws[start : start + rows]
            part[:] = one.sample(stream, part.size * self.terms).reshape(part.size, -1).sum(axis=1)
        return draws


def is_gaussian(variance: float, terms: int) -> bool:
    """Return whether the sum is a discrete Gaussian itself, in double precision."""
    # The periodic factor (see `_continued`) is a theta series of the lattice A*_(n-1) by Poisson. Its shortest vectors,
    # 2n of squared length (n - 1)/n, count e^(-2π²v(n - 1)/n) each. Their sum is below 2e-15 here, and all the others'
    # is far below that.
    return terms == 1 or 2 * math.pi**2 * variance * (terms - 1) / terms > SMOOTH + math.log(2 * terms)


@lru_cache(maxsize=64)
def gaussian_sum_logs(variance: float, terms: int, last: int) -> NDArray[np.float64]:
    """Return the log-probabilities of 0 … last."""
    check_length(last, "support of the noise")
    if is_gaussian(variance, terms):
        logs = gaussian_logs(terms * variance, last)
    else:
        one_period = _period(variance, terms, min(last, terms // 2))
        logs = _continued(one_period, variance, terms, last)
    logs.setflags(write=False)
    return logs


def _continued(period: NDArray[np.float64], variance: float, terms: int, last: int) -> NDArray[np.float64]:
    """Return the log-probabilities of 0 … last from those of 0 … n/2, n = terms."""
    # Shifting every X_i by j gives P(k + nj) = P(k) e^(-(2jk + nj²)/(2v)). So the law is e^(-k²/(2nv)) times an even
    # function of period n, and only 0 … n/2 need a Fourier sum.
    # k = nj + r with |r| ≤ n/2, and P(k) = P(|r|) e^(-j(2r + nj)/(2v)).
    k = np.arange(last + 1)
    j = (k + terms // 2) // terms
    r = k - j * terms
    logs: NDArray[np.float64] = period[np.abs(r)] - j * (2.0 * r + terms * j) / (2 * variance)
    return logs


def _period(variance: float, terms: int, last: int) -> NDArray[np.float64]:
    """Return the log-probabilities of 0 … last ≤ n/2, by windows, each under the exponential tilt that centres it."""
    logs = np.empty(last + 1)
    k = 0
    while k <= last:
        tilt = _tilt(variance, k / terms)
        window = _window(variance, terms, tilt, k)[: last + 1 - k]
        if not window[0] > 0:  # rounding has left nothing of the law: the loop would not end
            raise BadParameter("variance", variance, "must be larger: no probability of this law can be computed")
        believed = np.flatnonzero(window < TRUSTED * window[0])
        until = int(believed[0]) if believed.size else window.size
        moments = terms * float(_log_moment(variance, tilt, np.zeros(1))[0].real)
        logs[k : k + until] = np.log(window[:until]) + moments - tilt * np.arange(k, k + until)
        k += until
    return logs


def _tilt(variance: float, mean: float) -> float:
    """Return the s in [0, 1/(2v)] for which e^(sx) times the law of one term has this mean, in [0, 1/2]."""
    if mean <= 0:
        return 0.0
    top = 1 / (2 * variance)
    if mean >= 0.5:
        return top  # where the tilted law is symmetric around 1/2
    x, logs = _one_term(variance)

    def excess(s: float) -> float:
        weights = np.exp(logs + s * x - (logs + s * x).max())
        return float((weights @ x) / weights.sum()) - mean

    return float(scipy.optimize.brentq(excess, 0.0, top, xtol=1e-14 * top, rtol=1e-14))


def _one_term(variance: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the integers and the exponents -x²/(2v) that matter for tilts up to 1/(2v)."""
    reach = math.ceil(12 * math.sqrt(variance)) + 2
    x = np.arange(-reach, reach + 2, dtype=np.float64)
    return x, -(x**2) / (2 * variance)


def _window(variance: float, terms: int, tilt: float, start: int) -> NDArray[np.float64]:
    """Return tilted probabilities of `start`, `start` + 1, …: the discrete Fourier sum of φⁿ, centred at `start`.

    Rounding errors are about 1e-15 of the largest.
    """
    # The window is longer than 32 deviations, so that the mass that wraps around is below 1e-50.
    x, logs = _one_term(variance)
    weights = np.exp(logs + tilt * x - (logs + tilt * x).max())
    mean = float(weights @ x / weights.sum())
    spread = math.sqrt(terms * float(weights @ (x - mean) ** 2 / weights.sum()))
    length = 1 << max(6, math.ceil(math.log2(32 * spread + 64)))
    angles = np.arange(length // 2 + 1, dtype=np.float64) * (2 * math.pi / length)
    base = _log_moment(variance, tilt, np.zeros(1))[0].real
    powers = terms * (_log_moment(variance, tilt, angles) - base) - 1j * angles * start
    masses = np.fft.irfft(np.exp(powers).conj(), length)
    kept: NDArray[np.float64] = masses[: length // 2]
    return kept


def _log_moment(variance: float, tilt: float, angles: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Return cumulants ln E e^(zX), z = tilt + i·angle in [-π, π], accurate near z = tilt if its power is not small.

    They are computed for v ≥ 1/2 by Poisson summation, vz²/2 + ln Σ_j e^(2πijvz - 2π²vj²), else from the terms.
    """
    if variance >= POISSON:
        z = tilt + 1j * angles
        j = np.arange(1, 5)
        decay = np.exp(-2 * math.pi**2 * variance * j**2)
        series = np.log1p(_series(variance, decay, z)) - math.log1p(2 * decay.sum())
        return np.asarray(variance * z**2 / 2 + series, dtype=np.complex128)
    x, logs = _one_term(variance)
    top = float((logs + tilt * x).max())
    weights = np.exp(logs + tilt * x - top)
    total = weights.sum()
    half = np.multiply.outer(angles, x / 2)
    turned = (2j * np.sin(half) * np.exp(1j * half)) @ (weights / total)  # Σ p(x) (e^(iθx) - 1)
    constant = math.log(total) + top - math.log(np.exp(logs).sum())
    return np.asarray(np.log1p(turned) + constant, dtype=np.complex128)


def _series(variance: float, decay: NDArray[np.float64], z: NDArray[Any]) -> NDArray[np.complex128]:
    """Return Σ_(j≠0) e^(2πijvz) times decay(|j|)."""
    turns = np.multiply.outer(2j * math.pi * variance * z, np.arange(1, decay.size + 1))
    return np.asarray((np.exp(turns) + np.exp(-turns)) @ decay, dtype=np.complex128)

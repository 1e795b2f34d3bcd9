"""Computes how far a weighted sum of independent noises lies from 0, from above.

The second half is for laws of which only quantiles are known, as where the error depends on the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from distrust.common.bandit.error_law import ErrorLaw, Floats, Transformed
from distrust.server.policies.noise_inversion import inverted_quantiles
from distrust.server.policies.noise_sums import Sums

LEAST_TAIL = 1e-18  # smallest probability for which laws have quantiles
FAR = (1e-12, 1e-15, LEAST_TAIL)  # tails down to one of these are taken from the law
STEPS = 80  # levels of the nearest tail; the farther ones are as fine
PLACES = np.geomspace(1e-4, 60, 240)  # s in units of 1/std
NEAR, AWAY = math.log(0.05), math.log(60)  # ln t, in the same units of the weighted sum
FEW = 5.0  # steps of deviation below which a sum on lattices may be wider by inversion than by the bound from quantiles
CUTS = 14  # of that range, each to its golden part: ln t to 0.01
GOLDEN = (math.sqrt(5) - 1) / 2  # share of an interval that golden-section search keeps


@dataclass(frozen=True)
class Moments:
    """`logs`: an upper bound of ln E[e^{sX}; |X| ≤ q(far)] at s = PLACES / std, X noise of mean 0."""

    std: float
    logs: Floats

    def log_generating(self, s: Floats) -> Floats:
        """Return the bound at any s ≥ 0: linear between the places, which bounds a convex function; ∞ beyond them."""
        at = s * self.std
        places = np.concatenate(([0.0], PLACES))
        inside = np.interp(at, places, np.concatenate(([0.0], self.logs)))
        bound: Floats = np.where(at > PLACES[-1], np.inf, inside)
        return bound


@lru_cache(maxsize=4096)
def moments(law: ErrorLaw, far: float = FAR[0]) -> Moments:
    """Return the moments from quantiles: |X| is at most a variable that takes the upper end of each step of `_levels`.

    E e^{sX} ≤ 1 + sE X + E(e^{s|X|} - 1 - s|X|), symmetric or not, and that grows with |X|. Cut off at q(far), E X may
    leave 0 by std √far (Cauchy-Schwarz).
    """
    levels = _levels(far)
    ends = np.array([law.quantile(float(level)) for level in levels])
    masses = -np.diff(np.concatenate(([1.0], levels)))
    scaled = PLACES[:, np.newaxis] / law.std * ends
    with np.errstate(over="ignore"):
        values = (np.expm1(scaled) - scaled) @ masses
    return Moments(law.std, np.log1p(np.maximum(values, 0) + PLACES * math.sqrt(far)))


def _levels(far: float) -> Floats:
    """Return probabilities of tails, from 0.98 down to `far`."""
    tail = np.geomspace(0.015, far, round(STEPS * math.log(0.015 / far) / math.log(0.015 / FAR[0])))
    return np.concatenate((np.linspace(0.98, 0.02, 49), tail))


def noise_width(laws: Sequence[ErrorLaw], weights: Floats, allowed: float, *, joint: bool = False) -> Floats:
    """Return W with P(|Σ_j c_j X_j| > w) ≤ `allowed` for each row c of `weights`, shape (k, s).

    Returns shape (k,).

    laws   of X_1 … X_s, independent, of mean 0.
    joint  they are not independent, but Σ c_j X_j has ‖c‖₂ times the law of X_1.

    How    One noise in a row: its own quantile. Densities: the sum's quantile but for 1e-9 of it. Noises on lattices:
           that of a sum raised by half of one or two steps, or below FEW steps of deviation the bound from quantiles
           where it is smaller. Laws whose moment generating functions are not known: that bound.
    """
    if joint:
        return np.asarray(np.linalg.norm(weights, axis=1) * laws[0].quantile(allowed))
    noisy = [j for j, law in enumerate(laws) if law.std]
    if not noisy:
        return np.zeros(len(weights))
    weights, laws = weights[:, noisy], [laws[j] for j in noisy]
    transforms = {law: getattr(law, "transformed", None) for law in set(laws)}
    widths = np.full(len(weights), np.inf)
    single = np.count_nonzero(weights, axis=1) <= 1
    if single.any():
        widths[single] = np.abs(weights[single]) @ _quantiles(laws, allowed)
    if None not in transforms.values():
        known = [cast("Transformed", transforms[law]) for law in laws]
        sizes = weights * [getattr(law, "step", 1.0) for law in laws]
        _by_inversion(widths, known, sizes, allowed)
        left = np.isinf(widths) | (_of_few_steps(known, sizes) & ~single)
    else:
        left = np.isinf(widths)
    if left.any():
        widths[left] = np.minimum(widths[left], bounded_width(laws, weights[left], allowed))
    return widths


def _of_few_steps(laws: Sequence[Transformed], sizes: Floats) -> NDArray[np.bool_]:
    """Return in which rows the sum's deviation is below FEW steps of the coarsest lattice."""
    steps = np.abs(sizes) * [law.lattice for law in laws]
    stds = np.linalg.norm(sizes * [law.std for law in laws], axis=1)
    return np.asarray(stds < FEW * steps.max(axis=1))


def _by_inversion(widths: Floats, laws: Sequence[Transformed], sizes: Floats, allowed: float) -> None:
    """Replace infinite widths where moment generating functions give finite ones."""
    rows = np.flatnonzero(np.isinf(widths))
    if rows.size:
        groups: dict[Transformed, list[int]] = {}
        for j, law in enumerate(laws):
            groups.setdefault(law, []).append(j)
        widths[rows] = inverted_quantiles(Sums([(law, sizes[rows][:, js]) for law, js in groups.items()]), allowed)


def bounded_width(laws: Sequence[ErrorLaw], weights: Floats, allowed: float) -> Floats:
    """Return the smaller of the union bound and Chernoff's bound from quantiles, with tails beyond q(FAR) apart."""
    sizes, count = np.abs(weights), len(laws)
    union: Floats = sizes @ _quantiles(laws, allowed / count)
    far = next((far for far in FAR if 4 * count * far <= allowed), None)
    if far is None:
        return union
    bounds = [moments(law, far) for law in laws]  # type: ignore[arg-type]  # frozen values
    return np.minimum(union, _chernoff(bounds, sizes, allowed - count * far))


def _quantiles(laws: Sequence[ErrorLaw], p: float) -> Floats:
    known = {law: law.quantile(p) for law in dict.fromkeys(laws)}
    return np.array([known[law] for law in laws])


def _chernoff(bounds: Sequence[Moments], sizes: Floats, allowed: float) -> Floats:
    """Return the minimum over t of (Σ_j ln E e^{t c_j X_j} + ln(2/p)) / t; any t gives a bound.

    The logarithms are convex in t and 0 at 0, so that the quotient falls and then rises: a golden section finds its
    minimum for all rows at once.
    """
    stds = np.array([own.std for own in bounds])
    total = np.maximum(np.linalg.norm(sizes * stds, axis=1), 1e-300)
    groups = [
        (own, [j for j, other in enumerate(bounds) if other is own]) for own in {id(m): m for m in bounds}.values()
    ]
    target = math.log(2 / allowed)

    def bound(log_t: Floats) -> Floats:
        t = np.exp(log_t) / total
        logs = sum(own.log_generating(t[:, np.newaxis] * sizes[:, js]).sum(axis=1) for own, js in groups)
        return np.asarray((logs + target) / t)

    return _least(bound, len(sizes))


def _least(bound: Callable[[Floats], Floats], rows: int) -> Floats:
    """Return the least value of a golden section of [NEAR, AWAY], row by row; of equal infinite ones the left stays."""
    low, high = np.full(rows, NEAR), np.full(rows, AWAY)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    least = np.minimum(at_left, at_right)
    for _ in range(CUTS):
        down = at_left <= at_right
        low, high = np.where(down, low, left), np.where(down, right, high)
        fresh = np.where(down, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = bound(fresh)
        left, right = np.where(down, fresh, right), np.where(down, left, fresh)
        at_left, at_right = np.where(down, value, at_right), np.where(down, at_left, value)
        least = np.minimum(least, value)
    return least

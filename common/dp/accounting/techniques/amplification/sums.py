"""Evaluates E[(V₁ + … + V_n)₊]/n of independent values V with one law, rounded up: the sum of the blanket bound.

The law has cells: V is between two bounds there, with a known mean. All errors are on the safe side.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.common.dp.noise.law import UNIT

TAILS = 50.0  # nats of the tilted sum outside of the grid
FINE_STEP = 0.05  # step of the grid, in root mean squares of one user's tilted V where it is not 0
SIZES = (12, 20)  # powers of 2: fewest and most points of the grid
VANISHED = 45.0  # nats below 1: powers of the transform that are left out, and added
LARGEST_EXPONENT = 600.0  # λV whose exponential is a double


class UserValue(NamedTuple):
    """V of one user: cells with blanket `weight`, values between `low` and `high` of mean `mean`; else 0."""

    weight: Floats
    low: Floats
    mean: Floats
    high: Floats
    users: int

    @property
    def rest(self) -> float:
        return max(0.0, 1 - float(self.weight.sum()))

    def raised(self, least: float) -> "UserValue":
        """Return values below `least` moved up to it, which makes the sum no smaller."""
        low, mean, high = (np.maximum(values, least) for values in (self.low, self.mean, self.high))
        return self._replace(low=low, mean=mean, high=high)

    def cumulant(self, tilt: float) -> float:
        return _cumulant(np.append(self.mean, 0.0), np.append(self.weight, self.rest), tilt)


def atoms_delta(weights: Floats, values: Floats, users: int, *, fine: float = FINE_STEP) -> float:
    """Return an upper bound of E[(V₁ + … + V_n)₊]/n, n = `users`, of V with these atoms, and 0 with the other mass."""
    if values.max() <= 0:
        return 0.0
    alone = float(weights @ np.maximum(values, 0))
    return alone if users == 1 else min(alone, positive_part(UserValue(weights, values, values, values, users), fine))


def positive_part(law: UserValue, fine: float) -> float:
    """Return an upper bound of E[(V₁ + … + V_n)₊]/n."""
    tilt, spread, share = _tilt(law)
    turns: Floats = np.outer((1 / spread, tilt), np.exp2(np.arange(-6, 5))).ravel()
    reach = max(_reach(law, tilt, turns), float(law.high.max()))
    law = law.raised(-reach)
    reach = max(reach, _reach(law, tilt, -turns))
    size = _size(reach, fine * (spread / math.sqrt(law.users * share)))
    step = 2 * reach / size
    points, weights = _on_grid(law, step)
    values = points * step
    cumulant = _cumulant(values, weights, tilt)
    beyond = (law.users * (_cumulant(values, weights, tilt + turn) - cumulant) - turn * reach for turn in turns)
    outside = math.exp(min(0.0, *beyond))
    # The n-fold sum is taken of the law tilted by e^(λV), centred at 0, where the sum turns positive. So rounding and
    # truncation are relative to P(sum > 0) and not to 1; what they may have taken is bounded and added.
    inside = step * _worth(points, weights * np.exp(tilt * values - cumulant), law.users, size, tilt * step)
    total = inside + outside / (math.e * tilt)
    if not total > 0:  # steps too coarse for this law: no bound
        return math.inf
    log = law.users * (cumulant + 64 * UNIT) + math.log(total) - math.log(law.users)
    return math.exp(min(0.0, log))


def _tilt(law: UserValue) -> tuple[float, float, float]:
    """Return λ, the tilted sum's standard deviation, and the tilted P(V ≠ 0).

    λ > 0 nearly minimizes the sum's moment: K'(λ) = 0, about. The bound holds for any λ.
    """
    # The root is searched in ln λ: at ε = 20 it is 1e-9 of what V is scaled by.

    def slope(tilt: float) -> float:
        exponents = tilt * law.mean
        return float((law.weight * law.mean) @ np.exp(exponents - max(0.0, float(exponents.max()))))

    tilt = 1 / float(np.abs(law.mean).max())
    while slope(tilt) < 0 and tilt * float(law.mean.max()) < LARGEST_EXPONENT:
        tilt *= 2
    if slope(tilt) > 0 > slope(0):
        low = tilt / 2
        while slope(low) >= 0:  # M'(0) = E V < 0, so that it ends
            low /= 2
        ends = math.log(low), math.log(tilt)
        tilt = math.exp(scipy.optimize.brentq(lambda log: slope(math.exp(log)), *ends, xtol=1e-9))
    tilted = law.weight * np.exp(tilt * law.mean - law.cumulant(tilt))
    return tilt, math.sqrt(law.users * float(tilted @ law.mean**2)), float(tilted.sum())


def _reach(law: UserValue, tilt: float, turns: Floats) -> float:
    """Return the distance beyond which the tilted sum lies with probability below e^-TAILS, by Chernoff's bound."""
    values, weights = np.append(law.high if turns[0] > 0 else law.low, 0.0), np.append(law.weight, law.rest)
    base = _cumulant(values, weights, tilt)
    farther = ((turn, _cumulant(values, weights, tilt + turn)) for turn in turns)
    return float(min((law.users * (cumulant - base) + TAILS) / abs(turn) for turn, cumulant in farther))


def _size(reach: float, step: float) -> int:
    """Return the number of grid points, a power of 2, for about that step."""
    # The split adds at most step²/4 to the variance where V is not 0.
    wanted = math.ceil(math.log2(2 * reach / step))
    return 1 << min(max(wanted, SIZES[0]), SIZES[1])


def _on_grid(law: UserValue, step: float) -> tuple[Floats, Floats]:
    """Return grid points and their masses, two for each cell and one for 0."""
    # Each cell's mass is split between two grid points that enclose its values, with the cell's mean: larger in convex
    # order.
    below, above = np.floor(law.low / step), np.ceil(law.high / step)
    up = (law.mean / step - below) / np.maximum(above - below, 1)
    points = np.concatenate((below, above, [0.0]))
    return points, np.concatenate((law.weight * (1 - up), law.weight * up, [law.rest]))


def _cumulant(values: Floats, weights: Floats, tilt: float) -> float:
    """Return K(λ) = ln E e^(λV)."""
    exponents = tilt * values
    top = float(exponents.max())
    return top + math.log(float(weights @ np.exp(exponents - top)))


def _worth(points: Floats, masses: Floats, users: int, size: int, decay: float) -> float:
    """Return an upper bound of Σ s e^(-decay s) P(S = s) over 0 < s < size/2, of the `users`-fold sum S on Z_size."""
    law = np.bincount(points.astype(np.int64) % size, weights=masses, minlength=size)
    transform = np.fft.rfft(law)
    sizes = transform.real**2 + transform.imag**2
    kept = np.flatnonzero(sizes > math.exp(-2 * VANISHED / users))  # next to all of them vanish where users are many
    sizes = sizes[kept]
    logs, angles = np.log(sizes) / 2, np.angle(transform[kept])
    grown, phases = np.exp(users * logs), users * angles
    # The sum over s is one over the transform's powers, each times Σ s qˢ. Frequencies but for the first and the last
    # one stand for two.
    real, imaginary = _geometric(kept, size, decay)
    whole = float(_geometric(np.zeros(1, dtype=np.int64), size, decay)[0][0])
    twice = np.where((kept == 0) | (kept == size // 2), 1, 2)
    inside = float((twice * grown) @ (np.cos(phases) * real - np.sin(phases) * imaginary)) / size
    # An FFT of size N errs by at most 7 log₂N units of its input's 2-norm (Higham 2002, Theorem 24.2). The power
    # multiplies that by n|φ|^(n-1), and its logarithm errs by n|ln φ| units; sums over frequencies err by less than an
    # FFT. Cauchy's inequality brings all to one P(S = s).
    unit, squares = 8 * UNIT * math.log2(size), grown**2
    from_law = users * _rms(squares / sizes, transform.size) * float(np.linalg.norm(law))
    from_logs = users * _rms((logs**2 + angles**2) * squares, transform.size)
    from_sum = math.sqrt(float(twice @ squares) / size)  # the 2-norm of all P(S = s)
    lost = unit * (from_law + from_sum) + 8 * UNIT * from_logs + math.exp(-VANISHED)
    return inside + lost * whole


def _geometric(frequencies: NDArray[np.int64], size: int, decay: float) -> tuple[Floats, Floats]:
    """Return Σ s qˢ over 0 < s < size/2, q = e^(-decay + 2πi k/size), in real and imaginary parts; 0 ≤ k ≤ size/2."""
    last, small = size // 2 - 1, math.exp(-decay)
    versines, sines = (small * table[frequencies] for table in _circle(size))
    rest, other = versines - math.expm1(-decay), -sines  # 1 - q
    above, beside = small - versines, sines  # q
    end = math.exp(-decay * last)
    if size * end > UNIT / 16:  # else the sum is that over all s, q/(1 - q)²
        # Times 1 - qᵐ (1 + m (1 - q)), m = `last`, and qᵐ⁺¹ = ±e^(-(m + 1) decay).
        sign = np.where(frequencies % 2, -end, end) / small
        ends, across = sign * above, -sign * beside
        more, less = 1 + last * rest, last * other
        left, right = 1 - ends * more + across * less, -ends * less - across * more
        above, beside = above * left - beside * right, above * right + beside * left
    squares = (rest**2 + other**2) ** 2
    real, imaginary = rest**2 - other**2, -2 * rest * other
    sums = (above * real - beside * imaginary) / squares, (above * imaginary + beside * real) / squares
    if decay * last < 1:  # k = 0 has nearly equal parts
        s = np.arange(1, size // 2)
        sums[0][frequencies == 0] = s @ np.exp(-decay * s)
    return sums


@cache
def _circle(size: int) -> tuple[Floats, Floats]:
    """Return 1 - cos and sin of the angles 2πk/size for 0 ≤ k ≤ size/2. Those of all SIZES take 17 MB."""
    turns = math.pi / size * np.arange(size // 2 + 1)
    half = np.sin(turns)
    return 2 * half**2, 2 * half * np.cos(turns)


def _rms(squares: Floats, frequencies: int) -> float:
    """Return an upper bound of the root mean square over all frequencies, from those of the half that are kept."""
    return math.sqrt(2 * float(squares.sum()) / frequencies)

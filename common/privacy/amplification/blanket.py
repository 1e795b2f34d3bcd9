"""Evaluates the privacy blanket bound of shuffled messages of a given randomizer, and searches noise by it.

Each message is, with probability γ, drawn from the blanket ω, whatever its input. For the worst pair x, y of inputs

    δ(ε) ≤ E[(Σ_{i≤M} L_i)₊] / (nγ),  M ~ Bin(n, γ),  L = (μ_x - e^ε μ_y)(W)/ω(W),  W ~ ω.

With V = L/γ for a draw from the blanket, else 0, the bound is E[(V₁ + … + V_n)₊]/n. All errors are on the safe side.

Source     Balle et al. 2019, Lemma 5.3.
Holds      for every n ≥ 1 and every randomizer with a blanket, pure or not; one message a user, one randomizer. Inputs
           may differ from place to place where one pair is the worst in convex order (`laplace_on_grid`).
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy
from numpy.typing import NDArray

from distrust.common.bandit.error_law import Floats
from distrust.common.errors import BadParameter
from distrust.common.noise.law import UNIT
from distrust.common.privacy.amplification.randomizers import (
    LARGEST_LOCAL_EPSILON,
    LocalRandomizer,
    check_delta,
    check_users,
)
from distrust.common.privacy.searches import least_met

MASSES = 2e-11  # relative rounding of the cells' masses, of laws as common.noise computes them
SAME = 1e-10  # relative: values that differ by less differ by the rounding of their masses
LOST_SHARE = 0.03  # of a given δ: mass of extreme values to leave out
DIGITS = 1e-5  # relative, of ε, towards more privacy
TAILS = 50.0  # nats of the tilted sum outside of the grid
FINE_STEP = 0.05  # step of the grid, in root mean squares of one user's tilted V where it is not 0
SIZES = (12, 20)  # powers of 2: fewest and most points of the grid
VANISHED = 740.0  # nats below 1: powers of the transform that are next to no double, and no share of a rounding error
EXTREME = (0.2, 0.4, 0.8)  # shares of the sum's mean that one value alone may make up for
TILTS = np.geomspace(0.1, 300, 60)  # of Chernoff's bound, in units of the largest value that is kept
LEAST_EPSILON = 1e-6  # nats; a smaller ε is stated as this one
LARGEST_EXPONENT = 600.0  # λV whose exponential is a double
FINEST = 32  # steps of one coordinate's range, all pairs of which the blanket bound compares
NOT_ZERO_DELTA = 1e-300  # of a δ whose logarithm is taken

RandomizerOf: TypeAlias = Callable[[float, int], LocalRandomizer]
"""Returns a randomizer from the size of the noise, σ² or ε₀, and the precision."""

PairTarget: TypeAlias = tuple[float, float, int]
"""A target: ε, δ and the number of honest clients."""

Search: TypeAlias = Callable[[Callable[[float], float], float], float]
"""Returns the snapped number at which an excess ends, from the excess and a guess."""


class _Sum(NamedTuple):
    """V of one user: cells with blanket `weight`, values between `low` and `high` of mean `mean`; else 0."""

    weight: Floats
    low: Floats
    mean: Floats
    high: Floats
    users: int

    @property
    def rest(self) -> float:
        return max(0.0, 1 - float(self.weight.sum()))

    def raised(self, least: float) -> "_Sum":
        """Return values below `least` moved up to it, which makes the sum no smaller."""
        low, mean, high = (np.maximum(values, least) for values in (self.low, self.mean, self.high))
        return self._replace(low=low, mean=mean, high=high)

    def cumulant(self, values: Floats, tilt: float) -> float:
        return _cumulant(np.append(values, 0.0), np.append(self.weight, self.rest), tilt)


def blanket_epsilon(randomizer: LocalRandomizer, delta: float, users: int) -> float:
    """Return the least ε with δ(ε) ≤ delta to five digits, rounded up; BadParameter where none up to 50 will do."""
    check_delta(delta)
    check_users(users)
    worst = LEAST_EPSILON
    for pair in randomizer.pairs():
        met = partial(_meets, randomizer, pair, delta, users)
        if met(worst):
            continue
        high = max(2 * worst, 0.01)
        while not met(min(high, LARGEST_LOCAL_EPSILON)):
            if high >= LARGEST_LOCAL_EPSILON:
                allowed = f"{users} users of this randomizer have no epsilon up to {LARGEST_LOCAL_EPSILON:g}"
                raise BadParameter("delta", delta, allowed)
            worst, high = high, 2 * high
        worst = least_met(met, worst, min(high, LARGEST_LOCAL_EPSILON), DIGITS)
    return worst


def _meets(randomizer: LocalRandomizer, pair: tuple[int, int], delta: float, users: int, epsilon: float) -> bool:
    return pair_delta(randomizer, pair, epsilon, users, LOST_SHARE * delta) <= delta


# Proof of the bound: show the others' inputs and who drew from the blanket. Then only the blanket's draws hide the one
# user, and L is what each of them tells.


def pair_delta(
    randomizer: LocalRandomizer,
    pair: tuple[int, int],
    epsilon: float,
    users: int,
    left_out: float,
    *,
    fine: float = FINE_STEP,
) -> float:
    """Return δ of one pair of inputs, rounded up: by `left_out`, mass of extreme values, and by the grid.

    fine  deviations a step of the grid.
    """
    one, other = pair
    # A little less ε, and less blanket, make up for whatever rounding did to the masses.
    factor, grown = math.exp(epsilon - 3 * MASSES), 1 / (1 - MASSES)
    low = grown * (randomizer.low[one] - factor * randomizer.high[other])
    high = grown * (randomizer.high[one] - factor * randomizer.low[other])
    mean = grown * (randomizer.masses[one] - factor * randomizer.masses[other]) / randomizer.blanket
    # Values of vanishing mass under μ_x are left out, and that mass is added to δ.
    kept = _not_extreme(high, randomizer.masses[one], left_out)
    added = float(randomizer.masses[one][~kept].sum()) + randomizer.lost
    if not kept.any() or high[kept].max() <= 0:
        return min(1.0, added)
    law = _Sum(randomizer.blanket[kept] / grown, low[kept], np.clip(mean, low, high)[kept], high[kept], users)
    alone = float(law.weight @ np.where(law.low > 0, law.mean, np.maximum(law.high, 0)))  # what one message gives
    delta = alone if users == 1 else min(alone, _positive_part(law, fine))
    return min(1.0, delta * (1 + 2 * MASSES) + added)


def atoms_delta(weights: Floats, values: Floats, users: int, *, fine: float = FINE_STEP) -> float:
    """Return an upper bound of E[(V₁ + … + V_n)₊]/n, n = `users`, of V with these atoms, and 0 with the other mass."""
    if values.max() <= 0:
        return 0.0
    alone = float(weights @ np.maximum(values, 0))
    return alone if users == 1 else min(alone, _positive_part(_Sum(weights, values, values, values, users), fine))


def _not_extreme(values: Floats, masses: Floats, left_out: float) -> NDArray[np.bool_]:
    """Return which values stay when the largest ones, of a mass of at most `left_out` together, are left out.

    Equal ones stay or go together. Otherwise rounding, which puts them in some order, would choose among them.
    """
    order = np.argsort(-values)
    beyond = np.cumsum(masses[order]) > left_out
    if not beyond.any():
        return np.zeros(values.size, dtype=bool)
    largest = float(values[order[np.argmax(beyond)]])
    kept: NDArray[np.bool_] = values <= largest + SAME * abs(largest)
    return kept


def extreme_delta(randomizer: LocalRandomizer, pair: tuple[int, int], epsilon: float, users: int) -> float:
    """Return an upper bound of δ of one pair of inputs far in its tail, where one message decides.

    It is quick, and works down to the least doubles.
    """
    one, other = pair
    factor, grown = math.exp(epsilon - 3 * MASSES), 1 / (1 - MASSES)
    values = grown * (randomizer.high[one] - factor * randomizer.low[other])
    best = 1.0
    for share in EXTREME:
        # Values that alone make up for this share of the sum's mean are left out.
        most = share * users * math.expm1(epsilon)
        kept = values <= most
        added = float(randomizer.masses[one][~kept].sum()) + randomizer.lost
        # Chernoff's bound of the others' sum, by s₊ ≤ e^(λs)/(eλ), with the least over shares and λ.
        growth = np.expm1(np.outer(TILTS / most, values[kept])) @ (randomizer.blanket[kept] / grown)
        logs = users * (np.log1p(growth) + 256 * UNIT) - np.log(TILTS / most * users) - 1
        best = min(best, added + math.exp(min(0.0, float(logs.min()))) * (1 + 2 * MASSES))
    return best


def _positive_part(law: _Sum, fine: float) -> float:
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
    # The n-fold sum is an FFT of the law tilted by e^(λV), centred at 0, where the sum turns positive. So rounding and
    # truncation are relative to P(sum > 0) and not to 1; what they may have taken is bounded and added.
    sums, noise = _powers(points, weights * np.exp(tilt * values - cumulant), law.users, size)
    s = step * np.arange(1, size // 2)
    worth = s * np.exp(-tilt * s)
    inside = float(worth @ np.maximum(sums[1 : size // 2], 0)) + noise * float(worth.sum())
    total = inside + outside / (math.e * tilt)
    if not total > 0:  # steps too coarse for this law: no bound
        return math.inf
    log = law.users * (cumulant + 64 * UNIT) + math.log(total) - math.log(law.users)
    return math.exp(min(0.0, log))


def _tilt(law: _Sum) -> tuple[float, float, float]:
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
    tilted = law.weight * np.exp(tilt * law.mean - law.cumulant(law.mean, tilt))
    return tilt, math.sqrt(law.users * float(tilted @ law.mean**2)), float(tilted.sum())


def _reach(law: _Sum, tilt: float, turns: Floats) -> float:
    """Return the distance beyond which the tilted sum lies with probability below e^-TAILS, by Chernoff's bound."""
    values = law.high if turns[0] > 0 else law.low
    base = law.cumulant(values, tilt)
    return float(min((law.users * (law.cumulant(values, tilt + turn) - base) + TAILS) / abs(turn) for turn in turns))


def _size(reach: float, step: float) -> int:
    """Return the number of grid points, a power of 2, for about that step."""
    # The split adds at most step²/4 to the variance where V is not 0.
    wanted = math.ceil(math.log2(2 * reach / step))
    return 1 << min(max(wanted, SIZES[0]), SIZES[1])


def _on_grid(law: _Sum, step: float) -> tuple[Floats, Floats]:
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


def _powers(points: Floats, masses: Floats, users: int, size: int) -> tuple[Floats, float]:
    """Return the `users`-fold convolution on Z_size, and a bound of every entry's rounding error."""
    law = np.bincount(points.astype(np.int64) % size, weights=masses, minlength=size)
    transform = np.fft.rfft(law)
    sizes = transform.real**2 + transform.imag**2
    kept = sizes > math.exp(-2 * VANISHED / users)  # next to all of them vanish where users are many
    logs, angles = np.log(sizes[kept]) / 2, np.angle(transform[kept])
    grown = np.exp(users * logs)
    power = np.zeros_like(transform)
    power.real[kept], power.imag[kept] = grown * np.cos(users * angles), grown * np.sin(users * angles)
    sums = np.fft.irfft(power, size)
    # An FFT of size N errs by at most 7 log₂N units of its input's 2-norm (Higham 2002, Theorem 24.2). The power
    # multiplies that by n|φ|^(n-1), and its logarithm errs by n|ln φ| units. Cauchy's inequality brings all to one
    # entry.
    unit = 8 * UNIT * math.log2(size)
    from_law = users * _rms(np.exp((users - 1) * logs), transform.size) * float(np.linalg.norm(law))
    from_logs = users * _rms(np.hypot(logs, angles) * grown, transform.size)
    return sums, unit * (from_law + float(np.linalg.norm(sums))) + 8 * UNIT * from_logs


def _rms(half: Floats, frequencies: int) -> float:
    """Return an upper bound of the root mean square over all frequencies, from the half that does not vanish."""
    return math.sqrt(2 * float(np.sum(half**2)) / frequencies)


def over_pairs(kind: RandomizerOf, precision: int, target: PairTarget, search: Search, guess: float) -> float:
    """Return the search's number at which the blanket hides every pair of inputs."""
    # The search is first for the farthest pair. Where another pair is not hidden there, it goes on from there, away
    # from the guess, with the worst of them.
    pairs = kind(guess, precision).pairs()
    size, pair = guess, pairs[0]
    while True:
        size = search(partial(_pair_excess, kind, precision, target, pair), size)
        worst, pair = max((_pair_excess(kind, precision, target, other, size), other) for other in pairs)
        if worst <= 0:
            return size


def hides_pairs(kind: RandomizerOf, precision: int, target: PairTarget, size: float) -> bool:
    """Return whether the blanket hides every pair of inputs. The excesses that a search ended with are cached."""
    pairs = kind(size, precision).pairs()
    return all(_pair_excess(kind, precision, target, pair, size) <= 0 for pair in pairs)


@lru_cache(maxsize=4096)
def _pair_excess(kind: RandomizerOf, precision: int, target: PairTarget, pair: tuple[int, int], size: float) -> float:
    """Return the logarithm of a pair's δ(ε) over δ, for noise of that size."""
    epsilon, delta, honest = target
    delta_of_pair = pair_delta(kind(size, precision), pair, epsilon, honest, LOST_SHARE * delta)
    return math.log(max(delta_of_pair, NOT_ZERO_DELTA) / delta)

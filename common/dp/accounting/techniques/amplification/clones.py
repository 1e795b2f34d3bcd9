"""Evaluates the clones bound of shuffled messages of ε₀-LDP and of antipodal randomizers, and papers' closed forms.

The users are put in a uniform order, and place j applies its own ε₀-LDP randomizer R_j to the user that stands there.
The shuffler hands over the messages by place. With p = e^ε₀, C ~ Bin(n - 1, 1/p), A ~ Bin(C, 1/2), Δ ~ Ber(p/(p + 1)),
the messages of two neighbouring inputs are at least as close as the pairs of counts

    (A + Δ, C - A + 1 - Δ) and (A + 1 - Δ, C - A + Δ).

With one R for all places the order of the messages tells nothing, and the shuffler need not keep it.

Source     Feldman, McMillan & Talwar 2021, Theorem 3.1 and its numerical form.
           Feldman, McMillan & Talwar 2023 has C ~ Bin(n - 1, 2/(p + 1)). Its erratum withdraws that for general
           randomizers: another user's R may be less than (R⁰ + R¹)/(p + 1), as where R⁰ = R¹ = pR.
           For binary randomized response it is true, and exact when C is given away.
Holds      for every n ≥ 1, ε₀ > 0; one message a user, randomizers fixed before any message is seen. δ > 0 only.

An antipodal randomizer draws a pair of opposite messages ±u, by a law that does not depend on the input x, and sends u
with probability (1 + a)/2, else -u; a depends on u and x, and |a| ≤ τ = tanh(ε₀/2). Alone it is ε₀-private. In one
coordinate it is binary randomized response. With C ~ Bin(n - 1, γ), γ = 1 - τ = 2/(e^ε₀ + 1), shuffled messages of two
neighbouring inputs are at least as close as those of randomized response among C fair coins, C known:

    δ(ε) ≤ E (L_0 + … + L_C)₊ / (C + 1),  L_j = 1 - e^ε ± τ (1 + e^ε), with fair signs.

Source     ours, shuffling.md; Balle et al. 2019 for the blanket. The two counts are those above, with
           the chance 2/(e^ε₀ + 1) of a clone. General randomizers have no such chance; here every law has γ in common
           with all others.
Holds      for every n ≥ 1, ε₀ > 0; one message a user. Pairs and a may differ from place to place, as with assigned
           actions, and the users are put on the places in a uniform order. δ > 0 only.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.amplification.randomizers import LARGEST_LOCAL_EPSILON
from distrust.common.dp.accounting.techniques.searches import greatest_met, least_met
from distrust.common.dp.noise.binomial import Binomial, binomial_log_tail, fair_pmf, fair_tail
from distrust.common.errors import BadParameter

DIGITS = 1e-9  # relative, of every ε that is searched, towards more privacy
CANCELLATION = 1e-12  # relative, of the two terms whose difference is δ
MASSES = 1e-10  # relative, of the law of C
RANGES = 256  # ranges of C that a whole curve is computed by, at most twice as many
LEAST_MASS = 1e-300  # mass of a range: below it doubles end
MOST_USERS = 10**9  # for more of them the law of C has not so many digits

# Proof of the bound. Let R⁰ and R¹ be the laws of R_j for the one user's two data, Q⁰ = (pR⁰ - R¹)/(p - 1), and Q¹ the
# reverse. They are laws, as R_j is ε₀-LDP, and R⁰ = (pQ⁰ + Q¹)/(p + 1).
# For another user R_j is at least R⁰/p and at least R¹/p, hence at least (R⁰ + R¹)/(2p) = (Q⁰ + Q¹)/(2p).
# So every user may draw a symbol before the places are known. The one user draws 0 or 1 with p/(p + 1) and 1/(p + 1),
# or the reverse. The others draw 0 or 1 with 1/(2p) each, and else their own symbol. Place j answers by Q⁰, by Q¹, or
# by the rest of R_j.
# Given the numbers of zeros and ones, the law of who has which symbol and stands where is the same in both worlds. So
# these two counts are all that tells the worlds apart.


Chance: TypeAlias = Callable[[float], float]
"""Returns from ε₀ a chance of another user's message to be a clone that holds for the randomizers at hand."""


def general_chance(local_epsilon: float) -> float:
    """Return e^-ε₀, which holds for any ε₀-LDP randomizers."""
    return math.exp(-local_epsilon)


def clones_delta(epsilon: float, local_epsilon: float, users: int, *, chance: Chance = general_chance) -> float:
    """Return δ(ε) of the shuffled messages of `users` with ε₀-LDP randomizers, rounded up."""
    return 0.0 if epsilon >= local_epsilon else excess(epsilon, local_epsilon, users, chance(local_epsilon))


@lru_cache(maxsize=256)
def clones_epsilon(
    delta: float, local_epsilon: float, users: int, *, chance: Chance = general_chance, requested: float = 0.0
) -> float:
    """Return the least ε with δ(ε) ≤ delta, at most ε₀, rounded up.

    requested  an ε to return where it is met and is less than what the search finds.
    """

    def met(epsilon: float) -> bool:
        return clones_delta(epsilon, local_epsilon, users, chance=chance) <= delta

    # The search rounds up in the ninth digit, so that it may miss the ε that the noise was made for.
    result = least_met(met, 0.0, local_epsilon, DIGITS)
    return requested if 0 < requested < result and met(requested) else result


def clones_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """Return the greatest ε₀ whose shuffled messages are (ε, δ)-DP, rounded down; at least ε."""
    high = max(epsilon, min(LARGEST_LOCAL_EPSILON, math.log(users) + epsilon + 1))
    return greatest_met(lambda local: clones_delta(epsilon, local, users) <= delta, epsilon, high, DIGITS)


@lru_cache(maxsize=4096)
def excess(epsilon: float, local_epsilon: float, users: int, chance: float) -> float:
    """Return E over C ~ Bin(users - 1, chance) of the hockey stick of the two laws given C; needs ε < ε₀."""
    counts, masses, lost = _clones(users, chance)
    return min(1.0, float(masses @ _given(counts, epsilon, local_epsilon)) * (1 + MASSES) + lost)


def clones_curve(
    epsilons: NDArray[np.float64], local_epsilon: float, users: int, *, chance: Chance = general_chance
) -> NDArray[np.float64]:
    """Return δ(ε) at many ε < ε₀, within a few percent from above, and down to 1e-300: no mass of C is left out."""
    counts, masses, lost = _clones(users, chance(local_epsilon))
    # Larger values of C hide more: leave one of c + 2 tosses out at random, and the share of heads keeps its mean, of
    # which the hockey stick given C is a convex function. So a range of values may count as its least one.
    # Neighbours make such ranges. Below the stored law ranges double, each at Chernoff's bound of all below its end.
    starts = np.arange(0, counts.size, max(1, counts.size // RANGES))
    far, below = _below(int(counts[0]), users, math.nextafter(chance(local_epsilon), 0))
    least = np.concatenate((far, counts[starts], counts[-1:]))
    weights = np.concatenate((below, np.add.reduceat(masses, starts) * (1 + MASSES), [lost]))
    deltas = [float(np.maximum(weights, LEAST_MASS) @ _given(least, epsilon, local_epsilon)) for epsilon in epsilons]
    return np.minimum(deltas, 1.0)


def _below(first: int, users: int, chance: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of C below `first` in ranges that double: their least values, and bounds of their masses."""
    starts = [0, *(2**i for i in range(max(0, first - 1).bit_length()))] if first > 0 else []
    ends = [min(first, 2 * start if start else 1) - 1 for start in starts]
    tails = [math.exp(binomial_log_tail(users - 1, chance, end)) * (1 + MASSES) for end in ends]
    return np.array(starts, dtype=np.float64), np.array(tails, dtype=np.float64)


def _given(counts: NDArray[np.float64], epsilon: float, local_epsilon: float) -> NDArray[np.float64]:
    """Return an upper bound of the hockey stick given C = c, for each of `counts`."""
    # Both laws of the first count are mixtures of b = Bin(c, 1/2) and of b moved by 1. The quotient b(a-1)/b(a) =
    # a/(c-a+1) grows with a, so that the positive part is a tail.
    p, e = math.exp(local_epsilon), math.exp(epsilon)
    start = math.expm1(local_epsilon + epsilon) / (math.expm1(local_epsilon) * (e + 1))
    # `before` is the last a that does not count. It is at most c as ε < ε₀, also where `start` rounds to 1.
    before = np.minimum(np.floor((counts + 1) * start), counts)
    gain = e * math.expm1(local_epsilon - epsilon) / (p + 1) * fair_pmf(counts, before)
    loss = math.expm1(epsilon) * fair_tail(counts, before)
    sizes: NDArray[np.float64] = np.maximum(gain - loss, 0) + CANCELLATION * (gain + loss)
    return sizes


def _clones(users: int, chance: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return the values of C, their masses, and the mass left out. Raises BadParameter for too many users."""
    if users > MOST_USERS:
        raise BadParameter("users", users, f"must be at most {MOST_USERS}")
    if users == 1:
        return np.zeros(1), np.ones(1), 0.0
    pmf = Binomial(users - 1, math.nextafter(chance, 0)).pmf()
    return pmf.support.astype(np.float64), pmf.masses, pmf.lost


# Proof of the bound of antipodal randomizers. Let ω be the law of ±u with a fair sign. Every input's law is at least
# γω, as 1 ± a ≥ γ. So each other user draws from ω with probability γ, whatever its input and its place. Show who does
# not, their places and their messages. What is left is C draws from ω, and the one user among them at a uniform place.
# Relative to draws from ω alone the two worlds have the densities Σ_j (1 + a_j)/(C + 1) and Σ_j (1 + b_j)/(C + 1),
# with a_j, b_j of the message at place j for the two inputs. δ(ε) is the expectation of the positive part of
# Σ_j L_j/(C + 1), L_j = 1 + a_j - e^ε (1 + b_j).
# Show the pairs, and leave the signs, which are fair: L_j is 1 - e^ε ± s with s = |a_j - e^ε b_j| ≤ τ (1 + e^ε). The
# wider two values are larger in convex order, for each j on its own; the positive part is convex. So the widest is the
# worst: a_j = τ, b_j = -τ.


def antipodal_chance(local_epsilon: float) -> float:
    """Return γ, the probability of a draw that says nothing of the input."""
    return 2 / (math.exp(local_epsilon) + 1)


antipodal_delta = partial(clones_delta, chance=antipodal_chance)
antipodal_epsilon = partial(clones_epsilon, chance=antipodal_chance)
antipodal_curve = partial(clones_curve, chance=antipodal_chance)
"""`clones_delta`, `clones_epsilon` and `clones_curve` with this chance of a clone."""


def antipodal_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """Return the greatest ε₀ whose shuffled messages are (ε, δ)-DP, rounded down; at least ε."""
    return greatest_met(
        lambda local: antipodal_delta(epsilon, local, users) <= delta, epsilon, LARGEST_LOCAL_EPSILON, DIGITS
    )


# Closed forms of papers, inside the ranges where they are proven; `paper` calibrations use them. FREE (Hanna et al.)
# prints the form of Feldman, McMillan & Talwar as equation (10), without its range. CTX (Chowdhury & Zhou) uses it for
# Gaussian noise, with constants that promise more than its lemma gives (`gaussian_promise`). The form is 3 to 5 times
# larger than the computed bound at δ = 10⁻⁶ and 10³ to 10⁵ users, and more for more users or a larger δ.


def largest_local_epsilon(delta: float, users: int) -> float:
    """Return ln(n / (16 ln(2/δ))), the largest ε₀ for which the form is proven; negative where it is for none."""
    return math.log(users / (16 * math.log(2 / delta)))


def paper_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """Return the greatest ε₀ whose shuffled messages the form shows to be (ε, δ)-DP; ε where it shows no larger one.

    This is FREE's f⁻¹(ε), mended: an ε-LDP randomizer needs no shuffler, and beyond its range the form proves nothing.
    """
    limit = largest_local_epsilon(delta, users)
    if limit <= epsilon or _form(epsilon, delta, users) > epsilon:
        return epsilon
    return greatest_met(lambda local: _form(local, delta, users) <= epsilon, epsilon, limit, DIGITS)


def gaussian_noise(epsilon: float, delta: float, batch: int) -> float:
    """Return σ₁ = σ₂ = 4√(2 ln(2.5B/δ) ln(2/δ)) / (ε√B) for every coordinate: CTX Theorem B.1 as printed.

    It is the Gaussian mechanism of ε₀ = ε√B/√ln(2/δ), δ₀ = δ/B, whose proof needs ε₀ ≤ 1. Lemma B.4 needs
    B ≥ 16 e^ε₀ ln(4/δ). Raises BadParameter outside; B = 20 of the paper's experiments is outside. See
    `gaussian_promise`.
    """
    _local_gaussian(epsilon, delta, batch)
    return 4 * math.sqrt(2 * math.log(2.5 * batch / delta) * math.log(2 / delta)) / (epsilon * math.sqrt(batch))


def gaussian_promise(epsilon: float, delta: float, batch: int) -> tuple[float, float]:
    """Return (ε̃, δ̃) that Lemma B.4 gives with the constants of Theorem B.1: 4 to 7 times ε and about 3 times δ.

    ε̃ is the form at ε₀ and δ' = δ/2. δ̃ = δ' + (e^ε̃ + 1)(1 + e^-ε₀/2) B δ₀ (Feldman, McMillan & Talwar 2021,
    Theorem 3.8). Raises BadParameter where `gaussian_noise` does.
    """
    local = _local_gaussian(epsilon, delta, batch)
    spent = _form(local, delta / 2, batch)
    return spent, delta / 2 + (math.exp(spent) + 1) * (1 + math.exp(-local) / 2) * delta


def _form(local_epsilon: float, delta: float, users: int) -> float:
    """Return ln(1 + (e^ε₀ - 1)/(e^ε₀ + 1) · (8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)): an ε that holds up to the largest ε₀.

    Source  Feldman, McMillan & Talwar 2021, Theorem 3.1; FREE equation (10). `largest_local_epsilon` is the range.
    """
    grown = math.exp(local_epsilon) / users
    return math.log1p(math.tanh(local_epsilon / 2) * 8 * (math.sqrt(grown * math.log(4 / delta)) + grown))


def _local_gaussian(epsilon: float, delta: float, batch: int) -> float:
    """Return ε₀ of Theorem B.1's proof. Raises BadParameter outside of its range."""
    local = epsilon * math.sqrt(batch / math.log(2 / delta))
    if local > 1:
        raise BadParameter("epsilon", epsilon, f"must be at most √(ln(2/δ)/B) = {epsilon / local:.6g}")
    least = 16 * math.exp(local) * math.log(4 / delta)
    if batch < least:
        raise BadParameter("batch", batch, f"must be at least 16 e^ε₀ ln(4/δ) = {least:.6g}")
    return local

"""The papers' closed forms of amplification, inside the ranges where they are proven. `paper` calibrations use them.

FREE (Hanna et al.) prints the form of Feldman, McMillan & Talwar as equation (10), without its range. CTX (Chowdhury &
Zhou) uses it for Gaussian noise, with constants that promise more than its lemma gives: `gaussian_promise` tells.
Beside the clones bound of the same paper, computed, the form is 3 to 5 times too large at
δ = 10⁻⁶ and 10³ to 10⁵ users, more for more users or a larger δ.
"""

import math

from distrust.common.errors import BadParameter
from distrust.common.privacy.amplification.randomizers import check_delta, check_epsilon, check_users, greatest_met

DIGITS = 1e-9


def largest_local_epsilon(delta: float, users: int) -> float:
    """ln(n / (16 ln(2/δ))), above which the form is not proven; -inf or negative where no ε₀ is."""
    return math.log(users / (16 * math.log(2 / delta)))


def paper_epsilon(local_epsilon: float, delta: float, users: int) -> float:
    """ln(1 + (e^ε₀ - 1)/(e^ε₀ + 1) · (8√(e^ε₀ ln(4/δ)/n) + 8e^ε₀/n)).

    Feldman, McMillan & Talwar 2021, Theorem 3.1; FREE equation (10).

    Raises BadParameter outside ε₀ ≤ ln(n / (16 ln(2/δ))).
    """
    check_epsilon(local_epsilon, "local_epsilon")
    check_delta(delta)
    check_users(users)
    limit = largest_local_epsilon(delta, users)
    if local_epsilon > limit:
        raise BadParameter(
            "local_epsilon", local_epsilon, f"at most ln(n / (16 ln(2/δ))) = {limit:.6g} for {users} users"
        )
    return _form(local_epsilon, delta, users)


def paper_local_epsilon(epsilon: float, delta: float, users: int) -> float:
    """The greatest ε₀ whose shuffled messages the form shows to be (ε, δ)-DP; ε itself where it shows nothing better.

    FREE's f⁻¹(ε), mended: an ε-LDP randomizer needs no shuffler, and beyond its range the form proves nothing.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_users(users)
    limit = largest_local_epsilon(delta, users)
    if limit <= epsilon or _form(epsilon, delta, users) > epsilon:
        return epsilon
    return greatest_met(lambda local: _form(local, delta, users) <= epsilon, epsilon, limit, DIGITS)


def gaussian_noise(epsilon: float, delta: float, batch: int) -> float:
    """σ₁ = σ₂ = 4√(2 ln(2.5B/δ) ln(2/δ)) / (ε√B): CTX Theorem B.1 as printed, for every coordinate.

    It is the Gaussian mechanism of ε₀ = ε√B/√ln(2/δ), δ₀ = δ/B, whose proof needs ε₀ ≤ 1, and Lemma B.4 needs
    B ≥ 16 e^ε₀ ln(4/δ): BadParameter outside (B = 20 of the paper's experiments is). See `gaussian_promise`.
    """
    _local_gaussian(epsilon, delta, batch)
    return 4 * math.sqrt(2 * math.log(2.5 * batch / delta) * math.log(2 / delta)) / (epsilon * math.sqrt(batch))


def gaussian_promise(epsilon: float, delta: float, batch: int) -> tuple[float, float]:
    """(ε̃, δ̃) that Lemma B.4 gives with the constants of Theorem B.1: 4 to 7 times ε and about 3 times δ.

    ε̃ is the form at ε₀ and δ' = δ/2; δ̃ = δ' + (e^ε̃ + 1)(1 + e^-ε₀/2) B δ₀ (Feldman, McMillan &
    Talwar 2021, Theorem 3.8). Raises as `gaussian_noise`.
    """
    local = _local_gaussian(epsilon, delta, batch)
    spent = _form(local, delta / 2, batch)
    return spent, delta / 2 + (math.exp(spent) + 1) * (1 + math.exp(-local) / 2) * delta


def _form(local_epsilon: float, delta: float, users: int) -> float:
    grown = math.exp(local_epsilon) / users
    return math.log1p(math.tanh(local_epsilon / 2) * 8 * (math.sqrt(grown * math.log(4 / delta)) + grown))


def _local_gaussian(epsilon: float, delta: float, batch: int) -> float:
    """ε₀ of Theorem B.1's proof, checked."""
    check_epsilon(epsilon)
    check_delta(delta)
    check_users(batch)
    local = epsilon * math.sqrt(batch / math.log(2 / delta))
    if local > 1:
        raise BadParameter("epsilon", epsilon, f"at most sqrt(ln(2/δ)/B) = {epsilon / local:.6g} (ε₀ ≤ 1)")
    least = 16 * math.exp(local) * math.log(4 / delta)
    if batch < least:
        raise BadParameter("batch", batch, f"at least 16 exp(ε₀) ln(4/δ) = {least:.6g}")
    return local

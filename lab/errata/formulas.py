"""Formulas that several papers print, as they print them."""

import math

from scipy.optimize import brentq


def classical_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """σ = Δ√(2 ln(1.25/δ))/ε: Dwork & Roth 2014, Theorem A.1, proven for ε < 1."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def amplified(local: float, delta: float, clients: int) -> float:
    """ε after shuffling n reports that are each ε₀-LDP: FREE eq. (10), CTX Lemma B.4, with its ln(4/δ)."""
    root = 8 * math.sqrt(math.exp(local) * math.log(4 / delta) / clients)
    return math.log1p(math.tanh(local / 2) * (root + 8 * math.exp(local) / clients))


def amplified_inverse(epsilon: float, delta: float, clients: int) -> float:
    """f⁻¹(ε): the ε₀ whose closed form is ε."""
    return float(brentq(lambda local: amplified(local, delta, clients) - epsilon, 0.0, 50.0, xtol=1e-13))

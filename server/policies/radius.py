"""Half widths of a private mean's confidence interval: the paper's bound, and the exact one."""

import math
from collections.abc import Callable
from typing import Literal

from common.error_law import ErrorLaw

Calibration = Literal["exact", "paper"]

EVENTS = 5
"""Failure events counted for one arm in one batch; see `share`."""

Radius = Callable[[int, ErrorLaw, int, int, float], float]
"""(survivors n, noise law of the sum, |Φ| active arms, batch b ≥ 1, p) → half width of the mean's interval."""


def share(arms: int, batch: int, failure: float) -> float:
    """What each event of one arm and batch may cost: p / (5|Φ|b²).

    An arm's batch has three events: sampling error, noise, wrapped sum. Over |Φ| arms and b = 1, 2, … they sum to at
    most 3p/5 · π²/6 < 0.99p, which is less than p.
    """
    return failure / (EVENTS * arms * batch**2)


def exact_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """β = √(ln(2/p₁)/(2n)) + q/n with p₁ = p₂ = `share` and q the noise's exact quantile at p₂.

    Hoeffding for n independent rewards in [0, 1], rounding included: a rounded reward is a reward in [0, 1] with the
    same mean.
    """
    allowed = share(arms, batch, failure)
    return math.sqrt(math.log(2 / allowed) / (2 * survivors)) + law.quantile(allowed) / survivors


def paper_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """β(b) of MAB Lemma 2, corrected: with L = ln(4|Φ|b²/p), √(L/(2n)) + (σ√L + h·L)/n.

    The paper writes ln(2|Φ|b²/p) in the noise terms, and its union bound then sums to 4.11p. With L in every term it
    sums to 2.47p, inside the 3p that the lemma states.
    """
    sigma, h = law.sub_exponential
    spread = math.log(4 * arms * batch**2 / failure)
    return math.sqrt(spread / (2 * survivors)) + (sigma * math.sqrt(spread) + h * spread) / survivors


def published_radius(survivors: int, law: ErrorLaw, arms: int, batch: int, failure: float) -> float:
    """β(b) of MAB Lemma 2 as printed, and as in the authors' code: ln(2|Φ|b²/p) in the noise terms.

    (σ, h) are the law's; the ones of the code are those of the `paper` calibration.
    """
    sigma, h = law.sub_exponential
    spread = math.log(2 * arms * batch**2 / failure)
    sampled = math.sqrt((spread + math.log(2)) / (2 * survivors))
    return sampled + (sigma * math.sqrt(spread) + h * spread) / survivors


RADII: dict[Literal["exact", "paper", "published-code"], Radius] = {
    "exact": exact_radius,
    "paper": paper_radius,
    "published-code": published_radius,
}

"""Defines an erratum and its computed figures, with formulas as printed that several errata share."""

import math
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.dp.accounting.techniques.gaussian import gaussian_delta, largest_ratio
from distrust.common.dp.mechanisms import Calibration, Mechanism, MechanismName, MechanismSpec, plan

Paper = Literal["MAB", "DLB", "CTX", "FREE", "GLB"]

Verdict = Literal["refuted", "misprint", "unproved", "assumption", "slack", "harmless"]
"""refuted     the printed statement fails at the setting.
misprint    read as printed it fails, and the intended reading is plain.
unproved    the printed derivation gives more than it says; the exact law, at the setting, does not.
assumption  true only under a condition that a deployment need not meet, or outside its own range.
slack       true, and so far from the exact value that the number is of no use.
harmless    the wrong letter, and the same number."""


@dataclass(frozen=True, slots=True)
class Figures:
    """A counter-example in one measure, in which larger is worse.

    claimed   the paper's promise at `setting`.
    computed  the result of an exact computation; above `claimed`, but for `harmless`, where they are equal.
    ours      the same measure under our resolution; at most `claimed`.
    facts     further computed numbers, each with its label.
    """

    setting: str
    claimed: float
    computed: float
    ours: float
    facts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckedErratum:
    """An error of a paper with its figures, in the order of the fields of `distrust errata --json`."""

    key: str
    paper: Paper
    place: str
    printed: str
    wrong: str
    verdict: Verdict
    setting: str
    measure: str
    claimed: float
    computed: float
    ours: float
    instead: str
    code: str
    facts: tuple[tuple[str, float], ...]


def amplified(local: float, delta: float, clients: float) -> float:
    """Return ε after shuffling n reports that are each ε₀-LDP: FREE eq. (10), CTX Lemma B.4, with its ln(4/δ)."""
    root = 8 * math.sqrt(math.exp(local) * math.log(4 / delta) / clients)
    return math.log1p(math.tanh(local / 2) * (root + 8 * math.exp(local) / clients))


def amplified_inverse(epsilon: float, delta: float, clients: int) -> float:
    """Return f⁻¹(ε): the ε₀ whose closed form is ε."""
    return float(brentq(lambda local: amplified(local, delta, clients) - epsilon, 0.0, 50.0, xtol=1e-13))


def classical_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return σ = Δ√(2 ln(1.25/δ))/ε: Dwork & Roth 2014, Theorem A.1, proven for ε < 1."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def gaussian_failure(constant: float, delta: float) -> float:
    """Return the ε above which σ = constant · Δ/ε is not (ε, δ)-private; below it the noise is.

    Let c be the constant and r = ε/c = Δ/σ. The exact δ has the derivative φ(c - r/2) (1 - c m(c + r/2)) in r, m being
    Mills' ratio, m(x) < 1/x. So it rises with ε, from 0 to 1.
    """
    return float(brentq(lambda epsilon: gaussian_delta(epsilon / constant, epsilon) - delta, 1e-3, 1e4, xtol=1e-12))


def classical_gaussian(*, epsilon: float, delta: float) -> Figures:
    """Return the exact δ of the classical calibration, which DLB and GLB use beyond ε < 1."""
    fails = {one: gaussian_failure(classical_sigma(1.0, one, 1.0), one) for one in (delta, 1e-5, 0.9)}
    return Figures(
        setting=f"ε = {epsilon:g}, δ = {delta}",
        claimed=delta,
        computed=gaussian_delta(1 / classical_sigma(epsilon, delta, 1.0), epsilon),
        ours=gaussian_delta(largest_ratio(epsilon, delta), epsilon),
        facts=(
            ("ε above which it fails at this δ", fails[delta]),
            ("at δ = 1e-5", fails[1e-5]),
            ("at δ = 0.9, about the least over all δ", fails[0.9]),
        ),
    )


def planned(
    name: MechanismName,
    clients: int,
    epsilon: float,
    *,
    delta: float | None = None,
    min_survivors: int | None = None,
    bound: float | None = None,
    calibration: Calibration = "exact",
    scale: float | None = None,
    overflow_probability: float = 1e-6,
) -> Mechanism:
    """Return the mechanism of a cohort that opens at `min_survivors` survivors, by default all of them.

    Rewards lie in [0, 1], or in [-bound, bound].
    """
    spec = MechanismSpec(name=name, epsilon=epsilon, delta=delta, calibration=calibration, scale=scale)
    statistic = Reward() if bound is None else BoundedVector(dimension=1, norm="linf", bound=bound)
    fewest = clients if min_survivors is None else min_survivors
    return plan(
        spec,
        clients=clients,
        min_survivors=fewest,
        min_honest=fewest,
        overflow_probability=overflow_probability,
        statistic=statistic,
    )


def epsilon_of(mechanism: Mechanism, survivors: int | None = None) -> float:
    """Return the ε that the mechanism computes for itself; infinite where it has none."""
    epsilon = mechanism.privacy(survivors).promise.epsilon
    return float("inf") if epsilon is None else epsilon


def divergence_of(mechanism: Mechanism, order: float) -> float:
    """Return the Rényi divergence of that order."""
    return dict(mechanism.privacy().promise.rdp)[order]

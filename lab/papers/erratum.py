"""Defines the row of an erratum and its computed figures, with formulas as printed that several rows share."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq

from distrust.common.bandit.statistics import BoundedVector, Reward
from distrust.common.mechanisms import Calibration, Mechanism, MechanismName, MechanismSpec, plan

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
class Erratum:
    """One error of a paper, in words: where it stands, what is printed, what is wrong, what the project does instead.

    measure   the quantity that the figures are of. code: the file where the resolution is.
    figures   computes the counter-example.
    """

    key: str
    paper: Paper
    place: str
    printed: str
    wrong: str
    verdict: Verdict
    measure: str
    instead: str
    code: str
    figures: Callable[[], Figures]

    def checked(self) -> "CheckedErratum":
        """Return the erratum with its counter-example computed."""
        figures = self.figures()
        return CheckedErratum(
            key=self.key,
            paper=self.paper,
            place=self.place,
            printed=self.printed,
            wrong=self.wrong,
            verdict=self.verdict,
            setting=figures.setting,
            measure=self.measure,
            claimed=figures.claimed,
            computed=figures.computed,
            ours=figures.ours,
            instead=self.instead,
            code=self.code,
            facts=figures.facts,
        )


@dataclass(frozen=True, slots=True)
class CheckedErratum:
    """An erratum with its figures, in the order of the fields of `distrust errata --json`."""

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


def amplified(local: float, delta: float, clients: int) -> float:
    """Return ε after shuffling n reports that are each ε₀-LDP: FREE eq. (10), CTX Lemma B.4, with its ln(4/δ)."""
    root = 8 * math.sqrt(math.exp(local) * math.log(4 / delta) / clients)
    return math.log1p(math.tanh(local / 2) * (root + 8 * math.exp(local) / clients))


def amplified_inverse(epsilon: float, delta: float, clients: int) -> float:
    """Return f⁻¹(ε): the ε₀ whose closed form is ε."""
    return float(brentq(lambda local: amplified(local, delta, clients) - epsilon, 0.0, 50.0, xtol=1e-13))


def planned(
    name: MechanismName,
    clients: int,
    epsilon: float,
    *,
    delta: float | None = None,
    floor: int | None = None,
    bound: float | None = None,
    calibration: Calibration = "exact",
    scale: float | None = None,
    wrap: float = 1e-6,
) -> Mechanism:
    """Return a cohort that opens at `floor` survivors, all by default; rewards lie in [0, 1], or in [-bound, bound]."""
    spec = MechanismSpec(name=name, epsilon=epsilon, delta=delta, calibration=calibration, scale=scale)
    statistic = Reward() if bound is None else BoundedVector(dimension=1, norm="linf", bound=bound)
    least = clients if floor is None else floor
    return plan(spec, clients=clients, least=least, floor=least, wrap=wrap, statistic=statistic)


def epsilon_of(mechanism: Mechanism, survivors: int | None = None) -> float:
    """Return the ε that the mechanism computes for itself; infinite where it has none."""
    epsilon = mechanism.guarantee(survivors).epsilon
    return float("inf") if epsilon is None else epsilon


def divergence_of(mechanism: Mechanism, order: float) -> float:
    """Return the Rényi divergence of that order."""
    return dict(mechanism.guarantee().rdp)[order]

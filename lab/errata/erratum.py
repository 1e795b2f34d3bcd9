"""One error of a paper: what is printed, a counter-example in numbers, and what stands here instead."""

from dataclasses import dataclass
from typing import Literal

Paper = Literal["MAB", "DLB", "CTX", "FREE", "GLB"]

Verdict = Literal["refuted", "misprint", "unproved", "assumption", "slack", "harmless"]
"""refuted     the printed statement fails at the setting.
misprint    read as printed it fails, and the intended reading is plain.
unproved    the printed derivation gives more than it says; the exact law, at the setting, does not.
assumption  true only under a condition that a deployment need not meet, or outside its own range.
slack       true, and so far from the exact value that the number is of no use.
harmless    the wrong letter, and the same number."""


@dataclass(frozen=True, slots=True)
class Erratum:
    """A claim and its counter-example, in one measure: the larger, the worse for who relies on the claim.

    claimed   what the paper promises at `setting`.
    computed  what an exact computation gives; above `claimed`, but for `harmless`, where they are equal.
    ours      the same measure under our resolution; at most `claimed`.
    code      the file where the resolution lives. facts: further computed numbers.
    """

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
    facts: tuple[tuple[str, float], ...] = ()

"""Defines the base class of the `[policy]` tables, and the size of a round's events.

A spec is what servers and clients know of a policy. It names the class that plays it, which only the server imports.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.contextual_sum import NoiseSource
from distrust.common.bandit.decisions import Decision
from distrust.common.bandit.statistics import Statistic
from distrust.common.wire import LARGEST_COHORT, Message

EVENTS_A_BATCH = 5
"""Failure events counted for one arm in one batch; see `event_share`."""

LEAST_BETA = 1e-12
"""Smallest β of exact widths: noise has exact quantiles for it even when 10⁵ actions share it."""

NO_EVENT = 1e-6
"""p' of a policy without noise: nothing wraps around, and no event has this probability."""

Failure = Annotated[float, Field(gt=0, lt=1, description="p: probability that any confidence interval of a run fails")]
FirstBatch = Annotated[int, Field(ge=1, le=30, description="number of the batch that a run begins with")]
"""The number of the batch that a run begins with."""

MOST_ROUNDS = 10_000
"""Most rounds of one client each over services: each of them takes a few requests to each intermediary."""


def event_share(arms: int, batch: int, failure: float) -> float:
    """Return what each event of one arm and batch may cost: p / (5|Φ|b²).

    An arm's batch has three events: sampling error, noise, wrapped sum. Over |Φ| arms and b = 1, 2, … they sum to at
    most 3p/5 · π²/6 < 0.99p, which is less than p.
    """
    return failure / (EVENTS_A_BATCH * arms * batch**2)


@dataclass(frozen=True, slots=True)
class RoundSize:
    """The facts on which the failure probability of a round's events may depend.

    arms, horizon  K and T of the run.
    calibration    of its mechanism.
    number         of the round, from 1.
    active         arms that are not dropped.
    """

    arms: int
    horizon: int
    calibration: Literal["exact", "paper"]
    number: int
    active: int


class PolicySpec(Message):
    """Facts that every policy states of itself. Clients check a round against them.

    POLICY      the class that plays it, as `module:Name`.
    REWARDS     "arms": rewards in [0, 1] of arms that tell nothing of each other. "linear": rewards in [-B, B] whose
                means are linear in the actions, which only linear environments have. "contextual": clients choose by a
                context of their own.
    EVERY_ARM   the horizon must serve each arm at least once.
    STATISTIC   kind of the statistic that every round asks for.
    decisions   kinds of its decision.
    SEQUENTIAL  every round is one cohort of one client, unless the table has a `batch` above 1.
    PRINTED     whose noise `paper` has for the policy's statistic; None: the mechanism's own constants.
    COUNTS      `stated_failure` depends on the intervals that were formed, batch by batch.
    GAUSSIAN    its theorem takes the noise of each batch as Gaussian; with other mechanisms a run states no failure.

    Every policy has `event_probability`. The other members have the usual answer, and a policy replaces them where its
    own differs: `decisions` and `statistic`, what its rounds ask for; `stated_failure`, if a theorem bounds all
    intervals together; `longest`, if its batches reach the largest cohort sooner or later; `sequential`,
    `insists_on_no_privacy`, `insists_on_stream`, `check_calibration` and `unproven`.
    """

    POLICY: ClassVar[str]
    REWARDS: ClassVar[Literal["arms", "linear", "contextual"]] = "arms"
    EVERY_ARM: ClassVar[bool] = True
    STATISTIC: ClassVar[str] = "reward"
    SEQUENTIAL: ClassVar[bool] = False
    PRINTED: ClassVar[NoiseSource | None] = None
    COUNTS: ClassVar[bool] = False
    GAUSSIAN: ClassVar[bool] = False

    if TYPE_CHECKING:  # each class has it as a Literal of its own
        name: str

    @property
    def noise_source(self) -> NoiseSource | None:
        """Return whose noise `paper` has for this run's statistic; None: the mechanism's own constants."""
        return self.PRINTED

    @property
    def decisions(self) -> tuple[str, ...]:
        """Return the kinds of decision that a round may have."""
        return ("assigned-arm",)

    @property
    def sequential(self) -> bool:
        """Return whether every round of this run is one cohort of one client."""
        return self.SEQUENTIAL

    def statistic(self, arms: int, decision: Decision) -> Statistic | None:
        """Return the statistic that a round of this decision must ask for; None where its kind and bound say enough."""
        del arms, decision
        return None

    @abstractmethod
    def event_probability(self, size: RoundSize) -> float:
        """Return the failure probability that a round grants each single event, a wrapped sum among them.

        The learner plans p' of its mechanisms with it, and clients compute it again.
        """

    @property
    def insists_on_no_privacy(self) -> str | None:
        """Return why only a mechanism without privacy is accepted; None where any is."""
        return None

    @property
    def insists_on_stream(self) -> str | None:
        """Return why only a mechanism that counts a stream, or one without privacy, is accepted; None where any is."""
        return None

    @property
    def longest(self) -> int:
        """Return the first horizon that is too long for services: the last batches must fit cohorts."""
        return 2 * LARGEST_COHORT

    def check_calibration(self, calibration: str) -> None:
        """Raise BadParameter for a calibration of the mechanism that does not go with these numbers."""

    @property
    def unproven(self) -> str | None:
        """Return the numbers that no theorem of the policy covers, and what follows; None where theorems cover all.

        A run's result says it.
        """
        return None

    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        """Return the probability, by the policy's theorem, that any interval of a run fails; None where there is none.

        events  where the spec COUNTS: for each round the probability of one event, and how many events it had.
        """
        del calibration, events
        return None


class WholeRunSpec(PolicySpec):
    """Facts of policies by whose theorem all intervals of a run together fail with probability `failure` at most."""

    if TYPE_CHECKING:  # each class has it at its own place
        failure: float

    @override
    def stated_failure(self, calibration: str, events: Iterable[tuple[float, int]]) -> float | None:
        return self.failure

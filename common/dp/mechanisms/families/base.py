"""The contract of a mechanism: one frozen value that travels on the wire and computes.

`plan` of `distrust.common.dp.mechanisms` turns a `MechanismSpec` and a cohort's size into the value. Clients call
`randomize`, the analyzer calls `estimate`, and every party may call `privacy`. The intermediary calls nothing: it
permutes messages, or adds them modulo m.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.bandit.error_law import Calibration, ErrorLaw
from distrust.common.bandit.statistics import Statistic
from distrust.common.catalogue import Catalogue, subclass_of
from distrust.common.dp.accounting.guarantee import (
    COUNTS_ON_OTHERS,
    Guarantee,
    Kind,
    Model,
    RenyiCurve,
    no_guarantee,
)
from distrust.common.dp.accounting.profile import Privacy
from distrust.common.dp.accounting.techniques.hockey_stick import LEAST_DELTA
from distrust.common.dp.mechanisms.families.cohort import CohortParams, Noise
from distrust.common.dp.mechanisms.families.streams import StoredBatch, StreamRelease
from distrust.common.dp.noise.law import Law, Pmf
from distrust.common.errors import BadParameter
from distrust.common.randomness import Stream
from distrust.common.wire import Message, Norm, Via

EPSILONS = (1e-4, 50.0)
"""Smallest and largest accepted ε, in nats.

Below the smallest the noise would not fit its table; above the largest hardly any privacy is left.
"""

EPSILON_RULE = f"must lie in [{EPSILONS[0]:g}, {EPSILONS[1]:g}]"
DELTA_RULE = f"must lie in [{LEAST_DELTA:g}, 1/2)"


def _complaint(candidate: object) -> str | None:
    missing = subclass_of(Mechanism, candidate)
    if missing is None and getattr(candidate, "model", None) not in get_args(Model):
        return f"it needs `model`, one of {', '.join(get_args(Model))}"
    if missing is None and getattr(candidate, "takes_batches", False):
        members = ("stream_length", "nodes", "counter")
        lacking = [name for name in members if getattr(candidate, name, None) is getattr(Mechanism, name)]
        return f"it counts a stream, so it needs {', '.join(lacking)} of its own" if lacking else None
    return missing


PAPER_SCALE = 10.0
"""The scale s of MAB's experiments, taken when a run file states none."""

MECHANISMS: "Catalogue[type[Mechanism]]" = Catalogue("mechanism", "mechanisms", _complaint)
"""The mechanisms' classes by name; `distrust.common.dp.mechanisms` lists them."""

MechanismName = Annotated[str, MECHANISMS]
Need = Literal["needed", "optional"]
"""`needed`: a spec must state a δ. `optional`: it may."""


class MechanismSpec(Message):
    """The table `[mechanism]` of a run file. `plan` checks the ranges that depend on the mechanism.

    name         the mechanism.
    epsilon      nats a client; every mechanism but `identity` needs it.
    delta        in [1e-18, 1/2), for the mechanisms whose theorem has one.
    calibration  exact: least noise whose law keeps the promise. paper: the theorem's constants, within its range.
    precision    g, steps of the grid; computed when absent.
    scale        s of MAB Theorems 2 and 4; 10 when absent.
    batches      length of the stream that `tree` or `prefix-factorization` counts.
    noise        grid, or continuous, which is unsafe and only where a paper has reals.
    via          the intermediary, where there is a choice; the mechanism's own when absent.
    """

    name: MechanismName
    epsilon: float | None = None
    delta: float | None = None
    calibration: Calibration = "exact"
    precision: Annotated[int, Field(ge=1, le=2**31)] | None = None
    scale: Annotated[float, Field(gt=0)] | None = None
    batches: Annotated[int, Field(ge=1, le=2**30)] | None = None
    noise: Noise = "grid"
    via: Via | None = None


def epsilon_allowed(epsilon: float) -> bool:
    """Return whether ε is finite and in range."""
    return math.isfinite(epsilon) and EPSILONS[0] <= epsilon <= EPSILONS[1]


def delta_allowed(delta: float) -> bool:
    """Return whether δ is in the theorems' interval, and not below what samplers and stored laws can keep."""
    return LEAST_DELTA <= delta < 0.5


def needed(spec: MechanismSpec) -> float:
    """Return the ε of a spec whose mechanism needs one. Raises BadParameter without it."""
    if spec.epsilon is None:
        raise BadParameter("mechanism.epsilon", None, f"{spec.name} needs one")
    return spec.epsilon


def needed_delta(spec: MechanismSpec) -> float:
    """Return the δ of a spec whose mechanism needs one. Raises BadParameter without it."""
    if spec.delta is None:
        raise BadParameter("mechanism.delta", None, f"{spec.name} needs one; {DELTA_RULE}")
    return spec.delta


def require(met: bool, field: str, value: object, allowed: str) -> None:  # noqa: FBT001 - the condition itself
    """Raise a ValueError that reads like a BadParameter unless the condition is met. For validators."""
    if not met:
        raise ValueError(f"{field} = {value!r}: {allowed}")


class StreamCounter(ABC):
    """The state of a stream after some batches. The server keeps a new state once its release is committed."""

    __slots__ = ()

    @property
    @abstractmethod
    def mechanism(self) -> "Mechanism": ...

    @abstractmethod
    def add(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> tuple[Self, StreamRelease]:
        """Return the state after one more batch, and what is released of it. Arguments and errors as of `estimate`."""

    def restored(self, batches: Sequence[StoredBatch]) -> Self:
        """Return the state after all `batches`. Raises BadParameter if one was released with other noise."""
        state = self
        for number, stored in enumerate(batches, start=1):
            state, again = state.add(stored.total, stored.survivors, stored.stream)
            if not np.array_equal(again.prefix, stored.prefix):
                raise BadParameter("batches", number, "was released with noise that is not that of its stream")
        return state


class Mechanism(Message):
    """The base class of mechanisms, with the fields that all of them share.

    A message is a row of `dimension` unsigned integers below `modulus`. The aggregator hands over their sum modulo
    `modulus`. The shuffler hands over the rows in random order, and the analyzer adds them modulo `modulus`. The maths
    is the same on both paths. A row of labelled bits holds the number of ones among the `width` bits of each label, and
    `modulus` is then above any sum.

    Vectors lie in a ball of `norm`, with the radius (high - low)/2, around the middle of [low, high] in every
    coordinate. For "linf" the ball is the box itself. Two vectors differ by at most high - low, or g steps, in `norm`.
    """

    model: ClassVar[Model]
    """The model of privacy of its guarantee. A mechanism of the model "none" gives no privacy and takes no ε."""

    vias: ClassVar[tuple[Via, ...]] = ("aggregator", "shuffler")
    """The intermediaries that may carry its messages; the first is its own choice."""

    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact", "paper")
    """The calibrations that it has: `paper` only where a paper prints the constants."""

    takes_delta: ClassVar[Need | None] = None
    """`needed` or `optional`: a run file must or may give δ. None: it must not."""

    takes_scale: ClassVar[bool] = False
    """True if a run file may give s."""

    takes_noise: ClassVar[bool] = False
    """True if a run file may ask for continuous noise."""

    takes_batches: ClassVar[bool] = False
    """True if it counts a stream, whose length the run file gives. Its guarantee is then for one batch a client.

    A policy that asks for prefix sums gets them from its `counter`. Such a class states `stream_length`, `nodes` and
    `counter` itself.
    """

    parts: ClassVar[bool] = False
    """True if disjoint parts of a batch are as safe as the whole, as with noise in every message or opened sum."""

    why_undivided: ClassVar[str] = "its sums are opened whole, and these action by action"
    """The reason for which a mechanism without `parts` cannot carry shuffled actions."""

    judged: ClassVar[bool] = True
    """True if a batch of its stream is refused for a sum that honest clients do not cause.

    False if the noise of a batch is that of earlier ones too: batches that take a refused one's place would show more
    of these than the guarantee counts.
    """

    gaussian: ClassVar[bool] = False
    """True if the noise of a sum is Gaussian, in reals or on a grid, or if there is none."""

    joint: ClassVar[bool] = False
    """True if one draw of noise is for a client's whole vector, not for each coordinate on its own."""

    letters: ClassVar[Mapping[str, str]] = {}
    """Its own fields, each with the letter or the words that its theorem or page has for it."""

    searched: ClassVar[frozenset[str]] = frozenset()
    """Its own fields that a search in floating point ends with, which ends elsewhere on another processor.

    `plan` takes them through `CohortParams.searched`. A client plans with the numbers that it was told, and accepts
    them if the guarantee that it then computes keeps the configured one. It refuses any other difference from its plan.
    """

    worst_on_diagonal: ClassVar[bool] = False
    """True if its noise hides a move along the diagonal of an ℓ₂ ball worst, as noise that pays by ℓ₁ does."""

    has_room: ClassVar[bool] = True
    """True if `modulus` leaves room τ for noise on both sides of the sums."""

    if TYPE_CHECKING:  # each class has it as a Literal of its own, which on the wire comes after these fields
        name: str

    calibration: Calibration
    via: Via
    clients: Annotated[int, Field(ge=1, description="n: slots of the cohort")]
    floor: Annotated[int, Field(ge=1, description="t: honest survivors that the noise is calibrated to")]
    dimension: Annotated[int, Field(ge=1, le=10**9)] = 1
    low: float = 0.0
    high: float = 1.0
    norm: Norm = "linf"
    precision: Annotated[int, Field(ge=1, description="g: steps of the grid between low and high")]
    modulus: Annotated[int, Field(ge=2, lt=2**63, description="m")]
    wrap: Annotated[float, Field(gt=0, lt=1, description="p': bound on the probability that a sum wraps around")]
    moved: Annotated[int, Field(ge=1, description="steps that a client can move, in ℓ₂, below g")] | None = Field(
        default=None, exclude_if=lambda moved: moved is None
    )

    @classmethod
    @abstractmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        """Return the mechanism for one cohort. Raises BadParameter.

        `distrust.common.dp.mechanisms.plan` has checked the spec and the cohort.
        """

    @classmethod
    def check(cls, spec: MechanismSpec, statistic: Statistic) -> None:
        """Raise BadParameter for a spec that no cohort could repair, beyond what the facts above say."""

    @classmethod
    def known_as(cls) -> str:
        """Return the name that a run file calls the class by."""
        return str(cls.model_fields["name"].default)

    @property
    def stream_length(self) -> int:
        """Return how many batches one stream of it counts: 1 unless it `takes_batches`."""
        return 1

    @property
    def nodes(self) -> float:
        """Return the most noise of a prefix sum of its stream, in variances of `error`: 1 unless it `takes_batches`."""
        return 1

    def counter(self) -> StreamCounter:
        """Return the empty state of its stream. Raises BadParameter unless it `takes_batches`."""
        raise BadParameter("mechanism.name", self.name, "counts no stream")

    @property
    def silent_ones(self) -> int:
        """Return how many ones a message adds to its sum whatever the data: 0 unless messages are padded."""
        return 0

    @property
    def counts_on_others(self) -> bool:
        """Return whether the guarantee of one client counts on messages of other clients."""
        return self.model in COUNTS_ON_OTHERS and self.clients > 1

    @property
    def receipted(self) -> bool:
        """Return whether clients must see that the shuffler has delivered their sealed records.

        The shuffler reads labelled bits in any case. Against it the promise is that of each client's own bits.
        """
        return self.receipted_in_crowds and self.clients > 1

    @property
    def receipted_in_crowds(self) -> bool:
        """Return whether cohorts of this mechanism that have more than one client are `receipted`.

        Rounds of a run may have other sizes than its first one, and a request for tickets may be served from any.
        """
        return self.model in COUNTS_ON_OTHERS and self.via == "shuffler" and self.width is None

    @property
    def divisible(self) -> bool:
        """Return whether the guarantee of this value holds for a batch that is opened in parts."""
        return self.parts

    @property
    @abstractmethod
    def bits(self) -> int:
        """Return how many payload bits one client sends."""

    @property
    @abstractmethod
    def rounding(self) -> float:
        """Return a bound on the standard deviation of a client's rounding error in a coordinate, in data units."""

    @property
    def width(self) -> int | None:
        """Return the bits under a label for a mechanism of labelled bits, else None."""
        return None

    def client_law(self) -> Law | None:
        """Return the law of one client's noise in one coordinate, in grid steps; None: it adds none, or no such law."""
        return None

    def server_law(self) -> Law | None:
        """Return the law of what the analyzer adds to a coordinate of the sum, in grid steps; None: it adds none."""
        return None

    def message_law(self, *, high: bool) -> Pmf | None:
        """Return the law of one client's number in a coordinate, before it is reduced modulo m, masked or sealed.

        high  whether the value is the largest of the data's range; else it is the smallest.
        None  where the class has no law on the integers for it, or one that is too long to store.
        """
        del high
        return None

    def replicated(self, replicas: int) -> Self:
        """Return the mechanism for `replicas` vectors side by side, in a box; each coordinate keeps the noise it has.

        Its guarantee, for all coordinates that move at once, is another one. Not for a `joint` mechanism.
        """
        overflow_probability = min(self.wrap * replicas, 0.5)
        return self.model_copy(
            update={"dimension": self.dimension * replicas, "norm": "linf", "wrap": overflow_probability}
        )

    @abstractmethod
    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        """Return messages for true vectors, both of shape (n, dimension); every entry is below `modulus` (R).

        It draws the noise before it looks at the vectors. It clamps vectors to the ball of `norm`. Raises BadParameter
        for NaN and infinities.
        """

    @abstractmethod
    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        """Return an estimate of the survivors' true sum from the messages' sum modulo m, shape (dimension,) (A).

        It is in data units. Central mechanisms draw their noise here, from `stream`; the others draw nothing.
        Raises TooSmall with fewer survivors than `floor`.
        """

    def estimate_parts(
        self, totals: NDArray[np.uint64], counts: NDArray[np.int64], stream: Stream
    ) -> NDArray[np.float64]:
        """Return `estimate` for a batch that is opened in disjoint parts, as with assigned actions.

        totals  shape (s, dimension), like the result.
        counts  survivors of each part, shape (s,).
        Raises  BadParameter when noise protects the whole sum only, TooSmall when all parts together are below `floor`.
        """
        del totals, counts, stream
        raise BadParameter("mechanism.name", type(self).__name__, "protects a whole sum, not its parts")

    @abstractmethod
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        """Return the privacy of what is released, as a value that computes each figure when it is asked for.

        survivors  clients that answered, at most `clients`. None: `floor`.
        colluders  how many of the survivors reveal their noise.
        Raises     BadParameter for numbers out of range, if the privacy depends on them.
        """

    def make_guarantee(
        self, kind: Kind, epsilon: float, assumptions: tuple[str, ...], *, delta: float = 0.0, rdp: RenyiCurve = ()
    ) -> Guarantee:
        """Return a guarantee in this mechanism's model and calibration; one of kind "none" where ε is infinite."""
        if math.isinf(epsilon):
            return no_guarantee(self.calibration)
        return Guarantee(
            kind=kind,
            epsilon=epsilon,
            delta=delta,
            claimed=getattr(self, "epsilon", None),  # a field of every mechanism that takes ε
            rdp=rdp,
            model=self.model,
            calibration=self.calibration,
            assumptions=assumptions,
        )

    @abstractmethod
    def error(self, survivors: int) -> ErrorLaw:
        """Return the law of the noise in a sum over `survivors` clients, in data units."""

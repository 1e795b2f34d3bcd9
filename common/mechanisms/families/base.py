"""A mechanism is one frozen value: it travels on the wire, and it computes.

`distrust.common.mechanisms.plan` turns a `MechanismSpec` and a cohort's size into the value. Clients call `randomize`,
the analyzer calls `estimate`, and every party may call `guarantee`. The intermediary calls nothing: it permutes
messages, or adds them modulo m.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distrust.common.bandit.error_law import ErrorLaw
from distrust.common.bandit.statistics import Norm, Statistic
from distrust.common.catalogue import Catalogue, subclass_of
from distrust.common.errors import BadParameter
from distrust.common.messages.cohort import Via
from distrust.common.noise.law import Law
from distrust.common.privacy.guarantee import Calibration, Guarantee, Model
from distrust.common.privacy.profile import SHOWN_DELTA, Profile
from distrust.common.randomness import Stream
from distrust.common.wire import Message


def _complaint(found: object) -> str | None:
    missing = subclass_of(Mechanism, found)
    if missing is None and getattr(found, "model", None) not in get_args(Model):
        return f"it needs `model`, one of {', '.join(get_args(Model))}"
    return missing


MECHANISMS: "Catalogue[type[Mechanism]]" = Catalogue("mechanism", "mechanisms", _complaint)
"""The classes by name; `distrust.common.mechanisms` lists them."""

MechanismName = Annotated[str, MECHANISMS]
Need = Literal["needed", "optional"]
Noise = Literal["grid", "continuous"]
"""Discrete noise on the grid, exact; or floating point, unsafe."""


class MechanismSpec(Message):
    """What a run file says of its mechanism. Ranges that depend on the mechanism are checked by `plan`."""

    name: MechanismName
    epsilon: float | None = None  # nats, per client; every mechanism but `identity` needs it
    delta: float | None = None  # in [1e-18, 1/2); only the mechanisms whose theorem has one
    calibration: Calibration = "exact"
    precision: Annotated[int, Field(ge=1, le=2**31)] | None = None  # g; computed when absent
    scale: Annotated[float, Field(gt=0)] | None = None  # s of MAB Theorems 2 and 4; 10 when absent
    batches: Annotated[int, Field(ge=1, le=2**30)] | None = None  # length of the stream that `tree` counts
    noise: Noise = "grid"  # "continuous" is unsafe, and only where a paper has reals
    via: Via | None = None  # the mechanism's own choice when absent


EPSILONS = (1e-4, 50.0)
"""Smallest and largest accepted ε. Below it the noise would not fit its table; above it hardly any privacy is left."""

LEAST_DELTA = 1e-18
"""Smallest accepted δ. Truncated tails (1e-22) and sampler error (2^-100) must be negligible against it."""

SAMPLER = "noise is drawn within statistical distance 2^-100 of its law"
"""The assumption of every guarantee whose noise is drawn on the integers."""

EPSILON_RULE = f"must lie in [{EPSILONS[0]:g}, {EPSILONS[1]:g}]"
DELTA_RULE = f"must lie in [{LEAST_DELTA:g}, 1/2)"


def epsilon_allowed(epsilon: float) -> bool:
    """Return whether ε is finite and in range."""
    return math.isfinite(epsilon) and EPSILONS[0] <= epsilon <= EPSILONS[1]


def delta_allowed(delta: float) -> bool:
    """Return whether δ is in the theorems' interval, and not below what samplers and laws can keep."""
    return LEAST_DELTA <= delta < 0.5


def needed(spec: MechanismSpec) -> float:
    """Return ε of a spec whose mechanism needs one. Raises BadParameter."""
    if spec.epsilon is None:
        raise BadParameter("mechanism.epsilon", None, f"{spec.name} needs one")
    return spec.epsilon


def needed_delta(spec: MechanismSpec) -> float:
    """Return δ of a spec whose mechanism needs one. Raises BadParameter."""
    if spec.delta is None:
        raise BadParameter("mechanism.delta", None, f"{spec.name} needs one; {DELTA_RULE}")
    return spec.delta


def require(met: bool, field: str, value: object, allowed: str) -> None:  # noqa: FBT001 - the condition itself
    """Raise, for validators, a ValueError that reads like a BadParameter."""
    if not met:
        raise ValueError(f"{field} = {value!r}: {allowed}")


class Quantiles(Protocol):
    """A law of noise that a modulus leaves room for."""

    def quantile(self, p: float) -> float: ...


@dataclass(frozen=True, slots=True)
class CohortParams:
    """What a cohort fixes before a mechanism is calibrated to it.

    n clients, of whom the noise counts on `floor`; D coordinates in [low, high] and in `norm`; p' for a wrapped sum.

    As the paper's n stands for the clients that carry the noise, its formulas take `floor` for privacy and rounding;
    the room in Z_m is made for all `clients`.
    """

    clients: int
    floor: int
    dimension: int
    low: float
    high: float
    wrap: float
    calibration: Calibration
    via: Via
    norm: Norm = "linf"
    dealt: bool = False  # the shuffler deals actions, and opens what was played of each

    def shared(self, precision: int, modulus: int) -> dict[str, Any]:
        """Return the fields of every mechanism."""
        if modulus >= 2**62:
            raise BadParameter("mechanism.precision", precision, "clients * precision and noise must stay below 2^62")
        own = {field: getattr(self, field) for field in self.__slots__ if field != "dealt"}
        return {**own, "precision": precision, "modulus": modulus}

    @property
    def log_wrap(self) -> float:
        """Return ln(2/p') for one coordinate, by the union bound."""
        return math.log(2 * self.dimension / self.wrap)

    def room(self, precision: int, law: Quantiles | None, noise: Noise = "grid", least: float = 0.0) -> int:
        """Return the modulus m = ng + 2τ + 1, τ the exact quantile of the total noise at p'/D, at least `least`.

        Continuous noise is rounded afterwards, by less than a step a client.
        """
        tail = 0.0 if law is None else law.quantile(max(self.wrap / self.dimension, 1e-18))
        apart = self.clients if noise == "continuous" else 0
        return self.clients * precision + 2 * (math.ceil(max(tail, least)) + apart) + 1


class Mechanism(Message):
    """The fields that all mechanisms share. Messages are vectors of integers.

    A message is a row of `dimension` unsigned integers below `modulus`. The intermediary hands over either their sum
    modulo `modulus`, or the rows themselves in random order, and then the analyzer adds them modulo `modulus`: the
    maths is the same on both paths. For `shuffled-binomial` a row holds the number of ones among the `width` bits of
    each label, and `modulus` is above any sum.

    Vectors lie in the ball of `norm` around the middle of [low, high] in every coordinate, which (high - low)/2 is the
    radius of: the box itself for "linf". Two of them differ by at most high - low, or g steps, in that norm.
    """

    model: ClassVar[Model]
    """The model of privacy that its guarantee is in; "none" gives no privacy and takes no ε."""

    vias: ClassVar[tuple[Via, ...]] = ("aggregator", "shuffler")
    """Intermediaries that may carry its messages; the first is its own choice."""

    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact", "paper")
    """`paper` only where a paper prints its constants."""

    takes_delta: ClassVar[Need | None] = None
    takes_scale: ClassVar[bool] = False
    """Whether a run file may give s."""

    takes_noise: ClassVar[bool] = False
    """Whether a run file may ask for continuous noise."""

    takes_batches: ClassVar[bool] = False
    """Whether it counts a stream, whose length the run file gives. Its promise is then for one batch a client."""

    parts: ClassVar[bool] = False
    """Whether disjoint parts of a batch are as safe as its whole: noise in every message, or in every opened sum."""

    whole_because: ClassVar[str] = "its sums are opened whole, and these action by action"
    """Why a mechanism without `parts` cannot carry shuffled actions."""

    joint: ClassVar[bool] = False
    """Whether one draw of noise is for a client's whole vector, not for each coordinate on its own."""

    letters: ClassVar[Mapping[str, str]] = {}
    """Its own fields, and what its theorem or page calls them."""

    has_room: ClassVar[bool] = True
    """Whether `modulus` leaves room τ for noise on both sides of the sums."""

    if TYPE_CHECKING:  # each class has it as a Literal of its own, which on the wire comes after these fields
        name: str

    calibration: Calibration
    via: Via
    clients: Annotated[int, Field(ge=1, description="n: slots of the cohort")]
    floor: Annotated[int, Field(ge=1, description="t: honest survivors that the noise is calibrated to")]
    dimension: Annotated[int, Field(ge=1)] = 1
    low: float = 0.0
    high: float = 1.0
    norm: Norm = "linf"
    precision: Annotated[int, Field(ge=1, description="g: steps of the grid between low and high")]
    modulus: Annotated[int, Field(ge=2, lt=2**63, description="m")]
    wrap: Annotated[float, Field(gt=0, lt=1, description="p': bound on the probability that a sum wraps around")]

    @classmethod
    @abstractmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        """Calibrate to one cohort. `distrust.common.mechanisms.plan` has checked the words. Raises BadParameter."""

    @classmethod
    def check(cls, spec: MechanismSpec, statistic: Statistic) -> None:
        """Refuse words that no cohort could repair, beyond what the facts above say. Raises BadParameter."""

    @classmethod
    def known_as(cls) -> str:
        """Return the name that a run file calls the class by."""
        return str(cls.model_fields["name"].default)

    @property
    def stream_length(self) -> int:
        """Batches that one stream of it counts: 1 unless it `takes_batches`."""
        return 1

    @property
    def nodes(self) -> int:
        """Most terms of noise that a prefix sum of its stream has: 1 unless it `takes_batches`."""
        return 1

    @property
    def silent_ones(self) -> int:
        """Ones that every message adds to its sum, whatever the data: 0 unless messages are padded."""
        return 0

    @property
    def divisible(self) -> bool:
        """Whether the guarantee of this value is of a batch that is opened in parts."""
        return self.parts

    @property
    @abstractmethod
    def bits(self) -> int:
        """Payload bits that one client sends."""

    @property
    @abstractmethod
    def rounding(self) -> float:
        """Bound on the standard deviation of a client's rounding error in one coordinate, in data units."""

    @property
    def width(self) -> int | None:
        """Bits a label for a mechanism of labelled bits, else None."""
        return None

    @abstractmethod
    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        """Turn true vectors, shape (n, dimension), into messages of the same shape, each below `modulus` (R).

        The noise is drawn before the vectors are looked at. Vectors are clamped to the ball of `norm`; NaN is refused.
        """

    @abstractmethod
    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        """Return an estimate of the survivors' true sum from the messages' sum modulo m, shape (dimension,) (A).

        In data units. Central mechanisms add their noise here, from `stream`; the others do not touch it.
        Raises TooSmall below `floor`.
        """

    def estimate_parts(
        self, totals: NDArray[np.uint64], counts: NDArray[np.int64], stream: Stream
    ) -> NDArray[np.float64]:
        """Return `estimate` for a batch that is opened in disjoint parts, as with assigned actions.

        totals  shape (s, dimension); counts: survivors of each part, shape (s,). The result has the shape of `totals`.
        Raises  BadParameter when noise protects the whole sum only, TooSmall when all parts together are below `floor`.
        """
        del totals, counts, stream
        raise BadParameter("mechanism.name", type(self).__name__, "protects a whole sum, not its parts")

    @abstractmethod
    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        """Return the privacy of what is released.

        `survivors` answered (default: `floor`), and `colluders` of them tell their noise.
        """

    def composable(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        """Return `guarantee`, and where that is (ε, δ) the Rényi curve by which several of them add up to less."""
        promise = self.guarantee(survivors, colluders)
        if promise.kind != "approximate" or promise.rdp:
            return promise
        return promise.model_copy(update={"rdp": self.profile(survivors, colluders, promise.delta).known})

    @abstractmethod
    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        """Return pure ε, ε at `delta`, and Rényi divergences by order, all from the law that is released.

        `guarantee` is of one kind, which clients check and ledgers add; this is everything, each figure labelled.
        """

    def released_law(self, honest: int) -> Law | None:
        """Return the noise of each released coordinate, carried by `honest` clients, where nothing else is released.

        Only symmetric, log-concave laws of whole numbers: the largest shift is then the worst pair at every ε, either
        way, and what several releases promise may be computed from it. None for messages that are seen one
        by one, and for all else.
        """
        del honest
        return None

    @abstractmethod
    def error(self, survivors: int) -> ErrorLaw:
        """Return the law of the noise in a sum over `survivors` clients."""

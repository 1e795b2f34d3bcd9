"""A mechanism is one frozen value: it travels on the wire, and it computes.

The division of labour: `plan` (in common.mechanisms) turns a `MechanismSpec` and a cohort's size into the value;
clients call `randomize`, S calls nothing (it permutes or adds modulo m), the analyzer calls `estimate`, everyone may
call `guarantee`.
"""

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from common.error_law import ErrorLaw
from common.errors import BadParameter
from common.guarantee import Guarantee
from common.messages.base import Message
from common.messages.cohort import Via
from common.noise.law import Law
from common.profile import SHOWN_DELTA, Profile
from common.randomness import Stream

MechanismName = Literal[
    "identity",
    "central-laplace-discrete",
    "central-laplace",
    "central-gaussian",
    "local-laplace-discrete",
    "local-laplace",
    "local-gaussian",
    "local-sphere",
    "distributed-polya",
    "distributed-skellam",
    "distributed-discrete-gaussian",
    "shuffled-binomial",
    "shuffled-gaussian",
    "shuffled-laplace",
    "relaxed-secagg-shuffle",
    "tree",
]
Calibration = Literal["exact", "paper"]
Norm = Literal["l1", "l2", "linf"]
"""The norm in which a client's vector is bounded."""
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


class Mechanism(Message):
    """The fields that all mechanisms share. Messages are vectors of integers.

    A message is a row of `dimension` unsigned integers below `modulus`. S hands over either their sum modulo `modulus`,
    or the rows themselves in random order, and then the analyzer adds them modulo `modulus`: the maths is the same on
    both paths. For `shuffled-binomial` a row holds the number of ones among the `width` bits of each label, and
    `modulus` is above any sum.

    Vectors lie in the ball of `norm` around the middle of [low, high] in every coordinate, which (high - low)/2 is the
    radius of: the box itself for "linf". Two of them differ by at most high - low, or g steps, in that norm.
    """

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

    @property
    def bits(self) -> int:
        """Payload bits that one client sends."""
        raise NotImplementedError

    @property
    def rounding(self) -> float:
        """Bound on the standard deviation of a client's rounding error in one coordinate, in data units."""
        raise NotImplementedError

    @property
    def width(self) -> int | None:
        """Bits a label for a mechanism of labelled bits, else None."""
        return None

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        """R: true vectors, shape (n, dimension), to messages of the same shape, each below `modulus`.

        The noise is drawn before the vectors are looked at. Vectors are clamped to the ball of `norm`; NaN is refused.
        """
        raise NotImplementedError

    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        """A: the sum of the messages modulo m, shape (dimension,), to an estimate of the survivors' true sum.

        In data units. Central mechanisms add their noise here, from `stream`; the others do not touch it.
        Raises TooSmall below `floor`.
        """
        raise NotImplementedError

    def estimate_parts(
        self, totals: NDArray[np.uint64], counts: NDArray[np.int64], stream: Stream
    ) -> NDArray[np.float64]:
        """A for a batch that S opens in disjoint parts, as with assigned actions: sums of messages modulo m, by part.

        totals  shape (s, dimension); counts: survivors of each part, shape (s,). The result has the shape of `totals`.
        Raises  BadParameter when noise protects the whole sum only, TooSmall when all parts together are below `floor`.
        """
        del totals, counts, stream
        raise BadParameter("mechanism.name", type(self).__name__, "protects a whole sum, not its parts")

    def guarantee(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        """The privacy of what is released.

        `survivors` answered (default: `floor`), and `colluders` of them tell their noise.
        """
        raise NotImplementedError

    def composable(self, survivors: int | None = None, colluders: int = 0) -> Guarantee:
        """`guarantee`, and where that is (ε, δ) the Rényi curve by which several of them add up to less."""
        promise = self.guarantee(survivors, colluders)
        if promise.kind != "approximate" or promise.rdp:
            return promise
        return promise.model_copy(update={"rdp": self.profile(survivors, colluders, promise.delta).known})

    def profile(self, survivors: int | None = None, colluders: int = 0, delta: float = SHOWN_DELTA) -> Profile:
        """Pure ε, ε at `delta`, and Rényi divergences by order, all from the law that is released.

        `guarantee` is of one kind, which clients check and ledgers add; this is everything, each figure labelled.
        """
        raise NotImplementedError

    def released_law(self, honest: int) -> Law | None:  # noqa: ARG002 - nothing to say of it here
        """The noise of each coordinate that is released, carried by `honest` clients, where it is all that is released.

        Only symmetric, log-concave laws of whole numbers: the largest shift is then the worst pair at every ε, either
        way, and what several releases promise may be computed from it. None for messages that are seen one
        by one, and for all else.
        """
        return None

    def error(self, survivors: int) -> ErrorLaw:
        """The law of the noise in a sum over `survivors` clients."""
        raise NotImplementedError

"""The base classes of mechanisms that add integers: the grid, its rounding, and decoding a sum modulo m.

The second half is for papers that draw real numbers. Their noise is on the grid by default. Where a run file asks for
it, the noise is in floating point, which is unsafe.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator
from typing_extensions import override

from distrust.common.bandit.error_law import How, Spread
from distrust.common.dp.accounting.guarantee import OWN_DEVICE, SAMPLER, TRUSTED_SERVER
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms.families.base import (
    DELTA_RULE,
    EPSILON_RULE,
    Mechanism,
    delta_allowed,
    epsilon_allowed,
    require,
)
from distrust.common.dp.mechanisms.families.cohort import Noise
from distrust.common.dp.noise.law import Law, Pmf
from distrust.common.errors import BadParameter, TooSmall
from distrust.common.modular import in_window
from distrust.common.randomness import Stream

MARGIN = 2.0**-30
"""Share by which `clamp` shrinks a ball: more than the floating-point rounding of all coordinates can add."""

FINE = 0.01
"""Share of the noise's variance that rounding to the grid may add, where the paper has no grid."""

INFLATED = FINE / 2
"""Share that rounding may add to a ball's sensitivity there. The noise's scale grows as much, its variance by FINE."""

UNSAFE = (
    "UNSAFE: continuous noise in floating point, whose low bits can tell the data (Mironov 2012); "
    "the guarantee is that of real numbers"
)

Randomness: TypeAlias = tuple[NDArray[Any], ...]
"""Randomness of some clients' messages, drawn before their values are known: arrays, a row a message."""


class GridMechanism(Mechanism):
    """A mechanism that rounds values in [low, high] at random to x̂ in {0 … g}, adds noise η, and reduces modulo m.

    MAB Algorithm 1: with n' survivors, ŷ = Σ(x̂ + η) mod m is decoded into the window of length m that leaves as much
    room for noise below 0 as above n'g. Then the affine map from [low, high] to the grid is undone.

    The analyzer's own noise is added modulo m before the sum is decoded. A lying client may send any residue, and so
    bring the sum to the window's edge. One step of another client then decides on which side the sum is decoded. With
    the noise added first, the release is a function of sum + noise modulo m, so that it keeps the noise's guarantee
    whatever the residues are.
    """

    @model_validator(mode="after")
    def _fits(self) -> Self:
        require(math.isfinite(self.low) and math.isfinite(self.high), "low, high", (self.low, self.high), "finite")
        require(self.via in self.vias, "via", self.via, f"must be one of {', '.join(self.vias)}")
        require(self.low < self.high, "high", self.high, f"must be above low = {self.low}")
        require(self.floor <= self.clients, "floor", self.floor, f"must be at most clients = {self.clients}")
        least = self.clients * self.precision
        fits = self.moved is None or (self.moved <= self.precision and self.norm == "l2")
        require(fits, "moved", self.moved, f"at most precision = {self.precision}, in the norm l2")
        require(self.modulus > least, "modulus", self.modulus, f"must be above clients * precision = {least}")
        longest = self.stream_length * self.modulus
        fits = longest < 2**62 or not self.takes_batches
        require(fits, "batches * modulus", longest, "must stay below 2^62")
        self._check_promise()
        return self

    def _check_promise(self) -> None:
        """Refuse an ε or a δ that is out of range, a δ that is missing, and a calibration that the class has not."""
        epsilon, delta = getattr(self, "epsilon", None), getattr(self, "delta", None)  # fields of the classes with one
        require(epsilon is None or epsilon_allowed(epsilon), "epsilon", epsilon, EPSILON_RULE)
        allowed = self.takes_delta != "needed" if delta is None else delta_allowed(delta)
        require(allowed, "delta", delta, DELTA_RULE)
        known = self.calibration in self.calibrations
        require(known, "calibration", self.calibration, f"must be {' or '.join(self.calibrations)}")

    @property
    def step(self) -> float:
        """Return one step of the grid, in data units."""
        return (self.high - self.low) / self.precision

    @property
    def origin(self) -> float:
        """Return the value that a message of 0 stands for, in data units."""
        return self.low

    @property
    def grid(self) -> Grid:
        """Return what one client can move, rounding included."""
        return Grid(self.moved or self.precision, self.dimension, self.norm)

    @property
    def rounding(self) -> float:
        return self.step / 2

    @property
    def bits(self) -> int:
        return self.dimension * (self.modulus - 1).bit_length()

    def honest(self, survivors: int | None, colluders: int) -> int:
        """Return how many clients' noise counts: the survivors, by default the floor, less the colluders.

        Raises BadParameter for more survivors than clients, or a negative number of either.
        """
        if survivors is not None and not 0 <= survivors <= self.clients:
            raise BadParameter("survivors", survivors, f"must lie in [0, clients = {self.clients}]")
        if colluders < 0:
            raise BadParameter("colluders", colluders, "must be at least 0")
        return (self.floor if survivors is None else survivors) - colluders

    @override
    def message_law(self, *, high: bool) -> Pmf | None:
        # A class with a way of its own to make messages states their law itself.
        makers = (getattr(type(self), name) for name in ("randomize", "client_randomness", "randomize_with"))
        if any(maker.__module__ != __name__ for maker in makers):
            return None
        law, place = self.client_law(), self.precision if high else 0
        try:
            pmf = Pmf(0, np.zeros(1), 0.0) if law is None else law.pmf()
        except BadParameter:  # longer than any that is stored
            return None
        return Pmf(pmf.first + place, pmf.logs, pmf.lost)

    def randomize(self, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        # Everything is drawn before the values are looked at, so that the time that it takes tells nothing of them.
        return self.randomize_with(vectors, self.client_randomness(stream, vectors.shape[0]))

    def client_randomness(self, stream: Stream, count: int) -> Randomness:
        """Return what `count` messages are drawn with: of one cohort, or of many that are played together.

        Rows are independent and of one law. Each may be used for any message, once.
        """
        return self._draw(self.client_law(), stream, count), self._uniform(stream, count)

    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        """Return the messages of vectors, shape (n, dimension), by n rows of `client_randomness`. See `randomize`."""
        noise, chances = randomness
        rounded = self._round(vectors, chances)
        rounded += noise
        return np.mod(rounded, self.modulus, out=rounded).view(np.uint64)

    def estimate(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> NDArray[np.float64]:
        self.check_release(total, survivors)
        noise = self.server_randomness(stream, 1)
        return self.estimate_with(total, survivors, None if noise is None else noise[0])

    def server_randomness(self, stream: Stream, count: int) -> NDArray[Any] | None:
        """Return the analyzer's noise for `count` sums, shape (count, dimension), in grid steps; None for none."""
        law = self.server_law()
        return None if law is None else self._draw(law, stream, count)

    def estimate_with(
        self, totals: NDArray[np.uint64], survivors: int, noise: NDArray[Any] | None
    ) -> NDArray[np.float64]:
        """Return `estimate` of sums that may be opened, shape (…, dimension), each over so many survivors.

        noise  rows of `server_randomness`, each used once: of the shape of `totals`.
        """
        estimate: NDArray[np.float64] = self._decode(totals, survivors, noise).astype(np.float64)
        estimate *= self.step
        estimate += survivors * self.origin
        return estimate

    def estimate_parts(
        self, totals: NDArray[np.uint64], counts: NDArray[np.int64], stream: Stream
    ) -> NDArray[np.float64]:
        survivors = int(counts.sum())
        if not self.divisible:
            return super().estimate_parts(totals, counts, stream)
        for total in totals:
            self.check_release(total, survivors)
        survived = counts[:, np.newaxis]
        whole = self._decode(totals, survived, self.server_randomness(stream, len(counts)))
        estimates: NDArray[np.float64] = whole * self.step + survived * self.origin
        return estimates

    def check_release(self, total: NDArray[np.uint64], survivors: int) -> None:
        """Raise TooSmall for a sum that may not be opened, and BadParameter for one that cannot be a sum.

        total  one sum, or several, shape (…, dimension).
        """
        if survivors < self.floor:
            raise TooSmall(survivors, self.floor)
        if survivors > self.clients:
            raise BadParameter("survivors", survivors, f"at most clients = {self.clients}")
        if total.shape[-1:] != (self.dimension,):
            raise BadParameter("total", total.shape, f"shape must end with {self.dimension}")
        if int(total.max()) >= self.modulus:
            raise BadParameter("total", int(total.max()), f"must be below modulus = {self.modulus}")

    def clamp(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return vectors clamped into the ball of `norm`, which is taken MARGIN smaller.

        It clamps each coordinate to the box; then, for l1 and l2, it scales the whole vector by one factor.
        """
        inside = np.maximum(vectors, self.low)
        np.minimum(inside, self.high, out=inside)
        if self.norm == "linf" or self.dimension == 1:
            return inside
        middle, radius = (self.low + self.high) / 2, (self.high - self.low) / 2 * (1 - MARGIN)
        away = inside - middle if middle else inside
        if self.norm == "l1":
            lengths = np.add.reduce(np.abs(away), axis=1, keepdims=True)
        else:
            lengths = np.sqrt(np.vecdot(away, away))[:, np.newaxis]
        away *= radius / np.maximum(lengths, radius)
        if middle:
            away += middle
        return away

    def window_start(self, survivors: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """Return the least number that a sum over so many survivors is decoded to; the largest is m - 1 above it."""
        return -((self.modulus - survivors * self.precision) // 2)

    def _decode(
        self, totals: NDArray[np.uint64], survivors: int | NDArray[np.int64], noise: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Return what sums modulo m and the analyzer's noise stand for together, by the centred window.

        noise  of the shape of `totals`; None for none.
        """
        whole: NDArray[Any] = totals.view(np.int64)
        if noise is not None:
            if noise.shape != totals.shape:  # no two sums may share their noise
                raise BadParameter("noise", noise.shape, f"shape must be {totals.shape}")
            whole = whole + noise
        return in_window(whole, self.window_start(survivors), self.modulus)

    def _draw(self, law: Law | None, stream: Stream, rows: int) -> NDArray[np.int64]:
        """Return noise of shape (rows, dimension); zeros without a law."""
        if law is None:
            return np.zeros((rows, self.dimension), dtype=np.int64)
        return law.sample(stream, rows * self.dimension).reshape(rows, self.dimension)

    def _uniform(self, stream: Stream, rows: int) -> NDArray[np.float64]:
        """Return numbers in [0, 1), shape (rows, dimension), of 53 random bits, on which no privacy hangs."""
        return fractions(stream.words(rows * self.dimension)).reshape(rows, self.dimension)

    def _round(self, vectors: NDArray[np.float64], chances: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return ⌊w⌋ + Ber(w - ⌊w⌋), w on the grid; `chances` are uniform in [0, 1)."""
        left = self.on_grid(vectors)
        whole = np.floor(left)
        left -= whole
        left -= chances  # in (-1, 1), and positive only where the chance is below what was left of w
        whole += np.ceil(left, out=left)
        return whole.astype(np.int64)  # at most g: nothing is left of w = g

    def on_grid(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w = (x - low) g / (high - low) in [0, g] for clamped vectors x, shape (n, dimension).

        Raises BadParameter for another shape, NaN and infinities.
        """
        if vectors.shape[1:] != (self.dimension,):
            raise BadParameter("vectors", vectors.shape, f"shape must be (n, {self.dimension})")
        if np.count_nonzero(np.isfinite(vectors)) < vectors.size:
            raise BadParameter("vectors", "NaN or infinity", "finite numbers are allowed")
        grid = self.clamp(vectors)
        grid -= self.low
        grid *= self.precision / (self.high - self.low)
        # x ≥ low, so that w ≥ 0 whatever the rounding. A ball is MARGIN smaller, so that w stays below g as well.
        return np.minimum(grid, self.precision, out=grid) if self.norm == "linf" or self.dimension == 1 else grid


def fractions(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the first 53 bits of uniform words as numbers in [0, 1)."""
    numbers: NDArray[np.float64] = np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return numbers


class Draws(Spread, Protocol):
    """A continuous law with a sampler."""

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]: ...


class RealNoise(GridMechanism):
    """A mechanism whose paper draws real numbers.

    noise  "grid" (discrete, exact) or "continuous" (floating point, unsafe).
    """

    takes_noise: ClassVar[bool] = True

    trust: ClassVar[str]
    """The assumption that says which party draws the noise."""

    as_drawn: ClassVar[How] = "exact"
    """`exact` if figures of continuous noise hold for the release itself, `bound` if less is released."""

    rounds_first: ClassVar[bool] = True
    """True if values are on the grid before continuous noise is added."""

    noise: Noise = "grid"

    @property
    def continuous(self) -> bool:
        """Return whether the noise is drawn in floating point."""
        return self.noise == "continuous"

    @property
    @override
    def grid(self) -> Grid:
        rounded = self.rounds_first or not self.continuous
        return Grid(self.moved or self.precision, self.dimension, self.norm, rounded=rounded)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions of the guarantee. Continuous noise is not sampled exactly, and says first: UNSAFE."""
        return (UNSAFE, self.trust) if self.continuous else (self.trust, SAMPLER)

    @abstractmethod
    def grid_law(self) -> Law:
        """Return the discrete noise of one draw, in grid steps."""

    @abstractmethod
    def real_law(self) -> Draws:
        """Return the continuous noise of one draw, in grid steps."""


class ServerNoise(RealNoise):
    """A mechanism of real noise that the server draws once and adds to the sum, modulo m; real noise in ℝ/mℤ."""

    trust: ClassVar[str] = TRUSTED_SERVER

    @override
    def server_law(self) -> Law:
        return self.grid_law()

    @override
    def server_randomness(self, stream: Stream, count: int) -> NDArray[Any] | None:
        if not self.continuous:
            return super().server_randomness(stream, count)
        return self.real_law().sample(stream, count * self.dimension).reshape(count, self.dimension)


class ClientNoise(RealNoise):
    """A mechanism of real noise that every client adds to its own message.

    Continuous noise is added to the value itself. The sum y is rounded at random to ⌊y + U⌋, U uniform in [0, 1), which
    keeps the mean; the nearest step would not.
    """

    trust: ClassVar[str] = OWN_DEVICE
    as_drawn: ClassVar[How] = "bound"
    rounds_first: ClassVar[bool] = False

    @property
    def rounding(self) -> float:
        # What is rounded after its noise is counted by the law of the error.
        return 0.0 if self.continuous else super().rounding

    @override
    def client_law(self) -> Law:
        return self.grid_law()

    @override
    def message_law(self, *, high: bool) -> Pmf | None:
        return None if self.continuous else super().message_law(high=high)

    @override
    def client_randomness(self, stream: Stream, count: int) -> Randomness:
        if not self.continuous:
            return super().client_randomness(stream, count)
        noise = self.real_law().sample(stream, count * self.dimension).reshape(count, self.dimension)
        noise += self._uniform(stream, count)
        return (noise,)

    @override
    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        if not self.continuous:
            return super().randomize_with(vectors, randomness)
        (noise,) = randomness
        noisy = np.floor(self.on_grid(vectors) + noise).astype(np.int64)
        return np.mod(noisy, self.modulus).astype(np.uint64)

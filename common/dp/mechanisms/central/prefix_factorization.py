"""`prefix-factorization`: the server's noise of one batch is spread over the prefix sums by a factorization."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from distrust.common.bandit.error_law import Calibration, ErrorLaw, ScaledErrorLaw
from distrust.common.dp.accounting.factorization import Factorization, factorization
from distrust.common.dp.accounting.guarantee import GUARANTEE_ORDERS
from distrust.common.dp.accounting.laws.gaussian_sums import sharpness
from distrust.common.dp.accounting.profile import Privacy, no_privacy
from distrust.common.dp.accounting.returning import Stretched, returning_epsilon
from distrust.common.dp.accounting.techniques.gaussian_vectors import (
    rounded_epsilon,
    rounded_variance,
)
from distrust.common.dp.accounting.techniques.searches import coarsest
from distrust.common.dp.accounting.techniques.sensitivity import INFLATION, ROUNDING, Grid, grid_for
from distrust.common.dp.mechanisms.families.base import MechanismSpec, StreamCounter, needed, needed_delta
from distrust.common.dp.mechanisms.families.cohort import CohortParams
from distrust.common.dp.mechanisms.families.gaussian import GaussianStream
from distrust.common.dp.mechanisms.families.streams import (
    Steps,
    StreamRelease,
    check_drawn,
    check_turn,
    in_data_units,
)
from distrust.common.dp.noise.discrete_gaussian import FineGaussian, gaussian_reach
from distrust.common.dp.noise.law import UNIT
from distrust.common.errors import BadParameter
from distrust.common.modular import in_window
from distrust.common.randomness import Stream

AS_CONTINUOUS = 1 - 2.0**-46
"""Share of the noise's variance that continuous noise has which promises no more."""

FARTHEST = 16.0
"""Deviations that no buffer passes, with probability 1 - 2⁻¹⁸³ each time that it is read."""

HALF_STEP = 1 / (2 * math.log(2))
"""h of an error law for half a step: h ln(2/p) is above 1/2 for every p below 1."""


class PrefixFactorization(GaussianStream):
    """The server adds correlated Gaussian noise to every prefix sum: B z, where A = BC sums up and z hides C x.

    batches    M, the length of the stream.
    variance   of one z_t in every coordinate: N_Z on a grid of at least 2²⁶ units a deviation (`FineGaussian`). The
               least that is (ε, δ) for the whole stream.
    noise      of prefix t: N_t, Σ b_i z_(t-i) rounded to whole steps, with ‖b_0 … b_(t-1)‖² of z's variance. z has ‖c‖
               times the deviation of one release: together 4.22 times at M = 20,000, for 14.5 of the tree.
    estimate   releases one batch with noise of its own, z rounded. `Prefixes` releases prefix sums.
    modulus    one ring. Batch t is released as x_t + N_t - N_(t-1) modulo m, decoded by the centred window, and the
               prefixes are the sums of these. So m = ng + 2τ + 1 has room for one batch, and one liar moves a prefix by
               m at most; τ bounds the difference, with p' over all batches.
    Guarantee  (ε, δ) for the whole stream, with one client in one batch: what is released follows from C x + z, but for
               the rounding of noise, which counts as a longer move. By the billboard lemma what clients are told is
               jointly private. `Contributions` has the guarantee of a client of several batches.
    Source     Dvijotham et al. 2024; the rounding and the ring are our own.
    """

    # Let x be representatives of the batches' residues, which neighbours change in one place, by d. In fine units, q a
    # step, the server computes F_t = z_t + G_t with G_t a whole number next to Σ_(i ≥ 1) b_i z_(t-i), and all that it
    # publishes is a function of P_t = q Σ_(s ≤ t) x_s + F_t: N_t is F_t/q rounded, and x_t + N_t - N_(t-1) mod m the
    # difference of P_t/q and P_(t-1)/q, both rounded. Given P_1 … P_(t-1) the law of P_t is N_Z, moved by whole numbers
    # that follow from these. So the neighbour's P is the same for z + μ, μ_t being whole numbers that follow from
    # P_1 … P_(t-1), with Bμ = -(q d A e + η), |η_t| ≤ 1 + 2f. Here e is the changed batch, and f bounds by how much
    # floating point misses the sum, but for rounding it. So μ = -q d Ce - B⁻¹η. The column of B⁻¹ is c_i - c_(i-1),
    # whose absolute values add up to less than 2 as c falls: ‖μ‖ ≤ q‖d‖‖c‖ + 2(1 + 2f)√(MD), the `slack`.
    # Moves that follow from earlier releases cost no more than one of the largest length (`tree.Batches` says why), and
    # discrete noise no more than continuous noise with 8 less of its variance: BLUR of `gaussian_vectors` is e^(-158).

    part: ClassVar[str] = "batch"
    calibrations: ClassVar[tuple[Calibration, ...]] = ("exact",)
    takes_batches: ClassVar[bool] = True
    judged: ClassVar[bool] = False

    name: Literal["prefix-factorization"] = "prefix-factorization"
    batches: Annotated[int, Field(ge=1, le=2**30, description="M: batches of the stream")]

    @classmethod
    def plan(cls, spec: MechanismSpec, cohort: CohortParams) -> Self:
        if spec.calibration == "paper":
            raise BadParameter("mechanism.calibration", "paper", "must be exact: no paper prints a noise for it")
        epsilon, delta, batches = needed(spec), needed_delta(spec), spec.batches or 1
        factors = factorization(batches)

        def noise(g: int) -> float:
            return _least_variance(epsilon, delta, factors, cohort.grid(g))

        wanted = cohort.clients * batches / (4 * ROUNDING * factors.row(batches))
        fine = coarsest(noise, wanted, noise(1))
        sharp = sharpness(epsilon, delta)
        fine = max(fine, grid_for(cohort.dimension, cohort.norm, sharp, INFLATION))
        precision = spec.precision or cohort.tight(fine)
        variance = cohort.searched("variance", noise(precision))
        each = cohort.overflow_probability / (cohort.dimension * batches)
        apart = gaussian_reach(factors.step * variance, each) + 2  # both prefixes are rounded, in steps and fine units
        return cls(
            **cohort.shared(precision, cohort.room(precision, None, least=apart)),
            epsilon=epsilon,
            delta=delta,
            variance=variance,
            batches=batches,
        )

    @property
    def nodes(self) -> float:
        return self.factors.row(self.batches)

    @property
    def factors(self) -> Factorization:
        """Return B and C."""
        return factorization(self.batches)

    @override
    def counter(self) -> "Prefixes":
        return Prefixes(self)

    def draws(self, batches: int) -> int:
        """Return how many draws of noise the first `batches` batches of a stream take."""
        return batches

    def stream_noise(self, stream: Stream, count: int) -> Steps:
        """Return the noise of `count` batches of a stream in fine units, shape (count, dimension)."""
        return self.server_law().draw(stream, count * self.dimension).reshape(count, self.dimension)

    def server_law(self) -> FineGaussian:
        return FineGaussian(self.variance)

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        return replace(Contributions(self).joint(1), stream=Contributions(self))

    @override
    def error(self, survivors: int) -> ErrorLaw:
        tail = math.sqrt(2 * self.variance) * self.step, HALF_STEP * self.step
        return ScaledErrorLaw(self.server_law(), self.step, tail)


@dataclass(frozen=True, slots=True)
class Contributions:
    """The stream of one factorization, of which a client may be in several batches, with one vector in each.

    Guarantee  (ε, δ) of the whole stream for a client of t batches, whichever they are: that of one Gaussian release
               which moves by Δ₂√W and the slack, W = `Factorization.weight`, and by little more than the mean of what
               rounding adds (`returning_epsilon`). Which batches a client is in, and its vectors, may depend on what
               was released before. W is at least t: a policy that releases single batches only moves less.
    """

    mechanism: PrefixFactorization

    def joint(self, times: int) -> Privacy:
        """Return the privacy of the whole stream for a client in at most `times` batches; none for more than M."""
        own = self.mechanism
        if times > own.batches:
            return no_privacy(own.calibration)
        move, variance = _move(own.factors, own.grid, own.variance, times), own.variance * AS_CONTINUOUS
        return own.stream_privacy(move, variance, partial(_epsilon, move, variance), times, GUARANTEE_ORDERS)


@lru_cache(maxsize=256)
def _epsilon(move: Stretched, variance: float, delta: float) -> float:
    """Return ε at δ; inf where none is proven."""
    return min(rounded_epsilon(move, variance, delta), returning_epsilon(move, variance, delta))


def _move(factors: Factorization, grid: Grid, variance: float, times: int) -> Stretched:
    """Return the largest move of C x by one client of `times` batches, with what the rounding of noise adds."""
    far = misses(factors) * math.sqrt(variance)  # f in steps
    slack = 2 * math.sqrt((factors.batches - 1) * grid.dimension) * (1 / FineGaussian(variance).per_step + 2 * far)
    return Stretched(grid, factors.weight(times), slack, times, factors.returning(times) if times > 1 else None)


def _least_variance(epsilon: float, delta: float, factors: Factorization, grid: Grid) -> float:
    """Return the least variance of z, in steps squared, with which the stream is (ε, δ) for a client of one batch."""
    # The slack follows from the variance: its unit is a share of the deviation. It hardly grows with it, so that the
    # search ends after a few turns.
    move, variance = Stretched(grid, factors.weight(1), 0.0), 0.0
    while (found := rounded_variance(move, epsilon, delta) / AS_CONTINUOUS) > variance:
        variance, move = found, _move(factors, grid, found, 1)
    return variance


@lru_cache(maxsize=256)
def misses(factors: Factorization) -> float:
    """Return f in deviations of z: how far floating point is from Σ_(i ≥ 1) b_i z_(t-i), whatever is drawn.

    Draws with a buffer beyond FARTHEST deviations are left out: their probability is below what STREAM_SAMPLER states.
    """
    # A buffer U = Σ θⁱ z_(t-i), i ≥ 1, has the deviation √(Σ θ²ⁱ). A step of it, θ(U + z), has two roundings, of
    # relative error UNIT each; they die away as θⁱ. The sum of κU has one for each product and sum, and that of κ₀.
    buffers = len(factors.shares)
    total = 0.0
    for share, theta in zip(factors.shares, factors.factors, strict=True):
        lasting = min(factors.batches, 1 / (1 - theta)) if theta < 1 else 0.0  # whole numbers are exact
        largest = FARTHEST * math.sqrt(min(factors.batches, 1 / (1 - theta**2)) if theta < 1 else factors.batches)
        total += share * largest * UNIT * (2.1 * lasting + buffers + 3)
    return total


@dataclass(frozen=True, slots=True)
class Prefixes(StreamCounter):
    """The state after `time` batches: arrays (…, dimension); leading axes are of streams in lock step.

    survivors  of all batches.
    prefix     released so far, in grid steps.
    noise      N of the last batch, in grid steps.
    buffers    Σ θⁱ z_(t-i), i ≥ 1, of 1 and each θ, in fine units.

    Secrets  The noise is the server's secret. The server never writes it: it is drawn again after a restart.
    """

    mechanism: PrefixFactorization
    time: int = 0
    survivors: int = 0
    prefix: Steps | int = 0
    noise: Steps | int = 0
    buffers: tuple[NDArray[np.float64], ...] = ()

    def add(self, total: NDArray[np.uint64], survivors: int, stream: Stream) -> tuple[Self, StreamRelease]:
        """Return the state after one more batch, and what is released of it.

        total   the batch's sum modulo m, shape (dimension,).
        Raises  TooSmall with fewer survivors than `floor`, BadParameter after the last batch.
        """
        return self.add_with(total, survivors, lambda: self.mechanism.stream_noise(stream, 1)[0])

    def add_with(
        self, totals: NDArray[np.uint64], survivors: int, noise: Callable[[], Steps]
    ) -> tuple[Self, StreamRelease]:
        """Return `add` for several streams in lock step: their sums modulo m, shape (…, dimension).

        noise  draws the batch's `stream_noise` for all streams, of the shape of `totals`; called once.
        """
        own = self.mechanism
        check_turn(self.time + 1, own.batches)
        own.check_release(totals, survivors)
        drawn = noise()
        check_drawn(drawn, totals.shape)
        law, factors = own.server_law(), own.factors
        before = self.buffers or (np.zeros(totals.shape),) * len(factors.shares)
        earlier = np.zeros(totals.shape)
        for share, buffer in zip(factors.shares, before, strict=True):  # in this order on every processor
            earlier += share * buffer
        now = law.in_steps(drawn + np.rint(earlier).astype(np.int64))
        start = own.window_start(survivors)
        batch = in_window(totals.view(np.int64) + (now - self.noise), start, own.modulus)
        after = type(self)(
            own,
            self.time + 1,
            self.survivors + survivors,
            self.prefix + batch,
            now,
            tuple(theta * (buffer + drawn) for theta, buffer in zip(factors.factors, before, strict=True)),
        )
        shown = partial(in_data_units, step=own.step, low=own.low)
        return after, StreamRelease(shown(batch, survivors=survivors), shown(after.prefix, survivors=after.survivors))

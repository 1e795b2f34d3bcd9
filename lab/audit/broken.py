"""Mechanisms that are broken on purpose, as a paper or a careless deployment is. An audit must find them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.accounting.profile import Privacy
from distrust.common.dp.calculator.query import OVERFLOW_PROBABILITY, PrivacyQuery
from distrust.common.dp.mechanisms import Mechanism, plan
from distrust.common.dp.mechanisms.distributed.additive import DistributedPolya
from distrust.common.dp.mechanisms.families.grid import Randomness
from distrust.common.dp.mechanisms.local.additive import LocalGaussian, LocalLaplaceDiscrete
from distrust.common.dp.mechanisms.shuffled.binomial import ShuffledBinomial
from distrust.common.dp.noise.polya import PolyaDifference
from distrust.common.errors import BadParameter
from distrust.lab.audit.secret import Secret, named_secret


class NoiseForAllClients(DistributedPolya):
    """MAB Theorem 1 with n for t: each client adds a share for n clients, and the claim is for the floor."""

    def client_law(self) -> PolyaDifference:
        return PolyaDifference(Fraction(1, self.clients), self.scale)


class NoiseThatSaturates(DistributedPolya):
    """A modulus without room for noise, and messages that are clamped to [0, m) instead of reduced modulo m.

    A wrapped sum is wrong, but private: x mod m is post-processing. Clamping cuts off noise.
    """

    @override
    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        noise, chances = randomness
        messages: NDArray[np.int64] = np.clip(self._round(vectors, chances) + noise, 0, self.modulus - 1)
        return messages.astype(np.uint64)


class LaplaceForHalfTheRange(LocalLaplaceDiscrete):
    """Lap(1/ε) on rewards in [-1, 1], whose range is 2: FREE, Algorithms 1 to 3, as printed."""

    @property
    def scale(self) -> float:
        return super().scale / 2

    @override
    def privacy(self, survivors: int | None = None, colluders: int = 0) -> Privacy:
        own = super().privacy(survivors, colluders)
        # What is printed, not what the law gives.
        return replace(own, compute_promise=lambda: own.promise.model_copy(update={"epsilon": self.epsilon}))


class MisshiftedBits(ShuffledBinomial):
    """Values are shifted into [0, 2Δ] but encoded on [0, Δ], so that one client moves 2g bits: CTX, Algorithm 5."""

    def _round(self, vectors: NDArray[np.float64], chances: NDArray[np.float64]) -> NDArray[np.int64]:
        inside = np.clip(vectors, self.low, self.high)
        grid = (inside - self.low) * (2 * self.precision / (self.high - self.low))
        whole = np.floor(grid)
        up = chances < grid - whole
        return (whole + up).astype(np.int64)


THREE_ARMS = named_secret("arm", features=2, arms=3)
"""The pulled arm as the secret: three arms with parameters of their own, contexts of two numbers."""


class SkippedSyntheticUpdates(LocalGaussian):
    """Noise on the block of the pulled arm alone, zeros in the others: GLB, Algorithm 2, without synthetic updates."""

    def randomize_with(self, vectors: NDArray[np.float64], randomness: Randomness) -> NDArray[np.uint64]:
        blocks = vectors.reshape(len(vectors), THREE_ARMS.statistic.blocks, -1)
        pulled = np.repeat((blocks != 0).any(axis=2), blocks.shape[2], axis=1)
        zero = np.uint64(round(self.precision / 2))  # the grid point of 0, the middle of [low, high]
        return np.where(pulled, super().randomize_with(vectors, randomness), zero)


@dataclass(frozen=True, slots=True)
class Broken:
    """A counter-example: `make` builds it for n clients and a claimed ε, `why` names its error.

    secret  the pair of worlds that shows it; None for the worst pair of the mechanism's ball.
    """

    make: Callable[[int, float], Mechanism]
    why: str
    secret: Secret | None = None


def noise_for_all_clients(clients: int, epsilon: float) -> NoiseForAllClients:
    """Return the mechanism of a cohort of which half answer (rounded up)."""
    honest = _plan("distributed-polya", clients, epsilon, min_survivors=(clients + 1) // 2, precision=32)
    return NoiseForAllClients(**honest)


def noise_that_saturates(clients: int, epsilon: float) -> NoiseThatSaturates:
    """Return the mechanism with no room at all: m = ng + 1."""
    honest = _plan("distributed-polya", clients, epsilon, min_survivors=clients, precision=4)
    return NoiseThatSaturates(**(honest | {"modulus": 4 * clients + 1}))


def laplace_for_half_the_range(clients: int, epsilon: float) -> LaplaceForHalfTheRange:
    """Return the mechanism for rewards in [-1, 1]."""
    honest = _plan("local-laplace-discrete", clients, epsilon, min_survivors=clients, precision=16)
    return LaplaceForHalfTheRange(**(honest | {"low": -1.0}))


def misshifted_bits(clients: int, epsilon: float) -> MisshiftedBits:
    """Return the mechanism for Δ = 1."""
    honest = _plan("shuffled-binomial", clients, epsilon, min_survivors=clients, precision=4, delta=1e-2)
    return MisshiftedBits(**(honest | {"low": -1.0}))


def skipped_synthetic_updates(clients: int, epsilon: float) -> SkippedSyntheticUpdates:
    """Return the mechanism for `THREE_ARMS`."""
    query = PrivacyQuery(clients=clients, epsilon=epsilon, delta=1e-2)
    return SkippedSyntheticUpdates(**query.planned("local-gaussian", "exact", THREE_ARMS.statistic).model_dump())


BROKEN: dict[str, Broken] = {
    "noise-for-everybody": Broken(noise_for_all_clients, "noise for n clients, and half of them survive"),
    "noise-that-saturates": Broken(noise_that_saturates, "a modulus too small, its ends a wall"),
    "laplace-for-half-the-range": Broken(laplace_for_half_the_range, "Lap(1/ε) for rewards in [-1, 1]"),
    "misshifted-bits": Broken(misshifted_bits, "P_Vec shifts into [0, 2Δ] and encodes on [0, Δ]"),
    "skipped-synthetic-updates": Broken(
        skipped_synthetic_updates, "zeros without noise for the arms that were not pulled", THREE_ARMS
    ),
}


def counter_example(name: str) -> Broken:
    """Return a counter-example by its name. Raises BadParameter."""
    if name not in BROKEN:
        raise BadParameter("broken", name, f"must be one of {', '.join(BROKEN)}")
    return BROKEN[name]


def broken(name: str, clients: int, epsilon: float = 1.0) -> Mechanism:
    """Return a counter-example's mechanism. Raises BadParameter."""
    return counter_example(name).make(clients, epsilon)


def _plan(
    name: str, clients: int, epsilon: float, *, min_survivors: int, precision: int, delta: float | None = None
) -> dict[str, Any]:
    """Return the fields of an honest mechanism."""
    spec = PrivacyQuery(clients=clients, epsilon=epsilon, delta=delta, precision=precision).spec(name, "exact")
    mechanism = plan(
        spec,
        clients=clients,
        min_survivors=min_survivors,
        min_honest=min_survivors,
        overflow_probability=OVERFLOW_PROBABILITY,
        statistic=Reward(),
    )
    return mechanism.model_dump()

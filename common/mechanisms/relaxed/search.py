"""The shortest answers, at the least noise, whose certificate meets a pure target."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product

from common.errors import BadParameter
from common.mechanisms.frame import least
from common.mechanisms.relaxed.certificate import blocks, certified_epsilon, pair_epsilon
from common.mechanisms.relaxed.design import FARTHEST, Design

FRACTIONS = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6, 0.5)
"""What the noise alone spends of ε̂; the rest pays for escapes and truncation."""

FEW = 3
"""Numbers of escaped users, from none on, that a W is tried with first."""


@dataclass(frozen=True, slots=True)
class _Try:
    """All but W: g, t, the scale and the chance of a uniform answer.

    excess  the noise's variance over that of a continuous Laplace variable with ε̂, about.
    """

    precision: int
    share: int
    scale: float
    chance: float
    excess: float

    def length(self, reach: int) -> int:
        return 2 * reach + self.precision

    def cost(self, reach: int) -> float:
        return self.length(reach) * self.excess

    def design(self, reach: int) -> Design | None:
        """With the largest q, as overflows count as uniform answers; None where they take most of the chance."""
        trial = Design(self.precision, self.share, self.scale, reach, self.length(reach), self.chance)
        escape = (self.chance - 2 * trial.overflow()) * (1 - 1e-9)
        return replace(trial, escape=escape) if escape > self.chance / 2 else None

    def start(self, epsilon: float) -> int:
        """A lower bound of W: the tail's condition with M ≥ 1 and q = chance."""
        room = math.expm1(epsilon) * self.chance / (1 - self.chance)
        enough = least(lambda reach: math.exp(-reach / self.scale) * (self.length(reach) + 1) <= room, 1)
        return min(FARTHEST + 1, enough)


@lru_cache(maxsize=256)
def fewest_bits(epsilon: float, honest: int, precision: int, chance: float) -> Design:
    """W, d, t and noise for `honest` users, x̂ in {0..precision}, answers uniform with probability at most `chance`.

    The least product of bits and the noise's variance: neither is bought at more than its worth. Raises BadParameter if
    nothing up to FARTHEST is certified. d = 2W + g: a longer answer thins out the escape and is hardly ever worth it.
    """
    best: Design | None = None
    limit = math.inf
    for one in _tries(epsilon, honest, precision, chance):
        found = _shortest(one, epsilon, honest, limit)
        if found is not None:
            best, limit = found, one.cost(found.reach)
    if best is None:
        raise BadParameter("epsilon", epsilon, f"not certified for {honest} clients and precision {precision}")
    return best


def _tries(epsilon: float, honest: int, precision: int, chance: float) -> list[_Try]:
    """The least noise first."""
    tries = [
        _Try(precision, share, precision / (part * epsilon), chance, honest / share / part**2)
        for part, share in product(FRACTIONS, _shares(honest))
    ]
    return sorted(tries, key=lambda one: one.excess)


def _shares(honest: int) -> Iterator[int]:
    """Shares n, n - 1, n - 2, n - 4, … down to n/2: less noise is asked of each when more are counted on."""
    yield honest
    missing = 1
    while 2 * missing <= honest and missing <= 64:
        yield honest - missing
        missing *= 2


def _shortest(one: _Try, epsilon: float, honest: int, limit: float) -> Design | None:
    """The certified design of the least W, if it costs less than `limit`."""
    start = one.start(epsilon)
    if start > FARTHEST or one.cost(start) >= limit:
        return None

    def certified(reach: int) -> Design | None:
        design = one.design(reach)
        fits = design is not None and certified_epsilon(design, honest, epsilon) <= epsilon
        return design if fits else None

    def promising(reach: int) -> bool:
        design = one.design(reach)
        return design is not None and all(
            pair_epsilon(design, *pair) <= epsilon for pair in islice(blocks(design, honest), FEW)
        )

    def shortest(met: Callable[[int], bool]) -> int:
        return start - 1 + least(lambda more: start - 1 + more >= most or met(start - 1 + more), 1)

    most = min(FARTHEST, 3 * start + 16)  # where the certificate has nearly its limit in W
    while one.cost(most) >= limit:
        most -= max(1, (most - start) // 8)
    start = shortest(promising)  # the whole certificate takes a second, and these few are nearly always the worst
    return certified(shortest(lambda reach: certified(reach) is not None))

"""The shortest answers, at the least noise, whose certificate meets a pure target."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, product

from distrust.common.errors import BadParameter
from distrust.common.mechanisms.pure_shuffle.certificate import (
    FARTHEST,
    BitDesign,
    certified_epsilon,
    pair_epsilon,
    splits,
)
from distrust.common.privacy.searches import least_satisfying, snap_down

FRACTIONS = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.7, 0.6, 0.5)
"""What the noise alone spends of ε̂; the rest pays for escapes and truncation."""

FEW = 3
"""Numbers of escaped users, from none on, that a W is tried with first."""

REMEDY = "raise epsilon or wrap, or lower the precision or dimension"

LONG, MANY = 400, 14
"""W from which the search takes larger steps, and looks at more numbers of escaped users before it certifies."""

ROOM = 3.0
"""FARTHEST over the least W that the tails allow, on a grid of our choice. A certificate then takes seconds."""

COARSE = (0.998, 0.99, 0.95, 0.85, 0.7, 0.5)
"""FRACTIONS of such searches, with few shares."""


@dataclass(frozen=True, slots=True)
class _Try:
    """All but W: g, the move that ε̂ is of, t, the scale and the chance of a uniform answer.

    excess  the noise's variance over that of a continuous Laplace variable with ε̂, about.
    """

    precision: int
    move: int
    share: int
    scale: float
    chance: float
    excess: float

    def length(self, reach: int) -> int:
        return 2 * reach + self.precision

    def cost(self, reach: int) -> float:
        return self.length(reach) * self.excess

    def design(self, reach: int) -> BitDesign | None:
        """With the largest q, as overflows count as uniform answers; None where they take most of the chance."""
        trial = BitDesign(self.precision, self.share, self.scale, reach, self.length(reach), self.chance)
        escape = (self.chance - 2 * trial.overflow()) * (1 - 1e-9)
        return replace(trial, escape=snap_down(escape)) if escape > self.chance / 2 else None

    def start(self, epsilon: float) -> int:
        """Return a lower bound of W: the tail's condition with M ≥ 1 and q = chance, and rare overflows."""
        room = math.expm1(epsilon) * self.chance / (1 - self.chance)

        def enough(reach: int) -> bool:
            short = math.exp(-reach / self.scale) * (self.length(reach) + 1) > room
            return reach > FARTHEST or not (short or self.design(reach) is None)

        return least_satisfying(enough, 1)


@lru_cache(maxsize=256)
def finest(epsilon: float, precision: int, chance: float) -> int:
    """Return the largest g ≤ `precision` for which W is not beyond FARTHEST for certain; at least 1.

    epsilon  of a move by g steps, whatever g is.
    """

    def too_fine(g: int) -> bool:
        one = _Try(g, g, 1, g / epsilon, chance, 1.0)
        return g > precision or one.start(epsilon) * ROOM > FARTHEST

    return max(1, least_satisfying(too_fine, 1) - 1)


@lru_cache(maxsize=256)
def fewest_bits(epsilon: float, honest: int, precision: int, chance: float, move: int | None = None) -> BitDesign:
    """W, d, t and noise for `honest` users, x̂ in {0..precision}, answers uniform with probability at most `chance`.

    ε̂ is of changes of x̂ by `move` steps at most, all of them when None.

    The least product of bits and the noise's variance: neither is bought at more than its worth. Raises BadParameter if
    nothing up to FARTHEST is certified. d = 2W + g: a longer answer thins out the escape and is hardly ever worth it.
    """
    best: BitDesign | None = None
    limit = math.inf
    for one in _tries(epsilon, honest, precision, chance, move or precision):
        found = _shortest(one, epsilon, honest, limit)
        if found is not None:
            best, limit = found, one.cost(found.reach)
    if best is None:
        rule = f"not certified for {honest} clients and precision {precision} with W up to {FARTHEST}: {REMEDY}"
        raise BadParameter("epsilon", epsilon, rule)
    return best


def _tries(epsilon: float, honest: int, precision: int, chance: float, move: int) -> list[_Try]:
    """The least noise first."""
    long = _Try(precision, move, honest, move / epsilon, chance, 1.0).start(epsilon) >= LONG
    parts, shares = (COARSE, islice(_shares(honest), 3)) if long else (FRACTIONS, _shares(honest))
    tries = [
        _Try(precision, move, share, move / (part * epsilon), chance, honest / share / part**2)
        for part, share in product(parts, tuple(shares))
    ]
    return sorted(tries, key=lambda one: one.excess)


def _shares(honest: int) -> Iterator[int]:
    """Shares n, n - 1, n - 2, n - 4, … down to n/2: less noise is asked of each when more are counted on."""
    yield honest
    missing = 1
    while 2 * missing <= honest and missing <= 64:
        yield honest - missing
        missing *= 2


def _shortest(one: _Try, epsilon: float, honest: int, limit: float) -> BitDesign | None:
    """The certified design of the least W, if it costs less than `limit`."""
    start = one.start(epsilon)
    if start > FARTHEST or one.cost(start) >= limit:
        return None

    def certified(reach: int) -> BitDesign | None:
        design = one.design(reach)
        fits = design is not None and certified_epsilon(design, honest, epsilon, one.move) <= epsilon
        return design if fits else None

    def promising(reach: int) -> bool:
        design = one.design(reach)
        few = FEW if start < LONG else MANY
        return design is not None and all(
            pair_epsilon(design, *pair, one.move) <= epsilon for pair in islice(splits(design, honest), few)
        )

    def shortest(met: Callable[[int], bool], step: int = 1) -> int:
        found = least_satisfying(lambda more: start - 1 + step * more >= most or met(start - 1 + step * more), 1)
        return min(most, start - 1 + step * found)

    most = min(FARTHEST, 3 * start + 16)  # where the certificate has nearly its limit in W
    while one.cost(most) >= limit:
        most -= max(1, (most - start) // 8)
    if start >= LONG:  # a certificate takes a second: W to a hundredth, and no second chance
        return certified(shortest(promising, start // 100)) if promising(most) else None
    start = shortest(promising)  # the whole certificate takes a second, and these few are nearly always the worst
    return certified(shortest(lambda reach: certified(reach) is not None))

"""The fewest bits whose certificate meets a pure target."""

import math
from collections.abc import Iterator
from functools import lru_cache

from common.errors import BadParameter
from common.mechanisms.frame import least
from common.mechanisms.relaxed.certificate import certified_epsilon
from common.mechanisms.relaxed.design import FARTHEST, Design

FRACTIONS = (0.999, 0.995, 0.99, 0.98, 0.97, 0.96, 0.95, 0.93, 0.91, 0.89, 0.87, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5)
"""What the noise alone spends of ε̂; the rest pays for escapes and truncation. More noise, longer tails, more bits."""

EXCESS = (1.1, 1.25, 1.5, 4.0)
"""Standard deviation of the noise over that of discrete Laplace at ε̂; the next is tried where nothing is certified."""


@lru_cache(maxsize=256)
def fewest_bits(epsilon: float, honest: int, precision: int, chance: float) -> Design:
    """W, d, t and noise for `honest` users, x̂ in {0..precision}, answers uniform with probability at most `chance`.

    Among equally short designs the one with the least noise; at most EXCESS[0] of the ideal where that is certified.
    d = 2W + g: a longer answer only thins out the escape. Raises BadParameter if nothing up to FARTHEST is certified.
    """
    for excess in EXCESS:
        best: Design | None = None
        for fraction, share in _noises(honest, excess):
            best = _shorter(epsilon, honest, (precision, share, precision / (fraction * epsilon), chance), best)
        if best is not None:
            return best
    raise BadParameter("epsilon", epsilon, f"not certified for {honest} clients and precision {precision}")


def _noises(honest: int, excess: float) -> list[tuple[float, int]]:
    """(fraction, share) with √(n/t)/fraction ≤ excess, the least noise first."""
    pairs = [(fraction, share) for fraction in FRACTIONS for share in _divisors(honest)]
    size = {pair: math.sqrt(honest / pair[1]) / pair[0] for pair in pairs}
    return sorted((pair for pair in pairs if size[pair] <= excess), key=size.__getitem__)


def _divisors(honest: int) -> Iterator[int]:
    """Shares n, n - 1, n - 2, n - 4, … down to n/2: less noise is asked of each when more are counted on."""
    yield honest
    missing = 1
    while 2 * missing <= honest and missing <= 64:
        yield honest - missing
        missing *= 2


def _shorter(epsilon: float, honest: int, fixed: tuple[int, int, float, float], best: Design | None) -> Design | None:
    """The shortest certified design with these g, t, scale and chance, if it is shorter than `best`."""
    most = FARTHEST if best is None else best.reach - 1
    start = _reach_of_tail(epsilon, fixed)
    if start > most:
        return best
    most = min(most, 3 * start + 16)  # where the certificate has its limit in W

    def certified(reach: int) -> Design | None:
        design = _design(fixed, reach)
        fits = design is not None and certified_epsilon(design, honest, epsilon) <= epsilon
        return design if fits else None

    if best is not None and certified(most) is None:  # one look instead of a search
        return best
    below = start - 1
    shortest = below + least(lambda more: below + more >= most or certified(below + more) is not None, 1)
    return certified(shortest) or best


def _design(fixed: tuple[int, int, float, float], reach: int) -> Design | None:
    """The design of this reach with its largest q: overflows count as uniform answers."""
    precision, share, scale, chance = fixed
    trial = Design(precision, share, scale, reach, 2 * reach + precision, chance)
    escape = (chance - 2 * trial.overflow()) * (1 - 1e-9)
    if escape < chance / 2:
        return None
    return Design(precision, share, scale, reach, 2 * reach + precision, escape)


def _reach_of_tail(epsilon: float, fixed: tuple[int, int, float, float]) -> int:
    """A lower bound of W: the tail's condition with M ≥ 1 and q = `chance`."""
    precision, _, scale, chance = fixed
    room = math.expm1(epsilon) * chance / (1 - chance)
    return min(FARTHEST + 1, least(lambda w: math.exp(-w / scale) * (2 * w + precision + 1) <= room, 1))

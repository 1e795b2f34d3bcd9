"""Draws per second of every law of noise, against bare AES-CTR words in the same run.

    python -m benchmarks.samplers [--quick] [--json FILE]

One core, one stream, tables built before the clock starts. `ratio` is the number of draws in the time of one word, both
made in pieces that stay in the cache. `table` is the time of a parameter's first draw, which builds its table.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.meter import deliver, options, write
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms.families.sphere import directions
from distrust.common.dp.noise.binomial import Binomial
from distrust.common.dp.noise.continuous import Gaussian, Laplace
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.dp.noise.discrete_gaussian_sum import DiscreteGaussianSum
from distrust.common.dp.noise.law import CHUNK, Table
from distrust.common.dp.noise.polya import DiscreteLaplace, PolyaDifference, polya_table
from distrust.common.dp.noise.skellam import Skellam, poisson_table
from distrust.common.randomness import Stream, SystemStream


class Sampler(Protocol):
    """A law or a mechanism that draws."""

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64] | NDArray[np.float64]: ...


class Tabled:
    """A law of which the mechanisms need the table alone."""

    def __init__(self, table: Table) -> None:
        self.sample = table.draw


class Sphere:
    """A coordinate of a direction in sixteen dimensions."""

    def sample(self, stream: Stream, count: int) -> NDArray[np.float64]:
        return directions(stream, count // 16, 16)


class Messages:
    """Whole messages of `relaxed-secagg-shuffle`: two Pólya draws, a chance to escape, a uniform answer, rounding."""

    def __init__(self) -> None:
        self._mechanism = PrivacyQuery(clients=1000, epsilon=1.0).planned("relaxed-secagg-shuffle", "exact")

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        chunks = [np.full((size, 1), 0.5) for size in (*[CHUNK] * (count // CHUNK), count % CHUNK) if size]
        return np.concatenate([self._mechanism.randomize(rewards, stream) for rewards in chunks]).view(np.int64)


LAWS: dict[str, Sampler] = {
    "discrete Laplace, scale 32": DiscreteLaplace(32.0),
    "Pólya, 1/1000 of scale 32": Tabled(polya_table(Fraction(1, 1000), 32.0)),
    "Pólya difference, 1/1000 of scale 32": PolyaDifference(Fraction(1, 1000), 32.0),
    "discrete Gaussian, variance 0.1": DiscreteGaussian(0.1),
    "discrete Gaussian, variance 1000": DiscreteGaussian(1000.0),
    "discrete Gaussian shares, 100 of variance 10": DiscreteGaussianSum(10.0, 100),
    "Poisson, rate 500": Tabled(poisson_table(500.0)),
    "Skellam, variance 2.5": Skellam(2.5),
    "Skellam, variance 1000": Skellam(1000.0),
    "binomial, 22 fair coins": Binomial(22),
    "binomial, 10,000 fair coins": Binomial(10_000),
    "binomial, 10,000 of 0.49": Binomial(10_000, 0.49),
    "continuous Laplace (unsafe)": Laplace(32.0),
    "continuous Gaussian (unsafe)": Gaussian(32.0),
    "sphere, 16 coordinates": Sphere(),
    "message of relaxed-secagg-shuffle, n = 1000": Messages(),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Draws a second, their ratio to words a second, and the seconds that the table took."""

    law: str
    rate: float
    ratio: float
    table: float


def main() -> None:
    arguments = options(__doc__).parse_args()
    draws, repeats = (CHUNK, 2) if arguments.quick else (1 << 21, 7)
    stream = SystemStream()
    words = draws / fastest(lambda: bare(stream, draws), repeats)
    speeds = [measure(name, law, draws, repeats, words) for name, law in LAWS.items()]
    title = f"{words / 1e6:.0f} million AES-CTR words a second"
    rows = [(speed.law, speed.rate / 1e6, speed.ratio, 1e3 * speed.table) for speed in speeds]
    deliver(title, ("law", "million draws a second", "ratio", "table, ms"), rows)
    write(arguments.json, {"words": words, "results": [asdict(speed) for speed in speeds]})


def measure(name: str, law: Sampler, draws: int, repeats: int, words: float) -> Speed:
    """Return the speed of a law's fastest run after its table is built. Many fair coins are slow: they get fewer."""
    stream = SystemStream()
    first = fastest(lambda: law.sample(stream, 16), 1)
    count = draws // 64 if isinstance(law, Binomial) and law.trials > 1000 and law.chance == 0.5 else draws
    rate = count / fastest(lambda: law.sample(stream, count), repeats)
    return Speed(name, rate, rate / words, first)


def bare(stream: Stream, words: int) -> None:
    """Draw words from the stream and drop them."""
    for _ in range(words // CHUNK):
        stream.words(CHUNK)


def fastest(work: Callable[[], object], repeats: int) -> float:
    """Return the CPU seconds of the fastest of `repeats` runs."""
    best = float("inf")
    for _ in range(repeats):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return max(best, 1e-9)


if __name__ == "__main__":
    main()

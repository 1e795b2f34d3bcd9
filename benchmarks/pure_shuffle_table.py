"""Certified parameters of `relaxed-secagg-shuffle`: bits per user, ε̂ and noise, for rewards of one bit or on a grid.

`.venv/bin/python -m benchmarks.pure_shuffle_table` prints the table of docs/concepts/privacy/pure-shuffling.md.
It takes about half a minute on one core.
"""

import math
from itertools import product

from distrust.common.dp.mechanisms.shuffled.pure import fewest_bits
from distrust.common.dp.mechanisms.shuffled.pure_certificate import BitDesign, certified_epsilon

HORIZON_CHANCES = (5e-4, 5e-7)  # nq = 1/(2T) for T = 10³ and 10⁶
CASES = [
    *product((16, 64, 256, 1024, 4096, 65536), (1,), (1.0,)),
    *product((256,), (1,), (0.1, 0.5, 4.0)),
    *product((16, 256), (4,), (1.0,)),
]


def row(honest: int, precision: int, epsilon: float, chance: float) -> str:
    design = fewest_bits(epsilon, honest, precision, chance / honest)
    noise = math.sqrt(2 * honest / design.share) / (2 * precision * math.sinh(0.5 / design.scale))
    cells = (
        str(honest),
        f"{precision}",
        f"{epsilon:g}",
        f"{chance:g}",
        f"**{design.length}**",
        str(design.reach),
        str(design.share),
        f"{precision / design.scale:.4g}",
        f"{certified_epsilon(design, honest):.4f}",
        f"{noise:.3f}",
        f"{round(honest**2.5):,}",
    )
    return "| " + " | ".join(cells) + " |"


def first() -> list[str]:
    """Return lines with the certified ε̂ of the parameters of the first computations, centred."""
    values = ((chance, BitDesign(4, 16, 4.0, 133, 1066, chance / 16)) for chance in (1e-3, 1e-6))
    return [f"n = 16, d = 1066, nq = {chance:g}: ε̂ = {certified_epsilon(design, 16):.4f}" for chance, design in values]


def main() -> None:
    print("| n | g | ε̂ asked | nq | bits a user | W | t | ε of the noise | ε̂ certified | std of the sum | n^2.5 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (honest, precision, epsilon), chance in product(CASES, HORIZON_CHANCES):
        print(row(honest, precision, epsilon, chance))
    print(*first(), sep="\n")


if __name__ == "__main__":
    main()

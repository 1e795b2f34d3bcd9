"""Tests that the ends of a grid with Laplace noise tell the most, in fractions, and the bound they give, in 50 digits.

Both are computed from the definition of the noise, without the code's laws.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import mpmath
import pytest

from distrust.common.dp.accounting.techniques.amplification.blanket import blanket_epsilon
from distrust.common.dp.accounting.techniques.amplification.clones import clones_local_epsilon
from distrust.common.dp.accounting.techniques.amplification.randomizers import FINEST_LAPLACE, laplace_on_grid
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.shuffled.laplace import ShuffledLaplace
from distrust.common.errors import BadParameter
from tests.support.planned import planned
from tests.support.randomizers import blanket_delta, laplace

Law = list[Fraction]


def laws(decay: Fraction, g: int) -> list[Law]:
    """Return the laws of x + noise for x in {0..g} and midway between, put between 0 and g; `decay` is e^(-1/scale)."""
    inside, beyond = (1 - decay) / (1 + decay), 1 / (1 + decay)
    on_grid = [[(beyond if w in {0, g} else inside) * decay ** abs(w - x) for w in range(g + 1)] for x in range(g + 1)]
    between = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in itertools.pairwise(on_grid)]
    return on_grid + between


def stop_loss(one: Law, other: Law, factor: Fraction, blanket: Law, t: Fraction) -> Fraction:
    """Return γ E(L - t)₊ under draws from the blanket, L = (μ_x - e^ε μ_y)/ω; `factor` is e^ε."""
    return sum(
        (max(Fraction(0), p - factor * q - t * b) for p, q, b in zip(one, other, blanket, strict=True)), Fraction()
    )


@pytest.mark.parametrize("g", [1, 2, 3, 6])
@pytest.mark.parametrize("decay", [Fraction(1, 50), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("factor", [Fraction(1), Fraction(6, 5), Fraction(4)])
def test_no_two_inputs_tell_more_than_the_ends_by_any_stop_loss(g: int, decay: Fraction, factor: Fraction) -> None:
    """Between the values of L both sides are linear in t, so that these values are all there is to look at."""
    every = laws(decay, g)
    first, last = every[0], every[g]
    blanket = [min(column) for column in zip(*every, strict=True)]
    assert all(sum(law) == 1 for law in every)
    assert blanket == [min(pair) for pair in zip(first, last, strict=True)]
    for one, other in itertools.permutations(every, 2):
        values = {
            (p - factor * q) / b
            for x, y in ((one, other), (first, last))
            for p, q, b in zip(x, y, blanket, strict=True)
        }
        for t in values:
            assert stop_loss(one, other, factor, blanket, t) <= stop_loss(first, last, factor, blanket, t)


def splits(draws: int, outputs: int) -> Iterator[tuple[int, ...]]:
    """Yield how often each output may occur among so many draws."""
    if outputs == 1:
        yield (draws,)
        return
    for count in range(draws + 1):
        for rest in splits(draws - count, outputs - 1):
            yield (count, *rest)


def likelihood(counts: Sequence[int], chances: Sequence[mpmath.mpf]) -> mpmath.mpf:
    ways = mpmath.factorial(sum(counts)) / mpmath.fprod(map(mpmath.factorial, counts))
    return ways * mpmath.fprod(p**k for p, k in zip(chances, counts, strict=True))


def by_definition(scale: float, g: int, epsilon: float, users: int) -> mpmath.mpf:
    """Return E (L_0 + … + L_C)₊ / (C + 1), C ~ Bin(n - 1, γ), by all outcomes of C + 1 draws from the blanket."""
    q, e = mpmath.exp(-1 / mpmath.mpf(scale)), mpmath.exp(mpmath.mpf(epsilon))
    first = [q**w * (1 if w in {0, g} else 1 - q) / (1 + q) for w in range(g + 1)]
    blanket = [min(pair) for pair in zip(first, first[::-1], strict=True)]
    gamma, total = mpmath.fsum(blanket), mpmath.mpf(0)
    chances = [b / gamma for b in blanket]
    values = [gamma * (p - e * r) / b for p, r, b in zip(first, first[::-1], blanket, strict=True)]
    for c in range(users):
        weight = mpmath.binomial(users - 1, c) * gamma**c * (1 - gamma) ** (users - 1 - c)
        means = (likelihood(counts, chances) * max(mpmath.fdot(counts, values), 0) for counts in splits(c + 1, g + 1))
        total += weight * mpmath.fsum(means) / (c + 1)
    return total


@pytest.mark.parametrize(
    ("scale", "g", "epsilon", "users"),
    [
        *((0.5, 1, 0.3, 30), (0.4, 2, 1.0, 12), (2.0, 3, 0.1, 9), (1.0, 4, 0.5, 7), (1.2, 6, 2.0, 4)),
        *((0.08, 1, 8.0, 20), (0.3, 2, 0.01, 10), (5.0, 2, 0.3, 6), (1.0, 3, 2.9, 8)),
    ],
)
def test_the_bound_agrees_with_fifty_digits_of_its_definition_from_above(
    scale: float, g: int, epsilon: float, users: int
) -> None:
    with mpmath.workdps(50):
        exact = float(by_definition(scale, g, epsilon, users))
    assert 1 - 1e-12 <= blanket_delta(laplace_on_grid(scale, g), epsilon, users) / exact <= 1.01


def test_a_fine_grid_is_the_limit_of_noise_in_reals() -> None:
    """No number of inputs limits the grid, as no pair but one is compared."""
    fine, smooth = laplace_on_grid(1000.0, 4000), laplace(0.25, 1)
    assert blanket_epsilon(fine, 1e-6, 1000) == pytest.approx(blanket_epsilon(smooth, 1e-6, 1000), rel=1e-3)
    assert fine.gamma == pytest.approx(math.exp(-2.0), rel=1e-3)
    for precision in (0, FINEST_LAPLACE + 1):
        with pytest.raises(BadParameter, match="precision"):
            laplace_on_grid(1.0, precision)


PAGE = (Path(__file__).parents[2] / "docs/concepts/privacy/shuffling.md").read_text("utf-8")
GAINS = [
    line.strip("| ").split(" | ")
    for line in PAGE.partition("| n | ε | ε₀ by the clones | ε₀ by the ends |\n|---|---|---|---|\n")[2]
    .partition("\n\n")[0]
    .splitlines()
]


def test_assigned_actions_have_the_local_epsilon_that_the_page_says_and_no_less_than_by_the_clones() -> None:
    assert len(GAINS) == 6
    for clients, epsilon, *shown in GAINS:
        n = int(clients.replace(",", ""))
        spec = MechanismSpec(name="shuffled-laplace", epsilon=float(epsilon), delta=1e-6)
        mechanism = planned(spec, n, assigned=True)
        assert isinstance(mechanism, ShuffledLaplace)
        clones = clones_local_epsilon(float(epsilon), 1e-6, n)
        assert [f"{clones:.3f}", f"{mechanism.local:.3f}"] == shown
        assert clones < mechanism.local
        assert mechanism.privacy().promise.epsilon == float(epsilon)

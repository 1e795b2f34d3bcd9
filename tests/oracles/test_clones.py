"""Tests amplification of any pure randomizer, and the papers' closed forms, by enumeration and with 60 digits."""

import math

import mpmath
import numpy as np
import pytest

from distrust.common.dp.accounting.techniques.amplification.clones import (
    _below,
    clones_delta,
    clones_epsilon,
    clones_local_epsilon,
    gaussian_noise,
    gaussian_promise,
    largest_local_epsilon,
    paper_local_epsilon,
)
from distrust.common.errors import BadParameter
from tests.support.randomizers import blanket_delta, paper_epsilon, tabulated
from tests.support.shuffled_laws import DELTA, random_table, true_delta


def clones_oracle(epsilon: float, local_epsilon: float, users: int) -> mpmath.mpf:
    """Return δ(ε) from the two laws of the pair of counts, term by term."""
    p, e = mpmath.exp(mpmath.mpf(local_epsilon)), mpmath.exp(mpmath.mpf(epsilon))
    chance, total = 1 / p, mpmath.mpf(0)
    for c in range(users):
        coins = [mpmath.mpf(0), *(mpmath.binomial(c, a) / mpmath.mpf(2) ** c for a in range(c + 1)), mpmath.mpf(0)]
        moved, still = coins[:-1], coins[1:]
        gaps = (p * x + y - e * (x + p * y) for x, y in zip(moved, still, strict=True))
        weight = mpmath.binomial(users - 1, c) * chance**c * (1 - chance) ** (users - 1 - c)
        total += weight * sum(max(gap, 0) for gap in gaps) / (p + 1)
    return total


@pytest.mark.parametrize(
    ("epsilon", "local_epsilon", "users"),
    [
        *((0.5, 1.0, 1), (0.5, 1.0, 5), (0.2, 3.0, 40), (1.0, 4.0, 80), (0.05, 1.0, 60), (2.9, 3.0, 30)),
        *((0.01, 0.02, 20), (24.99, 24.9901, 3), (49.0, 49.5, 1), (30.0, 30.001, 5)),
        *((1e-12, 1e-9, 1), (0.99999e-4, 1e-4, 1), (0.9999999, 1.0, 1), (0.99999e-4, 1e-4, 7)),
    ],
)
def test_clones_agree_with_sixty_digits_from_above(epsilon: float, local_epsilon: float, users: int) -> None:
    with mpmath.workdps(60):
        exact = clones_oracle(epsilon, local_epsilon, users)
    assert 0 <= float(clones_delta(epsilon, local_epsilon, users) / exact - 1) <= 1e-9


@pytest.mark.parametrize(("users", "first"), [(2, 1), (5, 3), (40, 10), (1000, 300)])
def test_no_range_of_the_number_of_clones_weighs_less_than_its_mass(users: int, first: int) -> None:
    """C ~ Bin(n - 1, p); the first range is {0}, where Chernoff's bound is the mass (1 - p)^(n - 1) itself."""
    chance = 0.4
    starts, bounds = _below(first, users, chance)
    ends = [*starts[1:].astype(int), first]
    masses = [
        mpmath.fsum(
            mpmath.binomial(users - 1, c) * mpmath.mpf(chance) ** c * (1 - mpmath.mpf(chance)) ** (users - 1 - c)
            for c in range(int(start), int(end))
        )
        for start, end in zip(starts, ends, strict=True)
    ]
    assert all(mass <= bound for mass, bound in zip(masses, bounds, strict=True))
    assert float(bounds[0] / masses[0]) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(
    ("seed", "inputs", "outputs", "users"), [(1, 2, 3, 5), (2, 3, 3, 4), (3, 3, 4, 3), (4, 2, 5, 4)]
)
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_shuffled_tables_are_within_both_bounds(seed: int, inputs: int, outputs: int, users: int, share: float) -> None:
    masses = random_table(seed, inputs, outputs)
    local = float(np.log(masses.max(axis=0) / masses.min(axis=0)).max())
    exact = true_delta(masses, users, share * local)
    assert exact > 0
    assert exact <= clones_delta(share * local, local, users)
    assert exact <= blanket_delta(tabulated(masses), share * local, users)


@pytest.mark.parametrize("users", [1, 30, 1000, 10**6])
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_the_inverse_is_safe_and_sharp(users: int, epsilon: float) -> None:
    local = clones_local_epsilon(epsilon, DELTA, users)
    assert local >= epsilon
    assert clones_delta(epsilon, local, users) <= DELTA
    assert clones_epsilon(DELTA, local, users) <= epsilon * (1 + 1e-8)
    assert clones_delta(epsilon, local * (1 + 1e-6), users) > DELTA


@pytest.mark.parametrize(
    ("local_epsilon", "users"), [(0.5, 10**3), (1.0, 10**3), (1.0, 10**4), (2.0, 10**4), (2.0, 10**5), (4.0, 10**5)]
)
def test_the_closed_form_is_three_to_five_times_loose(local_epsilon: float, users: int) -> None:
    form = paper_epsilon(local_epsilon, DELTA, users)
    assert 3 < form / clones_epsilon(DELTA, local_epsilon, users) < 5


@pytest.mark.parametrize(("epsilon", "users"), [(0.01, 10**6), (0.3, 10**4), (0.2, 10**6), (5.0, 10**4), (1.0, 50)])
def test_the_papers_inverse_is_private_and_never_below_epsilon(epsilon: float, users: int) -> None:
    local = paper_local_epsilon(epsilon, DELTA, users)
    assert local >= epsilon
    assert clones_epsilon(DELTA, local, users) <= epsilon
    assert local <= clones_local_epsilon(epsilon, DELTA, users)
    if local > epsilon:
        assert local <= largest_local_epsilon(DELTA, users)
        assert paper_epsilon(local, DELTA, users) <= epsilon


def test_outside_its_range_the_closed_form_is_not_used() -> None:
    """For 100 users the form has a value at ε₀ = 8, but no proof that messages are amplified to it."""
    assert largest_local_epsilon(DELTA, 100) < 0.5
    assert paper_local_epsilon(0.5, DELTA, 100) == 0.5


@pytest.mark.parametrize(("batch", "delta"), [(10**4, 1e-6), (10**6, 1e-6), (2000, 1e-2)])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_theorem_b1_promises_more_than_its_lemma_gives(batch: int, delta: float, part: float) -> None:
    epsilon = part * math.sqrt(math.log(2 / delta) / batch)
    spent, slack = gaussian_promise(epsilon, delta, batch)
    assert 4 < spent / epsilon < 7
    assert 2.5 < slack / delta < 4
    sigma = gaussian_noise(epsilon, delta, batch)
    local = epsilon * math.sqrt(batch / math.log(2 / delta))
    assert sigma == pytest.approx(4 * math.sqrt(2 * math.log(2.5 / (delta / batch))) / local)


def test_the_batches_of_the_papers_experiments_are_outside_of_theorem_b1() -> None:
    with pytest.raises(BadParameter) as caught:
        gaussian_noise(0.2, 0.1, 20)
    assert caught.value.field == "batch"
    with pytest.raises(BadParameter) as caught:
        gaussian_noise(10.0, 0.1, 20)
    assert caught.value.field == "epsilon"


def test_more_users_than_the_law_of_the_clones_has_digits_for_are_refused() -> None:
    assert clones_delta(0.5, 1.0, 10**9) < DELTA
    with pytest.raises(BadParameter, match="users"):
        clones_epsilon(DELTA, 1.0, 10**9 + 1)


def test_an_epsilon_that_was_asked_for_is_said_only_where_it_is_met_and_less() -> None:
    found = clones_epsilon(DELTA, 2.0, 300)
    close, missed = found * (1 - 1e-10), found * (1 - 1e-6)  # the search ends up to a part in 1e9 above the least ε
    assert clones_delta(close, 2.0, 300) <= DELTA < clones_delta(missed, 2.0, 300)
    asked = [clones_epsilon(DELTA, 2.0, 300, requested=one) for one in (close, missed, 2 * found)]
    assert asked == [close, found, found]

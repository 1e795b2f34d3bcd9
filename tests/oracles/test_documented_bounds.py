"""Tests the probabilities that docs/concepts/privacy/aggregator.md states, by their formulas."""

from math import comb, floor, log2
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import hypergeom

from distrust.aggregator.confirmation import Sharing, _settle
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, members_to_bitmap
from distrust.common.protocol.crypto.parameters import (
    densest_loss,
    holders_needed,
    neighbourhood,
    split_bound,
    starved_bound,
    window,
)
from distrust.common.protocol.crypto.share import PRIME
from distrust.lab.secagg_simulation import make_cohort

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "privacy" / "aggregator.md").read_text()
WORDS = " ".join(PAGE.split())
RATE = 0.1  # d and c
LARGE = [round(201 * (10**5 / 201) ** (i / 80)) for i in range(81)]
"""Numbers of clients from 201 to 10⁵, in equal ratios."""
WORST = 708
"""The n with the largest bound on a cut, among all n from 201 to 1999."""


def cut(n: int, k: int, w: int) -> float:
    """Return a bound on the chance that two disjoint runs of k/2 places have k - 2w colluders: w losses empty each."""
    return n**2 / 2 * float(hypergeom.sf(k - 2 * w - 1, n, floor(RATE * n), k))


def against_a_liar(n: int, bound: float) -> tuple[int, int]:
    """Return the smallest k, with its t, at which colluders reach neither t neighbours of a client nor a cut nor w."""
    bad = floor(RATE * n)
    for k in range(2, n - 1, 2):
        t = next(t for t in range(k // 2 + 1, k + 2) if n * hypergeom.sf(t - 1, n - 1, bad, k) <= bound)
        fails = (
            t > k or n * hypergeom.sf(k - t, n - 1, 2 * bad - 1, k) > 2**-20 or starved_bound(n, 2 * bad, k, t) > 2**-20
        )
        if not fails and max(split_bound(n, 2 * bad, k), cut(n, k, densest_loss(n, bad, k))) <= bound:
            return k, t
    raise AssertionError(n)


@pytest.mark.parametrize("n", [50, 100, 400, 1000, 10_000])
def test_the_k_and_t_against_grinding_are_the_smallest_whose_three_bounds_hold_at_2_to_minus_105(n: int) -> None:
    used, needed = neighbourhood(n, RATE, RATE), against_a_liar(n, 2.0**-105)
    assert f"| {n:,} | {used[0]}, {used[1]} | {needed[0]}, {needed[1]} |".replace("1,000 |", "1000 |") in PAGE


def test_colluders_cannot_cut_the_ring_up_to_200_clients_and_rarely_do_above() -> None:
    assert "0 up to n = 200 at 10 % + 10 %, at most 2⁻⁵² from there to 10⁵" in WORDS
    bounds = {
        n: cut(n, neighbourhood(n, RATE, RATE)[0], window(n, RATE, RATE)) for n in [*range(33, 201), WORST, *LARGE]
    }
    assert all(bound == 0 for n, bound in bounds.items() if n <= 200)
    assert max(bounds, key=bounds.__getitem__) == WORST
    assert 2**-53 < bounds[WORST] <= 2**-52


@pytest.mark.parametrize(("n", "power"), [(100, 94), (1000, 56), (100_000, 28)])
def test_shares_off_the_polynomial_are_taken_for_good_ones_as_rarely_as_stated(n: int, power: int) -> None:
    assert "2⁻⁹⁴ at n = 100, 2⁻⁵⁶ at 1000, 2⁻²⁸ at 10⁵" in WORDS
    k, t = neighbourhood(n, RATE, RATE)
    assert floor(-log2(2 * comb(k, t + 1) / (PRIME - 1))) == power


@pytest.mark.parametrize(("n", "stated"), [(100, "0.06"), (400, "0.03"), (1000, "0.02")])
def test_few_honest_dealers_are_left_out_when_all_liars_accuse_them(n: int, stated: str) -> None:
    """A dealer is left out if fewer of its neighbours are honest than it needs holders. No client is lost so far."""
    assert "0.06 of 100, 0.03 of 400, 0.02 of 1000" in WORDS
    (k, t), bad = neighbourhood(n, RATE, RATE), floor(RATE * n)
    needed = holders_needed(n - 1, bad, k, t)
    assert f"{(n - bad) * hypergeom.sf(k - needed, n - 1, bad, k):.2f}" == stated


def test_the_aggregator_leaves_out_as_many_honest_dealers_as_the_formula_says() -> None:
    """1000 cohorts of 100 with 10 random liars that agree with no dealer: 0.060 a cohort, within four deviations."""
    n, bad, cohorts = 100, 10, 1000
    chance, everyone = np.random.default_rng(1), members_to_bitmap(range(n), n)
    roster = Roster(make_cohort(n, 97, 1), everyone, chance.bytes(KEYS_SIZE * n))
    left_out = 0
    for _ in range(cohorts):
        honest = np.ones(n, dtype=np.bool_)
        honest[chance.choice(n, bad, replace=False)] = False
        kept = _settle(Sharing(roster, range(n)), np.ones(n, dtype=np.bool_), honest[roster.table])
        left_out += int((honest & ~kept).sum())
    assert abs(left_out / cohorts - 0.060) < 4 * (0.060 / cohorts) ** 0.5

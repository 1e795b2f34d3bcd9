"""Tests that k and t follow from n and the rates."""

import itertools
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.common.errors import BadParameter
from distrust.common.protocol.crypto.graph import KEYS_SIZE, harary
from distrust.common.protocol.crypto.parameters import (
    densest_loss,
    holders_needed,
    liars_near,
    neighbourhood,
    split_bound,
    starved_bound,
    window,
)
from distrust.common.protocol.crypto.seal import BOX
from distrust.common.protocol.crypto.share import SHARE_SIZE

TABLE = [(50, 22, 12, 5), (100, 38, 20, 9), (400, 64, 33, 15), (1000, 76, 39, 18), (10_000, 94, 48, 22)]
SIZES = [2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 33, 34, 40, 50, 64, 81, 100, 150, 256, 400, 1000, 3001, 10_000, 100_000]
RATES = [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.05, 0.05), (0.1, 0.1), (0.2, 0.1), (0.1, 0.2), (0.25, 0.2), (0.4, 0.4)]


def above(total: int, marked: int, drawn: int, x: int) -> float:
    """Return P(X ≥ x) for the marked among `drawn` of `total`, from integers."""
    rest, x = total - marked, max(x, 0, drawn - total + marked)
    term = comb(marked, x) * comb(rest, drawn - x) if x <= min(drawn, marked) else 0
    ways = 0
    for i in range(x, min(drawn, marked) + 1):
        ways += term
        term = term * (marked - i) * (drawn - i) // ((i + 1) * (rest - drawn + i + 1))
    return ways / comb(total, drawn)


@pytest.mark.parametrize(("n", "k", "t", "w"), TABLE)
def test_ten_and_ten_percent_give_the_documented_numbers(n: int, k: int, t: int, w: int) -> None:
    assert (*neighbourhood(n, 0.1, 0.1), window(n, 0.1, 0.1)) == (k, t, w)


def test_every_n_and_rate_gives_a_majority_threshold_within_all_bounds_or_is_refused() -> None:
    """From 2 to 10⁵ clients: t > k/2, and the three probabilities in exact arithmetic."""
    answered = 0
    for n, (d, c) in itertools.product(SIZES, RATES):
        lost, corrupted = int(d * n), int(c * n)
        try:
            k, t = neighbourhood(n, d, c)
        except BadParameter:
            assert max(corrupted + 1, (n + 1) // 2) > n - 1 - lost - corrupted
            continue
        answered += 1
        assert k // 2 + 1 <= t <= k <= n - 1
        if k == n - 1:
            assert corrupted < t <= k - lost - corrupted
            continue
        gone = lost + corrupted
        assert n > 32
        assert k % 2 == 0
        assert n * above(n - 1, corrupted, k, t) <= 2**-41
        assert split_bound(n, gone, k) <= 2**-41
        assert n * above(n - 1, max(gone - 1, 0), k, k - t + 1) <= 2**-20
        assert starved_bound(n, gone, k, t) <= 2**-20
    assert answered > 150


def test_no_sparser_ring_serves() -> None:
    """The smallest even k: with k - 2 every t above (k - 2)/2 is captured too often, starves too often, or splits."""
    for n, k, _, _ in TABLE:
        corrupted, gone = n // 10, 2 * (n // 10)
        if split_bound(n, gone, k - 2) > 2**-41:
            continue
        for t in range((k - 2) // 2 + 1, k - 1):
            captured, starved = above(n - 1, corrupted, k - 2, t), above(n - 1, gone - 1, k - 2, k - 1 - t)
            crowded = starved_bound(n, gone, k - 2, t)
            assert n * captured > 2**-41 or n * starved > 2**-20 or crowded > 2**-20


def test_random_losses_exceed_w_with_less_than_the_stated_probability() -> None:
    """The union over places, exactly; w - 1 would be exceeded too often, or is too many: half of k."""
    for n, k, _, w in TABLE:
        lost = n // 10
        assert n * above(n, lost, k // 2, w + 1) < 2**-20
        assert w == min(lost, k // 2 - 1) or n * above(n, lost, k // 2, w) >= 2**-20


def test_w_never_lets_a_run_of_half_a_neighbourhood_vanish() -> None:
    """The survivors that one client was told of stay connected, whichever of them the aggregator leaves out."""
    for n, (d, c) in itertools.product(SIZES, RATES):
        try:
            k, w = neighbourhood(n, d, c)[0], window(n, d, c)
        except BadParameter:
            continue
        assert w == int(d * n) if k == n - 1 else w < k // 2
    assert [densest_loss(1000, 450, k) for k in (4, 10, 20)] == [1, 4, 9]  # too sparse for so many losses


def test_in_the_full_graph_false_dealers_holders_and_losses_leave_t_good_shares() -> None:
    """B + 1 liars in all: a dealer that stays has t + losses + B holders, of which losses and B may fail."""
    for n in range(2, 33):
        for d in (0.0, 0.1, 0.2):
            k, t = neighbourhood(n, d, 0.1)
            lost = int(d * n)
            b = liars_near(n, lost, k, t)
            assert b + 1 >= int(0.1 * n) or d + 0.2 > 0.5 - 1 / n
            assert t + lost + b <= max(k - b - 1, t + lost)
            assert holders_needed(n - 1, lost, k, t) == t + lost


@pytest.mark.parametrize(("n", "k", "t"), [row[:3] for row in TABLE])
def test_the_holders_that_a_dealer_needs_outlast_random_losses(n: int, k: int, t: int) -> None:
    lost = n // 10
    needed = holders_needed(n - 1, lost, k, t)
    assert above(n - 1, lost, needed, needed - t + 1) < 2**-20
    assert needed == t or above(n - 1, lost, needed - 1, needed - t) >= 2**-20
    assert holders_needed(n - 1, 0, k, t) == t


@pytest.mark.parametrize(("n", "k", "t"), [row[:3] for row in TABLE])
def test_more_liars_than_b_around_one_client_are_as_rare_as_stated(n: int, k: int, t: int) -> None:
    """For the ⌊cn⌋ that k and t were chosen for; B may count a few more, as c is not known where it is used."""
    assert n * above(n - 1, n // 10, k, liars_near(n, n // 10, k, t) + 1) < 2**-20


@pytest.mark.parametrize(("n", "lost", "k", "t"), [(12, 4, 4, 2), (12, 3, 6, 4), (10, 5, 4, 3), (11, 2, 2, 1)])
def test_the_bound_on_starving_covers_every_way_to_lose_clients(n: int, lost: int, k: int, t: int) -> None:
    table = harary(np.arange(n), k)
    starved = 0
    for gone in itertools.combinations(range(n), lost):
        left = ~np.isin(table, gone)
        starved += bool((left.sum(axis=1) < t).any())
    exact = starved / comb(n, lost)
    assert exact <= starved_bound(n, lost, k, t) + 1e-12
    assert starved_bound(n, lost, k, t) <= n * exact + 1e-12


@pytest.mark.parametrize(("n", "removed", "k"), [(12, 4, 4), (12, 6, 4), (10, 4, 2), (14, 6, 6)])
def test_the_bound_on_splitting_covers_every_way_to_remove_clients(n: int, removed: int, k: int) -> None:
    table = harary(np.arange(n), k)
    split = 0
    for gone in itertools.combinations(range(n), removed):
        left = [v for v in range(n) if v not in gone]
        reached, frontier = {left[0]}, [left[0]]
        while frontier:
            near = [v for v in table[frontier.pop()].tolist() if v not in gone and v not in reached]
            reached |= set(near)
            frontier += near
        split += len(reached) < len(left)
    assert split / comb(n, removed) <= split_bound(n, removed, k) + 1e-12


@pytest.mark.parametrize(("n", "k", "t"), [(2, 1, 1), (3, 2, 2), (4, 3, 2), (8, 7, 4), (32, 31, 16)])
def test_small_cohorts_have_the_full_graph(n: int, k: int, t: int) -> None:
    assert neighbourhood(n, 0.1, 0.1) == (k, t)


@settings(deadline=None, max_examples=150)
@given(st.integers(2, 3000), st.floats(0, 0.49), st.floats(0, 0.49), st.floats(0, 1))
def test_every_answer_stands_its_own_rates_or_is_refused_by_name(n: int, d: float, c: float, share: float) -> None:
    least = int(share * n)
    try:
        k, t = neighbourhood(n, d, c, least)
    except BadParameter:
        left = max(n - int(d * n), least) - 1 - int(c * n)
        assert max(int(c * n) + 1, (n + 1) // 2) > left  # not even everyone's threshold
        return
    lost, corrupted = n - max(n - int(d * n), least), int(c * n)
    assert 1 <= t <= k <= n - 1
    assert 2 * t > k
    assert k == n - 1 or k % 2 == 0
    if k == n - 1:
        assert corrupted < t <= n - 1 - lost - corrupted


def test_a_higher_minimum_counts_fewer_losses() -> None:
    assert neighbourhood(1000, 0.1, 0.1, 1000)[0] < neighbourhood(1000, 0.1, 0.1)[0]
    assert neighbourhood(1000, 0.1, 0.1, 3) == neighbourhood(1000, 0.1, 0.1)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((1, 0.1, 0.1, 0), "clients"),
        ((10, 0.5, 0.1, 0), "dropout"),
        ((10, -0.1, 0.1, 0), "dropout"),
        ((10, float("nan"), 0.1, 0), "dropout"),
        ((10, 0.1, 0.5, 0), "corrupt"),
        ((10, 0.1, 0.1, 11), "min_survivors"),
        ((3, 0.4, 0.4, 0), "corrupt"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: tuple[int, float, float, int], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        neighbourhood(*arguments)
    assert caught.value.field == field


def test_the_documented_costs_are_those_of_the_code() -> None:
    """The table at the end of docs/concepts/privacy/aggregator.md: n, k, t, w, B, bytes that one client sends."""
    text = (Path(__file__).parents[5] / "docs/concepts/privacy/aggregator.md").read_text("utf-8")
    lines = text.partition("| n | k | t | w | B | bytes sent |\n")[2].splitlines()[1:]
    rows = [[int(cell.replace(",", "")) for cell in line.strip("| ").split(" | ")] for line in lines if line[:1] == "|"]
    assert len(rows) == 9
    for n, *documented in rows:
        k, t = neighbourhood(n, 0.1, 0.1)
        sent = KEYS_SIZE + 32 + BOX * k + SHARE_SIZE * (t + k) + SHARE_SIZE * k
        assert documented == [k, t, window(n, 0.1, 0.1), liars_near(n, n // 10, k, t), sent]

"""k and t from n and the rates."""

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.crypto.graph import harary
from common.crypto.parameters import neighbourhood, split_bound, starved_bound
from common.errors import BadParameter

TABLE = [(50, 12, 6), (100, 20, 11), (400, 40, 23), (1000, 46, 27), (10_000, 54, 31)]


@pytest.mark.parametrize(("n", "k", "t"), TABLE)
def test_ten_and_ten_percent_give_the_published_numbers(n: int, k: int, t: int) -> None:
    assert neighbourhood(n, 0.1, 0.1) == (k, t)


@pytest.mark.parametrize(("n", "k", "t"), TABLE)
def test_every_bound_holds_in_exact_arithmetic(n: int, k: int, t: int) -> None:
    corrupted = lost = n // 10
    captured = sum(comb(corrupted, x) * comb(n - 1 - corrupted, k - x) for x in range(t, k + 1))
    assert n * captured * 2**41 <= comb(n - 1, k)
    assert split_bound(n, corrupted + lost, k) <= 2**-41
    assert starved_bound(n, lost, k, t) <= 2**-20


@pytest.mark.parametrize(("n", "k", "t"), TABLE)
def test_no_sparser_ring_serves(n: int, k: int, t: int) -> None:
    """The smallest even k: with k - 2 every t is captured too often or starves too often (in the paper's count)."""
    corrupted = lost = n // 10
    for t_ in range(1, k - 1):
        captured = sum(comb(corrupted, x) * comb(n - 1 - corrupted, k - 2 - x) for x in range(t_, k - 1))
        starved = sum(comb(lost - 1, x) * comb(n - lost, k - 2 - x) for x in range(k - 1 - t_, k - 1))
        split = split_bound(n, corrupted + lost, k - 2)
        assert n * captured * 2**41 > comb(n - 1, k - 2) or n * starved * 2**20 > comb(n - 1, k - 2) or split > 2**-41


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


@pytest.mark.parametrize(("n", "k", "t"), [(2, 1, 1), (3, 2, 1), (4, 3, 2), (8, 7, 4), (32, 31, 16)])
def test_small_cohorts_have_the_full_graph(n: int, k: int, t: int) -> None:
    assert neighbourhood(n, 0.1, 0.1) == (k, t)


@settings(deadline=None, max_examples=300)
@given(st.integers(2, 3000), st.floats(0, 0.49), st.floats(0, 0.49), st.floats(0, 1))
def test_every_answer_stands_its_own_rates_or_is_refused_by_name(n: int, d: float, c: float, share: float) -> None:
    least = int(share * n)
    try:
        k, t = neighbourhood(n, d, c, least)
    except BadParameter:
        assert int(c * n) + 1 > n - 1 - (n - max(n - int(d * n), least))  # not even everyone's threshold
        return
    lost, corrupted = n - max(n - int(d * n), least), int(c * n)
    assert 1 <= t <= k <= n - 1
    assert 2 * t >= k
    assert k == n - 1 or k % 2 == 0
    if k == n - 1:
        assert corrupted < t <= n - 1 - lost


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
        ((10, 0.1, 0.1, 11), "least"),
        ((3, 0.4, 0.4, 0), "corrupt"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: tuple[int, float, float, int], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        neighbourhood(*arguments)
    assert caught.value.field == field

"""Tests the worst case of a sum of coins: no chances exceed it, equal ones reach it, each proof step holds."""

import itertools
import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import stats

from distrust.common.dp.noise.coins import MOST_EXACT, WorstTails, worst_quantile
from distrust.common.errors import BadParameter


def beyond(chances: np.ndarray, w: float) -> float:
    """Return P(|S - μ| > w) of independent coins, convolved coin by coin."""
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1 - chance, chance])
    return float(law[np.abs(np.arange(law.size) - chances.sum()) > w].sum())


def equal(n: int, least: float, w: float) -> tuple[float, float]:
    """Return the largest T(w) over equal chances, and the mean where it is.

    All ends of intervals are tried, and points beyond them by 1e-12.
    """
    k = np.arange(-n, 2 * n + 1)
    means = np.concatenate([k + sign * w + side for sign in (-1, 1) for side in (-1e-12 * n, 1e-12 * n)])
    means = np.clip(np.append(means, [n * least, n * (1 - least)]), n * least, n * (1 - least))
    low, high = np.ceil(means - w) - 1, np.floor(means + w) + 1
    tails = stats.binom.cdf(low, n, means / n) + stats.binom.sf(high - 1, n, means / n)
    return float(tails.max()), float(means[tails.argmax()])


def data(n: int, least: float, count: int) -> np.ndarray:
    """Return chances of all kinds, shape (3·count, n): uniform, at the ends with one in between, nearly equal."""
    rng = np.random.default_rng(n)
    ends = rng.choice([least, 0.5, 1 - least], (count, n))
    ends[:, 0] = rng.uniform(least, 1 - least, count)
    near = np.clip(rng.uniform(least, 1 - least, (count, 1)) + rng.normal(0, 0.02, (count, n)), least, 1 - least)
    return np.concatenate([rng.uniform(least, 1 - least, (count, n)), ends, near])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 12])
def test_no_chances_pass_the_quantile(n: int) -> None:
    chances_below = (0.97, 0.6, 0.3, 0.2, 0.05, 1e-3, 1e-6, 1e-12)
    for least, p in itertools.product((1e-9, 0.1, 0.27, 0.4, 0.4999), chances_below):
        w = worst_quantile(n, least, p)
        assert max(beyond(chances, w) for chances in data(n, least, 60)) <= p * (1 + 1e-9), (least, p)


@pytest.mark.parametrize("n", [2, 3, 12, 100, 999])
def test_equal_chances_reach_the_quantile(n: int) -> None:
    """A billionth less and p is passed, by the maximum over every interval of chances; a billionth more: not."""
    for least, p in itertools.product((1e-9, 0.1, 0.2689, 0.45, 0.4999), (0.2, 1e-3, 1e-6, 1e-12)):
        w = worst_quantile(n, least, p)
        assert equal(n, least, w * (1 + 1e-9))[0] <= p * (1 + 1e-7), (least, p)
        assert equal(n, least, w * (1 - 1e-9))[0] > p * (1 - 1e-7), (least, p)


@pytest.mark.parametrize("least", [0.05, 0.4])
@pytest.mark.parametrize("n", [60, 400])
def test_the_far_tail_is_that_of_fifty_digits(n: int, least: float) -> None:
    w = worst_quantile(n, least, 1e-12)
    _, mean = equal(n, least, w * (1 - 1e-9))
    with mpmath.workdps(50):
        x = mpmath.mpf(mean) / n

        def tail(width: float) -> mpmath.mpf:
            far = (k for k in range(n + 1) if abs(k - n * x) > width)
            return mpmath.fsum(mpmath.binomial(n, k) * x**k * (1 - x) ** (n - k) for k in far)

        assert tail(w * (1 - 1e-8)) > 1e-12
        assert tail(w * (1 + 1e-8)) <= mpmath.mpf(1e-12) * (1 + mpmath.mpf(10) ** -6)


@pytest.mark.parametrize("n", [2, 5, 31, 500])
@pytest.mark.parametrize("least", [0.0, 0.01, 0.3, 0.499])
def test_the_maximum_between_the_tops_is_the_whole_maximum(n: int, least: float) -> None:
    for w in np.random.default_rng(n).uniform(1, 1 + 4 * math.sqrt(n), 12):
        assert WorstTails(n, least).beyond(float(w)) == pytest.approx(
            equal(n, least, float(w))[0], rel=1e-6, abs=1e-300
        )


@pytest.mark.parametrize("w", [1.0, 1.5, 2.3, 6.0, 17.9])
@pytest.mark.parametrize("n", [5, 20, 43])
def test_short_tails_rise_and_then_fall(n: int, w: float) -> None:
    """Point 3 of the proof, in 40 digits."""
    with mpmath.workdps(40):
        tails = []
        for k in range(math.ceil(n - w)):
            x = (k + mpmath.mpf(w)) / n
            tails.append(mpmath.fsum(mpmath.binomial(n, i) * x**i * (1 - x) ** (n - i) for i in range(k + 1)))
        rises = [later > tail for tail, later in pairwise(tails)]
    assert rises == sorted(rises, reverse=True)


def test_one_coin_is_off_by_the_rarer_side() -> None:
    """Chance x: off by 1 - x with probability x, so that at p = 0.1 the worst is x just below 0.9 … or the end."""
    assert worst_quantile(1, 0.01, 0.1) == pytest.approx(0.9)
    assert worst_quantile(1, 0.2, 0.1) == pytest.approx(0.8)
    assert worst_quantile(1, 0.2, 0.9) == pytest.approx(0.5)


@pytest.mark.parametrize("p", [1e-12, 1e-6, 1e-3])
def test_many_coins_have_the_normal_quantile(p: float) -> None:
    """Ten million: within a count and a part in a million of fair coins' normal quantile."""
    normal = stats.norm.isf(p / 2) * math.sqrt(MOST_EXACT) / 2
    assert worst_quantile(MOST_EXACT, 0.3, p) == pytest.approx(normal, rel=1e-6, abs=1)


@pytest.mark.parametrize("p", [0.0, 1.0, 1e-19, math.nan])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(BadParameter, match="p"):
        worst_quantile(10, 0.3, p)

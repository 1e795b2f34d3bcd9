"""Tests ε and quantiles of binomial noise that is too long to be stored, against forty digits and stored laws."""

import math

import mpmath
import pytest

from distrust.common.dp.accounting.laws.binomial import long_epsilon
from distrust.common.dp.accounting.techniques.hockey_stick import epsilon_at
from distrust.common.dp.mechanisms.shuffled.binomial import LONG
from distrust.common.dp.noise.binomial import Binomial
from tests.support.calculator import answer, read

DIGITS = 40


def below(trials: int, chance: mpmath.mpf, k: int) -> mpmath.mpf:
    """Return P(Bin(trials, chance) ≤ k): the probability of k times the sum's continued fraction, after Lentz."""
    if k + 1 > trials * chance:
        return 1 - below(trials, 1 - chance, trials - k - 1)
    a, b, x = mpmath.mpf(trials - k), mpmath.mpf(k + 1), 1 - chance
    logs = mpmath.loggamma(a + b) - mpmath.loggamma(a + 1) - mpmath.loggamma(b) + a * mpmath.log(x)
    up, down, m = mpmath.mpf(1), 1 / (1 - (a + b) * x / (a + 1)), 0
    value, last = down, mpmath.mpf(2)
    while abs(last - 1) > mpmath.mpf(10) ** (6 - DIGITS):
        m += 1
        last = mpmath.mpf(1)
        for term in (m * (b - m) / (a + 2 * m - 1), -(a + m) * (a + b + m) / (a + 2 * m + 1)):
            step = term * x / (a + 2 * m)
            down, up = 1 / (1 + step * down), 1 + step / up
            last *= down * up
        value *= last
    return mpmath.exp(logs + b * mpmath.log(chance)) * value


def delta_at(epsilon: mpmath.mpf, trials: int, chance: float, shift: int) -> mpmath.mpf:
    """Return δ(ε), the larger of both directions: a sum up to the last count that is e^ε times likelier unshifted."""

    def one_way(p: mpmath.mpf) -> mpmath.mpf:
        def log_ratio(k: int) -> mpmath.mpf:
            terms = (k - shift + 1, trials - k + shift + 1), (k + 1, trials - k + 1)
            logs = [mpmath.loggamma(ones) + mpmath.loggamma(zeros) for ones, zeros in terms]
            return logs[0] - logs[1] + shift * mpmath.log(p / (1 - p))

        low, high = shift, trials
        while high - low > 1:
            k = (low + high) // 2
            low, high = (k, high) if log_ratio(k) > epsilon else (low, k)
        return below(trials, p, low) - mpmath.exp(epsilon) * below(trials, p, low - shift)

    return max(one_way(mpmath.mpf(chance)), one_way(1 - mpmath.mpf(chance)))


@pytest.mark.parametrize(
    ("trials", "chance", "shift", "delta"),
    [
        (6 * 10**9, 0.5, 100, 1e-6),
        (10**10, 0.49, 30, 1e-8),
        (10**10, 0.01, 300, 1e-12),
        (10**12, 0.4999, 1000, 1e-8),
        (10**13, 0.5, 3, 1e-9),
        (10**11, 0.5, 20_000, 0.02),
        (10**8, 0.3, 20_000, 1e-17),
        (10**8, 0.3, 60_000, 0.3),
    ],
)
@pytest.mark.few(3)
def test_epsilon_is_that_of_forty_digits_to_nine_and_never_below_it(
    trials: int, chance: float, shift: int, delta: float
) -> None:
    epsilon = long_epsilon(trials, chance, shift, delta)
    assert 0 < epsilon < math.inf
    with mpmath.workdps(DIGITS):
        assert delta_at(mpmath.mpf(epsilon), trials, chance, shift) <= delta
        assert delta_at(mpmath.mpf(epsilon) * (1 - mpmath.mpf("1e-9")), trials, chance, shift) > delta


@pytest.mark.parametrize(("chance", "shift", "delta"), [(0.5, 40, 1e-6), (0.2, 3, 1e-4), (0.77, 9000, 1e-9)])
def test_epsilon_is_that_of_the_stored_law(chance: float, shift: int, delta: float) -> None:
    trials = math.ceil(1.5 * LONG / (chance * (1 - chance)))
    stored = epsilon_at(Binomial(trials, chance).pmf(), shift, delta)
    assert long_epsilon(trials, chance, shift, delta) == pytest.approx(stored, rel=1e-9)


def test_where_there_is_no_epsilon_none_is_found() -> None:
    assert math.isinf(long_epsilon(10**10, 0.5, 10**8, 1e-6))
    assert math.isinf(long_epsilon(10**10, 0.5, 2**31, 1e-6))
    assert long_epsilon(10**10, 0.5, 1, 1e-3) == 0


@pytest.mark.parametrize("p", [0.5, 1e-3, 1e-12, 1e-15])
@pytest.mark.parametrize(("trials", "chance"), [(10**10, 0.5), (10**10, 0.01), (10**12, 0.4999)])
@pytest.mark.few(5)
def test_a_quantile_is_the_least_of_forty_digits(trials: int, chance: float, p: float) -> None:
    law = Binomial(trials, chance)
    q = law.quantile(p)
    with mpmath.workdps(DIGITS):
        mean, share = mpmath.mpf(law.mean), mpmath.mpf(chance)

        def beyond(far: mpmath.mpf) -> mpmath.mpf:
            """Return P(|X - mean| ≥ far)."""
            low, high = int(mpmath.floor(mean - far)), int(mpmath.ceil(mean + far))
            return below(trials, share, low) + below(trials, 1 - share, trials - high)

        assert beyond(mpmath.mpf(q)) > p * (1 - 2e-9)
        assert beyond(mpmath.mpf(q) + mpmath.mpf("1e-3")) <= p


@pytest.mark.parametrize(
    ("clients", "epsilon", "delta", "true", "middle"),
    [
        (10**4, 0.1, 1e-8, 0.00690, 395.6),
        (10**6, 0.1, 1e-8, 0.00690, 395.6),
        (10**6, 1.0, 1e-6, 0.0693, 34.47),
    ],
)
def test_the_papers_constants_are_shown_as_they_are_however_many_bits_they_take(
    clients: int, epsilon: float, delta: float, true: float, middle: float
) -> None:
    result = read(answer("shuffled-binomial", clients=clients, epsilon=epsilon, delta=delta))
    paper = result["paper"]
    assert paper["guarantee"]["epsilon"] == pytest.approx(true, rel=1e-3)
    assert paper["profile"]["approximate"]["how"] == "exact"
    assert (paper["error"]["quantiles"][0], paper["error"]["quantiles_how"]) == (
        [0.5, pytest.approx(middle, rel=2e-4)],
        "exact",
    )

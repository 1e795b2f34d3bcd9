"""Tests that quantiles of long sums of discrete Laplace noise are those of the exact law."""

import math
from fractions import Fraction

import pytest

from distrust.common.dp.noise import law
from distrust.common.dp.noise.law import symmetric_quantile
from distrust.common.dp.noise.polya import LEAST_SHAPE, PolyaDifference, PolyaTails, polya_difference_logs

LEVELS = (0.9, 0.5, 0.01, 1e-6, 1e-12, 1e-15)


@pytest.mark.parametrize("p", LEVELS)
@pytest.mark.parametrize(
    ("shape", "scale"), [(1000, 100.0), (30_000, 25.0), (Fraction(41, 2), 1500.0), (LEAST_SHAPE, 1000.0)]
)
def test_quantiles_are_those_of_the_stored_law(shape: float, scale: float, p: float) -> None:
    noise = PolyaDifference(Fraction(shape), scale)
    stored = noise.quantile(p)
    assert PolyaTails(float(shape), scale).quantile(p, math.ceil(4 * stored) + 1) == stored


@pytest.mark.parametrize("shape", [200, 3000])
def test_quantiles_of_a_law_too_long_to_be_stored_are_exact(shape: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = PolyaDifference(Fraction(shape), 90_000 / math.sqrt(shape))
    result = [noise.quantile(p) for p in LEVELS]
    assert noise.quantile_how == "exact"
    with monkeypatch.context() as patched:
        patched.setattr(law, "LIMIT", 1 << 22)
        stored = polya_difference_logs.__wrapped__(noise.shape, noise.scale)
    assert stored.size > law.LIMIT
    assert result == [symmetric_quantile(stored, law.LOST, p) for p in LEVELS]


def test_a_million_terms_are_nearly_gaussian() -> None:
    noise = PolyaDifference(Fraction(10**6), 1000.0)
    assert noise.quantile(1e-3) == pytest.approx(3.2905267314919 * noise.std, rel=1e-5)
    assert noise.quantile(1e-3) == math.floor(noise.quantile(1e-3))


def test_where_the_terms_are_not_smooth_the_quantile_is_a_bound_and_says_so() -> None:
    noise = PolyaDifference(Fraction(3, 2), 100_000.0)
    assert noise.quantile_how == "bound"
    assert noise.quantile(1e-6) > 100_000 * math.log(1e6)

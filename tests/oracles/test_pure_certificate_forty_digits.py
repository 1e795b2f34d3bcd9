"""Tests the certificate of bits with an escape mode from the definition, with forty digits, for all counts and pairs.

Each user escapes with probability q to a uniform number of ones in {0..d}, and sends c + x̂ + γ⁺ - γ⁻ ones otherwise.
γ± are Pólya(1/t, β) given that they are at most W. Given that k of the others escape the sum's law is a convolution.
"""

import itertools
from collections.abc import Iterator

import mpmath
import pytest

from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.shuffled.pure import RelaxedSecaggShuffle, fewest_bits
from distrust.common.dp.mechanisms.shuffled.pure_certificate import BitDesign, certified_epsilon, pair_epsilon
from distrust.common.errors import BadParameter
from tests.support.exact_laws import Law, convolution
from tests.support.planned import planned

NINE_DIGITS = 1e-9


@pytest.fixture(autouse=True)
def _forty_digits() -> Iterator[None]:
    with mpmath.workdps(40):
        yield


def noise(design: BitDesign) -> Law:
    """Return the law of γ⁺ - γ⁻ from -W to W."""
    r, beta = mpmath.mpf(1) / design.share, mpmath.exp(-1 / mpmath.mpf(design.scale))
    masses = [mpmath.rf(r, v) / mpmath.factorial(v) * beta**v for v in range(design.reach + 1)]
    one = [mass / mpmath.fsum(masses) for mass in masses]
    return convolution(one, one[::-1])


def uniform(design: BitDesign) -> Law:
    return [mpmath.mpf(1) / (design.length + 1)] * (design.length + 1)


def user(design: BitDesign, value: int) -> Law:
    """Return the law of the ones that a user sends for x̂ = value."""
    law = [mpmath.mpf(design.escape) * mass for mass in uniform(design)]
    start = (design.length - design.precision) // 2 + value - design.reach
    for i, mass in enumerate(noise(design)):
        law[start + i] += (1 - mpmath.mpf(design.escape)) * mass
    return law


def others(design: BitDesign, normal: int, escaped: int) -> Law:
    """Return the law of the others' ones, up to a translation by their x̂."""
    law = [mpmath.mpf(1)]
    for one in [noise(design)] * normal + [uniform(design)] * escaped:
        law = convolution(law, one)
    return law


def ratio(design: BitDesign, normal: int, escaped: int) -> mpmath.mpf:
    """Return the largest |ln p/p'| over all counts and all pairs of x̂."""
    rest = others(design, normal, escaped)
    laws = [convolution(user(design, x), rest) for x in range(design.precision + 1)]
    pairs = (zip(one, other, strict=True) for one, other in itertools.combinations(laws, 2))
    return max(abs(mpmath.log(a / b)) for pair in pairs for a, b in pair)


RELEASES = [
    pytest.param(4, 1, 1.0, 1e-2, id="four-users"),
    pytest.param(6, 1, 1.0, 1e-3, id="six-users"),
    pytest.param(6, 2, 2.0, 1e-4, id="six-users-of-two-steps"),
]


@pytest.mark.parametrize(("users", "precision", "epsilon", "chance"), RELEASES)
def test_what_is_certified_is_the_largest_ratio_to_nine_digits(
    users: int, precision: int, epsilon: float, chance: float
) -> None:
    """All users are honest. The largest ratio is over every number k of escapes among the others."""
    design = fewest_bits(epsilon, users, precision, chance / users)
    truth = max(ratio(design, users - 1 - k, k) for k in range(users))
    certified = certified_epsilon(design, users)
    assert truth <= certified <= truth * (1 + NINE_DIGITS)
    assert certified <= epsilon


@pytest.mark.parametrize("honest", [1, 2, 3, 4])
@pytest.mark.few(2)
def test_with_fewer_honest_users_than_the_noise_counts_on_it_still_is(honest: int) -> None:
    design = BitDesign(1, 6, 1.25, 32, 65, 1e-4)
    for escaped in range(honest):
        truth = ratio(design, honest - 1 - escaped, escaped)
        assert truth <= pair_epsilon(design, honest - 1 - escaped, escaped) <= truth * (1 + 1e-6)
    truth = max(ratio(design, honest - 1 - k, k) for k in range(honest))
    assert truth <= certified_epsilon(design, honest) <= truth * (1 + NINE_DIGITS)


@pytest.mark.parametrize("escaped", [0, 1, 4])
def test_where_the_tail_decides_the_certificate_stays_above(escaped: int) -> None:
    """With so few bits the certificate bounds the escape's effect on the far tail, and is above the true ratio."""
    design = BitDesign(3, 5, 1.7, 16, 35, 2e-4)
    assert ratio(design, 4 - escaped, escaped) < pair_epsilon(design, 4 - escaped, escaped)


def test_the_paper_s_constants_are_refused_because_none_are_printed() -> None:
    fields = {"name": "relaxed-secagg-shuffle", "epsilon": 1.0, "calibration": "paper"}
    spec = MechanismSpec.model_validate(fields)
    with pytest.raises(BadParameter, match=r"must be exact: .* no paper here prints its constants") as caught:
        planned(spec, 50)
    assert (caught.value.field, caught.value.value) == ("mechanism.calibration", "paper")
    exact = spec.model_copy(update={"calibration": "exact"})
    assert isinstance(
        planned(exact, 50),
        RelaxedSecaggShuffle,
    )

"""Tests the certificate of labelled bits with an escape mode against laws that are computed in full."""

import itertools
import math
import time
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.statistics import BoundedVector
from distrust.common.dp.mechanisms import MechanismSpec
from distrust.common.dp.mechanisms.shuffled.pure import fewest_bits
from distrust.common.dp.mechanisms.shuffled.pure_certificate import (
    BitDesign,
    certified_epsilon,
    difference_law,
    pair_epsilon,
    splits,
    window_sums,
)
from distrust.common.dp.noise.polya import PolyaDifference
from distrust.common.errors import BadParameter
from tests.support.planned import planned

Array = NDArray[np.float64]
SMALL = [
    pytest.param(BitDesign(2, 3, 1.5, 6, 14, 1e-2), id="three-shares"),
    pytest.param(BitDesign(1, 4, 1.0, 8, 17, 1e-3), id="four-shares-of-bits"),
    pytest.param(BitDesign(3, 2, 4.0, 9, 25, 1e-2), id="spare-bits"),
    pytest.param(BitDesign(2, 1, 2.0, 5, 12, 0.2), id="frequent-escapes"),
]


def user(design: BitDesign, value: int) -> Array:
    """Return the law of one user's ones from the definition, without its constant shift."""
    one = design.one_sided()
    noise = np.convolve(one, one[::-1])
    law = np.full(design.length + 1, design.escape / (design.length + 1))
    start = design.center + value - design.reach
    law[start : start + noise.size] += (1 - design.escape) * noise
    return law


def normal(design: BitDesign) -> Array:
    one = design.one_sided()
    return np.convolve(one, one[::-1])


def given_modes(design: BitDesign, value: int, others: int, escaped: int) -> Array:
    """Return the whole law of the count of ones. The others' values are 0, and `escaped` of them are in escape mode."""
    law = user(design, value)
    for _ in range(others - escaped):
        law = np.convolve(law, normal(design))
    for _ in range(escaped):
        law = np.convolve(law, np.full(design.length + 1, 1 / (design.length + 1)))
    return law


def farthest(one: Array, other: Array) -> float:
    return float(np.abs(np.log(one) - np.log(other)).max())


@pytest.mark.parametrize("design", SMALL)
@pytest.mark.parametrize(("others", "escaped"), [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 3)])
def test_the_ends_of_the_grid_are_the_worst_pair(design: BitDesign, others: int, escaped: int) -> None:
    laws = [given_modes(design, x, others, escaped) for x in range(design.precision + 1)]
    ends = farthest(laws[0], laws[-1])
    assert max(farthest(*pair) for pair in itertools.combinations(laws, 2)) <= ends * (1 + 1e-12)


@pytest.mark.parametrize("design", SMALL)
def test_no_dataset_of_others_beats_the_certificate(design: BitDesign) -> None:
    """The law is the released one: no party knows the modes, and the others hold any values."""
    honest = min(3, design.share)
    bound = certified_epsilon(design, honest)
    for rest in itertools.product(range(design.precision + 1), repeat=honest - 1):
        laws = [user(design, 0), user(design, design.precision)]
        for value in rest:
            laws = [np.convolve(law, user(design, value)) for law in laws]
        assert farthest(*laws) <= bound


def with_offset(design: BitDesign, value: int, escaped: int, others: int, offset: int) -> Array:
    """Return the law of `given_modes`, with `offset` ones instead of c in normal mode."""
    law = np.full(design.length + 1, design.escape / (design.length + 1))
    start = offset + value - design.reach
    law[start : start + 2 * design.reach + 1] += (1 - design.escape) * normal(design)
    for _ in range(others - escaped):
        law = np.convolve(law, normal(design))
    for _ in range(escaped):
        law = window_sums(law, design.length + 1) / (design.length + 1)
    return law


@pytest.mark.parametrize(
    ("chance", "first", "centred"),
    [pytest.param(1e-3, 1.08, 1.063, id="1e-3"), pytest.param(1e-6, 1.16, 1.088, id="1e-6")],
)
def test_the_first_computations_are_reproduced_and_the_centre_is_better(
    chance: float, first: float, centred: float
) -> None:
    """n = 16, ε = 1, g = 4, W = 133, d = 1066. The first proposal had W ones for a zero, which uses d unevenly."""
    design = BitDesign(precision=4, share=16, scale=4.0, reach=133, length=1066, escape=chance / 16)
    pairs = ([with_offset(design, x, k, 15, design.reach) for x in (0, 4)] for k in range(16))
    assert max(farthest(*pair) for pair in pairs) == pytest.approx(first, abs=0.005)
    assert certified_epsilon(design, 16) == pytest.approx(centred, abs=0.0005)


def test_without_escapes_to_hide_the_tail_nothing_is_claimed() -> None:
    enough = BitDesign(1, 50, 1.0, 25, 51, 1e-9)
    short = BitDesign(1, 50, 1.0, 12, 25, 1e-9)
    assert certified_epsilon(enough, 50) < 1.1
    assert certified_epsilon(short, 50) > 8


def test_a_known_number_of_escapes_is_never_safer_with_fewer_users() -> None:
    design = BitDesign(2, 40, 2.0, 60, 122, 1e-8)
    values = [certified_epsilon(design, honest) for honest in (1, 2, 5, 10, 20, 40, 80, 1000)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 3 * values[-1]


@pytest.mark.parametrize(
    ("share", "honest"), [(1, 1), (5, 5), (16, 16), (14, 16), (90, 100), (1000, 1000), (998, 10**6)]
)
def test_blocks_leave_no_split_of_the_others_out(share: int, honest: int) -> None:
    design = BitDesign(1, share, 1.0, 30, 61, 1e-9)
    pairs = list(splits(design, honest))
    for escaped in {*range(min(honest, 300)), honest - 1, honest // 2}:
        others = honest - 1 - escaped
        assert any(m <= others and k <= escaped for m, k in pairs)


@pytest.mark.parametrize(
    ("honest", "precision", "epsilon", "longest"),
    [
        pytest.param(16, 4, 1.0, 260, id="few-users"),
        pytest.param(100, 1, 1.0, 60, id="bits-of-a-hundred"),
        pytest.param(1000, 1, 1.0, 60, id="bits-of-a-thousand"),
        pytest.param(1000, 1, 0.1, 600, id="much-noise"),
        pytest.param(10**6, 1, 4.0, 30, id="a-million"),
    ],
)
@pytest.mark.few(2)
def test_the_search_finds_short_answers_and_certifies_them(
    honest: int, precision: int, epsilon: float, longest: int
) -> None:
    design = fewest_bits(epsilon, honest, precision, 1e-6 / honest)
    assert design.length <= longest
    assert 0.9 * epsilon < certified_epsilon(design, honest) <= epsilon
    assert design.uniform_chance() * honest <= 1e-6
    shorter = BitDesign(precision, design.share, design.scale, design.reach - 1, design.length - 2, design.escape)
    assert certified_epsilon(shorter, honest) > epsilon


def test_the_sum_of_shares_agrees_with_fifty_digits_far_out() -> None:
    """t shares have the discrete Laplace law where truncation has no influence; fewer have a Pólya difference's."""
    design = BitDesign(1, 7, 3.0, 400, 801, 1e-3)
    lower, upper = difference_law(design, 7, 300)
    with mpmath.workdps(50):
        for s in (0, 1, 10, 100, 150):
            exact = mpmath.tanh(mpmath.mpf(1) / 6) * mpmath.exp(-mpmath.mpf(s) / 3)
            assert lower[s] <= float(exact) * (1 + 1e-12)
            assert upper[s] >= float(exact) * (1 - 1e-12)
            assert lower[s] == pytest.approx(float(exact), rel=1e-11)
    logs = PolyaDifference(Fraction(4, 7), 3.0).pmf()
    four, _ = difference_law(design, 4, 300)
    assert np.log(four[:100]) == pytest.approx(logs.logs[logs.logs.size // 2 :][:100], abs=1e-9)


@pytest.mark.parametrize(("count", "last"), [(1, 9), (2, 12), (3, 30), (3, 7)])
def test_truncated_sums_lie_between_their_bounds(count: int, last: int) -> None:
    design = BitDesign(1, 3, 2.0, 9, 19, 1e-2)
    law = np.ones(1)
    for _ in range(count):
        law = np.convolve(law, normal(design))
    right = np.concatenate((law[law.size // 2 :], np.zeros(last)))[: last + 1]
    lower, upper = difference_law(design, count, last)
    assert np.all(lower <= right * (1 + 1e-12))
    assert np.all(upper >= right * (1 - 1e-12))


def test_tails_of_shares_fall_by_beta_at_least() -> None:
    """Tests step 2 of the proof on sums that the truncation changes."""
    for design in (BitDesign(1, 3, 2.0, 9, 19, 1e-2), BitDesign(1, 8, 20.0, 15, 31, 1e-2)):
        law = np.ones(1)
        for _ in range(design.share):
            law = np.convolve(law, normal(design))
            right = law[law.size // 2 :]
            assert np.all(right[1:] <= design.beta * right[:-1] * (1 + 1e-12))


@pytest.mark.parametrize(("size", "width"), [(1, 1), (5, 3), (7, 7), (4, 9), (100, 13)])
def test_window_sums_are_a_convolution_with_ones(size: int, width: int) -> None:
    terms = np.exp(-np.linspace(0, 600, size))
    exact = [math.fsum(terms[max(0, i - width + 1) : i + 1]) for i in range(size + width - 1)]
    assert window_sums(terms, width) == pytest.approx(exact, rel=1e-14, abs=0)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("precision", (0, 3, 1.0, 5, 11, 0.1)),
        ("share", (1, 0, 1.0, 5, 11, 0.1)),
        ("scale", (1, 3, math.nan, 5, 11, 0.1)),
        ("reach", (1, 3, 1.0, 0, 11, 0.1)),
        ("reach", (1, 3, 1.0, 10**6, 3 * 10**6 + 1, 0.1)),
        ("length", (1, 3, 1.0, 5, 10, 0.1)),
        ("length", (1, 3, 1.0, 5, 12, 0.1)),
        ("escape", (1, 3, 1.0, 5, 11, 0.0)),
        ("escape", (1, 3, 1.0, 5, 11, 1.0)),
        ("escape", (1, 3, 1.0, 5, 11, math.nan)),
    ],
)
def test_what_is_no_design_is_refused_by_name(field: str, values: tuple[int, int, float, int, int, float]) -> None:
    with pytest.raises(BadParameter) as caught:
        BitDesign(*values)
    assert caught.value.field == field


def test_what_cannot_be_certified_is_refused() -> None:
    with pytest.raises(BadParameter, match="not certified"):
        fewest_bits(1e-3, 100, 4, 1e-8)
    with pytest.raises(BadParameter, match="honest"):
        certified_epsilon(BitDesign(1, 1, 1.0, 20, 41, 1e-6), 0)
    with pytest.raises(BadParameter, match="normal"):
        pair_epsilon(BitDesign(1, 3, 1.0, 20, 41, 1e-6), 3, 0)


@pytest.mark.parametrize("design", SMALL)
@pytest.mark.parametrize("honest", [1, 2, 3])
def test_moves_of_fewer_steps_are_certified_wherever_they_start(design: BitDesign, honest: int) -> None:
    """For every x̂ and x̂ + m and every number of escapes, no ratio of the whole laws is above the certificate."""
    honest = min(honest, design.share)
    for move in range(1, design.precision + 1):
        bound = certified_epsilon(design, honest, move=move)
        for escaped, value in itertools.product(range(honest), range(design.precision + 1 - move)):
            laws = (given_modes(design, one, honest - 1, escaped) for one in (value, value + move))
            assert farthest(*laws) <= bound


@pytest.mark.parametrize(("norm", "most"), [("l1", 1700), ("l2", 6300)])
def test_a_ball_costs_less_than_the_box_around_it_and_keeps_epsilon(norm: str, most: int) -> None:
    """In the box of twenty coordinates at g = 1 a message has 27,340 bits."""
    spec = MechanismSpec(name="relaxed-secagg-shuffle", epsilon=1.0, precision=1)
    statistic = BoundedVector(dimension=20, norm=norm)
    mechanism = planned(spec, 1000, statistic=statistic)
    assert mechanism.bits <= most
    assert 0.99 < (mechanism.privacy().promise.epsilon or 0.0) <= 1.0


def test_the_grid_is_the_theorem_s() -> None:
    """g = ⌈ε√t/2⌉. With rewards inside (0, 1) the error stays near the noise's, 1.4; at g = 1 it grows like √n/2."""
    spec = MechanismSpec(name="relaxed-secagg-shuffle", epsilon=1.0)
    mechanism = planned(spec, 400)
    assert mechanism.precision == 10
    assert math.hypot(mechanism.error(400).std, 20 * mechanism.rounding) < 1.8


@pytest.mark.slow
@pytest.mark.parametrize("honest", [2, 4, 8, 128, 1024])
@pytest.mark.few(2)
def test_small_epsilon_is_planned_in_seconds(honest: int) -> None:
    """ε = 0.01, as in a run of T = 2000 and two arms, takes less than 20 s of CPU."""
    began = time.process_time()
    design = fewest_bits(0.01, honest, 1, 1 / 8000 / honest)
    assert time.process_time() - began < 20
    assert certified_epsilon(design, honest) <= 0.01


def test_an_epsilon_that_cannot_be_certified_is_refused_with_what_to_change() -> None:
    with pytest.raises(BadParameter, match=r"epsilon = 0.001: not certified .* raise epsilon"):
        fewest_bits(1e-3, 100, 1, 1e-9)

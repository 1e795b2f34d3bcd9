"""Shuffling's bounds against shuffled laws that are enumerated, against 60 digits, and against each other."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from common.amplification import (
    added_noise,
    blanket_delta,
    blanket_epsilon,
    clones_delta,
    clones_epsilon,
    clones_local_epsilon,
    gaussian,
    gaussian_noise,
    gaussian_promise,
    laplace,
    least_noise,
    paper_epsilon,
    paper_local_epsilon,
    table,
)
from common.amplification.clones import excess
from common.amplification.closed_form import largest_local_epsilon
from common.errors import BadParameter
from common.noise import DiscreteLaplace, PolyaDifference

Array = NDArray[np.float64]
DELTA = 1e-6


def responses(local_epsilon: float) -> Array:
    """Binary randomized response."""
    lie = 1 / (1 + math.exp(local_epsilon))
    return np.array([[1 - lie, lie], [lie, 1 - lie]])


def shuffled(masses: Array, inputs: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The law of the shuffled messages, as counts of each output, by enumeration."""
    law: dict[tuple[int, ...], float] = {(0,) * masses.shape[1]: 1.0}
    for x in inputs:
        grown: Counter[tuple[int, ...]] = Counter()
        for counts, mass in law.items():
            for output, p in enumerate(masses[x]):
                grown[(*counts[:output], counts[output] + 1, *counts[output + 1 :])] += mass * p
        law = dict(grown)
    return law


def true_delta(masses: Array, users: int, epsilon: float) -> float:
    """The worst hockey stick over all inputs of the others and all pairs of the one."""
    inputs = range(len(masses))
    worst = 0.0
    for others in itertools.combinations_with_replacement(inputs, users - 1):
        laws = [shuffled(masses, (x, *others)) for x in inputs]
        for one, other in itertools.permutations(laws, 2):
            worst = max(worst, math.fsum(max(0.0, p - math.exp(epsilon) * other.get(c, 0.0)) for c, p in one.items()))
    return worst


def random_table(seed: int, inputs: int, outputs: int) -> Array:
    return np.random.default_rng(seed).dirichlet(np.full(outputs, 2.0), size=inputs)


# clones


def clones_oracle(epsilon: float, local_epsilon: float, users: int) -> mpmath.mpf:
    """The two laws of the pair of counts, term by term."""
    p, e = mpmath.exp(mpmath.mpf(local_epsilon)), mpmath.exp(mpmath.mpf(epsilon))
    chance, total = 2 / (p + 1), mpmath.mpf(0)
    for c in range(users):
        coins = [mpmath.mpf(0), *(mpmath.binomial(c, a) / mpmath.mpf(2) ** c for a in range(c + 1)), mpmath.mpf(0)]
        moved, still = coins[:-1], coins[1:]
        gaps = (p * x + y - e * (x + p * y) for x, y in zip(moved, still, strict=True))
        weight = mpmath.binomial(users - 1, c) * chance**c * (1 - chance) ** (users - 1 - c)
        total += weight * sum(max(gap, 0) for gap in gaps) / (p + 1)
    return total


@pytest.mark.parametrize(
    ("epsilon", "local_epsilon", "users"),
    [(0.5, 1.0, 1), (0.5, 1.0, 5), (0.2, 3.0, 40), (1.0, 4.0, 80), (0.05, 1.0, 60), (2.9, 3.0, 30), (0.01, 0.02, 20)],
)
def test_clones_agree_with_sixty_digits_from_above(epsilon: float, local_epsilon: float, users: int) -> None:
    with mpmath.workdps(60):
        exact = clones_oracle(epsilon, local_epsilon, users)
    assert 0 <= float(clones_delta(epsilon, local_epsilon, users) / exact - 1) <= 1e-9


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("users", [1, 2, 5, 9])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_shuffled_randomized_response_is_within_both_bounds(local_epsilon: float, users: int, share: float) -> None:
    epsilon, masses = share * local_epsilon, responses(local_epsilon)
    exact = true_delta(masses, users, epsilon)
    assert exact <= clones_delta(epsilon, local_epsilon, users)
    assert exact <= blanket_delta(table(masses), epsilon, users)


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
    assert exact <= blanket_delta(table(masses), share * local, users)


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0, 4.0])
def test_clones_are_monotone_and_never_worse_than_no_shuffler(local_epsilon: float) -> None:
    by_users = [clones_epsilon(DELTA, local_epsilon, users) for users in (1, 2, 10, 100, 1000, 10**4, 10**5)]
    assert by_users == sorted(by_users, reverse=True)
    assert by_users[0] <= local_epsilon
    by_delta = [clones_epsilon(delta, local_epsilon, 1000) for delta in (1e-15, 1e-9, 1e-6, 1e-3, 0.1)]
    assert by_delta == sorted(by_delta, reverse=True)
    by_epsilon = [clones_delta(part * local_epsilon, local_epsilon, 1000) for part in (0.01, 0.1, 0.5, 0.9, 1.0)]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    assert by_epsilon[-1] == 0


def test_clones_grow_with_the_local_epsilon() -> None:
    spent = [clones_epsilon(DELTA, local, 2000) for local in (0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)]
    assert spent == sorted(spent)


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
    """Beside the same paper's clones, C ~ Bin(n - 1, e^-ε₀); a little more beside the later ones, which we compute."""
    form = paper_epsilon(local_epsilon, DELTA, users)
    assert excess(form / 3, local_epsilon, users, math.exp(-local_epsilon)) < DELTA
    assert excess(form / 5, local_epsilon, users, math.exp(-local_epsilon)) > DELTA
    assert 3 < form / clones_epsilon(DELTA, local_epsilon, users) < 6


# blanket


@pytest.mark.parametrize("local_epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("users", [20, 1000, 10**4])
def test_blanket_and_clones_agree_for_randomized_response(local_epsilon: float, users: int) -> None:
    """Two computations with nothing in common: binomials, and a tilted FFT."""
    clones = clones_epsilon(DELTA, local_epsilon, users)
    assert blanket_epsilon(table(responses(local_epsilon)), DELTA, users) == pytest.approx(clones, rel=2e-3)


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_a_blanket_knows_more_than_clones_do(scale: float) -> None:
    grid = added_noise(DiscreteLaplace(4 * scale).pmf(), 4)
    for users in (100, 3000):
        smooth, coarse = (blanket_epsilon(randomizer, DELTA, users) for randomizer in (laplace(scale), grid))
        clones = clones_epsilon(DELTA, 1 / scale, users)
        assert 0.5 * clones < smooth < clones
        assert smooth < coarse * 1.001
        assert coarse <= clones * 1.001


def blanket_oracle(masses: Array, users: int, epsilon: float) -> float:
    """E[(V₁ + … + V_n)₊]/n by enumeration of the counts of each output among the blanket's draws."""
    blanket = masses.min(axis=0)
    chances = np.append(blanket, 1 - blanket.sum())
    outputs = range(chances.size)
    worst = 0.0
    for one, other in itertools.permutations(masses, 2):
        values = np.append((one - math.exp(epsilon) * other) / blanket, 0.0)
        terms = []
        for draws in itertools.combinations_with_replacement(outputs, users):
            counts = np.bincount(draws, minlength=chances.size)
            terms.append(max(0.0, float(counts @ values)) * float(stats.multinomial.pmf(counts, users, chances)))
        worst = max(worst, math.fsum(terms) / users)
    return worst


@pytest.mark.parametrize(("seed", "inputs", "outputs", "users"), [(5, 2, 3, 8), (6, 3, 4, 6), (7, 2, 2, 30)])
@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_the_tilted_transform_is_the_blanket_bound_from_above(
    seed: int, inputs: int, outputs: int, users: int, epsilon: float
) -> None:
    masses = random_table(seed, inputs, outputs)
    exact = blanket_oracle(masses, users, epsilon)
    assert 1 - 1e-12 <= blanket_delta(table(masses), epsilon, users) / exact <= 1.01


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_one_message_alone_is_the_analytic_gaussian(sigma: float, epsilon: float) -> None:
    upper, lower = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
    exact = float(stats.norm.cdf(upper) - math.exp(epsilon) * stats.norm.cdf(lower))
    assert 0 <= blanket_delta(gaussian(sigma), epsilon, 1) - exact <= 1e-5 * exact + 1e-15


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0, 4.0])
def test_the_weights_of_the_blankets_are_those_in_closed_form(sigma: float) -> None:
    assert gaussian(sigma, 4).gamma == pytest.approx(2 * stats.norm.cdf(-1 / (2 * sigma)), rel=1e-9)
    assert laplace(sigma, 4).gamma == pytest.approx(math.exp(-1 / (2 * sigma)), rel=1e-12)


def test_a_gaussian_cut_into_bins_is_hardly_more_private() -> None:
    """Binning is post-processing; 60 bins of σ/6 lose little."""
    edges = np.concatenate(([-np.inf], np.linspace(-4.5, 5.5, 61), [np.inf]))
    masses = np.diff([stats.norm.cdf(edges - x) for x in (0, 1)], axis=1)
    smooth, binned = (blanket_epsilon(randomizer, 1e-5, 500) for randomizer in (gaussian(1.0), table(masses)))
    assert 0.97 * smooth < binned < 1.01 * smooth


def test_inputs_between_the_ends_are_compared_too_and_add_nothing_for_gaussians() -> None:
    ends, grid = (blanket_epsilon(gaussian(1.0, precision), DELTA, 300) for precision in (1, 4))
    assert grid == pytest.approx(ends, rel=1e-4)


def test_a_middle_input_that_is_the_worst_is_found() -> None:
    masses = np.array([[0.4, 0.4, 0.2], [0.05, 0.15, 0.8], [0.4, 0.4, 0.2]])
    with_middle, ends = table(masses), table(masses[[0, 2]])
    assert blanket_epsilon(with_middle, DELTA, 200) > 0.2
    assert blanket_epsilon(ends, DELTA, 200) == pytest.approx(1e-6)


@pytest.mark.parametrize("kind", [gaussian, laplace])
def test_blankets_are_monotone(kind: type) -> None:
    by_users = [blanket_epsilon(kind(1.0), DELTA, users) for users in (100, 300, 2000)]
    assert by_users == sorted(by_users, reverse=True)
    by_noise = [blanket_epsilon(kind(size), DELTA, 1000) for size in (0.8, 2.0, 5.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_delta = [blanket_epsilon(kind(1.0), delta, 500) for delta in (1e-12, 1e-6, 1e-3)]
    assert by_delta == sorted(by_delta, reverse=True)


def test_the_least_noise_meets_the_target_and_hardly_more() -> None:
    sigma = least_noise(gaussian, (0.5, 5.0), 0.5, DELTA, 1000)
    assert blanket_epsilon(gaussian(sigma), DELTA, 1000) <= 0.5
    assert blanket_epsilon(gaussian(0.99 * sigma), DELTA, 1000) > 0.5
    local = math.sqrt(2 * math.log(1.25 / DELTA)) / 0.5
    assert sigma < local / 10


def test_tiny_deltas_are_computed_and_not_lost_in_rounding() -> None:
    """Relative to the chance of the event: 1e-15 is as good as 1e-6."""
    clones = clones_epsilon(1e-15, 1.0, 3000)
    assert blanket_epsilon(table(responses(1.0)), 1e-15, 3000) == pytest.approx(clones, rel=2e-3)


# closed forms


@pytest.mark.parametrize(("epsilon", "users"), [(0.01, 10**6), (0.3, 10**4), (0.2, 10**6), (5.0, 10**4), (1.0, 50)])
def test_the_papers_inverse_is_private_and_never_below_epsilon(epsilon: float, users: int) -> None:
    local = paper_local_epsilon(epsilon, DELTA, users)
    assert local >= epsilon
    assert clones_epsilon(DELTA, local, users) <= epsilon
    assert local <= clones_local_epsilon(epsilon, DELTA, users)
    if local > epsilon:
        assert local <= largest_local_epsilon(DELTA, users)
        assert paper_epsilon(local, DELTA, users) <= epsilon


def test_outside_its_range_the_closed_form_is_refused_and_would_be_wrong_to_use() -> None:
    """ε₀ = 8 with 100 users: the form has a value, and amplification to it is not proven."""
    with pytest.raises(BadParameter) as caught:
        paper_epsilon(8.0, DELTA, 100)
    assert caught.value.field == "local_epsilon"
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


# refusals


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("delta", (0.0, 1.0, 100)),
        ("delta", (1e-30, 1.0, 100)),
        ("delta", (0.5, 1.0, 100)),
        ("delta", (math.nan, 1.0, 100)),
        ("local_epsilon", (1e-6, 0.0, 100)),
        ("local_epsilon", (1e-6, math.nan, 100)),
        ("local_epsilon", (1e-6, math.inf, 100)),
        ("users", (1e-6, 1.0, 0)),
        ("users", (1e-6, 1.0, 10**10)),
    ],
)
def test_what_no_bound_covers_is_refused_by_name(field: str, values: tuple[float, float, int]) -> None:
    delta, local, users = values
    with pytest.raises(BadParameter) as caught:
        clones_epsilon(delta, local, users)
    assert caught.value.field == field
    with pytest.raises(BadParameter) as caught:
        paper_epsilon(local, delta, users)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("masses", "field"),
    [
        ([[0.5, 0.5]], "masses"),
        ([[0.5, 0.6], [0.5, 0.5]], "masses"),
        ([[1.5, -0.5], [0.5, 0.5]], "masses"),
        ([[math.nan, 1.0], [0.5, 0.5]], "masses"),
        ([[1.0, 0.0], [0.0, 1.0]], "masses"),
    ],
)
def test_what_is_no_randomizer_is_refused(masses: list[list[float]], field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        table(np.array(masses))
    assert caught.value.field == field


def test_noise_outside_the_computed_range_is_refused() -> None:
    for kind in (gaussian, laplace):
        for size in (0.0, math.nan, 0.05, 1e4):
            with pytest.raises(BadParameter):
                kind(size)
        with pytest.raises(BadParameter, match="precision"):
            kind(1.0, 100)
    with pytest.raises(BadParameter, match="epsilon"):
        least_noise(gaussian, (0.1, 0.2), 0.1, DELTA, 10)


def test_outputs_without_a_blanket_count_against_delta() -> None:
    masses = np.array([[0.5, 0.4, 0.1], [0.5, 0.5, 0.0]])
    assert blanket_delta(table(masses), 3.0, 50) >= 0.1
    with pytest.raises(BadParameter, match="delta"):
        blanket_epsilon(table(masses), DELTA, 50)


def test_any_noise_on_the_integers_has_a_blanket() -> None:
    law = PolyaDifference(Fraction(2), 3.0)
    assert 0 < blanket_epsilon(added_noise(law.pmf(), 3), DELTA, 300) < 1

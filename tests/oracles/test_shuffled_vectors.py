"""Tests the bound for shuffled vectors with Gaussian noise: outcome by outcome, at 50 digits, and against attacks."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.contextual_sum import ContextualSum
from distrust.common.bandit.statistics import BoundedVector, Reward, Statistic
from distrust.common.dp.accounting.techniques.amplification.sums import atoms_delta
from distrust.common.dp.accounting.techniques.amplification.vectors import (
    Crowd,
    FromMiddle,
    Inputs,
    _atoms,
    _Question,
    covering_pairs,
    crowd_delta,
    crowd_variance,
)
from distrust.common.dp.accounting.techniques.gaussian import largest_ratio, log_gaussian_delta
from distrust.common.dp.accounting.techniques.sensitivity import Grid
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.mechanisms.families.gaussian import GaussianLike
from distrust.common.dp.mechanisms.shuffled.gaussian import ShuffledGaussian, shuffled_gaussian_epsilon
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from distrust.common.wire import Norm
from tests.support.planned import planned

Laws = tuple[NDArray[np.float64], ...]


def planned_mechanism(
    name: str, epsilon: float, delta: float, clients: int, statistic: Statistic
) -> tuple[Mechanism, float]:
    """Return the mechanism and the deviation of one message, in the data's units."""
    mechanism = planned(
        MechanismSpec.model_validate({"name": name, "epsilon": epsilon, "delta": delta}), clients, statistic=statistic
    )
    assert isinstance(mechanism, GaussianLike)
    return mechanism, math.sqrt(mechanism.variance) * mechanism.step


def shuffled(laws: Laws) -> NDArray[np.float64]:
    """Return the joint law of messages in a uniform order, for equal supports."""
    orders = list(itertools.permutations(range(len(laws))))
    total = np.zeros((laws[0].size,) * len(laws))
    for order in orders:
        joint = laws[order[0]]
        for place in order[1:]:
            joint = np.multiply.outer(joint, laws[place])
        total += joint
    return total / len(orders)


def exact_delta(one: NDArray[np.float64], other: NDArray[np.float64], crowd: Laws, epsilon: float) -> float:
    """Return δ(ε) of shuffled messages, the first with either law, added up over all outcomes."""
    here, there = shuffled((one, *crowd)), shuffled((other, *crowd))
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def message(value: float, variance: float, steps: int) -> NDArray[np.float64]:
    """Return the law of a number that is rounded at random, with N_Z(0, variance), around 0 … `steps`."""
    reach = math.ceil(7 * math.sqrt(variance))
    noise, low = np.exp(DiscreteGaussian(variance).pmf().logs), math.floor(value)
    middle, law = noise.size // 2, np.zeros(2 * reach + steps + 2)
    for start, chance in ((low, 1 - (value - low)), (low + 1, value - low)):
        law[start : start + 2 * reach + 1] += chance * noise[middle - reach : middle + reach + 1]
    return law


def hidden(
    one: NDArray[np.float64], other: NDArray[np.float64], law: NDArray[np.float64], gamma: float, n: int
) -> float:
    """Return E[(Σ_{i≤M} L_i)₊]/(nγ), M ~ Bin(n, γ), for L = (one - other)/law of independent draws from the law."""
    total = 0.0
    for count in range(1, n + 1):
        chance = math.comb(n, count) * gamma**count * (1 - gamma) ** (n - count)
        draws = np.array(list(itertools.product(range(law.size), repeat=count)))
        sums = ((one - other) / law)[draws].sum(axis=1)
        total += chance * float(law[draws].prod(axis=1) @ np.maximum(sums, 0))
    return total / (n * gamma)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
@pytest.mark.parametrize("near", [3.0, 0.3])
def test_the_bound_holds_for_any_laws_that_nearly_contain_one(epsilon: float, near: float) -> None:
    """Random laws on four outcomes, three messages: Gaussian noise is one case. No c gives less than the truth."""
    random = np.random.default_rng(11)
    for _ in range(60):
        one, other, *others, law = random.dirichlet(np.full(4, near), 5) + 1e-6
        one, other, law = one / one.sum(), other / other.sum(), law / law.sum()
        laws = tuple(each / each.sum() for each in others)
        truth = exact_delta(one, other, laws, epsilon)
        alone = float(np.maximum(one - math.exp(epsilon) * other, 0).sum())
        for c in (0.05, 0.3, 0.6, 0.9):
            missing = max(float(np.maximum(c * law - each, 0).sum()) for each in laws)
            first = (1 + missing) ** 2 * hidden(one, math.exp(epsilon) * other, law, c / (1 + missing), 3)
            second = 2 * missing * (1 + missing) * (math.expm1(epsilon) + alone)
            assert truth <= (first + second) * (1 + 1e-9)
        assert truth <= alone * (1 + 1e-9)


@pytest.mark.parametrize("target", [0.3, 0.02])
@pytest.mark.parametrize(("variance", "steps", "epsilon"), [(4.0, 2, 0.2), (9.0, 4, 0.5), (40.0, 6, 0.2)])
def test_no_three_messages_tell_more_than_the_bound(variance: float, steps: int, epsilon: float, target: float) -> None:
    """One coordinate of a box, the other two clients at each of three places. The bound is never below the truth."""
    bound = crowd_delta(variance, Crowd(Grid(steps, 1, "linf"), steps, 3), epsilon, target)
    laws = [message(place, variance, steps) for place in (0, steps / 2, steps)]
    for others in itertools.combinations_with_replacement(laws, 2):
        assert exact_delta(laws[0], laws[2], others, epsilon) <= bound


@pytest.mark.parametrize("target", [0.3, 0.05])
@pytest.mark.parametrize(("variance", "epsilon"), [(2.5, 0.2), (6.0, 0.5)])
def test_no_two_rounded_vectors_of_a_disc_tell_more_than_the_bound(
    variance: float, epsilon: float, target: float
) -> None:
    steps = 2
    bound = crowd_delta(variance, Crowd(Grid(steps, 2, "l2"), steps, 2), epsilon, target)

    def vector(angle: float, radius: float = 1.0) -> NDArray[np.float64]:
        across = (1 + radius * math.cos(angle), 1 + radius * math.sin(angle))
        return np.multiply.outer(*(message(one, variance, steps) for one in across)).ravel()

    for turn in (0.0, 0.4):
        for away in (math.pi, 1.2):
            for other in (vector(turn), vector(turn + away), vector(turn + 1.6), vector(0.0, 0.0)):
                assert exact_delta(vector(turn), vector(turn + away), (other,), epsilon) <= bound


@pytest.mark.parametrize(
    "pair", [Inputs(0.0, 0.6, 0.6), Inputs(0.8, 0.6, 0.6), Inputs(0.4, 0.9, 0.3), Inputs(0.3, 1.5, 1.5)]
)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_atoms_are_above_the_law_in_convex_order_and_near_it(pair: Inputs, epsilon: float) -> None:
    """E L₊ is δ of one message, from 50 digits. Without a way off the middle E (L - k)₊ has a closed form as well."""
    weights, values = _atoms(pair, epsilon, 1e-9)
    assert weights.sum() <= 1 + 1e-9
    for level in (0.0,) if pair.off else (-2.0, -0.5, 0.0, 0.3):
        truth = excess_of(pair, epsilon, level)
        left = max(0.0, -level) * max(0.0, 1 - float(weights.sum()))  # mass at 0
        found = float(weights @ np.maximum(values - level, 0)) + left
        assert truth - 1e-9 <= found <= truth * 1.01 + 1e-5


def excess_of(pair: Inputs, epsilon: float, level: float) -> float:
    """Return E (Y - level)₊ of Y = e^(at - a²/2) - e^(ε - bt - b²/2), which grows with t, at 50 digits."""
    with mpmath.workdps(50):
        one, other, factor = mpmath.mpf(pair.one), mpmath.mpf(pair.other), mpmath.exp(mpmath.mpf(epsilon))
        low, high = mpmath.mpf(-40), mpmath.mpf(40)
        for _ in range(180):
            root = (low + high) / 2
            above = mpmath.exp(one * root - one**2 / 2) - factor * mpmath.exp(-other * root - other**2 / 2) > level
            low, high = (low, root) if above else (root, high)
        return float(mpmath.ncdf(one - root) - factor * mpmath.ncdf(-other - root) - level * mpmath.ncdf(-root))


def test_every_pair_in_the_ball_is_covered() -> None:
    """Some covering pair's Gram matrix is larger than that of any two inputs, whether or not they fill the ball."""
    random = np.random.default_rng(7)
    for radius, apart in ((1.0, 2.0), (1.0, 1.5), (1.0, 0.8), (2.0, 2.1)):
        assert all(p.one >= 0 and p.other >= 0 for p in covering_pairs(radius, apart))  # L grows along their line
        covers = [
            np.array([[p.off**2 + p.one**2, p.off**2 - p.one * p.other], [0, p.off**2 + p.other**2]])
            for p in covering_pairs(radius, apart)
        ]
        covers = [np.triu(one) + np.triu(one, 1).T for one in covers]
        found = 0
        while found < 400:
            inputs = random.standard_normal((2, 3))
            sizes = np.where(random.random(2) < 0.5, 1.0, random.random(2))
            inputs *= (radius * sizes / np.linalg.norm(inputs, axis=1))[:, None]
            if found % 2 and apart < 2 * radius:  # two inputs that are as far apart as they may be
                middle, half = inputs.mean(axis=0), inputs[0] - inputs.mean(axis=0)
                half *= apart / 2 / np.linalg.norm(half)
                inputs = np.array([middle + half, middle - half])
            if np.linalg.norm(inputs, axis=1).max() > radius or np.linalg.norm(inputs[0] - inputs[1]) > apart * (
                1 + 1e-12
            ):
                continue
            found += 1
            gram = inputs @ inputs.T
            assert max(np.linalg.eigvalsh(one - gram)[0] for one in covers) >= -1e-9


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_no_rounding_carries_a_vector_farther_from_the_middle(norm: Norm) -> None:
    random, across = np.random.default_rng(5), 9
    way = FromMiddle(Grid(across, 4, norm), across)
    for rate in (1e-3, 0.05, 1.0):
        for _ in range(200):
            vector = random.standard_normal(4)
            vector *= across / 2 / np.linalg.norm(vector, ord=1 if norm == "l1" else 2)
            places = vector + across / 2
            low, part = np.floor(places), places - np.floor(places)
            ends = rate * (low - across / 2) ** 2, rate * (low + 1 - across / 2) ** 2
            moment = np.log((1 - part) * np.exp(ends[0]) + part * np.exp(ends[1])).sum()
            assert moment <= way.log_moment(rate) + 1e-12
    drawn = (low + (random.random((20_000, 4)) < part) - across / 2) ** 2
    assert np.mean(drawn.sum(axis=1) > way.at_most(0.1)) <= 0.1


def seen(inputs: NDArray[np.float64], others: NDArray[np.float64], sigma: float) -> Inputs:
    """Return two inputs as they are seen from where all the others are."""
    one, other = (inputs - others) / sigma
    apart = float(np.linalg.norm(one - other))
    along = (one - other) / apart
    return Inputs(float(np.linalg.norm(one - (one @ along) * along)), float(one @ along), float(-(other @ along)))


def best_attack(sigma: float, clients: int, epsilon: float, *, apart: float, radius: float) -> float:
    """Return the largest δ(ε) over five places where all the others may be: then their law is all of each message."""
    off = math.sqrt(radius**2 - apart**2 / 4)
    inputs = np.array([[off, apart / 2, 0.0], [off, -apart / 2, 0.0]])
    places = np.array([[0, 0, 0], [off, 0, 0], inputs[0], [-radius, 0, 0], [0, 0, radius]])
    deltas = []
    for place in places:
        weights, values = _atoms(seen(inputs, place, sigma), epsilon, 1e-6)
        deltas.append(atoms_delta(weights, values, clients, fine=0.05))
    return max(deltas)


@pytest.mark.parametrize(
    ("clients", "epsilon", "before", "above"),
    [(20, 1.0, 2.318, 1.5), (381, 0.2, 2.973, 1.55)],
)
def test_linucb_s_noise_stands_the_attacks_and_is_near_the_best(
    clients: int, epsilon: float, before: float, above: float
) -> None:
    """`before` is what the clones bound at (ε₀, δ₀) needed."""
    _, sigma = planned_mechanism("shuffled-gaussian", epsilon, 0.1, clients, ContextualSum(features=5))
    ball = {"apart": math.sqrt(4.5), "radius": math.sqrt(2)}
    assert best_attack(sigma, clients, epsilon, **ball) <= 0.1 < best_attack(sigma / above, clients, epsilon, **ball)
    assert sigma < 0.74 * before


@pytest.mark.parametrize(("clients", "epsilon", "most"), [(1000, 1.0, 1.8), (10_000, 0.2, 1.9)])
def test_vectors_of_a_ball_take_hardly_more_than_the_attacks_allow(clients: int, epsilon: float, most: float) -> None:
    """In the unit ball at δ = 10⁻⁶, without rounding. One message alone needs 8.4 and 38 deviations."""
    crowd = Crowd(Grid(1000, 20, "l2", rounded=False), 1000, clients)
    alone = (1000 / largest_ratio(epsilon, 1e-6)) ** 2
    sigma = 2 * math.sqrt(crowd_variance(crowd, epsilon, 1e-6, alone)) / 1000
    assert best_attack(sigma, clients, epsilon, apart=2.0, radius=1.0) <= 1e-6
    assert sigma < most


def test_the_worst_pair_counts_and_not_the_farthest() -> None:
    """LinUCB's report does not fill its ball: of two inputs one may be farther from the middle than the other."""
    question = _Question(1.7**2 / 8 * 1e6, Crowd(Grid(750, 20, "l2", rounded=False), 1000, 20), 1.0, 0.1)
    pairs = question.pairs()
    bound, log_weight = question.best_weight(pairs[0])
    totals = [question.total(pair, log_weight) for pair in pairs]
    assert max(totals) > 1.01 * bound
    first, second = question.hidden(pairs[0], log_weight), question.cost(log_weight)
    missing = 19 * question.missing(log_weight)
    assert bound > first + second > first + missing * math.expm1(1.0) > first + 1e-3  # what the others lack counts
    assert question.worst() == (max(totals), totals.index(max(totals)), log_weight)


@pytest.mark.parametrize(("sigma", "epsilon", "delta"), [(1.7, 1.0, 0.1), (0.4, 10.0, 0.5)])
def test_the_best_weight_is_that_of_a_search_at_every_place(
    monkeypatch: pytest.MonkeyPatch, sigma: float, epsilon: float, delta: float
) -> None:
    """It looks at 50 places at most, where the bound may fall over 130 places."""
    question = _Question(sigma**2 / 8 * 1e6, Crowd(Grid(750, 20, "l2", rounded=False), 1000, 20), epsilon, delta)
    pair, looked = question.pairs()[0], list[float]()
    whole = _Question.total

    def noted(own: _Question, inputs: Inputs, log_weight: float) -> float:
        looked.append(log_weight)
        return whole(own, inputs, log_weight)

    monkeypatch.setattr(_Question, "total", noted)
    bound, log_weight = question.best_weight(pair)
    assert len(set(looked)) <= 50
    first = question.first_place()
    every = {one / 8: whole(question, pair, one / 8) for one in range(first, first + 160)}
    assert every[log_weight] == bound <= min(every.values()) * (1 + 1e-6)


@pytest.mark.parametrize(("epsilon", "statistic"), [(50.0, Reward()), (20.0, BoundedVector(dimension=5))])
def test_a_shuffler_never_makes_clients_add_more_noise(epsilon: float, statistic: Statistic) -> None:
    alone, least = planned_mechanism("local-gaussian", epsilon, 1e-6, 100, statistic)
    mechanism, sigma = planned_mechanism("shuffled-gaussian", epsilon, 1e-6, 100, statistic)
    assert sigma <= least * 1.01
    assert (mechanism.privacy().promise.epsilon or math.inf) <= epsilon
    assert alone.privacy().promise.epsilon == pytest.approx(epsilon, rel=1e-5)


def test_epsilon_of_other_noise_is_searched_to_four_digits() -> None:
    """The least ε that is met: at the planned variance it is the one that was asked for, with more noise less."""
    mechanism, _ = planned_mechanism("shuffled-gaussian", 1.0, 1e-4, 200, BoundedVector(dimension=3))
    assert isinstance(mechanism, ShuffledGaussian)
    crowd = Crowd(mechanism.grid, mechanism.precision, 200)
    planned_one, quieter = (
        shuffled_gaussian_epsilon(factor * mechanism.variance, crowd, 1e-4, 0.0) for factor in (1.0, 0.8)
    )
    assert planned_one == pytest.approx(1.0, rel=1e-3)
    assert planned_one < quieter
    assert math.exp(log_gaussian_delta(mechanism.precision / math.sqrt(mechanism.variance), 1.0)) > 1e-2

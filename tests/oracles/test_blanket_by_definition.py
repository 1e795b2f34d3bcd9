"""Tests the privacy blanket against its definition, computed slowly in rational numbers, without the formula.

Balle et al. 2019: reveal the others' inputs, and which of the others drew from the blanket. Then only those m - 1 draws
hide the one user's message, m - 1 ~ Bin(n - 1, γ). The bound is the divergence of the two laws of these m messages
without their order. Lemma 5.3 is an identity for it, which the code evaluates with a tilted FFT.
"""

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distrust.common.dp.accounting.techniques.amplification.blanket import dominated, order_slack
from distrust.common.dp.accounting.techniques.amplification.randomizers import added_noise
from distrust.common.dp.mechanisms import Mechanism, MechanismSpec
from distrust.common.dp.noise.discrete_gaussian import DiscreteGaussian
from tests.support.planned import planned
from tests.support.randomizers import blanket_delta, tabulated
from tests.support.shuffled_laws import Array, shuffled

Exact = list[list[Fraction]]


def handful(user: list[Fraction], blanket: list[Fraction], others: int) -> dict[tuple[int, ...], Fraction]:
    """Return the law of one draw from `user` and `others` draws from the blanket, as counts of each output."""
    outputs, gamma = range(len(user)), sum(blanket)
    law = {tuple(int(i == z) for i in outputs): user[z] for z in outputs}
    for _ in range(others):
        grown: dict[tuple[int, ...], Fraction] = {}
        for counts, mass in law.items():
            for z in outputs:
                more = (*counts[:z], counts[z] + 1, *counts[z + 1 :])
                grown[more] = grown.get(more, Fraction(0)) + mass * blanket[z] / gamma
        law = grown
    return law


def by_definition(masses: Exact, users: int, factor: Fraction) -> Fraction:
    """Return the definition's δ for the worst x and y; `factor` is e^ε."""
    pairs = itertools.permutations(range(len(masses)), 2)
    return max(of_pair(masses, pair, users, factor) for pair in pairs)


def of_pair(masses: Exact, pair: tuple[int, int], users: int, factor: Fraction) -> Fraction:
    """Return Σ_m Bin(n - 1, γ)(m) D(handful of x ‖ handful of y)."""
    blanket = [min(column) for column in zip(*masses, strict=True)]
    gamma, total = sum(blanket), Fraction(0)
    for m in range(users):
        chance = math.comb(users - 1, m) * gamma**m * (1 - gamma) ** (users - 1 - m)
        p, q = (handful(masses[x], blanket, m) for x in pair)
        total += chance * sum(max(Fraction(0), p[counts] - factor * q[counts]) for counts in p)
    return total


def truth(masses: Exact, users: int, factor: Fraction) -> Fraction:
    """Return δ of the shuffled messages for the worst pair of inputs and the worst inputs of all the others."""
    inputs, worst = range(len(masses)), Fraction(0)
    rows: Any = masses
    for others in itertools.combinations_with_replacement(inputs, users - 1):
        laws = [_all_messages(rows, (x, *others)) for x in inputs]
        for p, q in itertools.permutations(laws, 2):
            worst = max(worst, sum((max(Fraction(0), p[c] - factor * q.get(c, Fraction(0))) for c in p), Fraction(0)))
    return worst


def _all_messages(masses: Exact, inputs: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    law = {(0,) * len(masses[0]): Fraction(1)}
    for x in inputs:
        grown: dict[tuple[int, ...], Fraction] = {}
        for counts, mass in law.items():
            for z, p in enumerate(masses[x]):
                more = (*counts[:z], counts[z] + 1, *counts[z + 1 :])
                grown[more] = grown.get(more, Fraction(0)) + mass * p
        law = grown
    return law


def tables(inputs: int, outputs: int) -> st.SearchStrategy[Exact]:
    """Return a strategy of randomizers with rational probabilities, none of them 0."""
    row = st.lists(st.integers(1, 40), min_size=outputs, max_size=outputs)
    whole = st.lists(row, min_size=inputs, max_size=inputs)
    return whole.map(lambda rows: [[Fraction(part, sum(parts)) for part in parts] for parts in rows])


@given(
    st.sampled_from([(2, 2, 7), (2, 3, 5), (3, 3, 4), (2, 5, 3)]).flatmap(
        lambda size: st.tuples(tables(size[0], size[1]), st.integers(1, size[2]))
    ),
    st.fractions(Fraction(51, 50), 3, max_denominator=50),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_truth_definition_and_code_are_in_this_order(case: tuple[Exact, int], factor: Fraction) -> None:
    """The code's δ is at least the definition's and at most 1 % above it. The definition's is at least the true one."""
    masses, users = case
    exact, defined = truth(masses, users, factor), by_definition(masses, users, factor)
    assert exact <= defined
    result = blanket_delta(tabulated(np.array(masses, dtype=np.float64)), math.log(factor), users)
    assert result >= float(defined) * (1 - 1e-12)
    assert result <= float(defined) * 1.01 + 1e-10


@given(tables(2, 3), st.integers(1, 4), st.integers(0, 8), st.fractions(Fraction(51, 50), 3, max_denominator=50))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_pair_whose_values_are_dominated_has_no_larger_bound_by_the_definition(
    rows: Exact, users: int, share: int, factor: Fraction
) -> None:
    """Two inputs, and one that is a mixture of them: pairs with it are dominated, or are not."""
    mixed = [(share * one + (8 - share) * other) / 8 for one, other in zip(*rows, strict=True)]
    masses = [rows[0], mixed, rows[1]]
    randomizer, epsilon = tabulated(np.array(masses, dtype=np.float64)), math.log(factor)
    bounds = {pair: float(of_pair(masses, pair, users, factor)) for pair in itertools.permutations(range(3), 2)}
    for pair, other in itertools.permutations(bounds, 2):
        if dominated(randomizer, pair, other, epsilon):
            assert bounds[pair] <= bounds[other] + order_slack(randomizer, epsilon)


def test_pairs_nearer_to_each_other_are_dominated_by_the_farthest_and_not_the_other_way_round() -> None:
    """Discrete Gaussian noise on seven steps, as a million clients have it at ε = 1 and δ = 0.1."""
    randomizer = added_noise(DiscreteGaussian(2.6353740692138667).pmf(1e-280), 7)
    for epsilon in (1e-6, 0.01, 1.0, 5.0):
        for x, y in itertools.permutations(range(8), 2):
            farthest = {x, y} == {0, 7}
            assert dominated(randomizer, (x, y), (0, 7), epsilon)
            assert farthest or not dominated(randomizer, (0, 7), (x, y), epsilon)


def planned_mechanism(name: str, clients: int, **fields: Any) -> Mechanism:
    spec = MechanismSpec(name=name, precision=1, **fields)
    return planned(spec, clients)


def cut(mechanism: Mechanism, reach: int) -> Array:
    """Return the messages' laws for the two inputs. All mass beyond `reach` is put on one output on each side."""
    pmf = mechanism.client_law().pmf()
    rows = np.zeros((2, 2 * reach + 2))
    for x in (0, 1):
        cells = np.clip(pmf.support + x, -reach, reach + 1) + reach
        np.add.at(rows[x], cells, pmf.masses)
    return rows


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shuffled-gaussian", {"epsilon": 1.0, "delta": 0.01}),
        ("shuffled-gaussian", {"epsilon": 3.0, "delta": 1e-3}),
        ("shuffled-laplace", {"epsilon": 0.5, "delta": 0.02}),
        ("shuffled-laplace", {"epsilon": 2.0, "delta": 1e-3}),
    ],
)
@pytest.mark.parametrize("clients", [2, 4])
def test_shuffled_messages_keep_their_profile(name: str, words: dict[str, float], clients: int) -> None:
    """Enumerates all outcomes of the shuffler and all inputs of the others. Merging the tails is post-processing."""
    mechanism = planned_mechanism(name, clients, **words)
    profile = mechanism.privacy().profile(delta=words["delta"])
    epsilon = profile.approximate.epsilon
    assert epsilon is not None
    masses = cut(mechanism, 4)
    for others in itertools.combinations_with_replacement((0, 1), clients - 1):
        p, q = (shuffled(masses, (x, *others)) for x in (0, 1))
        for one, other in ((p, q), (q, p)):
            spent = math.fsum(max(0.0, a - math.exp(epsilon) * other[counts]) for counts, a in one.items())
            assert spent <= profile.delta
            for order, bound in profile.known:
                logs = [math.log(a) + (order - 1) * math.log(a / other[counts]) for counts, a in one.items()]
                assert np.logaddexp.reduce(logs) / (order - 1) <= bound * (1 + 1e-12)

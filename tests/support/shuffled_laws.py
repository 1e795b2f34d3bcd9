"""Shuffled laws by enumeration, for tests."""

import itertools
import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from distrust.common.dp.accounting.techniques.amplification.clones import excess
from distrust.common.dp.accounting.techniques.searches import least_met

Array = NDArray[np.float64]
DELTA = 1e-6


def responses(local_epsilon: float) -> Array:
    """Return binary randomized response: row x has the probabilities of the outputs 0 and 1, shape (2, 2)."""
    lie = 1 / (1 + math.exp(local_epsilon))
    return np.array([[1 - lie, lie], [lie, 1 - lie]])


def response_epsilon(delta: float, local_epsilon: float, users: int) -> float:
    """Return ε of shuffled binary randomized response whose observer also learns how many users tossed a fair coin."""
    chance = 2 / (math.exp(local_epsilon) + 1)
    return least_met(lambda epsilon: excess(epsilon, local_epsilon, users, chance) <= delta, 0.0, local_epsilon, 1e-9)


def shuffled(masses: Array, inputs: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """Return the law of the shuffled messages, as probabilities of the counts of each output, by enumeration."""
    law: dict[tuple[int, ...], float] = {(0,) * masses.shape[1]: 1.0}
    for x in inputs:
        grown: Counter[tuple[int, ...]] = Counter()
        for counts, mass in law.items():
            for output, p in enumerate(masses[x]):
                grown[(*counts[:output], counts[output] + 1, *counts[output + 1 :])] += mass * p
        law = dict(grown)
    return law


def true_delta(masses: Array, users: int, epsilon: float) -> float:
    """Return δ(ε): the largest hockey-stick divergence over the other users' inputs and all pairs of one user's."""
    inputs = range(len(masses))
    worst = 0.0
    for others in itertools.combinations_with_replacement(inputs, users - 1):
        laws = [shuffled(masses, (x, *others)) for x in inputs]
        for one, other in itertools.permutations(laws, 2):
            worst = max(worst, math.fsum(max(0.0, p - math.exp(epsilon) * other.get(c, 0.0)) for c, p in one.items()))
    return worst


def random_table(seed: int, inputs: int, outputs: int) -> Array:
    return np.random.default_rng(seed).dirichlet(np.full(outputs, 2.0), size=inputs)

"""Checks Thompson sampling against plain simulations of its papers, which draw a mean for every client."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm

from distrust.common.specs.thompson import LinearThompsonSpec
from distrust.server.policies.base import Estimate, RunFacts
from distrust.server.policies.contextual.designs import RoundNoise
from distrust.server.policies.contextual.linucb import LinearThompson
from tests.support.laws import Normal
from tests.support.policies import asked, made

RUNS, BATCHES, ARMS = 1500, 4, 3
NOISE = 1.5


def released(arm: int, clients: int) -> float:
    """Return an arm's sum over a batch, the same in every run."""
    return clients * (0.45 + 0.1 * arm) + (-0.5 if arm % 2 else 0.5) * math.sqrt(clients)


def plainly(rng: np.random.Generator) -> tuple[int, ...]:
    """Return the arms whose batches fill first, by Hu & Hegde's epochs with a normal draw for each client and arm."""
    size, sums, counts, buffers = [1] * ARMS, [0.0] * ARMS, [0] * ARMS, [0] * ARMS
    for arm in range(ARMS):
        counts[arm], sums[arm] = 2, released(arm, 2)
    order: list[int] = []
    while len(order) < BATCHES:
        means = [total / count for total, count in zip(sums, counts, strict=True)]
        variances = [4 * (count / 4 + NOISE**2) / count**2 for count in counts]
        arm = int(np.argmax([rng.normal(mean, var**0.5) for mean, var in zip(means, variances, strict=True)]))
        buffers[arm] += 1
        if buffers[arm] == 2 ** (size[arm] + 1):
            size[arm] += 1
            counts[arm], sums[arm], buffers[arm] = 2 ** size[arm], released(arm, 2 ** size[arm]), 0
            order.append(arm)
    return tuple(order)


def ours(run: int) -> tuple[int, ...]:
    """Return the arms of the policy's batches after the first round, on the same released sums."""
    policy, order = made("thompson", ARMS, digest=run.to_bytes(4, "big")), list[int]()
    for number in range(BATCHES + 1):
        ask = asked(policy)
        order += ask.arms if number else ()
        answers = [(arm, query.clients) for arm, query in zip(ask.arms, ask.queries, strict=True)]
        policy.tell([Estimate(arm, (released(arm, each),), (each,), (Normal(NOISE),)) for arm, each in answers])
    return tuple(order)


def test_batches_fill_in_the_order_that_draws_by_single_clients_give() -> None:
    """Two samples of orders of four batches: a χ² test that fails by chance once in 10⁶ times."""
    rng = np.random.default_rng(12)
    here, there = Counter(ours(run) for run in range(RUNS)), Counter(plainly(rng) for _ in range(RUNS))
    orders = [one for one in itertools.product(range(ARMS), repeat=BATCHES) if here[one] + there[one] >= 20]
    rest = [2 * RUNS - sum(here[order] + there[order] for order in orders)]
    a = np.array([*(here[one] for one in orders), RUNS - sum(here[one] for one in orders)])[
        : len(orders) + (rest[0] > 0)
    ]
    b = np.array([*(there[one] for one in orders), RUNS - sum(there[one] for one in orders)])[: a.size]
    assert len(orders) > 10
    statistic = float(((a - b) ** 2 / (a + b)).sum())
    assert chi2.sf(statistic, a.size - 1) > 1e-6


def test_a_client_prefers_an_arm_as_often_as_agrawal_and_goyals_posterior_does() -> None:
    """⟨x - x', θ̃⟩ is normal with mean ⟨x - x', B⁻¹f⟩ and deviation v ‖x - x'‖ in the norm of B⁻¹; B and f by loops."""
    runs, d, rng = 4000, 3, np.random.default_rng(5)
    contexts = rng.standard_normal((30, d))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    rewards = rng.uniform(0, 1, 30)
    b, f = np.eye(d), np.zeros(d)
    for context, reward in zip(contexts, rewards, strict=True):
        b, f = b + np.outer(context, context), f + reward * context
    spec = LinearThompsonSpec(name="linear-thompson", features=d, width_scale=0.5)
    facts = [RunFacts(2, 1000, 1, "exact", 0.0, run.to_bytes(4, "big")) for run in range(runs)]
    core = LinearThompson.of(spec, facts[0]).core(facts)
    rows, columns = np.triu_indices(d)
    pairs = np.where(rows == columns, 1.0, 2**0.5)
    for context, reward in zip(contexts, rewards, strict=True):
        vector = np.concatenate([reward * context, context[rows] * context[columns] * pairs])
        core.learn(np.tile(vector, (runs, 1)), RoundNoise(1, 0.0))
    # Without noise CTX Lemma A.2 is Abbasi-Yadkori et al. 2011, Theorem 2, with λ = 1, for half of α = 1/T.
    v = 0.5 * (0.5 * np.sqrt(2 * np.log(2 * 1000) + d * np.log(1 + 30 / d)) + 1)
    for _ in range(10):
        apart = np.diff(rng.standard_normal((2, d)), axis=0)[0]
        chance = norm.cdf(apart @ np.linalg.solve(b, f) / (v * np.sqrt(apart @ np.linalg.solve(b, apart))))
        count = int((core.rule.theta[:, 0] @ apart > 0).sum())
        assert binom.ppf(1e-7, runs, chance) <= count <= binom.isf(1e-7, runs, chance)
    assert core.rule.inverse is None
    assert core.rule.theta.shape == (runs, 1, d)
    offsets = core.rule.theta[:, 0] - np.linalg.solve(b, f)
    lengths = np.einsum("rd,de,re->r", offsets, b, offsets) / v**2
    assert lengths.mean() == pytest.approx(d, abs=5 * (2 * d / runs) ** 0.5)

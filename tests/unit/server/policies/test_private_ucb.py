"""Tests UCB on private estimates against direct computations from the papers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from distrust.common.specs.base import RoundSize
from distrust.common.specs.policy import AdapUcbSpec, DpUcbSpec
from distrust.lab.play import in_process
from distrust.lab.play.result import Result
from distrust.lab.play.run_file import parse
from distrust.server.policies.base import Ask, Estimate, RunFacts
from distrust.server.policies.elimination import exact_radius
from distrust.server.policies.noise_width import LEAST_TAIL
from distrust.server.policies.private_ucb import AdapUcb, DpUcb
from distrust.server.policies.ucb1 import Ucb1
from tests.support.laws import Laplace, Normal
from tests.support.policies import asked, made

Draw = Callable[[int, int, int], float]
"""(arm, number of its episode, clients) → noisy sum of their rewards."""

Cohorts = list[tuple[int, int]]
"""Arm and clients of each cohort."""


def drawn(means: list[float], scale: float, seed: int) -> Draw:
    """Return sums that do not depend on the order in which arms are played."""

    def total(arm: int, number: int, clients: int) -> float:
        rng = np.random.default_rng([seed, arm, number])
        return float(rng.binomial(clients, means[arm]) + rng.laplace(0, scale))

    return total


def played(policy: AdapUcb, horizon: int, draw: Draw, law: Laplace) -> Cohorts:
    """Return what the policy plays."""
    result: Cohorts = []
    left = horizon
    while ask := policy.ask(left):
        left -= ask.size
        estimates = []
        for query in ask.queries:
            assert query.arm is not None
            number = sum(arm == query.arm for arm, _ in result)
            total = draw(query.arm, number, query.clients)
            estimates.append(Estimate(query.arm, (total,), (query.clients,), (law,)))
            result.append((query.arm, query.clients))
        policy.tell(estimates)
    return result


def printed(arms: int, epsilon: float, horizon: int, draw: Draw, *, alpha: float, first: int) -> Cohorts:
    """Return what Algorithm 1 of Azize & Basu plays with eq. (7), pull by pull, from `first` pulls of each arm on."""
    pulls, means, episodes = [first] * arms, [draw(arm, 0, first) / first for arm in range(arms)], [1] * arms
    result = [(arm, first) for arm in range(arms)]
    halves = [first] * arms  # what the paper writes ½ N_a: the length of the last episode
    while True:
        t = sum(pulls) + 1
        index = [
            means[arm]
            + math.sqrt(alpha * math.log(t) / (2 * halves[arm]))
            + alpha * math.log(t) / (epsilon * halves[arm])
            for arm in range(arms)
        ]
        best = max(range(arms), key=lambda arm: index[arm])
        target = 2 * pulls[best]
        if sum(pulls) - pulls[best] + target > horizon:
            return result
        length = 0
        while pulls[best] < target:
            pulls[best] += 1
            length += 1
        means[best], halves[best] = draw(best, episodes[best], length) / length, length
        episodes[best] += 1
        result.append((best, length))


@given(
    means=st.lists(st.floats(0, 1), min_size=2, max_size=5),
    epsilon=st.floats(0.05, 5),
    alpha=st.floats(3.01, 4.5),
    first=st.sampled_from((1, 2, 3)),
    seed=st.integers(0, 10**6),
)
def test_adap_ucb_plays_the_episodes_of_the_papers_algorithm_on_the_same_rewards_and_laplace_noise(
    means: list[float], epsilon: float, alpha: float, first: int, seed: int
) -> None:
    draw = drawn(means, 1 / epsilon, seed)
    policy = made("adap-ucb", len(means), first_batch=first, alpha=alpha)
    expected = printed(len(means), epsilon, 5_000, draw, alpha=alpha, first=2**first)
    assert played(policy, 5_000, draw, Laplace(1 / epsilon)) == expected


def test_an_arms_episodes_double_whatever_the_other_arms_do() -> None:
    cohorts = played(made("adap-ucb", 3, first_batch=2), 20_000, drawn([0.2, 0.5, 0.8], 1.0, 3), Laplace(1.0))
    assert cohorts[:3] == [(0, 4), (1, 4), (2, 4)]
    for arm in range(3):
        sizes = [clients for one, clients in cohorts if one == arm]
        assert sizes == [4, *(4 * 2**number for number in range(len(sizes) - 1))]
    assert sum(clients for arm, clients in cohorts if arm == 2) > 10_000


def told(laws: list[Normal | Laplace], sums: list[float], alpha: float = 3.1) -> Ask:
    """Return what a policy of as many arms asks for after round 1."""
    policy = made("adap-ucb", len(laws), first_batch=6, alpha=alpha)
    policy.tell([Estimate(arm, (sums[arm],), (64,), (law,)) for arm, law in enumerate(laws)])
    return asked(policy)


@pytest.mark.parametrize(("more", "arm"), [(-1e-6, 0), (1e-6, 1)])
def test_the_bound_adds_the_quantile_of_the_noise_that_was_released(more: float, arm: int) -> None:
    """Arm 1 is behind by the quantile of its Gaussian noise at t^-α, t = 129, and a little less or more."""
    law = Normal(3.0)
    behind = law.quantile(129**-3.1)
    assert told([Normal(0.0), law], [40.0, 40.0 - behind + more]).arms == (arm,)


def test_the_bound_asks_for_no_quantile_beyond_the_least_tail() -> None:
    @dataclass(frozen=True)
    class Short(Laplace):
        def quantile(self, p: float) -> float:
            assert p >= LEAST_TAIL
            return super().quantile(p)

    assert told([Short(1.0), Short(2.0)], [32.0, 32.0], alpha=90.0).arms == (1,)


def test_an_arms_last_episode_alone_counts() -> None:
    """Two histories differ in every estimate of round 1, and then play arm 0 again: its mean is that of the episode."""
    means = []
    for early in (40.0, 60.0):
        policy = made("adap-ucb", 2, first_batch=6)
        policy.tell([Estimate(arm, (early - arm,), (64,), (Laplace(1e-9),)) for arm in range(2)])
        ask = asked(policy)
        assert ask.arms == (0,)
        policy.tell([Estimate(0, (16.0,), (64,), (Laplace(1e-9),))])
        means.append(policy.intervals[0].mean)
        assert policy.latest_intervals == policy.intervals[:1]
    assert means == [0.25, 0.25]


def test_a_worse_arm_is_played_no_more_often_than_the_theorem_allows_where_no_bound_fails() -> None:
    """40 runs of fixed seeds. The theorem has n ≤ max(8α ln T/Δ², 4q/Δ) for the last episode but one."""
    horizon, alpha, gap = 50_000, 3.1, 0.4
    noise = alpha * math.log(horizon)
    most = 4 * max(8 * alpha * math.log(horizon) / gap**2, 4 * noise / gap)
    for seed in range(40):
        cohorts = played(made("adap-ucb", 3, first_batch=6), horizon, drawn([0.3, 0.7, 0.3], 1.0, seed), Laplace(1.0))
        assert max(sum(clients for arm, clients in cohorts if arm == one) for one in (0, 2)) <= most


def test_all_events_of_a_run_together_stay_below_p() -> None:
    policy, spent, share = made("adap-ucb", 5, failure=0.2), 0.0, 0.0
    spec = AdapUcbSpec(name="adap-ucb", failure=0.2)
    for number in range(1, 61):
        ask = asked(policy)
        assert ask.batch == number
        share = spec.event_probability(RoundSize(5, 10**18, "exact", number, 5))
        spent += 3 * share * len(ask.queries)
        policy.tell([Estimate(arm, (0.0,), (1,), (Laplace(1.0),)) for arm in ask.arms])
        (newest, *_), together = [one for one in policy.intervals if one.batch == number], len(ask.arms)
        assert newest.upper == pytest.approx(exact_radius(1, Laplace(1.0), together, number, 0.2))
    assert spent + 3 * 0.2 / 5 / 60 < 0.2  # the tail of Σ 1/r² after round 60 is below 1/60
    assert share == pytest.approx(0.2 / (5 * 60**2))


def answer(policy: DpUcb | Ucb1, total: float, clients: int = 1, **facts: Any) -> int:
    """Answer the next cohort, by default with a sum without noise. Return its arm."""
    ask = asked(policy)
    (arm,) = ask.arms
    law = facts.pop("law", Normal(0.0))
    policy.tell([Estimate(arm, (total,), (clients,), (law,), **facts)])
    return arm


@given(seed=st.integers(0, 10**6), arms=st.integers(2, 7))
def test_dp_ucb_without_noise_is_ucb1(seed: int, arms: int) -> None:
    rewards = np.random.default_rng(seed).random((150, arms))
    ours, theirs = made("dp-ucb", arms), made("ucb1", arms)
    for row in rewards:
        (arm,) = asked(ours).arms
        assert asked(theirs).arms == (arm,)
        total = float(row[arm])
        answer(ours, total)
        answer(theirs, total)
    assert ours.chosen == theirs.chosen


class TreeOfPapers:
    """The tree of one arm: node (level, place) is the sum of 2^level batches and a Gaussian draw of its own."""

    def __init__(self, deviation: float, seed: int, arm: int) -> None:
        self._deviation, self._seed, self._arm = deviation, seed, arm
        self._batches: list[float] = []

    def add(self, total: float) -> float:
        """Return the noisy sum of all batches with this one: that of the nodes of its binary digits."""
        self._batches.append(total)
        noisy, done = 0.0, 0
        for level in reversed(range(len(self._batches).bit_length())):
            if len(self._batches) >> level & 1:
                rng = np.random.default_rng([self._seed, self._arm, level, done])
                noisy += sum(self._batches[done : done + 2**level]) + rng.normal(0, self._deviation)
                done += 2**level
        return float(noisy)


@given(
    means=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    deviation=st.floats(0.5, 30),
    batch=st.sampled_from((1, 5, 40)),
    seed=st.integers(0, 10**6),
)
def test_dp_ucb_plays_the_largest_index_over_trees_of_the_arms(
    means: list[float], deviation: float, batch: int, seed: int
) -> None:
    """An independent loop over the papers' definition, with the bound of Gaussian nodes, on the same rewards."""
    arms, rounds, alpha = len(means), 40, 4.0
    depth = rounds.bit_length()
    rng, trees = np.random.default_rng(seed), [TreeOfPapers(deviation, seed, arm) for arm in range(arms)]
    policy = made("dp-ucb", arms, batch=batch, alpha=alpha)
    sums, pulls = [0.0] * arms, [0] * arms
    for number in range(rounds):
        arm = number
        if number >= arms:
            t = number * batch
            far = deviation * math.sqrt(2 * depth * math.log(2 * t**alpha))
            index = [
                sums[one] / pulls[one] + math.sqrt(2 * math.log(t) / pulls[one]) + far / pulls[one]
                for one in range(arms)
            ]
            arm = max(range(arms), key=lambda one: index[one])
        sums[arm] = trees[arm].add(float(rng.binomial(batch, means[arm])))
        pulls[arm] += batch
        assert answer(policy, sums[arm], batch, law=Normal(deviation), prefix=True, nodes=depth) == arm


def test_an_interval_of_a_stream_counts_all_nodes_of_its_prefix_and_what_rounding_adds() -> None:
    @dataclass(frozen=True)
    class Rounded(Normal):
        @property
        def sub_exponential(self) -> tuple[float, float]:
            return math.sqrt(2) * self.std, 0.25

    policy, logarithm = made("dp-ucb", 2, horizon=100, batch=50, failure=5 * 2 * 2 * 1e-4), math.log(2e4)
    answer(policy, 20.0, 40, law=Rounded(3.0), prefix=True, nodes=7.0)
    (one,) = policy.latest_intervals
    far = 3.0 * math.sqrt(2 * 7 * logarithm) + 0.25 * logarithm
    assert one.mean == 0.5
    assert one.upper - one.mean == pytest.approx(math.sqrt(logarithm / 80) + far / 40)


def test_intervals_of_all_prefixes_cover_the_means_with_probability_above_one_minus_p() -> None:
    """200 runs of 30 rounds with p = 0.5 and dominant noise. False alarm once in 10⁶ times."""
    runs, failure, means, rounds = 200, 0.5, [0.4, 0.6], 30
    depth, missed = rounds.bit_length(), 0
    for seed in range(runs):
        policy = made("dp-ucb", 2, horizon=8 * rounds, batch=8, failure=failure)
        rng, trees, wrong = np.random.default_rng(seed), [TreeOfPapers(9.0, seed, arm) for arm in (0, 1)], False
        for _ in range(rounds):
            ask = asked(policy)
            (arm,) = ask.arms
            total = trees[arm].add(float(rng.binomial(8, means[arm])))
            answer(policy, total, 8, law=Normal(9.0), prefix=True, nodes=depth)
            wrong |= any(not one.lower <= means[one.arm] <= one.upper for one in policy.latest_intervals)
        missed += wrong
    assert missed <= binom.isf(1e-6, runs, failure)


def test_every_sum_that_any_arm_may_have_gets_an_equal_share_of_p() -> None:
    """Sampling and noise of 3 arms' 40 sums each, and 40 sums that may wrap around: all below p."""
    spec = DpUcbSpec(name="dp-ucb", batch=25, failure=0.2)
    assert asked(DpUcb(spec, RunFacts(3, 1_010, 2, "exact", 0.0))).cumulative
    share = spec.event_probability(RoundSize(3, 1_010, "exact", 1, 3))
    assert share == pytest.approx(0.2 / (5 * 3 * 40))
    assert (2 * 3 * 40 + 40) * share < 0.2


TREE = 'name = "tree"\nepsilon = 20.0\ndelta = 1e-3\nbatches = 64'
FACTORS = TREE.replace("tree", "prefix-factorization")


def stream_run(mechanism: str, batch: int, horizon: int) -> Result:
    return in_process.run(
        parse(
            f'run = "streams"\nhorizon = {horizon}\n[policy]\nname = "dp-ucb"\nbatch = {batch}\n'
            f"[mechanism]\n{mechanism}\n[unsafe]\nnoise_seed = 3\n"
            '[environment]\nname = "bernoulli"\nseed = 5\nmeans = [0.0, 1.0, 0.0]\n'
        )
    )


@pytest.mark.parametrize("mechanism", [TREE, FACTORS])
def test_every_arm_has_a_stream_of_its_own(mechanism: str) -> None:
    """Rewards are 0 or 1 for certain. In a stream of all arms arm 2 would begin with the 50 ones of arm 1."""
    result = stream_run(mechanism, 50, 1_500)
    played: dict[int | None, int] = {}
    for record in result.rounds:
        (cohort,) = record.cohorts
        played[cohort.arm] = played.get(cohort.arm, 0) + cohort.clients
        expected = played[cohort.arm] if cohort.arm == 1 else 0
        assert cohort.estimate == pytest.approx([expected], abs=20)
    assert set(played) == {0, 1, 2}
    assert len(result.rounds) == 30
    assert result.guarantee.kind == "none"  # the noise has a seed


def test_the_guarantee_of_a_run_is_that_of_one_arms_whole_stream() -> None:
    file = parse(
        f'run = "streams"\nhorizon = 1500\n[policy]\nname = "dp-ucb"\nbatch = 50\n[mechanism]\n{TREE}\n'
        '[environment]\nname = "bernoulli"\nseed = 5\nmeans = [0.0, 1.0, 0.0]\n'
    )
    result = in_process.run(file)
    assert result.guarantee.epsilon == pytest.approx(20.0, rel=1e-6)
    assert result.guarantee.delta == 1e-3


def test_a_joined_record_of_single_clients_has_the_last_prefix_of_each_arm() -> None:
    """1,002 rounds of one client are joined two by two: sums of prefixes would be twice as large."""
    result = stream_run(TREE.replace("64", "1002"), 1, 1_002)
    last = {cohort.arm: cohort.estimate for record in result.rounds for cohort in record.cohorts}
    assert last[1] is not None
    assert last[1] == pytest.approx([result.pulls[1]], abs=30)

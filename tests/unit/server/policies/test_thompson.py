"""Tests Thompson sampling of arms: the posterior counts noise, coins are the run's, and what it states holds."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from distrust.common.errors import BadParameter
from distrust.common.specs.base import RoundSize
from distrust.common.specs.thompson import ThompsonSpec
from distrust.lab.play import in_process
from distrust.lab.play.result import facts as result_facts
from distrust.lab.play.run_file import BadRunFile, RunFile, parse
from distrust.server.learner.learner import Learner
from distrust.server.learner.rounds import ReleasedCohort
from distrust.server.policies.base import Ask, Estimate
from distrust.server.policies.thompson import Thompson, posterior_deviation, win_probabilities
from tests.support.laws import Laplace, Normal
from tests.support.policies import asked, made


def run_file(name: str = "draws", policy: str = "", means: str = "[0.2, 0.8, 0.5]", horizon: int = 3000) -> RunFile:
    return parse(
        f"""
run = "{name}"
horizon = {horizon}
[policy]
name = "thompson"
{policy}
[mechanism]
name = "central-laplace"
epsilon = 1.0
[unsafe]
noise_seed = 3
[environment]
name = "bernoulli"
seed = 11
means = {means}
"""
    )


def told(policy: Thompson, means: list[float], law: Laplace | Normal, rng: np.random.Generator) -> Iterator[Ask]:
    """Yield each batch of a policy and then answer it, without an end."""
    for number in itertools.count():
        ask = asked(policy)
        assert (number == 0) == (len(ask.queries) == len(means))
        yield ask
        answers = []
        for arm, query in zip(ask.arms, ask.queries, strict=True):
            total = float(rng.binomial(query.clients, means[arm]) + rng.normal(0, law.std))
            answers.append(Estimate(arm, (total,), (query.clients,), (law,)))
        policy.tell(answers)


@given(
    means=st.lists(st.floats(-1, 2), min_size=2, max_size=2),
    deviations=st.lists(st.floats(1e-3, 30), min_size=2, max_size=2),
)
def test_of_two_normal_variables_each_is_the_larger_as_often_as_their_difference_is_positive(
    means: list[float], deviations: list[float]
) -> None:
    first = norm.cdf((means[0] - means[1]) / math.hypot(*deviations))
    assert win_probabilities(np.array(means), np.array(deviations)) == pytest.approx([first, 1 - first], abs=1e-9)


@pytest.mark.parametrize("arms", [3, 10, 300])
def test_of_equal_variables_each_is_the_largest_alike(arms: int) -> None:
    chances = win_probabilities(np.full(arms, 0.3), np.full(arms, 0.02))
    assert chances == pytest.approx(np.full(arms, 1 / arms), rel=1e-9)


def test_of_unequal_variables_each_is_the_largest_as_often_as_draws_say() -> None:
    """A million draws; each share within five deviations."""
    rng, draws = np.random.default_rng(4), 1_000_000
    means, deviations = rng.uniform(0, 1, 6), np.array([0.5, 0.3, 0.1, 0.03, 0.01, 1e-3])
    largest = (means + deviations * rng.standard_normal((draws, 6))).argmax(axis=1)
    chances = win_probabilities(means, deviations)
    spread = np.sqrt(chances * (1 - chances) / draws)
    assert (np.abs(np.bincount(largest, minlength=6) / draws - chances) <= 5 * spread + 1e-6).all()


@pytest.mark.parametrize("law", [Laplace(2.0), Normal(3.0)])
def test_the_posterior_counts_the_sampling_error_and_the_noise(law: Laplace | Normal) -> None:
    """Four times the variance of (Σ x + noise)/n for rewards of 0 and 1 with mean 1/2."""
    n = 40
    assert posterior_deviation(n, Normal(0.0)) ** 2 == pytest.approx(1 / n)
    assert posterior_deviation(n, law) ** 2 == pytest.approx(4 * (n / 4 + law.std**2) / n**2)


@pytest.mark.parametrize(("deviation", "kept"), [(0.1, False), (30.0, True)])
def test_noise_keeps_an_arm_in_play(deviation: float, kept: bool) -> None:  # noqa: FBT001
    """Means of 7/8 and 1/8. With little noise the worse arm is drawn once in 800 times, with much every third time."""
    for coins in range(20):
        policy, played = made("thompson", 2, digest=bytes([coins]), first_batch=5), list[int]()
        for _ in range(6):
            ask = asked(policy)
            played += ask.arms
            sizes = [(arm, query.clients) for arm, query in zip(ask.arms, ask.queries, strict=True)]
            law = Normal(deviation)
            policy.tell([Estimate(arm, (each * (7, 1)[arm] / 8,), (each,), (law,)) for arm, each in sizes])
        assert (1 in played[2:]) == kept


def test_a_batch_of_an_arm_has_twice_its_last_and_rests_on_it_alone() -> None:
    policy, sizes = made("thompson", 3, digest=b"2", first_batch=2), dict.fromkeys(range(3), 2)
    for ask in itertools.islice(told(policy, [0.4, 0.5, 0.6], Laplace(1.0), np.random.default_rng(3)), 25):
        assert [query.clients for query in ask.queries] == [2 ** sizes[arm] for arm in ask.arms]
        for arm in ask.arms:
            sizes[arm] += 1
    assert {interval.batch for interval in policy.latest_intervals} == {ask.batch - 1}  # the last batch is not told
    assert policy.active == (0, 1, 2)


def test_all_events_of_all_rounds_together_stay_below_p() -> None:
    """Three events for each cohort: its sampling error, its noise, a wrapped sum."""
    spec, arms, rounds = ThompsonSpec(name="thompson", failure=0.2), 7, 5000
    shares = [spec.event_probability(RoundSize(arms, 10**6, "exact", one, arms)) for one in range(1, rounds + 1)]
    assert 3 * (arms * shares[0] + sum(shares[1:])) + 3 * 0.2 / 5 / rounds < 0.2


def test_an_interval_has_the_share_of_its_round() -> None:
    """√(ln(2/p₁)/2n) + q/n at p₁ = p/(5Kb²) in the first round, and p/(5b²) in the others."""
    law, policy = Laplace(2.0), made("thompson", 3, failure=0.1, first_batch=4)
    asks = told(policy, [0.5] * 3, law, np.random.default_rng(3))
    before = next(asks)
    for ask in itertools.islice(asks, 5):  # by now `before` is told
        share = 0.1 / (5 * len(before.queries) * before.batch**2)
        assert tuple(interval.arm for interval in policy.latest_intervals) == before.arms
        for one, query in zip(policy.latest_intervals, before.queries, strict=True):
            radius = math.sqrt(math.log(2 / share) / (2 * query.clients)) + law.quantile(share) / query.clients
            assert (one.upper - one.mean, one.mean - one.lower) == pytest.approx((radius, radius))
        before = ask


def test_coins_are_the_runs_own_and_a_replay_draws_the_same() -> None:
    first, again = in_process.run(run_file()), in_process.run(run_file())
    assert first.rounds == again.rounds
    learner = in_process.play_learner(run_file())
    outcomes = [one for record in learner.rounds for one in record.released.values()]
    replayed = Learner.replay(learner.config, outcomes)
    assert replayed.snapshot() == learner.snapshot()
    assert [one.ask for one in replayed.rounds] == [one.ask for one in learner.rounds]
    orders = set()
    for name in ("draws", "draws-again", "draws-more"):  # the sums are the same in all of them
        learner = Learner(run_file(name).config)
        learner.run_cohorts(
            lambda _plan, one: ReleasedCohort(cohort=one.cohort, sum=[one.clients / 2], survivors=one.clients)
        )
        orders.add(tuple(record.ask.arms for record in learner.rounds))
    assert len(orders) == 3


def test_only_the_digest_decides_after_equal_sums() -> None:
    orders = []
    for digest in (b"a", b"a", b"b"):
        policy = made("thompson", 4, digest=digest)
        asks = itertools.islice(told(policy, [0.5] * 4, Normal(0.0), np.random.default_rng(1)), 30)
        orders.append([ask.arms for ask in asks])
    assert orders[0] == orders[1] != orders[2]


def test_the_best_arm_gets_most_of_the_pulls() -> None:
    result = in_process.run(run_file(horizon=20_000))
    assert result.chosen == result.best == 1
    assert result.pulls[1] > 0.8 * 20_000
    assert result.regret.final < 0.1 * 20_000 * 0.3  # uniform play has a mean gap of 0.3


def test_the_result_says_that_no_theorem_bounds_the_regret_and_intervals_are_judged_all_the_same() -> None:
    result = in_process.run(run_file())
    assert (
        result.unproven == "sampled means: no theorem bounds the regret where their variance counts a release's noise"
    )
    assert ("unproven", result.unproven) in result_facts(result)
    assert (result.events.failure, result.events.best_dropped) == (0.1, False)
    assert result.events.widths == sum(len(record.cohorts) for record in result.rounds)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("width_scale = 0.0", "policy.width_scale = 0.0: must be at least 0.01"),
        ("width_scale = 1.5", "policy.width_scale = 1.5: must be at most 1"),
        ("failure = 1e-16", "policy.failure = 1e-16: must be at least 4.1e-14 for 3 arms: the widths need quantiles"),
        ("first_batch = 11", "horizon = 3000: must be at least 6144, the first batch of 2048 clients for each of 3"),
        ("base = 4", "policy.base = 4: unknown key"),
    ],
)
def test_numbers_that_it_cannot_play_by_are_refused_in_a_sentence(policy: str, message: str) -> None:
    with pytest.raises((BadParameter, BadRunFile)) as refused:
        run_file(policy=policy)
    assert message in str(refused.value)


def test_more_arms_than_rounds_can_serve_are_refused() -> None:
    with pytest.raises(BadParameter, match="arms = 1001: must be at most 1000 with thompson"):
        made("thompson", 1001)

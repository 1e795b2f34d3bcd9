"""Tests the promises that every policy keeps for sums of any mechanism. Laws are exact, seeds are fixed."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from distrust.common.specs.base import event_share
from distrust.server.policies.base import Ask, Estimate, Policy
from distrust.server.policies.elimination import exact_radius, paper_radius
from tests.support.laws import Laplace
from tests.support.policies import asked, made

QUIET = Laplace(1e-9)


FORGETFUL = [
    pytest.param(partial(made, "successive-elimination"), id="successive-elimination"),
    pytest.param(partial(made, "successive-elimination", base=4), id="by-four"),
    pytest.param(partial(made, "dp-se"), id="dp-se"),
    pytest.param(partial(made, "dp-se", calibration="paper"), id="dp-se-paper"),
]
ELIMINATION = [
    *FORGETFUL,
    pytest.param(partial(made, "vb-sdp-ae"), id="vb-sdp-ae"),
]
EPISODES = [  # they drop no arm, and play one at a time
    pytest.param(partial(made, "adap-ucb"), id="adap-ucb"),
    pytest.param(partial(made, "thompson"), id="thompson"),
]
KEEPING = [
    *EPISODES,
    pytest.param(partial(made, "ucb1"), id="ucb1"),
    pytest.param(partial(made, "dp-ucb", batch=7), id="dp-ucb"),
]
every_policy = pytest.mark.parametrize("make", [*ELIMINATION, *KEEPING])
every_elimination = pytest.mark.parametrize("make", ELIMINATION)
Make = Callable[..., Policy]


def answers(ask: Ask, means: Sequence[float], law: Laplace, rng: np.random.Generator) -> list[Estimate]:
    """Return estimates from Bernoulli rewards and noise of the law."""
    each = ask.queries[0].clients
    sums = rng.binomial(each, [means[arm] for arm in ask.arms]) + rng.laplace(0, law.scale, len(ask.arms))
    return [Estimate(arm, (float(total),), (each,), (law,)) for arm, total in zip(ask.arms, sums, strict=True)]


def play(policy: Policy, means: Sequence[float], horizon: int, law: Laplace, seed: int) -> int:
    """Play until the horizon, and return the number of clients that were asked."""
    rng, used = np.random.default_rng(seed), 0
    while ask := policy.ask(horizon - used):
        used += ask.size
        policy.tell(answers(ask, means, law, rng))
    return used + sum(policy.leftover(horizon - used).values())


@every_policy
@given(means=st.lists(st.floats(0, 1), min_size=2, max_size=6), horizon=st.integers(0, 3000), seed=st.integers(0, 99))
def test_the_horizon_is_used_up_and_never_exceeded(make: Make, means: list[float], horizon: int, seed: int) -> None:
    assert play(make(len(means)), means, horizon, Laplace(2.0), seed) == horizon


@every_elimination
def test_the_best_arm_survives_with_probability_above_one_minus_p(make: Make) -> None:
    """400 runs with p = 0.25. If failures had probability p, there would be more than the bound once in 10⁶ times."""
    runs, failure, means = 400, 0.25, [0.5, 0.55, 0.55, 0.6]
    policies = [make(len(means), failure=failure) for _ in range(runs)]
    for seed, policy in enumerate(policies):
        play(policy, means, 40_000, Laplace(1.0), seed)
    lost = sum(3 not in policy.active for policy in policies)
    assert lost <= binom.isf(1e-6, runs, failure)
    assert any(len(policy.active) < len(means) for policy in policies), "nothing was ever eliminated"


@pytest.mark.parametrize("make", [*ELIMINATION, *EPISODES])
def test_intervals_cover_the_means_with_probability_above_one_minus_p(make: Make) -> None:
    """300 runs with p = 0.5 and dominant noise. All intervals of a run must cover: false alarm once in 10⁶ times."""
    runs, failure, means = 300, 0.5, [0.4, 0.6]
    missed = 0
    for seed in range(runs):
        policy, rng, wrong = make(len(means), failure=failure), np.random.default_rng(seed), False
        while (ask := policy.ask(10**9)) and ask.batch <= (8 if len(ask.arms) > 1 else 16):
            policy.tell(answers(ask, means, Laplace(5.0), rng))
            wrong |= any(not one.lower <= means[one.arm] <= one.upper for one in policy.latest_intervals)
        missed += wrong
    assert missed <= binom.isf(1e-6, runs, failure)


@every_elimination
def test_a_batch_forms_an_interval_for_each_of_its_arms_and_only_these_are_new(make: Make) -> None:
    policy, rng = make(4), np.random.default_rng(5)
    assert policy.latest_intervals == ()
    while ask := policy.ask(20_000):
        policy.tell(answers(ask, [0.1, 0.3, 0.6, 0.9], QUIET, rng))
        assert policy.latest_intervals == tuple(one for one in policy.intervals if one.batch == ask.batch)
        assert tuple(interval.arm for interval in policy.latest_intervals) == ask.arms
    assert len(policy.active) < len(policy.intervals)


@every_elimination
@given(order=st.permutations(range(4)))
def test_the_order_of_answers_does_not_matter(make: Make, order: list[int]) -> None:
    first, second = make(4), make(4)
    ask = asked(first)
    estimates = [
        Estimate(arm, (ask.queries[0].clients * arm / 4,), (ask.queries[0].clients,), (QUIET,)) for arm in ask.arms
    ]
    first.tell(estimates)
    second.tell([estimates[place] for place in order])
    assert (first.active, first.intervals, first.chosen) == (second.active, second.intervals, second.chosen)
    assert first.ask(10**6) == second.ask(10**6)


@pytest.mark.parametrize("make", FORGETFUL)
def test_past_batches_are_forgotten(make: Make) -> None:
    """Two histories keep all arms and differ in every estimate. After equal next batches the policies agree."""
    states = []
    for early in (0.0, 1.0):
        policy = make(2)
        for mean in (early, 0.5):
            ask = asked(policy)
            each = ask.queries[0].clients
            policy.tell([Estimate(arm, (each * mean,), (each,), (QUIET,)) for arm in ask.arms])
        states.append((policy.active, policy.intervals, policy.chosen, policy.ask(10**6)))
    assert states[0] == states[1]


@every_policy
def test_a_batch_that_does_not_fit_is_not_asked_for(make: Make) -> None:
    policy = make(5)
    ask = asked(policy)
    assert policy.ask(ask.size) == ask
    assert policy.ask(ask.size - 1) is None
    assert policy.leftover(0) == {}


@every_policy
def test_a_batch_is_told_whole(make: Make) -> None:
    policy = make(3)
    whole = [Estimate(arm, (1.0,), (2,), (QUIET,)) for arm in asked(policy).arms]
    for estimates in (whole[:-1], [*whole, whole[0]], [Estimate(9, (1.0,), (2,), (QUIET,)), *whole[1:]], []):
        with pytest.raises(ValueError, match="must be complete"):
            policy.tell(estimates)


@every_elimination
def test_leftover_clients_play_the_active_arms_in_order(make: Make) -> None:
    policy = make(3)
    ask = asked(policy)
    each = ask.queries[0].clients
    assert policy.leftover(ask.size - 1) == {0: each, 1: each, 2: each - 1}
    assert policy.leftover(1) == {0: 1}
    assert policy.leftover(0) == {}


@every_elimination
def test_a_clearly_worse_arm_drops_out_and_the_best_is_chosen(make: Make) -> None:
    policy = make(3)
    play(policy, [0.05, 0.95, 0.1], 20_000, Laplace(1.0), seed=7)
    assert policy.active == (1,)
    assert policy.chosen == 1


def test_all_failure_events_together_stay_below_p() -> None:
    """Three events an arm and batch, summed up to batch `last`. The tail of Σ 1/b² after it is below 1/last."""
    arms, failure, last = 10, 0.1, 10_000
    spent = sum(3 * arms * event_share(arms, batch, failure) for batch in range(1, last + 1))
    assert spent + 3 * failure / 5 / last < failure


@pytest.mark.parametrize("law", [Laplace(0.5), Laplace(20.0)])
def test_the_exact_radius_is_the_narrower_one_where_noise_matters(law: Laplace) -> None:
    for arms, batch in itertools.product((2, 10), range(2, 12)):
        n = 2**batch
        assert 0 < exact_radius(n, law, arms, batch, 0.1) < paper_radius(n, law, arms, batch, 0.1) * 1.1


def test_the_paper_radius_is_lemma_2_with_the_same_logarithm_in_every_term() -> None:
    """β(3) for |Φ| = 4, p = 0.1, l = 8, σ = 2, h = 1, worked out by hand: ln(1440) and ln(720)."""

    @dataclass(frozen=True)
    class Law(Laplace):
        @property
        def sub_exponential(self) -> tuple[float, float]:
            return 2.0, 1.0

    expected = math.sqrt(7.272398 / 16) + (2 * math.sqrt(7.272398) + 7.272398) / 8
    assert expected == pytest.approx(paper_radius(8, Law(1.0), 4, 3, 0.1), abs=1e-6)

"""Tests of the differences between the policies of successive elimination: batches, widths, memory of past data."""

import math
from typing import Literal

import numpy as np
import pytest

from distrust.common.specs.base import RoundSize
from distrust.common.specs.policy import DpSeSpec, SuccessiveEliminationSpec, VbSdpAeSpec
from distrust.server.policies.base import Estimate
from distrust.server.policies.elimination import Elimination, SuccessiveElimination, exact_radius, published_radius
from distrust.server.policies.vb_sdp_ae import pooled_noise
from tests.support.laws import Laplace
from tests.support.policies import asked, made

QUIET = Laplace(1e-9)


def tell(policy: Elimination, means: list[float], law: Laplace = QUIET, lost: int = 0) -> int:
    """Answer one batch with these means, of which `lost` clients never answer. Return the clients of an arm."""
    ask = asked(policy)
    each = ask.queries[0].clients
    policy.tell([Estimate(arm, (means[arm] * (each - lost),), (each - lost,), (law,)) for arm in policy.active])
    return each


@pytest.mark.parametrize(("radius", "left"), [(0.25, (0, 1)), (0.2421875, (0,))])
def test_an_arm_is_dropped_below_the_best_lower_bound_and_not_at_it(
    monkeypatch: pytest.MonkeyPatch, radius: float, left: tuple[int, ...]
) -> None:
    """Means 3/4 and 1/4, exact in binary: with radius 1/4 one interval begins where the other ends."""
    monkeypatch.setattr(SuccessiveElimination, "read", lambda _self, arm, _estimate: ((0.75, 0.25)[arm], radius))
    policy = made("successive-elimination", 2)
    tell(policy, [0.75, 0.25])
    assert policy.active == left


@pytest.mark.parametrize(("base", "sizes"), [(2, [4, 8, 16]), (4, [16, 64, 256])])
def test_batches_grow_by_their_base(base: int, sizes: list[int]) -> None:
    policy = made("successive-elimination", 2, first_batch=2, base=base)
    assert [tell(policy, [0.5, 0.5]) for _ in sizes] == sizes


def test_the_published_codes_radius_is_lemma_2_as_printed() -> None:
    """|Φ| = 4, b = 3, p = 0.1, n = 64, Pólya at ε = 0.5, so σ = 2√2, h = 2; ln(1440) and ln(720) by hand."""
    expected = math.sqrt(7.272398 / 128) + (2 * math.sqrt(2) * math.sqrt(6.579251) + 2 * 6.579251) / 64
    assert published_radius(64, Laplace(2.0), 4, 3, 0.1) == pytest.approx(expected, abs=1e-6)


def test_the_published_code_puts_p_into_every_event_as_it_is() -> None:
    policy = made("successive-elimination", 4, first_batch=3, constants="published-code")
    spec = SuccessiveEliminationSpec(constants="published-code")
    assert spec.event_probability(RoundSize(4, 99, "paper", 1, 4)) == 0.1
    tell(policy, [0.5, 0.5, 0.5, 0.5], Laplace(2.0))
    (first, *_) = policy.intervals
    assert first.upper - first.mean == pytest.approx(published_radius(64, Laplace(2.0), 4, 3, 0.1))


def test_an_epoch_of_dp_se_is_as_long_as_its_gap_and_the_noise_need() -> None:
    """K = 10, p = 0.1, e = 1: 32 ln(800)/0.25 = 855.6…; 8 ln(400)/(ε 0.5) = 958.6… at ε = 0.1, 95.9 at ε = 1."""
    for noise, clients in ((0.0, 856), (1.0, 856), (10.0, 959)):
        assert {query.clients for query in asked(made("dp-se", 10, noise=noise)).queries} == {clients}


def test_dp_se_halves_the_gap_and_counts_the_arms_that_are_left() -> None:
    """After epoch 1 two of three arms are left: 32 ln(8·2·4/0.1)·16 = 3308.4…"""
    policy = made("dp-se", 3)
    tell(policy, [0.9, 0.9, 0.1])
    assert policy.active == (0, 1)
    assert tell(policy, [0.9, 0.9, 0.1]) == 3309


def test_the_paper_width_of_dp_se_is_its_formula_for_laplace_noise() -> None:
    """h + c = √(L₈/(2R)) + L₄/(εR), R = 856, |S| = 10, e = 1, ε = 0.5."""
    policy = made("dp-se", 10, noise=2.0, calibration="paper")
    tell(policy, [0.5] * 10, Laplace(2.0))
    expected = math.sqrt(math.log(800) / (2 * 856)) + 2 * math.log(400) / 856
    assert policy.intervals[0].upper - policy.intervals[0].mean == pytest.approx(expected)


@pytest.mark.parametrize("calibration", ["exact", "paper"])
def test_all_events_of_dp_se_together_stay_below_p(calibration: Literal["exact", "paper"]) -> None:
    """Sampling and noise at p/(5|S|e²) each, or the paper's p/(4|S|e²); a wrapped sum at the spec's share."""
    policy, spent = made("dp-se", 4, failure=0.2, calibration=calibration), 0.0
    spec, share = DpSeSpec(name="dp-se", failure=0.2), 0.0
    each = 2 / (4 if calibration == "paper" else 5)
    for epoch in range(1, 9):
        share = spec.event_probability(RoundSize(4, 10**9, calibration, epoch, len(policy.active)))
        spent += 4 * share + each * 0.2 / epoch**2
        tell(policy, [0.5] * 4)
    beyond = 4 * share * 8**2 + each * 0.2
    assert spent + beyond / 8 < 0.2  # Σ 1/e² over e > 8 is below 1/8


def test_an_epoch_of_dp_se_drops_every_arm_whose_gap_it_looked_for() -> None:
    """2h + 2c ≤ D_e/2 by the choice of R_e, so that a measured gap of D_e/2 is enough."""
    for noise in (0.0, 1.0, 50.0):
        policy = made("dp-se", 5, noise=noise, calibration="paper")
        for epoch in range(1, 7):
            tell(policy, [0.5] * 5, Laplace(max(noise, 1e-12)))
            width = policy.intervals[0].upper - policy.intervals[0].lower
            assert width <= 2.0**-epoch / 2 * (1 + 1e-9)


def test_dp_se_asks_nothing_of_the_last_arm_and_plays_it_to_the_end() -> None:
    policy = made("dp-se", 2)
    tell(policy, [0.9, 0.1])
    assert policy.active == (0,)
    assert policy.ask(10**9) is None
    assert policy.leftover(77) == {0: 77}


def test_an_unfinished_epoch_of_dp_se_plays_its_arms_in_turn() -> None:
    assert made("dp-se", 3).leftover(11) == {0: 4, 1: 4, 2: 3}
    assert made("dp-se", 3).leftover(2) == {0: 1, 1: 1}


def test_vb_sdp_ae_pools_all_its_batches_weighted_by_who_answered() -> None:
    policy = made("vb-sdp-ae", 2, first_batch=3)
    tell(policy, [0.25, 0.5], lost=4)  # 4 answer: a sum of 1
    tell(policy, [0.75, 0.5])  # 16: a sum of 12
    assert policy.intervals[0].mean == 13 / 20


def test_past_data_make_intervals_narrower_than_forgetting_where_sampling_dominates() -> None:
    pooled, fresh = made("vb-sdp-ae", 2), made("successive-elimination", 2)
    for batch in range(1, 12):
        for policy in (pooled, fresh):
            tell(policy, [0.5, 0.5], Laplace(0.01))
        widths = [one.intervals[0].upper - one.intervals[0].lower for one in (pooled, fresh)]
        assert batch == 1 or widths[0] < widths[1]


def test_the_pooled_width_counts_the_noise_of_every_batch() -> None:
    """As many noises as batches: wider than one alone, narrower than all their quantiles added up."""
    law, allowed = Laplace(3.0), 1e-3
    alone = law.quantile(allowed)
    widths = [pooled_noise((law,) * batches, allowed) for batches in (1, 2, 5, 10)]
    assert widths[0] == pytest.approx(alone)
    assert widths == sorted(widths)
    assert widths[-1] < 10 * law.quantile(allowed / 10)
    rng = np.random.default_rng(0)
    sums = np.abs(rng.laplace(0, 3.0, (400_000, 10)).sum(axis=1))
    assert np.quantile(sums, 1 - allowed) < widths[-1]


def test_the_share_of_vb_sdp_ae_does_not_depend_on_who_is_left() -> None:
    """The number of active arms depends on the pooled data, so the union bound is over all arms."""
    policy = made("vb-sdp-ae", 4, first_batch=6)
    tell(policy, [0.9, 0.9, 0.1, 0.1])
    tell(policy, [0.9, 0.9, 0.1, 0.1])
    ask = asked(policy)
    assert len(ask.queries) == 2
    spec = VbSdpAeSpec(name="vb-sdp-ae", first_batch=6)
    assert spec.event_probability(RoundSize(4, 10**9, "exact", 3, 2)) == 0.1 / (5 * 4 * 8**2)


def test_an_exact_width_is_the_same_for_all_policies_that_forget() -> None:
    policy = made("dp-se", 3)
    clients = tell(policy, [0.5, 0.5, 0.5], Laplace(4.0), lost=5)
    result = policy.intervals[0]
    assert result.upper - result.mean == pytest.approx(exact_radius(clients - 5, Laplace(4.0), 3, 1, 0.1))

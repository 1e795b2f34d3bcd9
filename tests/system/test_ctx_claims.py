"""Tests CTX's claims about its Figures 1 and 2, true or false, on the rows that docs/figures.md publishes.

What docs/figures/ctx.md says of the noise is computed from the experiment's mechanisms.
"""

import math
from itertools import pairwise

import numpy as np
import pytest

from distrust.client.environments.contextual import GeneralizedLinear
from distrust.lab.figures.drawing import uniform_play
from distrust.lab.sweep.cells import cell_run_file, load_experiment
from distrust.lab.sweep.row import Cell
from distrust.server.learner.learner import Learner
from tests.support.claims import published

FIGURES = ("ctx-1", "ctx-2")
LINUCB, JDP, LDP = "LinUCB", "LinUCB-JDP", "LinUCB-LDP"
FACTORS = "LinUCB-JDP by factorization"
VARIANTS = ("", ", batched")
AMP, VEC, AGGREGATED = "LinUCB-SDP-Amp", "LinUCB-SDP-Vec", "secure aggregation"


def decided(figure: str, variant: str, series: str, other: str) -> list[bool | None]:
    """Return whether a series has less regret than another one, panel by panel; None where it is undecided."""
    table = published(figure)
    return [table.less(panel, series + variant, other + variant) for panel in table.panels]


@pytest.mark.parametrize("figure", FIGURES)
def test_the_central_model_is_below_the_shuffled_bits_and_these_below_the_local_model(figure: str) -> None:
    """LinUCB < LinUCB-JDP < LinUCB-SDP-Vec < LinUCB-LDP, in every panel and at both batch sizes."""
    for less, more in pairwise((LINUCB, JDP, VEC, LDP)):
        assert all(below for variant in VARIANTS for below in decided(figure, variant, less, more))


@pytest.mark.parametrize("figure", FIGURES)
def test_the_central_model_is_below_amplified_noise(figure: str) -> None:
    for variant in VARIANTS:
        assert all(decided(figure, variant, JDP, AMP))


def test_that_amplified_noise_is_below_local_noise_is_decided_where_privacy_is_dear() -> None:
    """CTX reports less regret at every ε. At ε = 10 no bound gains from a shuffler, and the noise is local noise."""
    assert decided("ctx-1", "", AMP, LDP) == [True, None, None]
    assert decided("ctx-1", ", batched", AMP, LDP) == [True, True, None]


def test_that_amplified_noise_is_below_local_noise_in_more_dimensions() -> None:
    assert decided("ctx-2", "", AMP, LDP) == [None, True]
    assert decided("ctx-2", ", batched", AMP, LDP) == [True, True]


def test_a_factorization_has_a_fifth_to_three_tenths_less_regret_than_the_tree_in_every_world() -> None:
    table = published("ctx-1")
    for panel in table.panels:
        for variant in VARIANTS:
            assert (table.regret(panel, FACTORS + variant) < table.regret(panel, JDP + variant)).all()
            low, high = table.differs(panel, FACTORS + variant, JDP + variant)
            assert -0.31 < low < high < -0.19


@pytest.mark.parametrize("figure", FIGURES)
def test_shuffled_bits_have_the_regret_of_secure_aggregation_and_send_far_more(figure: str) -> None:
    """Shuffled bits are ahead where a difference is seen at all, by less than 3 %."""
    table = published(figure)
    for variant in VARIANTS:
        assert False not in decided(figure, variant, VEC, AGGREGATED)
        for panel in table.panels:
            ours, bits = AGGREGATED + variant, VEC + variant
            assert table.mean(panel, bits) == pytest.approx(table.mean(panel, ours), rel=0.03)
            assert 5 < table.bits(panel, bits).mean() / table.bits(panel, ours).mean() < 20


def message_noise(panel: str, series: str, name: str = "ctx-1") -> float:
    """Return the deviation of one client's part of the noise in a sum of a Figure 1 cohort."""
    file = cell_run_file(load_experiment(name), Cell(panel, series, 0))
    mechanism = Learner(file.config).rounds[0].mechanism
    return mechanism.error(mechanism.clients).std / math.sqrt(mechanism.clients)


def test_secure_aggregation_has_the_noise_of_the_shuffled_bits_within_three_percent() -> None:
    for panel in published("ctx-1").panels:
        for variant in VARIANTS:
            noise = message_noise(panel, AGGREGATED + variant)
            assert noise == pytest.approx(message_noise(panel, VEC + variant), rel=0.03)


@pytest.mark.parametrize(("variant", "shares"), [("", (0.50, 0.73)), (", batched", (0.31, 0.52))])
def test_an_amplified_message_has_the_stated_share_of_a_local_clients_noise(
    variant: str, shares: tuple[float, float]
) -> None:
    for panel, share in zip(published("ctx-1").panels, shares, strict=False):
        ratio = message_noise(panel, AMP + variant) / message_noise(panel, LDP)
        assert round(ratio, 2) == share


def test_regret_falls_as_epsilon_grows_and_without_noise_it_does_not() -> None:
    """Every step is decided, from ε = 0.2 to 1 and from 1 to 10, with proven β and with tuned ones."""
    table = published("ctx-1")
    for series in {row.series for row in table.rows}:
        for less, more in pairwise(table.panels):
            low, high = table.changes(series, more, less)
            assert low < 0 < high if series.split(", ")[0] == LINUCB else high < 0


def test_larger_batches_help_every_model_whose_noise_is_shared() -> None:
    for figure in FIGURES:
        table = published(figure)
        for series in (JDP, VEC, AGGREGATED):
            assert (table.means(f"{series}, batched") < table.means(series)).all()
    factors = published("ctx-1")
    assert (factors.means(f"{FACTORS}, batched") < factors.means(FACTORS)).all()


def test_larger_batches_help_amplified_noise_at_a_small_epsilon_and_in_few_dimensions() -> None:
    for figure, helped in (("ctx-1", [True, True, False]), ("ctx-2", [True, False])):
        table = published(figure)
        intervals = [table.differs(panel, f"{AMP}, batched", AMP) for panel in table.panels]
        assert [high < 0 for _, high in intervals] == helped


def test_no_width_misses_the_true_parameters() -> None:
    """Misses are far rarer than α here. `test_linucb.py` has settings in which a β that is too small is seen."""
    for figure in FIGURES:
        rows = published(figure).rows
        assert sum(row.widths for row in rows) > 10**6
        assert sum(row.width_failures for row in rows) == 0


@pytest.mark.parametrize(
    ("figure", "panel", "uniform", "first"),
    [("ctx-1", "ε = 1", 9328, 162), ("ctx-2", "d = 10", 7385, 155), ("ctx-2", "d = 15", 6255, 121)],
)
def test_uniform_play_and_the_first_arm_in_a_batch_lose_what_the_page_says(
    figure: str, panel: str, uniform: int, first: int
) -> None:
    """Means over the figure's worlds. All clients of a world meet the same contexts."""
    experiment = load_experiment(figure)
    lost = []
    for repetition in range(experiment.repetitions):
        world = cell_run_file(experiment, Cell(panel, LINUCB, repetition)).world()
        assert isinstance(world, GeneralizedLinear)
        assert world.fixed is not None
        means = world.means(world.fixed[np.newaxis])[0]
        lost.append((20_000 * (means.max() - means.mean()), 381 * (means.max() - means[0])))
    assert np.mean(lost, axis=0) == pytest.approx([uniform, first], abs=0.5)
    table = published(figure)
    assert all(table.mean(panel, series) < uniform for series in {row.series for row in table.rows})


TUNED, THEIRS = ", batched, β tuned", ", their noise"


def test_with_the_authors_constants_the_order_is_as_claimed_and_amplified_noise_is_below_local_noise() -> None:
    """At ε = 10 the latter is decided with the code's noise alone."""
    for less, more in ((LINUCB, JDP), (JDP, VEC), (VEC, LDP), (JDP, AMP)):
        assert all(decided("ctx-code", "", less, more))
    assert decided("ctx-code", "", AMP, LDP) == [True, True, None]
    assert decided("ctx-code", THEIRS, AMP, LDP) == [True, True, True]


def test_the_worlds_of_the_authors_constants_have_the_stated_regret_of_uniform_play() -> None:
    lines = uniform_play(load_experiment("ctx-code"), published("ctx-code").rows)
    assert list(lines.values()) == pytest.approx([9457] * 3, abs=0.5)


@pytest.mark.parametrize(("series", "shares"), [(LDP, [1.84, 0.78, 0.29]), (AMP, [1.14, 0.33, 0.09])])
def test_the_authors_noise_is_the_stated_share_of_what_keeps_epsilon(series: str, shares: list[float]) -> None:
    panels = published("ctx-code").panels
    ratios = [message_noise(panel, series + THEIRS, "ctx-code") / message_noise(panel, series) for panel in panels]
    assert [round(ratio, 2) for ratio in ratios] == shares


def test_a_tuned_width_saves_half_and_more_where_noise_is_shared_and_less_behind_a_shuffler() -> None:
    """Of the regret with the proven β. LinUCB-LDP at ε = 0.2 is undecided."""
    table = published("ctx-1")
    for panel in table.panels:
        for series in (LINUCB, JDP, FACTORS, VEC, AGGREGATED):
            saved = 1 - table.mean(panel, series + TUNED) / table.mean(panel, f"{series}, batched")
            assert 0.495 < saved < 0.745
            assert table.less(panel, series + TUNED, f"{series}, batched")
    amp = 1 - table.means(AMP + TUNED) / table.means(f"{AMP}, batched")
    assert amp == pytest.approx([0.274, 0.390, 0.545], abs=1e-3)
    assert [table.less(panel, LDP + TUNED, f"{LDP}, batched") for panel in table.panels] == [None, True, True]


def test_with_tuned_widths_the_order_is_as_claimed_but_for_linucb_at_a_large_epsilon() -> None:
    """LinUCB has batches of 381 there, and LinUCB-JDP of 141."""
    orders = {
        pair: decided("ctx-1", TUNED, *pair) for pair in ((LINUCB, JDP), (JDP, VEC), (VEC, LDP), (JDP, AMP), (AMP, LDP))
    }
    assert orders.pop((LINUCB, JDP)) == [True, True, False]
    assert orders.pop((AMP, LDP)) == [True, True, None]
    assert all(less for each in orders.values() for less in each)
    assert decided("ctx-1", TUNED, VEC, AGGREGATED) == [None] * 3


BITS = ("local Gaussian", "sealed Gaussian", "labelled bits")
MASKED = ("secure aggregation (discrete Gaussian)", "secure aggregation (Skellam)")


def test_without_a_trusted_server_nothing_has_as_little_regret_as_secure_aggregation_for_as_few_bits() -> None:
    """No interval is below zero. The one point with fewer bits, local noise at ε = 10, has 2.4 times the regret."""
    table = published("ctx-bits")
    fewer = set()
    for panel in table.panels:
        for variant in ("", ", B = 20"):
            for ours, other in ((one + variant, more + variant) for one in MASKED for more in BITS):
                assert table.differs(panel, other, ours)[1] > 0
                if table.of(panel, other, "payload_bits").mean() < table.of(panel, ours, "payload_bits").mean():
                    fewer.add((panel, other))
                    assert table.mean(panel, other) > 2.4 * table.mean(panel, ours)
    assert fewer == {("ε = 10", "local Gaussian")}


def test_labelled_bits_have_the_regret_of_secure_aggregation_within_its_interval_and_many_times_the_bits() -> None:
    table = published("ctx-bits")
    ratios = []
    for panel in table.panels:
        for variant in ("", ", B = 20"):
            for ours in (one + variant for one in MASKED):
                low, high = table.differs(panel, f"labelled bits{variant}", ours)
                assert low < 0 < high
                assert abs(low + high) / 2 < 0.0405
                bits = table.of(panel, f"labelled bits{variant}", "payload_bits").mean()
                ratios.append(bits / table.of(panel, ours, "payload_bits").mean())
    assert (min(ratios), max(ratios)) == (pytest.approx(5.9, abs=0.05), pytest.approx(19.2, abs=0.05))


def test_in_batches_of_381_secure_aggregation_has_nine_to_fourteen_percent_more_regret_than_the_tree() -> None:
    """At B = 20 it is 45 to 66 %. All differences are decided."""
    table = published("ctx-bits")
    for variant, (least, most) in {"": (0.085, 0.145), ", B = 20": (0.445, 0.665)}.items():
        for panel in table.panels:
            for one in MASKED:
                low, high = table.differs(panel, one + variant, f"central tree{variant}")
                assert low > 0
                assert least < (low + high) / 2 < most


def test_the_two_noises_of_secure_aggregation_have_one_regret_for_the_same_bits() -> None:
    """All six differences of their regrets hold both signs, and their means are at most 2.4 %."""
    table = published("ctx-bits")
    for panel in table.panels:
        for variant in ("", ", B = 20"):
            gauss, skellam = (one + variant for one in MASKED)
            assert (table.of(panel, gauss, "payload_bits") == table.of(panel, skellam, "payload_bits")).all()
            assert table.less(panel, skellam, gauss) is None
            assert table.mean(panel, skellam) == pytest.approx(table.mean(panel, gauss), 0.0245)

"""Tests CTX's claims about its Figures 1 and 2, true or false, on the rows that docs/figures.md publishes."""

import numpy as np
import pytest

from tests.support.claims import published

FIGURES = ("ctx-1", "ctx-2")
LINUCB, JDP, LDP = "LinUCB", "LinUCB-JDP", "LinUCB-LDP"
AMP, VEC, AGGREGATED = "LinUCB-SDP-Amp", "LinUCB-SDP-Vec", "secure aggregation"


def test_the_central_model_is_below_the_shuffled_bits_and_these_below_the_local_model() -> None:
    """LinUCB < LinUCB-JDP < LinUCB-SDP-Vec < LinUCB-LDP, in every panel, at the printed B = 20."""
    for figure in FIGURES:
        table = published(figure)
        order = np.array([table.means(series) for series in (LINUCB, JDP, VEC, LDP)])
        assert (np.diff(order, axis=0) > 0).all()


def test_amplified_noise_is_not_below_local_noise_at_the_printed_batch() -> None:
    """CTX reports less regret with amplification. With exact noise 20 shuffled clients equal local noise to 6 %."""
    for figure in FIGURES:
        ratio = published(figure).means(AMP) / published(figure).means(LDP)
        assert ((ratio > 0.94) & (ratio < 1.06)).all()


def test_amplification_of_381_clients_helps_at_a_small_epsilon_and_elsewhere_by_hardly_anything() -> None:
    table = published("ctx-1")
    ratio = table.means(f"{AMP}, batched") / table.means(f"{LDP}, batched")
    assert ratio[0] < 0.97
    assert (ratio[1:] > 0.97).all()


def test_secure_aggregation_is_below_shuffled_bits_and_sends_fewer() -> None:
    for figure in FIGURES:
        table = published(figure)
        for variant in ("", ", batched"):
            ours, bits = AGGREGATED + variant, VEC + variant
            assert (table.means(ours) < table.means(bits)).all()
            assert all(table.bits(panel, ours).mean() < table.bits(panel, bits).mean() for panel in table.panels)


def test_regret_falls_as_epsilon_grows() -> None:
    table = published("ctx-1")
    for series in (JDP, VEC, AGGREGATED, AMP, LDP):
        assert (np.diff(table.means(series)) < 0).all()


def test_larger_batches_help_every_model_whose_noise_is_shared() -> None:
    for figure in FIGURES:
        table = published(figure)
        for series in (JDP, VEC, AGGREGATED):
            assert (table.means(f"{series}, batched") < table.means(series)).all()


def test_no_width_misses_the_true_parameters() -> None:
    """Misses are far rarer than α here. `test_linucb.py` has settings in which a β that is too small is seen."""
    for figure in FIGURES:
        rows = published(figure).rows
        assert sum(row.widths for row in rows) > 10**6
        assert sum(row.width_failures for row in rows) == 0


BITS = ("local Gaussian", "sealed Gaussian", "labelled bits")
MASKED = ("secure aggregation (discrete Gaussian)", "secure aggregation (Skellam)")


def test_without_a_trusted_server_nothing_has_as_little_regret_as_secure_aggregation_for_as_few_bits() -> None:
    """Regret is compared within 2 %. At ε = 10 and B = 381 labelled bits equal it, with over six times the bits."""
    table = published("ctx-bits")
    for panel in table.panels:
        for variant in ("", ", B = 20"):
            for ours in (one + variant for one in MASKED):
                for other in (one + variant for one in BITS):
                    assert table.mean(panel, ours) < 1.02 * table.mean(panel, other)
                    fewer = table.of(panel, other, "payload_bits").mean() < table.of(panel, ours, "payload_bits").mean()
                    assert not (fewer and table.mean(panel, other) < 1.3 * table.mean(panel, ours))


def test_the_two_noises_of_secure_aggregation_have_one_regret_for_the_same_bits() -> None:
    table = published("ctx-bits")
    for panel in table.panels:
        for variant in ("", ", B = 20"):
            gauss, skellam = (table.of(panel, one + variant, "payload_bits") for one in MASKED)
            assert (gauss == skellam).all()
            assert table.mean(panel, MASKED[1] + variant) == pytest.approx(table.mean(panel, MASKED[0] + variant), 0.03)

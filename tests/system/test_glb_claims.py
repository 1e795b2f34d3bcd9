"""What GLB says of its Figure 5.1, true or false as we find it, on the rows that docs/figures.md publishes."""

import pytest

from tests.support.claims import published

OURS, BASELINES = ("LDP-OLS", "LDP-SGD"), ("LDP-UCB", "LDP-GLOC")


def test_least_squares_and_gradient_steps_are_below_both_baselines_in_every_panel() -> None:
    table = published("glb-1")
    for panel in table.panels:
        worst = max(table.mean(panel, one) for one in OURS)
        assert worst < min(table.mean(panel, one) for one in BASELINES)


def test_they_are_far_below_with_one_parameter_and_little_privacy_budget() -> None:
    """More than three times; at ε = 5 LDP-GLOC comes near."""
    table = published("glb-1")
    for ours in OURS:
        assert 3 * table.mean("one parameter, ε = 1", ours) < table.mean("one parameter, ε = 1", "LDP-UCB")
        assert 3 * table.mean("one parameter, ε = 1", ours) < table.mean("one parameter, ε = 1", "LDP-GLOC")
        assert 2 * table.mean("one parameter, ε = 5", ours) > table.mean("one parameter, ε = 5", "LDP-GLOC")


def test_with_one_parameter_an_arm_the_warm_up_is_most_of_the_regret_at_epsilon_5() -> None:
    """It ends at a tenth of T, the fifth of fifty checkpoints."""
    table = published("glb-1")
    for ours in OURS:
        assert table.curve("one an arm, ε = 5", ours)[4] > 0.7 * table.mean("one an arm, ε = 5", ours)


def test_gradient_steps_do_as_well_as_least_squares_at_epsilon_1_and_send_fewer_bits() -> None:
    table = published("glb-1")
    for panel in ("one parameter, ε = 1", "one an arm, ε = 1"):
        assert table.mean(panel, "LDP-SGD") == pytest.approx(table.mean(panel, "LDP-OLS"), rel=0.07)
        assert 5 * table.bits(panel, "LDP-SGD").mean() < table.bits(panel, "LDP-OLS").mean()

"""What GLB says of its Figures 5.1 and F.1, true or false as we find it, on the rows that docs/figures.md publishes."""

import numpy as np
import pytest

from distrust.client.environments import AutoLending
from distrust.client.environments.auto_lending import offers
from distrust.lab.sweep.cells import cell_run_file, load_experiment
from distrust.lab.sweep.row import Cell
from tests.support.claims import published

OURS, BASELINES = ("LDP-OLS", "LDP-SGD"), ("LDP-UCB", "LDP-GLOC")


def test_least_squares_and_gradient_steps_are_below_both_baselines_in_every_panel() -> None:
    """With the figure's steps. docs/figures.md has one of LDP-GLOC that is level with LDP-SGD, one parameter, ε = 5."""
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
    """It ends at a tenth of T, the fifth of fifty checkpoints. LDP-UCB, without one, is ahead until t = 78,000."""
    table = published("glb-1")
    without = np.array(table.curve("one an arm, ε = 5", "LDP-UCB"))
    for ours in OURS:
        curve = np.array(table.curve("one an arm, ε = 5", ours))
        assert curve[4] > 0.7 * curve[-1]
        assert (without[5:39] < curve[5:39]).all()
        assert (without[39:] > curve[39:]).all()


def test_gradient_steps_do_as_well_as_least_squares_at_epsilon_1_and_send_fewer_bits() -> None:
    table = published("glb-1")
    for panel in ("one parameter, ε = 1", "one an arm, ε = 1"):
        assert table.mean(panel, "LDP-SGD") == pytest.approx(table.mean(panel, "LDP-OLS"), rel=0.07)
        assert 5 * table.bits(panel, "LDP-SGD").mean() < table.bits(panel, "LDP-OLS").mean()


def test_on_made_up_loans_gradient_steps_lose_little_more_than_half_of_what_gloc_loses() -> None:
    table = published("glb-f1")
    for panel in table.panels:
        sgd, gloc = table.regret(panel, "LDP-SGD"), table.regret(panel, "LDP-GLOC")
        assert (sgd < gloc).all()
        assert sgd.mean() < 0.6 * gloc.mean()
    one, five = (table.mean(panel, "LDP-SGD") for panel in table.panels)
    assert five < 0.9 * one


def test_on_made_up_loans_gloc_learns_nothing_and_gradient_steps_are_still_above_the_best_single_price() -> None:
    """Of the true regrets of one price for all customers: GLOC has that of the highest, which it begins with."""
    file = cell_run_file(load_experiment("glb-f1"), Cell("ε = 1", "LDP-SGD", 0))
    world = file.environment.build()
    assert isinstance(world, AutoLending)
    revenue = world.prices * world.means(offers(world.customers[:, np.newaxis], world.prices))
    lost = file.config.horizon * (revenue.max(axis=1)[:, np.newaxis] - revenue).mean(axis=0)
    table = published("glb-f1")
    for panel in table.panels:
        assert table.mean(panel, "LDP-GLOC") == pytest.approx(lost[-1], rel=0.02)
        assert 3 * lost.min() < table.mean(panel, "LDP-SGD") < lost.mean()
    assert lost.min() == pytest.approx(564, abs=1)
    assert lost[-1] == pytest.approx(7325, abs=1)

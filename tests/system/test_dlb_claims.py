"""Tests DLB's claims about its figures, on the rows that docs/figures.md publishes."""

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from distrust.lab.__main__ import app
from tests.support.claims import published
from tests.support.published import FIGURES

PAPER, EXACT, SPREAD = (
    "paper widths, σ = 0.1, U = 400",
    "exact widths, σ = 0.1, U = 1450",
    "exact widths, σ = 0.5, U = 1300",
)


def test_regret_falls_with_epsilon_in_every_model_of_trust() -> None:
    dlb = published("dlb-2a")
    for series in ("CDP-DPE", "SDP-DPE", "LDP-DPE"):
        assert (np.diff(dlb.means(series)) < 0).all()


def test_shuffled_is_close_to_central() -> None:
    dlb = published("dlb-2a")
    ratio = dlb.means("SDP-DPE") / dlb.means("CDP-DPE")
    assert ((ratio > 0.7) & (ratio < 1.4)).all()


def test_local_is_far_above_both_in_every_world() -> None:
    dlb = published("dlb-2a")
    for panel in dlb.panels:
        for series in ("CDP-DPE", "SDP-DPE"):
            assert (dlb.regret(panel, "LDP-DPE") > 5 * dlb.regret(panel, series)).all()


def test_without_privacy_regret_is_least() -> None:
    dlb = published("dlb-2a")
    for series in ("CDP-DPE", "SDP-DPE", "LDP-DPE"):
        assert (dlb.means("DPE") < dlb.means(series)).all()


@pytest.mark.parametrize("panel", [PAPER, EXACT, SPREAD])
def test_both_samplings_communicate_alike(panel: str) -> None:
    dlb = published("dlb-2c")
    assert dlb.bits(panel, "DPE").mean() == pytest.approx(dlb.bits(panel, "DPE-FixedU").mean(), rel=0.1)


@pytest.mark.parametrize("panel", [PAPER, EXACT, SPREAD])
def test_on_average_dpe_beats_fixed_u(panel: str) -> None:
    dlb = published("dlb-2c")
    assert 2 * dlb.mean(panel, "DPE") < dlb.mean(panel, "DPE-FixedU")


def test_dpe_beats_fixed_u_in_every_world_where_clients_differ_much() -> None:
    dlb = published("dlb-2c")
    assert (2 * dlb.regret(SPREAD, "DPE") < dlb.regret(SPREAD, "DPE-FixedU")).all()


def test_with_exact_widths_fixed_u_wins_in_half_of_the_worlds() -> None:
    """DLB's claim is about averages. In worlds with large gaps it is better to start with U clients a phase."""
    dlb = published("dlb-2c")
    assert (dlb.regret(EXACT, "DPE-FixedU") < dlb.regret(EXACT, "DPE")).sum() == 11


def test_with_the_papers_constants_the_shuffled_model_learns_nothing() -> None:
    """Its noise is so large that no action is dropped. With exact calibration its regret is near the central one."""
    dlb = published("dlb-2b")
    (panel,) = dlb.panels
    assert (dlb.regret(panel, "SDP-DPE, paper") > dlb.regret(panel, "LDP-DPE")).all()
    assert dlb.mean(panel, "SDP-DPE, paper") > 50 * dlb.mean(panel, "SDP-DPE")
    assert dlb.mean(panel, "SDP-DPE") == pytest.approx(dlb.mean(panel, "CDP-DPE"), rel=0.3)


def test_the_page_states_the_noise_of_both_calibrations_that_its_command_prints() -> None:
    page = " ".join((FIGURES / "dlb").with_suffix(".md").read_text("utf-8").replace("\\\n", " ").split())
    words = page.partition("distrust privacy ")[2].partition(" ## ")[0].split()
    lines = CliRunner().invoke(app, ["privacy", *words]).stdout.splitlines()
    (line,) = (one for one in lines if "of the sum: std" in one)
    exact, paper = (float(number) for number in re.findall(r"\d+\.\d+", line))
    assert f"noise of standard deviation {paper:.0f} in each coordinate ({exact:.1f} with the exact" in page

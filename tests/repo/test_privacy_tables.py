"""Tests that the tables of docs/concepts/privacy/ are what the commands and the certificates print."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distrust.common.dp.mechanisms.shuffled.pure import fewest_bits
from distrust.common.dp.mechanisms.shuffled.pure_certificate import BitDesign, certified_epsilon
from distrust.lab.__main__ import app
from distrust.lab.audit.broken import BROKEN

PAGES = Path(__file__).parents[2] / "docs/concepts/privacy"
AUDITING = (PAGES / "auditing.md").read_text("utf-8").splitlines()
LINES = (PAGES / "pure-shuffling.md").read_text("utf-8").splitlines()
AUDITS = [line for line in AUDITING if line.startswith("| `distrust audit ")]
HEAD = next(number for number, line in enumerate(LINES) if line.startswith("| n | g | ε̂ asked |"))
CERTIFIED = [line for line in LINES[HEAD + 2 :][:40] if line.count("|") == LINES[HEAD].count("|")]


LUCK = 0.02
"""Of an audit's lower bound, which depends on draws; the document states it."""


def cells(row: str) -> list[str]:
    return [cell.strip(" `*") for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("row", AUDITS)
@pytest.mark.few(8)
def test_an_audit_of_the_document_finds_what_it_says(row: str) -> None:
    command, claim, lower = cells(row)
    done = CliRunner().invoke(app, command.split()[1:])
    result = json.loads(done.stdout)
    assert f"{result['claim']:.3g}" == claim
    assert result["lower"] == pytest.approx(float(lower), abs=LUCK)
    assert done.exit_code == ("--broken" in command)
    assert result["violated"] == ("--broken" in command)


def test_the_document_states_the_tolerance_of_audits() -> None:
    assert f"within {LUCK:g}" in " ".join(AUDITING)


def test_the_document_shows_every_counter_example_and_a_few_of_every_kind() -> None:
    assert all(any(f"--broken {name} " in row for row in AUDITS) for name in BROKEN)
    assert len(AUDITS) >= 12


@pytest.mark.parametrize("row", CERTIFIED)
def test_a_row_of_the_document_is_certified(row: str) -> None:
    """ε̂ and the noise from the row's own n, g, W, d, t and scale."""
    n, g, _, chance, bits, reach, share, noise, certified, std, order = cells(row)
    honest, precision, scale = int(n), int(g), int(g) / float(noise)
    trial = BitDesign(precision, int(share), scale, int(reach), int(bits), float(chance) / honest)
    escape = (trial.escape - 2 * trial.overflow()) * (1 - 1e-9)
    design = BitDesign(precision, int(share), scale, int(reach), int(bits), escape)
    assert certified_epsilon(design, honest) == pytest.approx(float(certified), abs=6e-5)
    spread = math.sqrt(2 * honest / int(share)) / (2 * precision * math.sinh(0.5 / scale))
    assert spread == pytest.approx(float(std), abs=6e-4)
    assert int(order.replace(",", "")) == round(honest**2.5)


@pytest.mark.parametrize("row", CERTIFIED[:4])
def test_a_row_of_the_document_is_what_the_search_finds(row: str) -> None:
    n, g, epsilon, chance, bits, reach, share, noise, *_ = cells(row)
    design = fewest_bits(float(epsilon), int(n), int(g), float(chance) / int(n))
    assert (design.length, design.reach, design.share) == (int(bits), int(reach), int(share))
    assert int(g) / design.scale == pytest.approx(float(noise), rel=1e-3)


def test_the_document_has_the_table() -> None:
    assert len(CERTIFIED) >= 20

"""Tests that progress is drawn on a terminal, and written as plain lines elsewhere."""

import io

import pytest
from rich.console import Console

from distrust.common.bandit.decisions import PlayDesign
from distrust.common.protocol.messages.status import CohortEntry
from distrust.lab.play.progress import Progress, working
from tests.support.round_report import REPORT, VIEW

STANDINGS = {
    name: CohortEntry(cohort=name, run=run, run_digest=bytes(32), round=1, clients=64, stage="shares", answered=17)
    for name, run in {"trial.1.1.1": "trial", "other.1.1.1": "other"}.items()
}


def printed(width: int, *, terminal: bool, looks: int = 1) -> str:
    text = io.StringIO()
    progress = Progress(Console(file=text, force_terminal=terminal, width=width, color_system=None, soft_wrap=True))
    with progress.running():
        for _ in range(looks):
            progress.show(VIEW, REPORT, STANDINGS)
    return text.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_round_cohorts_stages_clients_done_and_arms_left(width: int) -> None:
    seen = printed(width, terminal=True)
    for words in ("round 1", "3 of 3 arms left", "cohorts: 1 released, 0 aborted", "128 of 3,000 pulls, 128 clients"):
        assert words in seen
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in seen.splitlines() if line.strip().startswith("tri")}
    assert rows["trial.1.0.1"] == "0 released 60 of 64 in the sum"
    assert rows["trial.1.1.1"] == "1 shares 17 of 64"
    assert rows["trial.1.2.1"] == "2 planned"


def test_anything_else_gets_one_plain_line_for_the_same_news() -> None:
    message = printed(80, terminal=False, looks=2)
    assert message == (
        "round 1 (64 clients a cohort): 1 of 3 cohorts released, 1 in shares (17 of 64 clients done); "
        "128 of 3,000 pulls, 128 clients, 3 of 3 arms left\n"
    )


def test_the_horizon_counts_pulls_where_clients_play_many_times() -> None:
    """Of a design's 40 plays, that all eight clients play together, a half has begun with four of them."""
    decision = PlayDesign(actions=[0, 2], times=[30, 10])
    cohort = REPORT.cohorts[0].model_copy(update={"arm": None, "clients": 8, "granted": 4})
    report = REPORT.model_copy(update={"decision": decision, "cohorts": [cohort]})
    view = VIEW.model_copy(update={"clients": 12, "snapshot": VIEW.snapshot.model_copy(update={"pulls": 100})})
    text = io.StringIO()
    Progress(Console(file=text, width=300)).show(view, report, STANDINGS)
    assert "80 of 3,000 pulls, 12 clients" in text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_computation_shows_its_name_on_a_terminal_and_nothing_elsewhere(
    terminal: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    text = io.StringIO()
    with working("shuffled-gaussian", Console(file=text, force_terminal=terminal)):
        pass
    assert ("computing shuffled-gaussian" in text.getvalue()) is terminal
    assert terminal or not text.getvalue()

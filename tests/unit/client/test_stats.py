"""Tests of a fleet's report: its counts add up, and its file is written whole or not at all."""

import json
from pathlib import Path

import pytest

from distrust.client.cohort.stats import FleetStats, write_report


def test_the_report_adds_up() -> None:
    stats = FleetStats()
    stats.clients.update(joined=5, served=4, departed=1)
    stats.message_bytes.update(keys=320, masked=8, report=4)
    with stats.timing("keys"):
        pass
    report = stats.report(run="demo")
    assert report["run"] == "demo"
    no_client = dict.fromkeys(("refused", "robbed", "late", "aborted"), 0)
    assert report["clients"] == {"joined": 5, "served": 4, "departed": 1, **no_client}
    assert report["payload_bytes"] == 12
    assert set(report["stage_seconds"]) == {"keys"}


def test_time_is_counted_even_when_the_work_fails() -> None:
    stats = FleetStats()
    with pytest.raises(ValueError, match="broken"), stats.timing("masked"):
        raise ValueError("broken")
    assert stats.seconds["masked"] > 0


def test_a_report_replaces_the_old_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text("old")
    write_report({"clients": {"served": 3}}, path)
    assert json.loads(path.read_text()) == {"clients": {"served": 3}}
    assert [result.name for result in tmp_path.iterdir()] == ["fleet.json"]

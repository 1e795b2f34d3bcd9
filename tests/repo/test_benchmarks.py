"""Tests that every benchmark runs and prints its figures. No test judges how long it takes."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import Forked, forking
from tests.support.picked import picked

ROOT = Path(__file__).parents[2]
RATIOS = {"client_ratio", "aggregator_ratio", "k", "t"}

pytestmark = pytest.mark.slow


def require_figures(target: Path, listed: dict[str, set[str]]) -> None:
    """Assert that a benchmark wrote its machine, and rows of these fields in each of these lists."""
    figures = json.loads(target.read_text("utf-8"))
    assert figures["machine"]["cores"] >= 1
    for name, fields in listed.items():
        assert figures[name]
        for row in figures[name]:
            assert fields <= row.keys()


QUICK = [
    pytest.param("secagg", {"results": RATIOS}, id="secagg"),
    pytest.param("secagg_http", {"results": {"fleet_ratio", "ratio", "wire_bytes", "k", "t"}}, id="secagg-over-http"),
    pytest.param("shuffle", {"runs": {"rate", "share", "cpu_ratio", "cpu"}}, id="shuffle"),
    pytest.param(
        "receipts",
        {"results": {"alone", "received", "fleet", "ratio", "server"}, "waits": {"receipts", "bare", "ratio"}},
        id="receipts",
    ),
    pytest.param(
        "kept",
        {"kept": {"channel", "service", "before", "after"}, "files": {"run", "server", "shuffler", "aggregator"}},
        id="kept",
    ),
    pytest.param("memory", {"runs": {"mechanism", "start", "peak", "fleet"}}, id="memory"),
    pytest.param("policies", {"results": {"policy", "mechanism", "first", "again", "limit", "ratio"}}, id="policies"),
    pytest.param("samplers", {"results": {"law", "rate", "ratio", "table"}}, id="samplers"),
    pytest.param("calculator", {"calls": {"words", "cpu", "ended"}}, id="calculator"),
    pytest.param(
        "contextual",
        {
            "rounds": {"rate", "after", "ratio", "limit", "cpu"},
            "cohorts": {"dimension", "cpu", "rate", "ratio", "limit"},
        },
        id="contextual",
    ),
]
FEW = 2  # benchmarks that are tried here; CI tries all


@pytest.mark.parametrize(("script", "listed"), picked(QUICK, FEW, "benchmarks"))
def test_a_quick_benchmark_writes_its_figures(
    script: str, listed: dict[str, set[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with services that are forked: a figure of so quick a benchmark is not for quoting anyway."""
    target = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--json", str(target)])
    monkeypatch.setattr("benchmarks.stage.ServiceProcess", Forked)
    with forking():
        importlib.import_module(f"benchmarks.{script}").main()
    require_figures(target, listed)


def test_a_benchmark_runs_as_the_command_that_its_page_shows(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.simulate", "--quick", "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    require_figures(target, {"results": {"mechanism", "first", "again", "ratio"}})


def test_every_benchmark_is_tried_and_documented() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")}
    page = (ROOT / "docs" / "reference" / "performance.md").read_text("utf-8")
    tried = {"secagg", "secagg_http", "shuffle", "receipts", "simulate", "policies", "memory", "samplers", "contextual"}
    assert scripts == tried | {"pure_shuffle_table", "calculator", "kept"}
    assert all(f"benchmarks.{script} " in page or f"benchmarks.{script}\n" in page for script in scripts)

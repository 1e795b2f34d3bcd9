"""Every benchmark runs, and says what it promises to; no test looks at how long it takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RATIOS = {"client_ratio", "aggregator_ratio", "k", "t"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "listed", "fields"),
    [
        pytest.param("secagg", "results", RATIOS, id="secagg"),
        pytest.param("secagg_http", "results", {"fleet_ratio", "ratio", "wire_bytes", "k", "t"}, id="secagg-over-http"),
        pytest.param("shuffle", "runs", {"rate", "share", "cpu_ratio", "cpu"}, id="shuffle"),
        pytest.param("simulate", "results", {"mechanism", "first", "again", "ratio"}, id="simulate"),
        pytest.param("policies", "results", {"policy", "mechanism", "first", "again", "limit", "ratio"}, id="policies"),
        pytest.param("samplers", "results", {"law", "rate", "ratio", "table"}, id="samplers"),
        pytest.param("calculator", "calls", {"words", "cpu", "ended"}, id="calculator"),
        pytest.param("contextual", "rounds", {"rate", "after", "ratio", "limit", "cpu"}, id="contextual-rounds"),
        pytest.param("contextual", "cohorts", {"dimension", "cpu", "rate", "ratio", "limit"}, id="contextual-cohorts"),
        pytest.param("memory", "runs", {"mechanism", "start", "peak", "fleet"}, id="memory"),
    ],
)
def test_a_quick_benchmark_writes_its_figures(script: str, listed: str, fields: set[str], tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    command = [sys.executable, "-m", f"benchmarks.{script}", "--quick", "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(target.read_text("utf-8"))
    assert figures["machine"]["cores"] >= 1
    assert figures[listed]
    for row in figures[listed]:
        assert fields <= row.keys()


def test_every_benchmark_is_tried_and_documented() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text("utf-8")}
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    tried = {"secagg", "secagg_http", "shuffle", "simulate", "policies", "memory", "samplers", "contextual"}
    assert scripts == tried | {"pure_shuffle_table", "calculator"}
    assert all(f"benchmarks.{script} " in page or f"benchmarks.{script}\n" in page for script in scripts)

"""Tests that the import contracts hold, and that only the client and the lab import true means."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


def test_import_contracts_are_kept() -> None:
    result = subprocess.run([LINT, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:]
    assert "8 kept, 0 broken" in result.stdout


def test_true_means_are_imported_by_client_and_lab_only() -> None:
    rooms = ("common", "shuffler", "aggregator", "server")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    guilty = [path for path in sources if "distrust.client.environments" in path.read_text()]
    assert guilty == []

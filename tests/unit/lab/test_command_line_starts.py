"""Tests that the `distrust` command starts without the libraries that only some of its commands need."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from distrust.common.extras import EXTRAS
from distrust.lab.__main__ import COMMANDS, app, main

HEAVY = {"numpy", "scipy", "aiohttp", "fastapi", "matplotlib", "sqlalchemy", "cryptography", "pyarrow"}
LOADED = "import sys; from distrust.lab.__main__ import app\ntry: app({words!r})\nexcept SystemExit: pass\n"


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["health", "http://127.0.0.1:1"]], ids=lambda w: w[0])
def test_what_needs_no_heavy_library_imports_none(words: list[str]) -> None:
    code = f"{LOADED.format(words=words)}finally: print(*sorted(name for name in sys.modules if '.' not in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "typer" in loaded
    assert loaded & HEAVY == set()


def test_all_parties_run_without_the_extras_and_the_intermediaries_without_aiohttp() -> None:
    code = """
import sys, distrust.shuffler.app, distrust.aggregator.app
assert "aiohttp" not in sys.modules
import distrust.server.app, distrust.client.__main__, distrust.lab.cli.run
print(*sorted(name for name in sys.modules if "." not in name))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "numpy" in done.stdout.split()
    assert set(done.stdout.split()) & set(EXTRAS) == set()


def test_fleets_and_commands_that_call_services_import_no_web_server() -> None:
    code = "import sys, distrust.client.__main__, distrust.lab.services.connection; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "aiohttp" in done.stdout.split()
    assert not {"fastapi", "uvicorn"} & set(done.stdout.split())


def test_inspect_imports_no_mechanism_to_ask_services_and_no_search_to_read_databases() -> None:
    """It holds both below a second of CPU: SciPy's modules alone take a third of one, and aiohttp a sixth."""
    stored = "distrust.server.reading.transcript, distrust.aggregator.service, distrust.shuffler.service"
    code = f"""
import sys, distrust.lab.cli.stack, distrust.lab.services.transcripts
assert not {{"sqlalchemy", "aiohttp", "scipy", "distrust.common.dp.mechanisms"}} & set(sys.modules)
import {stored}
assert not {{"aiohttp", "fastapi", "scipy.special", "scipy.optimize", "mpmath"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


NEEDED = {
    "joblib": (["sweep", "smoke"], "lab"),
    "matplotlib": (["figure", "mab-1"], "lab"),
    "sklearn": (["data", "mslr", "nothing.txt", "--out", "out.csv"], "mslr"),
}
"""By library: a command that needs it, and the extra that has it."""
WITHOUT = """
import sys
from distrust.lab.__main__ import main
for library, (words, _) in {needed!r}.items():
    sys.modules[library] = None
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        print(end.code)
    del sys.modules[library]
"""


def test_a_command_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    code = WITHOUT.format(needed=NEEDED)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"] * len(NEEDED)
    assert done.stderr.splitlines() == [
        f"this command needs {library}: pip install 'distrust[{extra}]'" for library, (_, extra) in NEEDED.items()
    ]


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == version("distrust")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_summary_is_the_first_sentence_of_its_help(name: str) -> None:
    _, summary = COMMANDS[name]
    command = get_command(app).get_command(None, name)  # type: ignore[attr-defined]  # a group
    assert (command.help or "").replace("\n", " ").startswith(summary)


def test_health_names_the_address_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["distrust", "health", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 75
    assert "http://127.0.0.1:1: " in (told := capsys.readouterr().err)
    assert "Connection refused" in told

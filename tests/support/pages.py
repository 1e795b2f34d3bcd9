"""Reads the commands of a page of docs/how-to, and plays them as its reader would."""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from distrust.lab.__main__ import app
from tests.support.checkout import ROOT

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str, heading: str | None = None) -> list[list[str]]:
    """Return the commands of each console block below a heading of a page, or of the whole page."""
    text = (ROOT / f"docs/how-to/{page}.md").read_text("utf-8")
    if heading is not None:
        (text,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return [[line.removeprefix("$ ") for line in block.splitlines()] for block in _BLOCK.findall(text)]


def play(commands: Iterable[str], folder: Path, names: Mapping[str, str] = {}) -> list[str]:
    """Play commands in a folder, each with what the reader would have in the place of `names`. Return their outputs.

    `distrust` is called in this process, all else by the shell. Raises AssertionError for a command that fails.
    """
    return [_play(_with(names, command), folder) for command in commands]


def _with(names: Mapping[str, str], command: str) -> str:
    for example, own in names.items():
        command = command.replace(example, own)
    return command


def _play(command: str, folder: Path) -> str:
    first, *words = shlex.split(command)
    if first == "distrust":
        with chdir(folder):
            result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (command, result.exception)
        return result.stdout
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout

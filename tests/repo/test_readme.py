"""Tests that the README's commands, options, files and outputs are those of the code."""

import io
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import distrust
from distrust.lab.__main__ import app
from distrust.lab.play import in_process
from distrust.lab.play.progress import print_result
from distrust.lab.play.run_file import parse

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
HELPS = [block for block in BLOCKS if re.match(r"\$ distrust[\w ]* --help\n", block)]
OURS = [command for command in COMMANDS if command.startswith("distrust ")]


WIDE = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
RUN = """
run = "trial"
horizon = 200
mechanism = {name = "distributed-polya", epsilon = 1.0}
environment = {name = "bernoulli", seed = 1, means = [0.1, 0.9]}
"""


@cache
def help_of(*command: str) -> str:
    narrow = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [*command, "--help"], prog_name="distrust", env=narrow)
    assert done.exit_code == 0
    return done.stdout


def squeezed(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_the_readme_has_the_two_commands_and_one_example_each() -> None:
    assert {"make demo", "make test"} <= set(COMMANDS)
    assert {"run", "inspect", "privacy"} <= {command.split()[1] for command in OURS}
    assert HELPS


@pytest.mark.parametrize("target", [command.split()[1] for command in COMMANDS if command.startswith("make ")])
def test_every_make_target_of_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", OURS)
def test_every_command_of_the_readme_exists_with_its_options(command: str) -> None:
    words = command.split()[1:]
    path = words[: 2 if words[0] == "data" else 1]
    shown = help_of(*(word for word in path if word != "--help"))
    for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)):
        assert option in shown


@pytest.mark.parametrize("block", HELPS)
def test_help_in_the_readme_is_what_help_says(block: str) -> None:
    first, _, shown = block.partition("\n")
    words = first.removeprefix("$ distrust").removesuffix("--help").split()
    assert squeezed(shown) == squeezed(help_of(*words))


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\b(?:lab|docs|tests|common|client)/[\w./-]+\w", README))))
def test_every_file_that_the_readme_names_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def shown_after(command: str) -> list[str]:
    """Return the README's block of output that follows a command."""
    block = README.split(f"$ {command}", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    return squeezed(block)


def test_the_readmes_privacy_table_is_the_one_that_the_command_prints() -> None:
    command = next(command for command in OURS if command.startswith("distrust privacy"))
    words = [sys.executable, "-m", "distrust.lab", *command.split()[1:]]
    done = subprocess.run(words, cwd=ROOT, env=WIDE, capture_output=True, text=True, check=True)
    shown = shown_after(command)
    assert len(shown) > 10
    assert shown == squeezed(done.stdout)[: len(shown)]


def test_the_readmes_closing_lines_are_those_of_a_run() -> None:
    text = io.StringIO()
    print_result(in_process.run(parse(RUN)), Console(file=text, width=160))
    in_process_too = labels(text.getvalue().splitlines()) - {"run trial"}
    assert labels(shown_after("make demo")) == in_process_too | {"wire", "messages", "dashboard", "APIs"}


def test_the_readmes_sweep_is_what_the_command_prints_but_for_the_seconds(tmp_path: Path) -> None:
    shown = shown_after("distrust sweep smoke")
    done = CliRunner().invoke(app, ["sweep", "smoke", "--jobs", "1", "--out", str(tmp_path)])
    printed = squeezed(done.stdout.replace(str(tmp_path), "sweeps"))
    assert len(shown) == len(printed)
    for ours, theirs in zip(shown, printed, strict=True):
        assert timeless(ours) == timeless(theirs)


def timeless(line: str) -> str:
    """Return a line without the seconds of the regret table and without the digest of the code in a folder's name."""
    line = re.sub(r"smoke-[0-9a-f]{12}", "smoke-…", line)
    return line.rsplit(maxsplit=1)[0] if line.startswith("ε = ") else line


def test_the_readmes_python_prints_what_it_shows() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) <= 12
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=WIDE, capture_output=True, text=True, check=True)
    shown = README.split("```python\n", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    assert squeezed(shown) == squeezed(done.stdout)


def test_the_page_about_the_library_prints_what_it_shows() -> None:
    """Blocks with an output behind them, in their order: the one with services is tested over real ones."""
    page = (ROOT / "docs/how-to/library.md").read_text("utf-8")
    blocks = re.findall(r"```python\n([^`]*)```\n\n```text\n([^`]*)```", page)
    assert len(blocks) == 3
    code = "".join(code for code, _ in blocks)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=WIDE, capture_output=True, text=True, check=True)
    assert squeezed("".join(shown for _, shown in blocks)) == squeezed(done.stdout)


def test_the_page_about_the_library_lists_every_function_of_the_public_face() -> None:
    page = (ROOT / "docs/how-to/library.md").read_text("utf-8")
    rows = {name for row in re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert {name for name in distrust.__all__ if name.islower()} <= rows
    methods = {name for name in vars(distrust.Connection) if name[0] != "_" and name not in {"urls", "data_dir"}}
    assert methods <= set(re.findall(r"`(\w+)\(", page))


def labels(lines: list[str]) -> set[str]:
    """Return the labels of lines "label  fact". Lines of tables, which begin with other letters, are left out."""
    return {line.split("  ")[0] for line in lines if line[0].isascii()}


def test_the_readmes_run_file_is_one() -> None:
    result = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert [parse(text).config.run for text in result] == ["first"]

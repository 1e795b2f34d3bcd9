"""What every file of the repository keeps to."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
FILES = [ROOT / entry for entry in LISTED.split("\0") if (ROOT / entry).is_file()]
PYTHON = [path for path in FILES if path.suffix == ".py"]
ROOMS = ("common", "client", "shuffler", "aggregator", "server", "lab")
MODULES = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ROOMS]

MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:root|work|farm|home/\w+|Users/\w+)/\w")
LEFT_BEHIND = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 30


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_a_file_holds_one_idea_in_at_most_300_lines(path: Path) -> None:
    assert len(text_of(path).splitlines()) <= 300


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_names_a_path_of_somebodys_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(text_of(path)) == []


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert LEFT_BEHIND.findall(text_of(path)) == []


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_and_public_function_says_what_it_is(path: Path) -> None:
    tree = ast.parse(text_of(path))
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    silent = [node.name for node in public if not ast.get_docstring(node)]
    assert silent == []
    assert ast.get_docstring(tree) or not tree.body


@pytest.mark.parametrize("path", [path for path in PYTHON if path not in MODULES], ids=name)
def test_a_test_is_never_switched_off(path: Path) -> None:
    off = re.compile(r"mark\.(?:skip|xfail)|pytest\.(?:skip|xfail)\(|importor" r"skip")
    assert off.findall(text_of(path)) == []


def test_the_licence_is_apache_2() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()

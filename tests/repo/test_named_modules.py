"""Tests that every module that a docstring, comment or page names by its dotted path exists."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("aggregator", "client", "common", "lab", "server", "shuffler")
INNER = ("bandit", "crypto", "intermediary", "learner", "mechanisms", "messages", "policies", "secagg")
"""Packages in one of the folders that text names without it; others have names that mean something else, too."""
DOTTED = re.compile(rf"(?<![\w.\-/:])((?:distrust\.)?(?:{'|'.join((*FOLDERS, *INNER))})(?:\.[A-Za-z_]\w*)+)(?!\w|://)")
NOUNS = {"client.get", "client.post", "client.put"}
"""Calls of an object that is called `client` in examples."""
IMPORTS = re.compile(r"^[ \t]*(?:from [\w.]+ import .*|import [\w.]+.*)$", re.MULTILINE)
FILES = {"json", "keys", "log", "md", "sqlite3", "toml", "token"}
"""Endings of files, such as server.log, that look like modules."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring and comment; of a page everything outside fences."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"^```.*?^```$", "", source, flags=re.DOTALL | re.MULTILINE)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@cache
def members(module: Path) -> frozenset[str]:
    """Return the names that a module defines or imports at its top level."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((name.asname or name.name).split(".")[0] for name in node.names)
    return frozenset(names)


def exists(dotted: str) -> bool:
    """Return whether a dotted path leads to a package, to a module, or to a name in one of them."""
    parts = dotted.removeprefix("distrust.").split(".")
    inner = (place.parent for folder in FOLDERS for place in (ROOT / folder).rglob(parts[0]) if place.is_dir())
    starts = [ROOT] if parts[0] in FOLDERS else list(inner)
    return any(_leads_on(start, parts) for start in starts)


def _leads_on(place: Path, parts: list[str]) -> bool:
    for at, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module = place / f"{part}.py"
        if module.exists():
            return at + 1 == len(parts) or parts[at + 1] in members(module)
        return at > 0 and (place / "__init__.py").exists() and part in members(place / "__init__.py")
    return True


def wrong(path: Path) -> list[str]:
    """Return the dotted names in a file that lead nowhere, with the line of their text."""
    source = path.read_text("utf-8")
    if path.suffix == ".py" and not DOTTED.search(IMPORTS.sub("", source)):
        return []  # most files: to parse all of them and to find their comments takes seconds
    named = ((line, result) for line, text in texts(path) for result in DOTTED.findall(text))
    others = ((line, name) for line, name in named if name not in NOUNS and name.split(".")[1] not in FILES)
    return [f"{line}: {name}" for line, name in others if not exists(name)]


SOURCES = sorted(path for folder in (*FOLDERS, "tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_module_that_a_text_names_is_there() -> None:
    assert len(SOURCES) > 300
    result = {path.relative_to(ROOT).as_posix(): wrong(path) for path in (*SOURCES, *PAGES)}
    assert {path: names for path, names in result.items() if names} == {}


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("common.protocol.messages.cohort", True),
        ("distrust.common.protocol.messages.cohort.Cohort", True),
        ("messages.batch.Batch", True),
        ("common.errors.TooSmall", True),
        ("client.courier", False),
        ("common.accounting", False),
        ("messages.batch.Sack", False),
        ("distrust.server.learner.gone", False),
    ],
)
def test_a_name_is_looked_up_as_an_import_would(name: str, *, there: bool) -> None:
    assert exists(name) == there
    assert DOTTED.findall(f"see `{name}`; {name}.") == [name, name]

"""Computes digests of the code that a sweep's rows depend on: our own, and the libraries that compute."""

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import distrust

ROOT = Path(distrust.__file__).parents[1]
FIRST = "distrust.lab.sweep.cells"
_NAMED = re.compile(r"distrust(\.\w+)+:\w+")
LIBRARIES = ("dp-accounting", "mpmath", "numpy", "scipy")


@cache
def parts() -> Mapping[str, str]:
    """Return a digest for each of our modules that playing a cell may reach and for the data beside them, and versions.

    Reach     from `lab.sweep.cells` over import statements, also those inside functions, and classes that are named as
              `module:Name`. Code that stores and draws rows is not part of it.
    Digests   are of the syntax tree without docstrings: comments and layout may change.
    Python    counts with its minor version: how floats are added up has changed between two of them.
    """
    trees = _reached()
    digests = _versions() | {name: _hashed(ast.dump(_Silent().visit(tree)).encode()) for name, tree in trees.items()}
    # In a checkout the package's folders are links, and rglob follows no link but the one that it starts at.
    folders = sorted({ROOT.joinpath(*name.split(".")[:2]) for name in trees})
    files = [file for folder in folders for file in sorted(folder.rglob("*.csv"))]
    digests |= {file.relative_to(ROOT).as_posix(): _hashed(file.read_bytes()) for file in files}
    return MappingProxyType(digests)


def code_digest() -> str:
    """Return the digest of all the parts: 12 hex digits."""
    return _hashed(json.dumps(dict(parts()), sort_keys=True).encode())


@cache
def files_digest() -> str:
    """Return a digest of all our files, comments included, and of the versions: 12 hex digits.

    Two processes that agree on it have one `code_digest`, which takes fifty times as long to compute.
    """
    tops = [*ROOT.joinpath("distrust").iterdir()]
    files = sorted(file for top in tops for file in (top.rglob("*") if top.is_dir() else [top]))
    paths = {file.relative_to(ROOT).as_posix(): file for file in files if file.suffix in (".py", ".csv")}
    digests = _versions() | {name: _hashed(file.read_bytes()) for name, file in paths.items()}
    return _hashed(json.dumps(digests, sort_keys=True).encode())


def changed(older: Mapping[str, str]) -> list[str]:
    """Return the names of parts that differ from `older`, are new or are gone."""
    now = parts()
    return [name for name in sorted({*older, *now}) if older.get(name) != now.get(name)]


def _versions() -> dict[str, str]:
    return {"python": "{}.{}".format(*sys.version_info)} | {name: version(name) for name in LIBRARIES}


def _reached() -> dict[str, ast.Module]:
    trees: dict[str, ast.Module] = {}
    ahead = [FIRST]
    while ahead:
        name = ahead.pop()
        file = None if name in trees else _file(name)
        if file is not None:
            trees[name] = ast.parse(file.read_bytes())
            ahead.extend(_imported(trees[name]))
    return trees


def _file(name: str) -> Path | None:
    """Return the file of one of our modules; None for another name, such as a library or a function."""
    base = ROOT.joinpath(*name.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            yield node.value.partition(":")[0]


class _Silent(ast.NodeTransformer):
    """Removes docstrings and other constant expressions. The remaining tree is for digests only."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node


def _hashed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]

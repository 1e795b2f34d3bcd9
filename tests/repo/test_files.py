"""Tests of the rules for every file of the repository: length, paths, docstrings, licence."""

import ast
import re
from pathlib import Path

from tests.support.checkout import ROOT, listed

FILES = [ROOT / entry for entry in listed() if (ROOT / entry).is_file()]
PYTHON = [path for path in FILES if path.suffix == ".py"]
ROOMS = ("common", "client", "shuffler", "aggregator", "server", "lab")
MODULES = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in ROOMS]

TWO_FIELDS = re.compile(r'^ *(?:""")?\w+(, \w+)* {2,}(?=\S).*[.;] \w+: ', re.MULTILINE)
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


def test_a_file_is_a_chapter_of_at_most_400_lines() -> None:
    assert [name(path) for path in PYTHON if len(text_of(path).splitlines()) > 400] == []


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    assert [(name(path), result) for path in FILES if (result := MACHINE_PATH.findall(text_of(path)))] == []


def test_nothing_is_left_for_later() -> None:
    assert [name(path) for path in PYTHON if LEFT_BEHIND.search(text_of(path))] == []


def test_conditional_expressions_are_not_chained() -> None:
    assert [(name(path), line) for path in PYTHON for line in chained_conditionals(path)] == []


def chained_conditionals(path: Path) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.IfExp)
    ]


def test_every_module_and_public_function_says_what_it_is() -> None:
    assert [(name(path), silent) for path in MODULES if (silent := without_docstring(path))] == []


def without_docstring(path: Path) -> list[str]:
    tree = ast.parse(text_of(path))
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    module = [] if ast.get_docstring(tree) or not tree.body else ["the module"]
    return module + [node.name for node in public if not ast.get_docstring(node)]


def test_a_docstring_gives_each_field_a_line_of_its_own() -> None:
    assert [(name(path), line) for path in PYTHON for line in lines_of_two_fields(path)] == []


def lines_of_two_fields(path: Path) -> list[str]:
    """Return the lines `field  text. other: text` of docstrings, where both name fields or parameters."""
    result: list[str] = []
    if not TWO_FIELDS.search(text_of(path)):  # most files: they need not be parsed
        return result
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (line.strip() for line in (ast.get_docstring(node) or "").splitlines())
            aligned = [line for line in lines if re.match(r"\w+(, \w+)* {2,}\S", line)]
            known = fields(node)
            result += [line for line in aligned if known.intersection(re.findall(r"[.;] (\w+): ", line))]
    return result


def fields(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the parameters of a function, or the fields, properties and arguments of a class."""
    if not isinstance(node, ast.ClassDef):
        return {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    names = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    made = (fields(method) for method in methods if method.name == "__init__")
    return names.union((one.name for one in methods), *made)


def test_a_test_is_never_switched_off() -> None:
    off = re.compile(r"mark\.(?:skip|xfail)|pytest\.(?:skip|xfail)\(|importor" r"skip")
    assert [name(path) for path in PYTHON if path not in MODULES and off.search(text_of(path))] == []


def test_the_licence_is_apache_2() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()


def test_no_file_has_the_marks_of_a_merge_that_was_not_resolved() -> None:
    marks = tuple(sign * 7 + " " for sign in "<>|")
    texts = {name: (ROOT / name).read_bytes() for name in listed() if (ROOT / name).is_file()}
    marked = [name for name, raw in texts.items() if raw.decode("utf-8", "replace").startswith(marks)]
    marked += [name for name, raw in texts.items() if any(b"\n" + mark.encode() in raw for mark in marks)]
    assert marked == []

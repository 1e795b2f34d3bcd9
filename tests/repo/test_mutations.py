"""Tests that the table of mutations fits the code and the tests that it names. `make mutations` plays them."""

import ast
from functools import cache

import pytest

from tests.repo.mutations import Mutation, mutated, table
from tests.support.checkout import ROOT

FEWEST = 40
TABLE = table()


@cache
def functions(path: str) -> set[str]:
    """Return the names of a file's tests."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_there_are_at_least_forty_mutations_and_none_twice() -> None:
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in TABLE}) == len(TABLE) >= FEWEST


def test_every_line_is_there_once_and_python_is_still_python_when_it_is_changed() -> None:
    for mutation in TABLE:
        text = (ROOT / mutation.file).read_text("utf-8")
        changed = mutated(text, mutation)
        assert changed != text
        if mutation.file.endswith(".py"):
            ast.parse(changed)


def test_every_named_test_is_there() -> None:
    for mutation in TABLE:
        assert mutation.tests
        for test in mutation.tests:
            path, _, name = test.partition("::")
            assert name.partition("[")[0] in functions(path), test


@pytest.mark.parametrize("text", ["a = 1\n", "a = 2\nif a:\n    a = 2\n"])
def test_a_line_that_is_not_there_exactly_once_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"common/x\.py has the line [02] times and must have it once: a = 2"):
        mutated(text, Mutation("common/x.py", "a = 2", "a = 3", ()))


def test_a_changed_line_keeps_its_indentation() -> None:
    changed = mutated("if b:\n    a = 2\nc = 1\n", Mutation("common/x.py", "a = 2", "a = 3", ()))
    assert changed == "if b:\n    a = 3\nc = 1\n"

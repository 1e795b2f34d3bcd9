"""Tests that names which the project has given up do not come back, in sources and tests."""

import ast
import re
from collections.abc import Iterator
from itertools import chain

from tests.support.checkout import ROOT

PARTS = ("common", "client", "shuffler", "aggregator", "server", "lab", "benchmarks", "tests")

OLD = {
    "whole_because": "why_undivided",
    "WHOLE": "FULL_BALL",
    "ULPS": "FLOAT_ROUNDING",
    "told_apart": "two_spellings",
    "_told": "_sent_events, _reason",
    "announce": "leave",
    "depart": "leave",
    "farewell": "leave",
    "Departure": "Leaving",
    "departure": "leaving",
    "_Encounters": "_DrawnContexts",
    "_meet": "_draw_contexts",
    "luck": "payout_draws",
    "Sight": "PartyView",
    "Held": "StageHolding",
    "Life": "CohortLifetime",
    "Key": "ArmKey",
    "robbed": "ticket_taken",
    "_room": "_wait_for_slots",
    "_work": "_run_in_thread",
    "_wanting": "_unanswered_users",
    "_settled": "_collect_once",
    "_last_word": "_final_answer",
    "doubt": "forget_cached",
    "known_standing": "cached_standing",
    "checksum_of_ids": "checksum_of",
    "checksum_of_reports": "checksum_of",
    "deal": "assigned",
    "dealt": "assigned",
    "floor": "min_honest",
    "wrap": "overflow_probability",
}
"""By old name, the name that took its place."""

FIELDS = {
    "deal": "a field of the sealed channel with assigned actions, on the wire",
    "dealt": "a field of the mechanism shuffled-laplace, on the wire",
    "floor": "a field of each mechanism, on the wire; and a function of math, NumPy and mpmath",
    "wrap": "a field of each mechanism, on the wire",
}
"""Old names that stay as fields until the wire breaks: read, given as a keyword, or stated in a class, never else."""


def names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a file gives to something or reads; of `FIELDS` those only that no field explains."""
    fields = {id(part) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body}
    stated = {id(node.target) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and id(node) in fields}
    taken = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if id(node) not in stated and not (name in FIELDS and name in taken):
                yield name
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name not in FIELDS:
                yield name
            case ast.alias(name=name, asname=other) if name not in FIELDS:
                yield from (name, *([other] if other else []))
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name


def test_no_file_has_a_name_that_was_given_up() -> None:
    any_of_them = re.compile(rf"\b({'|'.join(OLD)})\b")
    found = [
        f"{path.relative_to(ROOT)}: {name} is {OLD[name]} now"
        for path in chain.from_iterable(sorted((ROOT / part).rglob("*.py")) for part in PARTS)
        if any_of_them.search(text := path.read_text("utf-8"))
        for name in sorted({*names(ast.parse(text))} & set(OLD))
    ]
    assert found == []


def test_a_field_of_the_wire_keeps_its_name_and_a_variable_does_not() -> None:
    field = "class Frame:\n    floor: int\n\nFrame(floor=1).floor\n"
    assert not {*names(ast.parse(field))} & set(OLD)
    assert "floor" in names(ast.parse("floor = 1"))
    assert "floor" in names(ast.parse("def least(floor): ..."))
    assert "floor" not in names(ast.parse("from math import floor\nfloor(1.5)"))

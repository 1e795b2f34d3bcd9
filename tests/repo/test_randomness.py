"""Tests that parties draw from the operating system, except for worlds of rewards and runs that are named unsafe."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTIES = ("common", "client", "shuffler", "aggregator", "server")

WORLDS = {
    "client/environments",
    "client/cohort/departures.py",
    "common/bandit/actions.py",
}
"""Simulated rewards and departures, public action sets, public constants by Monte Carlo: no secret of a client."""

NAMED_UNSAFE = {
    "client/cohort/randomizer.py",  # rewards; noise only with a noise seed, which settings refuse without allow_unsafe
    "client/fleet/fleet.py",  # departures
    "shuffler/assignment.py",  # the order of assigned actions, only with [unsafe] noise_seed, which clients refuse
    "server/runs/settlement.py",  # analyzer noise only with [unsafe] noise_seed
}


@cache
def sources() -> dict[str, set[str]]:
    """Return for each file of the parties the names that it imports or mentions."""
    files = [path for party in PARTIES for path in sorted((ROOT / party).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): names(ast.parse(path.read_text("utf-8"))) for path in files}


def names(tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports or mentions."""
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            result |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            result.add(ast.unparse(node))
    return result


def users(*wanted: str) -> set[str]:
    """Return the files that mention any of these names."""
    return {path for path, result in sources().items() if result & set(wanted)}


def inside(path: str, places: set[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


@pytest.mark.parametrize(
    "name", ["random", "numpy.random", "np.random.default_rng", "np.random.seed", "np.random.RandomState", "uuid.uuid4"]
)
def test_no_party_draws_from_a_generator_that_is_no_csprng(name: str) -> None:
    assert users(name) == set()


def test_a_numpy_generator_is_for_worlds_only() -> None:
    assert users("np.random.Generator", "np.random.PCG64") == {"common/randomness.py"}
    result = users("distrust.common.randomness.generator")
    assert result
    assert {path for path in result if not inside(path, WORLDS)} == set()


def test_seeded_streams_are_for_worlds_and_runs_that_are_named_unsafe() -> None:
    result = users("distrust.common.randomness.UnsafeSeededStream")
    assert {path for path in result if not inside(path, WORLDS | NAMED_UNSAFE)} == set()
    assert result >= NAMED_UNSAFE

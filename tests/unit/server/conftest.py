"""A server over intermediaries in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_memory_intermediaries import InMemoryIntermediaries
from tests.support.server_harness import ServerHarness


@pytest.fixture
def intermediaries() -> InMemoryIntermediaries:
    return InMemoryIntermediaries()


@pytest.fixture
def harness(tmp_path: Path, intermediaries: InMemoryIntermediaries) -> Iterator[ServerHarness]:
    built = ServerHarness(tmp_path, intermediaries)
    yield built
    built.database.close()

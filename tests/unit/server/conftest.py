"""A server over an S in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.in_memory_intermediaries import MemoryIntermediaries
from tests.support.server_harness import House


@pytest.fixture
def s() -> MemoryIntermediaries:
    return MemoryIntermediaries()


@pytest.fixture
def house(tmp_path: Path, s: MemoryIntermediaries) -> Iterator[House]:
    built = House(tmp_path, s)
    yield built
    built.database.close()

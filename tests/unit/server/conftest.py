"""A server over an S in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import House
from tests.memory_s import MemoryIntermediaries


@pytest.fixture
def s() -> MemoryIntermediaries:
    return MemoryIntermediaries()


@pytest.fixture
def house(tmp_path: Path, s: MemoryIntermediaries) -> Iterator[House]:
    built = House(tmp_path, s)
    yield built
    built.database.close()

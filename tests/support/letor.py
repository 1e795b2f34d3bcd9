"""Reads LETOR rows one by one, for comparison with the reading in blocks."""

from collections.abc import Iterator
from pathlib import Path

from distrust.client.environments import letor
from distrust.client.environments.letor import LetorRow


def letor_rows(path: Path) -> Iterator[LetorRow]:
    """Yield the rows of a file. Skips blank lines and what follows a #. Raises BadParameter as `letor_blocks` does."""
    for number, lines in letor._lines(path):
        yield from letor._rows(path, number, lines)

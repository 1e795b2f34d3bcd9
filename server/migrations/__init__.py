"""Holds the revisions of the server's schema, from the first on. Each is a module; a new one follows the newest."""

from pathlib import Path

from distrust.common.migration import History

HISTORY = History(folder=Path(__file__).parent, table="runs", number=2)

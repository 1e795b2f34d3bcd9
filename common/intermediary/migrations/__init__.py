"""Holds the revisions of the intermediaries' schema, from the first on. Each is a module; a new one follows the newest.

The shuffler and the aggregator have the same tables.
"""

from pathlib import Path

from distrust.common.migration import History

HISTORY = History(folder=Path(__file__).parent, table="messages", number=4)

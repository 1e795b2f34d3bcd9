"""What a figure was drawn from, as a digest that is kept inside it."""

import hashlib
import json
from collections.abc import Sequence

from lab.sweep import Experiment, Row

KEY = "drawn-from"
"""The PNG's text that holds the stamp."""


def stamp(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Hex, 64 digits: of the experiment, its words and its drawing, and of all that lasts of its rows."""
    text = json.dumps([experiment.model_dump(), [row.lasting() for row in rows]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""What a figure was drawn from, as a digest that is kept inside it."""

import hashlib
import json
from collections.abc import Sequence

from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Row

KEY = "drawn-from"
"""The name of the PNG's text that holds the stamp, and the word before it in the PDF's keywords."""


def stamp(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Hex, 64 digits: of the experiment, its words and its drawing, and of all that lasts of its rows."""
    return digest([experiment.model_dump(), [row.lasting() for row in rows]])


def digest(shown: object) -> str:
    """Hex, 64 digits: of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()

"""Sweeps: policies × mechanisms × worlds × seeds as data, played on all cores, resumable after a kill."""

from distrust.lab.sweep.cells import Cell, cells
from distrust.lab.sweep.checks import BadExperiment
from distrust.lab.sweep.compare import differing
from distrust.lab.sweep.engine import Outcome, Standing, run
from distrust.lab.sweep.experiment import Experiment, Overlay
from distrust.lab.sweep.files import known, load
from distrust.lab.sweep.result_store import home, others
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import read

__all__ = [
    "BadExperiment",
    "Cell",
    "Experiment",
    "Outcome",
    "Overlay",
    "Row",
    "Standing",
    "cells",
    "differing",
    "home",
    "known",
    "load",
    "others",
    "read",
    "run",
]

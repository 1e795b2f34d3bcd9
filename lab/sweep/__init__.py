"""Sweeps: policies × mechanisms × worlds × seeds as data, played on all cores, resumable after a kill."""

from lab.sweep.cells import Cell, cells
from lab.sweep.checks import BadExperiment
from lab.sweep.compare import differing
from lab.sweep.engine import Outcome, Standing, run
from lab.sweep.experiment import Experiment, Overlay
from lab.sweep.files import known, load
from lab.sweep.row import Row
from lab.sweep.shelf import home, others
from lab.sweep.table import read

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

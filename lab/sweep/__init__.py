"""Sweeps: policies × mechanisms × worlds × seeds as data, played on all cores, resumable after a kill."""

from lab.sweep.cells import Cell, cells
from lab.sweep.experiment import Experiment, Overlay
from lab.sweep.files import BadExperiment, known, load
from lab.sweep.row import Row

__all__ = ["BadExperiment", "Cell", "Experiment", "Overlay", "Row", "cells", "known", "load"]

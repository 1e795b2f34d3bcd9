"""Plays one cell, in a worker: returns its row, or the reason why there is none."""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distrust.common.errors import ProtocolError
from distrust.common.machine import one_thread
from distrust.lab.run import in_process
from distrust.lab.run.result import Result
from distrust.lab.run.run_file import RunFile
from distrust.lab.sweep.cells import cell_digest, cell_run_file
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row


class Failure(NamedTuple):
    """A cell without a row, and why."""

    cell: Cell
    reason: str


class StoppedEarly(ProtocolError):
    """A run that ended before its horizon, so that its regret means nothing."""

    code, status = "stopped", 409


def play_cell(experiment: Experiment, cell: Cell) -> Row | Failure:
    """Return a cell's row, or its failure. An exception ends this cell only."""
    began = time.perf_counter()
    try:
        with one_thread():
            file = cell_run_file(experiment, cell)
            result = in_process.run(file)
            return _row(experiment, cell, file, result, time.perf_counter() - began)
    except ProtocolError as error:
        return Failure(cell, error.detail)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other cells go on, and this one is named
        return Failure(cell, f"{type(error).__name__}: {error}")


def checkpoints(curve: Sequence[tuple[int, float]], places: NDArray[np.float64]) -> list[float]:
    """Return the regret at each place, in pulls; linear from (0, 0) over the ends of rounds.

    curve  (pulls, regret) after each round, cumulated; its last point is the end of the run.
    """
    pulls, regret = np.array([(0, 0.0), *curve], dtype=np.float64).T
    return [float(value) for value in np.interp(places, pulls, regret)]


def _row(experiment: Experiment, cell: Cell, file: RunFile, result: Result, seconds: float) -> Row:
    if result.fault is not None or sum(result.pulls) < result.horizon:
        raise StoppedEarly(result.fault or f"stopped after {sum(result.pulls)} of {result.horizon} pulls")
    assert result.seed is not None
    clients = sum(cohort.clients for one in result.rounds for cohort in one.cohorts)
    return Row(
        experiment=experiment.name,
        panel=cell.panel,
        series=cell.series,
        digest=cell_digest(experiment, cell),
        repetition=cell.repetition,
        seed=result.seed,
        policy=result.policy,
        mechanism=result.mechanism,
        calibration=result.calibration,
        epsilon=file.config.mechanism.epsilon,
        horizon=result.horizon,
        clients=clients,
        regret=result.regret.final,
        chosen=result.chosen,
        best=result.best,
        **result.events.model_dump(),
        aborted=result.aborted,
        unfinished=result.unfinished,
        payload_bits=result.bits.payload,
        modulus_bits=result.bits.modulus,
        bits=result.bits.payload * clients,
        seconds=seconds,
        curve=checkpoints(result.regret.curve, experiment.places(result.horizon)),
    )

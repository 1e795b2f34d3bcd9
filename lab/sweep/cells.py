"""Reads an experiment, checks the run files of its cells before the first one runs, and plays the cells.

A cell is a run file with a name and seeds of its own. A worker plays it and returns its row, or the reason why there is
none. Repetitions of a contextual run may be played in lock step, and each has the row that it has when it is alone.
"""

import hashlib
import json
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.errors import BadParameter, ProtocolError
from distrust.common.explain import first
from distrust.common.inputs import MOST_TOML, read_file
from distrust.common.randomness import UnsafeSeededStream
from distrust.lab.play import in_process
from distrust.lab.play.lock_step import LockStepResult, in_lock_step, play_together
from distrust.lab.play.result import Bits, Result
from distrust.lab.play.run_file import RunFile, extensions, parse_table, plain
from distrust.lab.sweep.experiment import Experiment, merged
from distrust.lab.sweep.row import Cell, Row
from distrust.server.learner.learner import Learner


def known_experiments() -> list[str]:
    """Return the names of the experiments that come with the package."""
    files = resources.files("distrust.lab.experiments").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_experiment(
    source: str | Path | Mapping[str, Any], *, quick: bool = False, repetitions: int | None = None
) -> Experiment:
    """Return an experiment, with the run file of every panel and series checked.

    source       a name of `known_experiments`, the path of a .toml file, or a dictionary of its keys and a `name`.
    quick        with the file's `[quick]` laid over it.
    repetitions  another number than the file's. They differ in their seeds only, so that the first one's run files are
                 checked for all.
    Raises       BadParameter for an unknown name; BadExperiment.
    """
    experiment = read_experiment(source, quick=quick, repetitions=repetitions)
    check_run_files(experiment)
    return experiment


def read_experiment(
    source: str | Path | Mapping[str, Any], *, quick: bool = False, repetitions: int | None = None
) -> Experiment:
    """Return an experiment as `load_experiment` does, without a check of its run files, which takes a second.

    For its words alone: nothing of it may be played. Raises BadParameter or BadExperiment.
    """
    label, words = _words(source)
    if repetitions is not None and repetitions < 1:
        raise BadParameter("repetitions", repetitions, "must be at least 1")
    if quick and not isinstance(words.get("quick"), dict):
        raise BadExperiment(f"{label}: has no [quick] table")
    try:
        # Words of a TOML file: validated as a table, with what the file itself does not say.
        return Experiment.model_validate(_laid(words, quick=quick, repetitions=repetitions) | {"quick": quick})
    except ValidationError as error:
        raise BadExperiment(f"{label}: {first(error, Experiment)}") from error


def _words(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the words of an experiment, its name among them, and what to call it in an error."""
    if isinstance(source, Mapping):
        return str(source.get("name", "experiment")), plain(source)
    file, name = _find(str(source))
    try:
        return str(source), tomllib.loads(_text(file)) | {"name": name}
    except (ValueError, RecursionError) as error:
        raise BadExperiment(f"{source}: not TOML: {error}") from error


def _find(name_or_path: str) -> tuple[Traversable | Path, str]:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path, path.stem
    if name_or_path not in known_experiments():
        allowed = f"must be one of {', '.join(known_experiments())}, or the path of a .toml file"
        raise BadParameter("experiment", name_or_path, allowed)
    return resources.files("distrust.lab.experiments") / f"{name_or_path}.toml", name_or_path


def _text(file: Traversable | Path) -> str:
    try:
        return (read_file(file, MOST_TOML)[0] if isinstance(file, Path) else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise BadExperiment(f"{file}: {error.strerror}") from error


def _laid(table: dict[str, Any], *, quick: bool, repetitions: int | None) -> dict[str, Any]:
    """Return the file's table, with `[quick]` laid over it and another number of repetitions if requested."""
    plain = {key: value for key, value in table.items() if key != "quick"}
    changes = {} if repetitions is None else {"repetitions": repetitions}
    return merged(merged(plain, table["quick"] if quick else {}), changes)


def all_cells(experiment: Experiment) -> Iterator[Cell]:
    """Yield all cells, in the order of the table: panel, series, repetition."""
    for panel, series in experiment.all_pairs():
        for repetition in range(experiment.repetitions_of(series)):
            yield Cell(panel.label, series.label, repetition)


def run_table(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    """Return a cell's run file as a table.

    Rewards   Every panel and series of a repetition plays the same world. Series of one panel also get the same
              rewards, cohort by cohort, because their runs have one name; panels get others, so that runs of one
              series are independent once the worlds are given.
    Noise     from a seed of the cell's own: synthetic clients, repeatable, and named unsafe.
    """
    panels = [panel.label for panel in experiment.panels]
    panel = experiment.panels[panels.index(cell.panel)]
    (series,) = (series for series in experiment.series if series.label == cell.series)
    plain = experiment.table(panel, series)
    environment = plain.get("environment")
    if isinstance(environment, dict):
        seed = _seed(experiment.name, "world", cell.repetition)
        plain["environment"] = {**environment, "seed": seed}
    name = f"{experiment.name}.{panels.index(cell.panel)}.{cell.repetition}"
    return {**plain, "run": name, "unsafe": {"noise_seed": _seed(experiment.name, "noise", *cell)}}


def cell_digest(experiment: Experiment, cell: Cell) -> str:
    """Return the digest of all that a cell's row depends on except the code (`lab.sweep.code`): 12 hex digits.

    Classes of the user's own count with the source of their modules.
    """
    places = experiment.points if experiment.spacing == "even" else [experiment.points, experiment.spacing]
    words = run_table(experiment, cell)
    own = [extension.model_dump(mode="json") for extension in extensions(words)]
    text = json.dumps([places, words, *own], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cell_run_file(experiment: Experiment, cell: Cell) -> RunFile:
    """Return a cell's run file, checked. Raises BadRunFile or BadParameter."""
    return parse_table(run_table(experiment, cell))


def _seed(*labels: str | int) -> int:
    """Return a seed of 63 bits that these labels determine."""
    return int.from_bytes(UnsafeSeededStream(0, "sweep", *labels).bytes(8), "little") >> 1


class Standing(NamedTuple):
    """Progress of a sweep. done: cells with a row, `kept` of them from an earlier start; failed: cells without one."""

    total: int
    kept: int
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed

    @property
    def played(self) -> int:
        """Return the number of cells that ended since this start."""
        return self.done + self.failed - self.kept


class BadExperiment(ProtocolError):
    """An experiment that cannot be used: names the experiment, the place in it, the value and what is allowed."""

    code, status = "bad-experiment", 422


def check_run_files(experiment: Experiment) -> None:
    """Parse the run file of every panel and series. Raises BadExperiment for the first fault.

    Repetitions differ in their seeds only, so that the first one's run files are checked for all.
    """
    for panel, series in experiment.all_pairs():
        with _named(experiment, panel.label, series.label):
            cell_run_file(experiment, Cell(panel.label, series.label, 0))


def check_first_rounds(experiment: Experiment, wanted: Iterable[Cell]) -> None:
    """Plan the first round of every panel and series among the cells, calibration included. Raises BadExperiment."""
    for panel, series in dict.fromkeys((cell.panel, cell.series) for cell in wanted):
        with _named(experiment, panel, series):
            Learner(cell_run_file(experiment, Cell(panel, series, 0)).config)


@contextmanager
def _named(experiment: Experiment, panel: str, series: str) -> Iterator[None]:
    try:
        with one_thread():
            yield
    except ProtocolError as error:
        place = f"{experiment.name}, panel {panel!r}, series {series!r}"
        raise BadExperiment(f"{place}: {error.detail}") from error


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
            if in_lock_step(file):
                (played,) = play_together([file])
                return _lock_step_row(experiment, cell, played, time.perf_counter() - began)
            result = in_process.run(file)
            return _result_row(experiment, cell, file, result, time.perf_counter() - began)
    except ProtocolError as error:
        return Failure(cell, error.detail)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other cells go on, and this one is named
        return Failure(cell, f"{type(error).__name__}: {error}")


def play_group(experiment: Experiment, cells: Sequence[Cell]) -> list[Row | Failure]:
    """Return the rows of cells of one panel and series in lock step; of each on its own where that fails."""
    began = time.perf_counter()
    try:
        with one_thread():
            results = play_together([cell_run_file(experiment, cell) for cell in cells])
            each = (time.perf_counter() - began) / len(cells)
            return [_lock_step_row(experiment, *one, each) for one in zip(cells, results, strict=True)]
    except Exception:  # noqa: BLE001 - whatever it is, it may be one cell's alone, and `play_cell` says whose
        return [play_cell(experiment, cell) for cell in cells]


def checkpoints(curve: Sequence[tuple[int, float]], places: NDArray[np.float64]) -> list[float]:
    """Return the regret at each place, in pulls; linear from (0, 0) over the ends of rounds.

    curve  (pulls, regret) after each round, cumulated; its last point is the end of the run.
    """
    pulls, regret = np.array(curve, dtype=np.float64).T
    return _at(places, pulls, regret)


def _at(places: NDArray[np.float64], pulls: NDArray[Any], regret: NDArray[np.float64]) -> list[float]:
    """Return the cumulated regret at each place."""
    values: list[float] = np.interp(places, np.insert(pulls, 0, 0.0), np.insert(regret, 0, 0.0)).tolist()
    return values


def _result_row(experiment: Experiment, cell: Cell, file: RunFile, result: Result, seconds: float) -> Row:
    pulls = sum(result.pulls) + result.hidden
    if result.fault is not None or pulls < result.horizon:
        raise StoppedEarly(result.fault or f"stopped after {pulls} of {result.horizon} pulls")
    own = {
        "clients": sum(cohort.clients for record in result.rounds for cohort in record.cohorts),
        "regret": result.regret.final,
        "chosen": result.chosen,
        "best": result.best,
        "aborted": result.aborted,
        "unfinished": result.unfinished,
        "curve": checkpoints(result.regret.curve, experiment.places(result.horizon)),
        "seconds": seconds,
        **result.events.model_dump(),
    }
    return _row(experiment, cell, file, result.bits, own)


def _lock_step_row(experiment: Experiment, cell: Cell, played: LockStepResult, seconds: float) -> Row:
    """Return the row of a contextual run: the best arm depends on the client, and none is chosen."""
    own = {
        "clients": played.clients,
        "regret": float(played.regret[-1]),
        "chosen": None,
        "best": None,
        "aborted": 0,
        "unfinished": played.unfinished,
        "curve": _at(experiment.places(played.file.config.horizon), played.pulls, played.regret),
        "seconds": seconds,
        **played.events.model_dump(),
    }
    return _row(experiment, cell, played.file, played.bits, own)


def _row(experiment: Experiment, cell: Cell, file: RunFile, bits: Bits, own: Mapping[str, Any]) -> Row:
    """Return a row: `own` has the columns that depend on how the run went, but for its bits."""
    config, seed = file.config, file.environment.seed
    assert seed is not None
    return Row(
        experiment=experiment.name,
        panel=cell.panel,
        series=cell.series,
        digest=cell_digest(experiment, cell),
        repetition=cell.repetition,
        seed=seed,
        policy=config.policy.name,
        mechanism=config.mechanism.name,
        calibration=config.mechanism.calibration,
        epsilon=config.mechanism.epsilon,
        horizon=config.horizon,
        payload_bits=bits.payload,
        modulus_bits=bits.modulus,
        bits=bits.payload * own["clients"],
        **own,
    )

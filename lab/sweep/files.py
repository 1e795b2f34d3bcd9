"""Loads an experiment by its name, or from a user's own file, and checks it."""

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from distrust.common.errors import BadParameter
from distrust.common.messages.explain import first
from distrust.lab.sweep.cells import BadExperiment, check_run_files
from distrust.lab.sweep.experiment import Experiment, merged


def known_experiments() -> list[str]:
    """Return the names of the experiments that come with the package."""
    files = resources.files("distrust.lab.experiments").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_experiment(name_or_path: str, *, quick: bool = False, repetitions: int | None = None) -> Experiment:
    """Read an experiment and check every run file that its panels and series make.

    quick         with the file's `[quick]` laid over it. repetitions: another number than the file's.
    Repetitions   differ in their seeds only, so that the first one's run files are checked for all.
    Raises        BadParameter for an unknown name; BadExperiment.
    """
    file, name = _find(name_or_path)
    try:
        words = tomllib.loads(_text(file))
        if quick and not isinstance(words.get("quick"), dict):
            raise BadExperiment(f"{name_or_path}: has no [quick] table")
        table = _laid(words, quick=quick, repetitions=repetitions)
        experiment = Experiment.model_validate({**table, "name": name, "quick": quick})
    except ValidationError as error:
        raise BadExperiment(f"{name_or_path}: {first(error, Experiment)}") from error
    except (ValueError, RecursionError) as error:
        raise BadExperiment(f"{name_or_path}: not TOML: {error}") from error
    check_run_files(experiment)
    return experiment


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
        return file.read_text("utf-8")
    except OSError as error:
        raise BadExperiment(f"{file}: {error.strerror}") from error


def _laid(table: dict[str, Any], *, quick: bool, repetitions: int | None) -> dict[str, Any]:
    """Return the file's table, with `[quick]` laid over it and another number of repetitions if requested."""
    plain = {key: value for key, value in table.items() if key != "quick"}
    changes = {} if repetitions is None else {"repetitions": repetitions}
    return merged(merged(plain, table["quick"] if quick else {}), changes)

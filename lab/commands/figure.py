"""`distrust figure`: a figure of the papers, drawn from what is computed here, as PNG and SVG."""

from pathlib import Path
from typing import Annotated

import typer

from common.errors import BadParameter
from lab import composition
from lab.commands.sweep import DEFAULT_OUT, BackendOption, Jobs, say_others
from lab.console import err, out
from lab.figures import draw, drawing, matched
from lab.folder import writing
from lab.sweep import Experiment, Row, known, load, read, run
from lab.sweep.progress import SweepProgress

COMPOSITION = "composition"
EPSILON, DELTA = 0.5, 1e-6

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An experiment, or composition: MAB Appendix I, what returning clients cost",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version, a minute at most")]
Out = Annotated[Path, typer.Option("--out", help="Folder for NAME.png and NAME.svg")]
Results = Annotated[Path | None, typer.Option("--results", help="The rows, Parquet or CSV; nothing is played then")]
Sweeps = Annotated[Path, typer.Option("--sweeps", help="Folder of `distrust sweep`: missing cells are played there")]
Epsilon = Annotated[
    float, typer.Option("--epsilon", help="composition: a client's budget for all batches, in [0.0001, 1)")
]
Delta = Annotated[float, typer.Option("--delta", help="composition: its δ, in [1e-18, 1/2)")]


def figure(
    name: Name,
    *,
    quick: Quick = False,
    out_: Out = Path(),
    results: Results = None,
    sweeps: Sweeps = DEFAULT_OUT,
    backend: BackendOption = "loky",
    jobs: Jobs = None,
    epsilon: Epsilon = EPSILON,
    delta: Delta = DELTA,
) -> None:
    """Draw a figure of the papers."""
    _check_used(name, quick=quick, results=results, epsilon=epsilon, delta=delta)
    if name == COMPOSITION:
        found = composition.curves(epsilon, delta)
        with writing(out_, "choose another --out"):
            out_.mkdir(parents=True, exist_ok=True)
            _print(composition.draw(found, out_ / name))
        return
    if not name.endswith(".toml") and name not in known():
        raise BadParameter("figure", name, f"must be one of {', '.join((COMPOSITION, *known()))}")
    experiment = load(name, quick=quick)
    drawing(experiment)  # a sweep may take minutes: what would fail after it fails before
    with writing(out_, "choose another --out"):
        out_.mkdir(parents=True, exist_ok=True)
    rows = _played(experiment, sweeps, backend, jobs) if results is None else matched(experiment, read(results))
    stem = out_ / (experiment.name + ("-quick" if quick else ""))
    with writing(out_, "choose another --out"):
        _print(draw(experiment, rows, stem))


def _check_used(name: str, *, quick: bool, results: Path | None, epsilon: float, delta: float) -> None:
    """Raises BadParameter for an option that this figure would not look at."""
    own = {"epsilon": epsilon if epsilon != EPSILON else None, "delta": delta if delta != DELTA else None}
    others = {"quick": quick or None, "results": results and str(results)}
    for field, given in (others if name == COMPOSITION else own).items():
        if given is not None:
            whose = "an experiment's" if name == COMPOSITION else f"{COMPOSITION}'s"
            raise BadParameter(field, given, f"is {whose} alone: leave it out for {name}")


def _played(experiment: Experiment, sweeps: Path, backend: str, jobs: int | None) -> list[Row]:
    """All the rows, those of an earlier sweep first. Raises BadParameter when a cell came to nothing."""
    say_others(experiment, sweeps)
    with SweepProgress(err, experiment.name) as progress:
        outcome = run(experiment, sweeps, backend=backend, jobs=jobs, watch=progress)
    for cell, reason in outcome.failures.items():
        raise BadParameter("experiment", experiment.name, f"{cell.panel}, {cell.series}: {reason}")
    return matched(experiment, outcome.rows)


def _print(paths: list[Path]) -> None:
    for path in paths:
        out.print(path, markup=False, highlight=False)

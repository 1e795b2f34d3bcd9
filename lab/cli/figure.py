"""`distrust figure`: a figure of the papers, drawn from what is computed here, as PNG, SVG and PDF."""

from pathlib import Path
from typing import Annotated

import typer

from distrust.common.errors import BadParameter
from distrust.lab.cli.console import err, out
from distrust.lab.cli.sweep import DEFAULT_OUT, Jobs, say_others
from distrust.lab.stack.data_dir import writing
from distrust.lab.sweep.display import SweepProgress
from distrust.lab.sweep.engine import run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.files import known_experiments, load_experiment
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import read_rows

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COMPOSITION = "composition"
EPSILON, DELTA = 0.5, 1e-6

Given = dict[str, object]

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An experiment, or composition: MAB Appendix I, what returning clients cost",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version, a minute at most")]
Out = Annotated[Path, typer.Option("--out", help="Folder for NAME.png, NAME.svg and NAME.pdf")]
Results = Annotated[Path | None, typer.Option("--results", help="The rows, Parquet or CSV; nothing is played then")]
Backend = Annotated[str | None, typer.Option("--backend", help="joblib's: loky, dask or ray; loky when not given")]
Sweeps = Annotated[Path, typer.Option("--sweeps", help="Folder of `distrust sweep`: missing cells are played there")]
Epsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="composition: a client's budget for all batches, in [0.0001, 1); 0.5 when not given"
    ),
]
Delta = Annotated[
    float | None, typer.Option("--delta", help="composition: its δ, in [1e-18, 1/2); 1e-6 when not given")
]


@app.command()
def figure(
    name: Name,
    *,
    quick: Quick = False,
    out_: Out = Path(),
    results: Results = None,
    sweeps: Sweeps = DEFAULT_OUT,
    backend: Backend = None,
    jobs: Jobs = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
) -> None:
    """Draw a figure of the papers."""
    from distrust.lab.figures import draw, drawing, matched  # noqa: PLC0415
    from distrust.lab.privacy import composition  # noqa: PLC0415 - matplotlib takes most of a second to import, in every command

    plays: Given = {"backend": backend, "jobs": jobs}
    if name == COMPOSITION:
        _unused(
            {"quick": quick or None, "results": results, **plays}, f"an experiment's alone: leave it out for {name}"
        )
        found = composition.curves(EPSILON if epsilon is None else epsilon, DELTA if delta is None else delta)
        with writing(out_, "choose another --out"):
            out_.mkdir(parents=True, exist_ok=True)
            _print(composition.draw(found, out_ / name))
        return
    _unused({"epsilon": epsilon, "delta": delta}, f"{COMPOSITION}'s alone: leave it out for {name}")
    if results is not None:
        _unused(plays, "for what is played, and --results plays nothing: leave it out")
    if not name.endswith(".toml") and name not in known_experiments():
        raise BadParameter("figure", name, f"must be one of {', '.join((COMPOSITION, *known_experiments()))}")
    experiment = load_experiment(name, quick=quick)
    drawing(experiment)  # a sweep may take minutes: what would fail after it fails before
    with writing(out_, "choose another --out"):
        out_.mkdir(parents=True, exist_ok=True)
    rows = (
        _played(experiment, sweeps, backend or "loky", jobs)
        if results is None
        else matched(experiment, read_rows(results))
    )
    stem = out_ / (experiment.name + ("-quick" if quick else ""))
    with writing(out_, "choose another --out"):
        _print(draw(experiment, rows, stem))


def _unused(options: Given, why: str) -> None:
    """Raises BadParameter for an option that was given, and that this figure would not look at."""
    for field, given in options.items():
        if given is not None:
            raise BadParameter(field, str(given) if isinstance(given, Path) else given, f"is {why}")


def _played(experiment: Experiment, sweeps: Path, backend: str, jobs: int | None) -> list[Row]:
    """All the rows, those of an earlier sweep first. Raises BadParameter when a cell came to nothing."""
    from distrust.lab.figures import matched  # noqa: PLC0415

    say_others(experiment, sweeps)
    with SweepProgress(err, experiment.name) as progress:
        outcome = run_sweep(experiment, sweeps, backend=backend, jobs=jobs, watch=progress)
    for cell, reason in outcome.failures.items():
        raise BadParameter("experiment", experiment.name, f"{cell.panel}, {cell.series}: {reason}")
    return matched(experiment, outcome.rows)


def _print(paths: list[Path]) -> None:
    for path in paths:
        out.print(path, markup=False, highlight=False)

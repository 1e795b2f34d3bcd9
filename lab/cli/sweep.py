"""Implements `distrust sweep` and `figure`: plays an experiment on all cores, and draws its rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distrust.common.errors import FAILED, BadParameter
from distrust.common.extras import late
from distrust.lab.cli.console import JsonOption, err, examples, out, say
from distrust.lab.figures.drawing import drawing, matched
from distrust.lab.stack.data_dir import writing
from distrust.lab.sweep.cells import known_experiments, load_experiment
from distrust.lab.sweep.display import SweepProgress, confidence_table, regret_table
from distrust.lab.sweep.engine import SweepOutcome, run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.result_store import ResultStore, result_folder, rows_of_other_code
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import differing_columns, read_rows

if TYPE_CHECKING:
    from distrust.lab.figures import composition, draw
else:
    composition = late("distrust.lab.figures.composition")
    draw = late("distrust.lab.figures.draw")

app = typer.Typer(rich_markup_mode=None, add_completion=False)

SHOWN = 20  # failed or differing cells that are named on stderr
NAMED = 4  # parts of the code that are named where it is another one

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="One of lab/experiments, or the path of a .toml file")]
Quick = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds a folder for each experiment")]
BackendOption = Annotated[str, typer.Option("--backend", help="joblib's: loky, dask or ray")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Worker processes; all cores when not given")]
FormatOption = Annotated[str, typer.Option("--format", help="Of the table: parquet or csv")]
Repetitions = Annotated[int | None, typer.Option("--repetitions", help="Another number than the file's")]
CheckOption = Annotated[
    Path | None, typer.Option("--check", help="Published rows: exit 1 unless what is played equals them")
]

DEFAULT_OUT = Path("sweeps")
COMPOSITION = "composition"
EPSILON, DELTA = 0.5, 1e-6

FigureName = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An experiment, or composition: MAB Appendix I, what returning clients cost",
    ),
]
QuickFigure = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version, a minute at most")]
PictureFolder = Annotated[Path, typer.Option("--out", help="Folder for NAME.png, NAME.svg and NAME.pdf")]
Results = Annotated[Path | None, typer.Option("--results", help="The rows, Parquet or CSV; nothing is played then")]
Backend = Annotated[str | None, typer.Option("--backend", help="joblib's: loky, dask or ray; loky when not given")]
Sweeps = Annotated[Path, typer.Option("--sweeps", help="Folder of `distrust sweep`: missing cells are played there")]
EpsilonOption = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="composition: a client's budget for all batches, in [0.0001, 1); 0.5 when not given"
    ),
]
DeltaOption = Annotated[
    float | None, typer.Option("--delta", help="composition: its δ, in [1e-18, 1/2); 1e-6 when not given")
]


@app.command("sweep", epilog=examples("distrust sweep smoke", "distrust sweep mab-2 --quick --jobs 1 --format csv"))
def sweep_command(
    name: Name,
    *,
    quick: Quick = False,
    out_: Out = DEFAULT_OUT,
    backend: BackendOption = "loky",
    jobs: Jobs = None,
    format_: FormatOption = "parquet",
    repetitions: Repetitions = None,
    check: CheckOption = None,
    json: JsonOption = None,
) -> None:
    """Play an experiment on all cores.

    What is finished is kept: the same command goes on after a kill.
    """
    experiment = load_experiment(name, quick=quick, repetitions=repetitions)
    published = [] if check is None else read_rows(check, "check")
    _print_others(experiment, out_)
    try:
        with SweepProgress(err, experiment.name) as progress:
            outcome = run_sweep(experiment, out_, backend=backend, jobs=jobs, form=format_, watch=progress)
    except (KeyboardInterrupt, SystemExit):
        err.print(_stopped(experiment, out_), markup=False)
        raise
    _report(experiment, outcome, tables=json != "-")
    differing = {} if check is None else differing_columns(published, outcome.rows)
    equal = None if check is None else len(outcome.rows) - len(differing)
    for cell, columns in list(differing.items())[:SHOWN]:
        err.print(f"differs: {_place(cell)}: {', '.join(columns)}", markup=False)
    lines = [f"{len(outcome.rows)} rows in {outcome.path}"]
    lines += [] if check is None else [f"{equal} of {len(outcome.rows)} rows equal those of {check}"]
    say({**_facts(outcome), "equal": equal}, "\n".join(lines), json)
    if outcome.failures or differing:
        raise typer.Exit(FAILED)


def _facts(outcome: SweepOutcome) -> dict[str, Any]:
    """Return a sweep in figures: final regrets and failure events, as the tables have them, and failed cells."""
    failed = [{**cell._asdict(), "reason": reason} for cell, reason in outcome.failures.items()]
    return {
        "experiment": outcome.experiment.name,
        "title": outcome.experiment.title,
        "file": str(outcome.path),
        "rows": len(outcome.rows),
        "failed": failed,
        "summary": outcome.lines("summary"),
        "confidence": outcome.lines("confidence"),
    }


def _report(experiment: Experiment, outcome: SweepOutcome, *, tables: bool) -> None:
    """Print the tables, if they are wanted, and what failed."""
    if tables:
        out.print(experiment.title, markup=False, style="bold")
    if outcome.rows and tables:
        out.print(regret_table(outcome.rows))
        out.print()
        out.print(confidence_table(outcome.rows))
    for cell, reason in list(outcome.failures.items())[:SHOWN]:
        err.print(f"failed: {_place(cell)}: {reason}", markup=False)
    if outcome.failures:
        count, listed = len(outcome.failures), outcome.path.with_name("failures.json")
        err.print(f"{count} cells failed, see {listed}; the same command tries them again", markup=False)


def _print_others(experiment: Experiment, folder: Path) -> None:
    """Print that a sweep begins anew although there are rows, because other code has played them."""
    for path, count, changed in rows_of_other_code(experiment, folder):
        listed = ", ".join(changed[:NAMED]) + (f" and {len(changed) - NAMED} more" if len(changed) > NAMED else "")
        err.print(f"{count} cells in {path} were played by other code ({listed} differ): kept, not used", markup=False)


def _place(cell: Cell) -> str:
    return f"panel {cell.panel!r}, series {cell.series!r}, repetition {cell.repetition}"


def _stopped(experiment: Experiment, folder: Path) -> str:
    with ResultStore(experiment, folder) as results:
        done = len(results.rows())
    kept = result_folder(experiment, folder)
    return f"stopped: {done} finished cells are kept in {kept}; the same command goes on from there"


@app.command("figure", epilog=examples("distrust figure mab-2 --quick", "distrust figure composition --epsilon 0.5"))
def figure_command(
    name: FigureName,
    *,
    quick: QuickFigure = False,
    out_: PictureFolder = Path(),
    results: Results = None,
    sweeps: Sweeps = DEFAULT_OUT,
    backend: Backend = None,
    jobs: Jobs = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    json: JsonOption = None,
) -> None:
    """Draw a figure of the papers."""
    plays: dict[str, object] = {"backend": backend, "jobs": jobs}
    if name == COMPOSITION:
        _unused(
            {"quick": quick or None, "results": results, **plays}, f"an experiment's alone: leave it out for {name}"
        )
        curves = composition.composition_curves(
            EPSILON if epsilon is None else epsilon, DELTA if delta is None else delta
        )
        with writing(out_, "out"):
            out_.mkdir(parents=True, exist_ok=True)
            _tell(name, composition.draw_composition(curves, out_ / name), json)
        return
    _unused({"epsilon": epsilon, "delta": delta}, f"{COMPOSITION}'s alone: leave it out for {name}")
    if results is not None:
        _unused(plays, "for what is played, and --results plays nothing: leave it out")
    if not name.endswith(".toml") and name not in known_experiments():
        raise BadParameter("figure", name, f"must be one of {', '.join((COMPOSITION, *known_experiments()))}")
    experiment = load_experiment(name, quick=quick)
    # A sweep may take minutes: what would fail after it, as without Matplotlib, fails before.
    drawing(experiment)
    picture = draw.draw
    with writing(out_, "out"):
        out_.mkdir(parents=True, exist_ok=True)
    rows = (
        matched(experiment, read_rows(results))
        if results is not None
        else _played(experiment, sweeps, backend or "loky", jobs)
    )
    stem = out_ / (experiment.name + ("-quick" if quick else ""))
    with writing(out_, "out"):
        _tell(name, picture(experiment, rows, stem), json)


def _unused(options: dict[str, object], why: str) -> None:
    """Raise BadParameter for an option that was given, and that this figure would not look at."""
    for field, value in options.items():
        if value is not None:
            raise BadParameter(field, str(value) if isinstance(value, Path) else value, f"is {why}")


def _played(experiment: Experiment, sweeps: Path, backend: str, jobs: int | None) -> list[Row]:
    """Play missing cells, and return all the rows. Raises BadParameter when a cell failed."""
    _print_others(experiment, sweeps)
    with SweepProgress(err, experiment.name) as progress:
        outcome = run_sweep(experiment, sweeps, backend=backend, jobs=jobs, watch=progress)
    for cell, reason in outcome.failures.items():
        raise BadParameter("experiment", experiment.name, f"{cell.panel}, {cell.series}: {reason}")
    return matched(experiment, outcome.rows)


def _tell(name: str, paths: list[Path], json: str | None) -> None:
    files = [str(path) for path in paths]
    say({"figure": name, "files": files}, "\n".join(files), json)

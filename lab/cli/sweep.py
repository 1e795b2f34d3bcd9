"""`distrust sweep EXPERIMENT`: every panel, series and repetition of an experiment, on all cores."""

from pathlib import Path
from typing import Annotated

import typer

from distrust.lab.cli.console import err, out
from distrust.lab.sweep.display import SweepProgress, confidence_table, regret_table
from distrust.lab.sweep.engine import SweepOutcome, run_sweep
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.files import load_experiment
from distrust.lab.sweep.result_store import ResultStore, result_folder, rows_of_other_code
from distrust.lab.sweep.row import Cell, Row
from distrust.lab.sweep.table import differing_columns, read_rows

app = typer.Typer(rich_markup_mode=None, add_completion=False)

FAILED = 1
SHOWN = 20  # failed or differing cells that are named on stderr
NAMED = 4  # parts of the code that are named where it is another one

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="One of lab/experiments, or the path of a .toml file")]
Quick = Annotated[bool, typer.Option("--quick", help="The experiment's reduced version")]
Out = Annotated[Path, typer.Option("--out", help="Folder that holds a folder for each experiment")]
BackendOption = Annotated[str, typer.Option("--backend", help="joblib's: loky, dask or ray")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Worker processes; all cores when not given")]
FormatOption = Annotated[str, typer.Option("--format", help="Of the table: parquet or csv")]
Repetitions = Annotated[int | None, typer.Option("--repetitions", help="Another number than the file's")]
Check = Annotated[Path | None, typer.Option("--check", help="Published rows: exit 1 unless what is played equals them")]

DEFAULT_OUT = Path("sweeps")


@app.command()
def sweep(
    name: Name,
    *,
    quick: Quick = False,
    out_: Out = DEFAULT_OUT,
    backend: BackendOption = "loky",
    jobs: Jobs = None,
    format_: FormatOption = "parquet",
    repetitions: Repetitions = None,
    check: Check = None,
) -> None:
    """Play an experiment on all cores.

    What is finished is kept: the same command goes on after a kill.
    """
    experiment = load_experiment(name, quick=quick, repetitions=repetitions)
    published = [] if check is None else read_rows(check, "check")
    say_others(experiment, out_)
    try:
        with SweepProgress(err, experiment.name) as progress:
            outcome = run_sweep(experiment, out_, backend=backend, jobs=jobs, form=format_, watch=progress)
    except (KeyboardInterrupt, SystemExit):
        err.print(_stopped(experiment, out_), markup=False)
        raise
    report(experiment, outcome)
    same = check is None or _same(check, published, outcome.rows)
    if outcome.failures or not same:
        raise typer.Exit(FAILED)


def report(experiment: Experiment, outcome: SweepOutcome) -> None:
    """The tables, where the rows are, and what failed."""
    out.print(experiment.title, markup=False, style="bold")
    if outcome.rows:
        out.print(regret_table(outcome.rows))
        out.print()
        out.print(confidence_table(outcome.rows))
    for cell, reason in list(outcome.failures.items())[:SHOWN]:
        err.print(f"failed: {_place(cell)}: {reason}", markup=False)
    if outcome.failures:
        count, listed = len(outcome.failures), outcome.path.with_name("failures.json")
        err.print(f"{count} cells failed, see {listed}; the same command tries them again", markup=False)
    out.print(f"{len(outcome.rows)} rows in {outcome.path}", markup=False)


def say_others(experiment: Experiment, folder: Path) -> None:
    """That a sweep begins anew though there are rows, because other code has played them."""
    for path, count, changed in rows_of_other_code(experiment, folder):
        listed = ", ".join(changed[:NAMED]) + (f" and {len(changed) - NAMED} more" if len(changed) > NAMED else "")
        err.print(f"{count} cells in {path} were played by other code ({listed} differ): kept, not used", markup=False)


def _same(path: Path, published: list[Row], played: list[Row]) -> bool:
    """Compare, and say what came of it."""
    found = differing_columns(published, played)
    for cell, columns in list(found.items())[:SHOWN]:
        err.print(f"differs: {_place(cell)}: {', '.join(columns)}", markup=False)
    out.print(f"{len(played) - len(found)} of {len(played)} rows equal those of {path}", markup=False)
    return not found


def _place(cell: Cell) -> str:
    return f"panel {cell.panel!r}, series {cell.series!r}, repetition {cell.repetition}"


def _stopped(experiment: Experiment, folder: Path) -> str:
    with ResultStore(experiment, folder) as shelf:
        done = len(shelf.rows())
    kept = result_folder(experiment, folder)
    return f"stopped: {done} finished cells are kept in {kept}; the same command goes on from there"

"""`distrust data`: make the tables that environments draw from."""

from pathlib import Path
from typing import Annotated

import typer

from distrust.client.environments.mslr import write_counts
from distrust.lab.cli.console import out
from distrust.lab.stack.data_dir import writing

app = typer.Typer(help="Make the tables that environments draw from.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def group() -> None:
    """Make the tables that environments draw from."""


@app.command()
def mslr(
    files: Annotated[list[Path], typer.Argument(help="LETOR files: label qid:q 1:v 2:v …")],
    out_file: Annotated[Path, typer.Option("--out", help="CSV to write: per arm, rows of each relevance label")],
    clusters: Annotated[int, typer.Option(min=2, help="K-means clusters, one an arm")] = 50,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of K-means")] = 0,
    minimum_rows: Annotated[int, typer.Option(min=1, help="Drop clusters with fewer rows")] = 1,
) -> None:
    """Group the rows of LETOR files into arms and count their relevance labels."""
    from distrust.client.environments.letor import build_counts  # noqa: PLC0415 - scikit-learn takes a second to import

    table = build_counts(files, clusters, seed, minimum_rows)
    with writing(out_file, "name another file"):
        write_counts(table, out_file)
    out.print(f"{out_file}: {len(table)} arms, {table.sum()} rows")

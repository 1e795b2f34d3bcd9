"""Implements `distrust data`: makes the tables that environments draw from, of LETOR files."""

from pathlib import Path
from typing import Annotated

import typer

from distrust.client.environments.contextual_mslr import write_contexts
from distrust.client.environments.letor import build_contexts, build_counts
from distrust.client.environments.mslr import write_counts
from distrust.lab.cli.console import JsonOption, checked_out, examples, say
from distrust.lab.stack.data_dir import writing

app = typer.Typer(rich_markup_mode=None, add_completion=False)

tables = typer.Typer(
    help="Make the tables that environments draw from.",
    epilog=examples(
        "distrust data mslr train.txt --out arms.csv --clusters 10",
        "distrust data mslr-contexts train.txt --fit test.txt --out contexts.csv",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(tables, name="data")


@tables.callback()
def data_command() -> None:
    """Make the tables that environments draw from."""


@tables.command(epilog=examples("distrust data mslr train.txt --out arms.csv --clusters 10"))
def mslr(
    files: Annotated[list[Path], typer.Argument(help="LETOR files: label qid:q 1:v 2:v …")],
    out_file: Annotated[
        Path, typer.Option("--out", help="CSV to write: per arm, rows of each relevance label", callback=checked_out)
    ],
    clusters: Annotated[int, typer.Option(min=2, help="K-means clusters, one an arm")] = 50,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of K-means")] = 0,
    *,
    minimum_rows: Annotated[int, typer.Option(min=1, help="Drop clusters with fewer rows")] = 1,
    json: JsonOption = None,
) -> None:
    """Group the rows of LETOR files into arms and count their relevance labels."""
    table = build_counts(files, clusters, seed, minimum_rows)
    with writing(out_file, "out"):
        write_counts(table, out_file)
    rows = int(table.sum())
    say({"file": str(out_file), "arms": len(table), "rows": rows}, f"{out_file}: {len(table)} arms, {rows} rows", json)


@tables.command(
    "mslr-contexts", epilog=examples("distrust data mslr-contexts train.txt --fit test.txt --out contexts.csv")
)
def mslr_contexts(
    files: Annotated[list[Path], typer.Argument(help="LETOR files: label qid:q 1:v 2:v …")],
    out_file: Annotated[
        Path, typer.Option("--out", help="CSV to write: per row, its label and its components", callback=checked_out)
    ],
    fit: Annotated[list[Path], typer.Option("--fit", help="LETOR file of other rows, which the components are of")],
    *,
    components: Annotated[int, typer.Option(min=1, max=136, help="Principal components to keep")] = 10,
    json: JsonOption = None,
) -> None:
    """Reduce the rows of LETOR files to contexts of a few numbers."""
    table = build_contexts(files, fit, components)
    with writing(out_file, "out"):
        write_contexts(table, out_file)
    rows = len(table.labels)
    fact = {"file": str(out_file), "rows": rows, "components": components}
    say(fact, f"{out_file}: {rows} rows, {components} components", json)

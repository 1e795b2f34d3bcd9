"""Implements `distrust up`, `token` and `inspect`: starts the services on loopback; shows each party's messages."""

import time
from pathlib import Path
from typing import Annotated

import typer

from distrust.lab.cli.console import out
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import BASE_PORT, Stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

DataOption = Annotated[Path, typer.Option("--data", help="Folder for databases, logs and the operator's token")]
PortOption = Annotated[int, typer.Option("--port-base", min=0, max=65_000, help="First of three ports; 0: free ones")]

LOOK_SECONDS = 0.5
RoundOption = Annotated[int | None, typer.Option("--round", min=1, help="Which round; else the cohort's, or the first")]
CohortOption = Annotated[str | None, typer.Option("--cohort", help="Only this cohort")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Messages shown of each stage")]


@app.command("up")
def up_command(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT) -> None:
    """Start the three services on loopback, until Ctrl-C."""
    with Stack(DataDir(data), port_base) as stack:
        urls = stack.urls
        out.print(f"server      {urls.server}/  (its API: /openapi.json)")
        out.print(f"shuffler    {urls.shuffler}/")
        out.print(f"aggregator  {urls.aggregator}/")
        data_dir = stack.data_dir
        out.print(f"operator's token in {data_dir.token_file}, logs in {data_dir.path / 'logs'}; Ctrl-C stops")
        while True:
            stack.check()
            time.sleep(LOOK_SECONDS)


@app.command("token")
def token_command(data: DataOption = DEFAULT) -> None:
    """Make the operator's and the inspector's token, once."""
    data_dir = DataDir(data)
    data_dir.make()
    data_dir.make_tokens()
    out.print(f"{data_dir.token_file}\n{data_dir.inspector_file}", markup=False)


@app.command("inspect")
def inspect_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name")],
    *,
    round_number: RoundOption = None,
    cohort: CohortOption = None,
    limit: LimitOption = 3,
    data: DataOption = DEFAULT,
) -> None:
    """Print a run's messages side by side, as each party saw them."""
    # The analyzer's code takes a second to import, and `up` and `token` need none of it.
    from distrust.lab.run.connection import inspect  # noqa: PLC0415
    from distrust.lab.run.transcripts import print_sights  # noqa: PLC0415

    print_sights(inspect(run, round_number=round_number, cohort=cohort, limit=limit, data=data).sights, out)

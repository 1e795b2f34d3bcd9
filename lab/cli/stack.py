"""Implements `distrust up`, `token` and `inspect`: starts the services on loopback; shows each party's messages."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from distrust.lab.cli.console import out
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import BASE_PORT, Stack, Urls, running_stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

DataOption = Annotated[Path, typer.Option("--data", help="Folder for databases, logs and the operator's token")]
PortOption = Annotated[int, typer.Option("--port-base", min=0, max=65_000, help="First of three ports; 0: free ones")]

LOOK_SECONDS = 0.5
RoundOption = Annotated[int | None, typer.Option("--round", min=1, help="Which round; else the cohort's, or the first")]
CohortOption = Annotated[str | None, typer.Option("--cohort", help="Only this cohort")]
HeldOption = Annotated[
    Path | None,
    typer.Option("--held", metavar="FILE", help="Run file of a simulated run: print as JSON what its clients held"),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Messages shown of each stage")]


@app.command("up")
def up_command(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT) -> None:
    """Start the three services on loopback, until Ctrl-C."""
    with Stack(DataDir(data), port_base) as stack:
        urls = stack.urls
        out.print(f"dashboard   {urls.server}/")
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
    held: HeldOption = None,
    data: DataOption = DEFAULT,
) -> None:
    """Print a run's messages side by side, as each party saw them."""
    # The analyzer's code takes a second to import, and `up` and `token` need none of it.
    from distrust.lab.run.run_file import read  # noqa: PLC0415
    from distrust.lab.run.transcripts import Wanted, gather, gather_held, print_sights  # noqa: PLC0415

    wanted = Wanted(run, round_number or _round_of(cohort), cohort, limit)
    data_dir = DataDir(data)
    with _running_or_started(data_dir) as urls:
        if held is not None:
            sys.stdout.write(json.dumps(asyncio.run(gather_held(urls, wanted, read(held)))) + "\n")
            return
        print_sights(asyncio.run(gather(urls, wanted)), out)


def _round_of(cohort: str | None) -> int:
    """Return the round in a cohort's name, RUN.ROUND.ARM.ATTEMPT; else the first."""
    parts = (cohort or "").rsplit(".", 3)[1:]
    return int(parts[0]) if len(parts) == 3 and parts[0].isdecimal() else 1


@contextmanager
def _running_or_started(data_dir: DataDir) -> Iterator[Urls]:
    """Yield the services on a folder. If none run, start them on their stored data."""
    urls = running_stack(data_dir)
    if urls is not None:
        yield urls
        return
    data_dir.token()  # refuses a folder in which no stack has run
    with Stack(data_dir, 0) as stack:
        yield stack.urls

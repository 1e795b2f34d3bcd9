"""`distrust inspect RUN`: what every party saw, side by side, from the parties' own APIs."""

import asyncio
from typing import Annotated

import typer

from distrust.lab.cli.console import out
from distrust.lab.cli.up import DataOption
from distrust.lab.run.transcripts import Wanted, gather, print_sights
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import Stack, Urls, running_stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

RoundOption = Annotated[int | None, typer.Option("--round", min=1, help="Which round; else the cohort's, or the first")]
CohortOption = Annotated[str | None, typer.Option("--cohort", help="Only this cohort")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Messages shown of each stage")]


@app.command()
def inspect(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name")],
    *,
    round_number: RoundOption = None,
    cohort: CohortOption = None,
    limit: LimitOption = 3,
    data: DataOption = DEFAULT,
) -> None:
    """Print a run's messages side by side, as each party saw them."""
    wanted = Wanted(run, round_number or _round_of(cohort), cohort, limit)
    folder = DataDir(data)
    found = running_stack(folder)
    if found is not None:
        _print(found, wanted)
        return
    with Stack(_existing(folder), 0) as stack:  # nothing runs here: start the parties on what they remember
        _print(stack.urls, wanted)


def _round_of(cohort: str | None) -> int:
    """The round that a cohort's name says, RUN.ROUND.ARM.ATTEMPT; else the first."""
    parts = (cohort or "").rsplit(".", 3)[1:]
    return int(parts[0]) if len(parts) == 3 and parts[0].isdecimal() else 1


def _print(urls: Urls, wanted: Wanted) -> None:
    print_sights(asyncio.run(gather(urls, wanted)), out)


def _existing(folder: DataDir) -> DataDir:
    """A folder in which a stack has run; inspecting must not make an empty one."""
    folder.token()
    return folder

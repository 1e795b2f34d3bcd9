"""`distrust serve PARTY`: one service in the foreground, configured by DISTRUST_… variables."""

import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class Party(StrEnum):
    """The services."""

    SERVER = "server"
    SHUFFLER = "shuffler"
    AGGREGATOR = "aggregator"


@app.command()
def serve(party: Annotated[Party, typer.Argument(help="Which service")]) -> None:
    """Run one service, configured by DISTRUST_… variables."""
    # -P keeps the working folder off the path: what lies there is not run in our place.
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"distrust.{party.value}"])  # noqa: S606 - our own module, no shell

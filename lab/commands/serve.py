"""`distrust serve PARTY`: one service in the foreground, configured by DISTRUST_… variables."""

import os
import sys
from enum import StrEnum
from typing import Annotated

import typer


class Party(StrEnum):
    """The services."""

    SERVER = "server"
    SHUFFLER = "shuffler"
    AGGREGATOR = "aggregator"


def serve(party: Annotated[Party, typer.Argument(help="Which service")]) -> None:
    """Run one service, configured by DISTRUST_… variables."""
    os.execv(sys.executable, [sys.executable, "-m", party.value])  # noqa: S606 - our own module, no shell

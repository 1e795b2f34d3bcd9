"""Implements `distrust serve`, `fleet` and `health`: starts one party here, or asks a service whether it is ready.

Containers call these often, so that the module imports nothing heavy.
"""

import os
import sys
from enum import StrEnum
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated
from urllib.parse import urlsplit

import typer

from distrust.common.errors import BadParameter, Unavailable
from distrust.lab.cli.console import out

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TIMEOUT_SECONDS = 5.0


class ServiceName(StrEnum):
    """Names of the services."""

    SERVER = "server"
    SHUFFLER = "shuffler"
    AGGREGATOR = "aggregator"


@app.command("serve")
def serve_command(party: Annotated[ServiceName, typer.Argument(help="Which service")]) -> None:
    """Run one service, configured by DISTRUST_… variables."""
    # -P keeps the working folder off the path: what lies there is not run in our place.
    os.execv(sys.executable, [sys.executable, "-P", "-m", f"distrust.{party.value}"])  # noqa: S606 - our own module, no shell


@app.command(
    "fleet", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def fleet_command(context: typer.Context) -> None:
    """Play clients in one process; `fleet --help` has the options."""
    # -P keeps the working folder off the path: what lies there is not run in our place.
    command = [sys.executable, "-P", "-m", "distrust.client", *context.args]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, no shell


@app.command("health")
def health_command(
    url: Annotated[str, typer.Argument(help="Address of a service, such as http://127.0.0.1:8701")],
) -> None:
    """Ask a service whether it is ready."""
    try:
        address = urlsplit(url)
        kind = {"http": HTTPConnection, "https": HTTPSConnection}[address.scheme]
        # The standard library's client: httpx takes longer to import than the whole answer takes.
        connection = kind(address.hostname or "", address.port, timeout=TIMEOUT_SECONDS)
    except (KeyError, ValueError) as error:
        raise BadParameter("url", url, "must be the address of a service, such as http://127.0.0.1:8701") from error
    try:
        connection.request("GET", f"{address.path.rstrip('/')}/readyz")
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", errors="replace")
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{url}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unavailable(f"{url}: {body}")
    out.print("ready")

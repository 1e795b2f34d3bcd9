"""`distrust health URL`: whether a service is ready, for health checks of containers."""

from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated
from urllib.parse import urlsplit

import typer

from distrust.common.errors import BadParameter, Unavailable
from distrust.lab.cli.console import out

TIMEOUT_SECONDS = 5.0

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def health(url: Annotated[str, typer.Argument(help="Address of a service, such as http://127.0.0.1:8701")]) -> None:
    """Ask a service whether it is ready."""
    try:
        asked = urlsplit(url)
        kind = {"http": HTTPConnection, "https": HTTPSConnection}[asked.scheme]
        # The standard library's client: httpx takes longer to import than the whole answer takes.
        connection = kind(asked.hostname or "", asked.port, timeout=TIMEOUT_SECONDS)
    except (KeyError, ValueError) as error:
        raise BadParameter("url", url, "must be the address of a service, such as http://127.0.0.1:8701") from error
    try:
        connection.request("GET", f"{asked.path.rstrip('/')}/readyz")
        answer = connection.getresponse()
        body = answer.read().decode("utf-8", errors="replace")
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{url}: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unavailable(f"{url}: {body}")
    out.print("ready")

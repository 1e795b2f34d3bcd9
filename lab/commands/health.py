"""`distrust health URL`: whether a service is ready, for health checks of containers."""

from typing import Annotated

import httpx
import typer

from common.errors import Unavailable
from lab.console import out


def health(url: Annotated[str, typer.Argument(help="Address of a service, such as http://127.0.0.1:8701")]) -> None:
    """Ask a service whether it is ready."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/readyz", timeout=5.0, trust_env=False)
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise Unavailable(f"{url}: {error}") from error
    if not answer.is_success:
        raise Unavailable(f"{url}: {answer.text}")
    out.print("ready")

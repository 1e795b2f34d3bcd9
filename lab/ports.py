"""Loopback ports for the local stack."""

import errno
import socket
from contextlib import ExitStack

from common.errors import Unavailable

LOOPBACK = "127.0.0.1"


def choose(base: int, names: list[str]) -> dict[str, int]:
    """A port for each name: `base`, `base + 1`, …; free ones that the system picks when `base` is 0.

    Raises Unavailable, naming the port, when one is taken. All are held together while we look, so they differ.
    """
    with ExitStack() as held:
        return {name: _probe(held, base and base + index, name) for index, name in enumerate(names)}


def _probe(held: ExitStack, port: int, name: str) -> int:
    """Bind once to see whether we can."""
    probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((LOOPBACK, port))
    except OSError as error:
        why = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or "not ours to use")
        raise Unavailable(
            f"port {port} for the {name} is {why}: stop what listens there, or let --port-base 0 pick free ports"
        ) from error
    found: int = probe.getsockname()[1]
    return found

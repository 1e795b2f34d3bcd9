"""`distrust fleet`: one process of many clients; its options are those of `python -m client`."""

import os
import sys

import typer


def fleet(context: typer.Context) -> None:
    """Play clients in one process; `fleet --help` has the options."""
    os.execv(sys.executable, [sys.executable, "-m", "client", *context.args])  # noqa: S606 - our own module, no shell

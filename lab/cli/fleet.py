"""`distrust fleet`: one process of many clients; its options are those of `python -m distrust.client`."""

import os
import sys

import typer

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def fleet(context: typer.Context) -> None:
    """Play clients in one process; `fleet --help` has the options."""
    # -P keeps the working folder off the path: what lies there is not run in our place.
    command = [sys.executable, "-P", "-m", "distrust.client", *context.args]
    os.execv(sys.executable, command)  # noqa: S606 - our own module, no shell

"""The `distrust` command."""

import sys

import typer

from lab.commands import (
    audit,
    data,
    demo,
    errata,
    figure,
    fleet,
    health,
    inspect,
    privacy,
    run,
    serve,
    sweep,
    token,
    up,
)
from lab.console import guarded

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Every option, --help too, is the fleet's own."""

app = typer.Typer(
    name="distrust",
    help="Private bandit learning as it would be deployed: randomizing clients, an intermediary, an analyzer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(up.up)
app.command()(serve.serve)
app.command(context_settings=PASSED_ON)(fleet.fleet)
app.command()(run.run)
app.command()(inspect.inspect)
app.command()(privacy.privacy)
app.command()(audit.audit)
app.command()(errata.errata)
app.command()(sweep.sweep)
app.command()(figure.figure)
app.add_typer(data.app, name="data")
app.command()(demo.demo)
app.command()(health.health)
app.command()(token.token)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(guarded(app))  # typer itself exits 2 on a bad option


if __name__ == "__main__":
    main()

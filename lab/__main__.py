"""Runs the `distrust` command. A command's module is imported only when it is called: its imports take seconds."""

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distrust.lab.cli.console import exit_code_of, out, usage_errors

COMMANDS = {
    "up": ("stack", "Start the three services on loopback, until Ctrl-C."),
    "serve": ("party", "Run one service, configured by DISTRUST_… variables."),
    "fleet": ("party", "Play clients in one process."),
    "run": ("run", "Play a run to its end."),
    "inspect": ("stack", "Print a run's messages side by side, as each party saw them."),
    "list": ("discover", "List policies, mechanisms, environments, figures, or runs."),
    "init": ("discover", "Write a commented run file that plays."),
    "config": ("discover", "Print the server's part of a run file as JSON."),
    "doctor": ("doctor", "Check this machine: Python, libraries, ports, disk, tokens."),
    "privacy": (
        "privacy",
        "Show what a mechanism promises and costs, in both calibrations; or all of them side by side.",
    ),
    "advise": ("privacy", "Rank mechanisms and sizes of batches for a run by the width of its intervals."),
    "audit": ("audit", "Try to break a mechanism's claim: neighbouring inputs, many trials, an exact test."),
    "ring": ("privacy", "Show how large a share of a cohort an aggregator's own clients must be to open others."),
    "errata": ("privacy", "Show the papers' errors, each with a counter-example."),
    "sweep": ("sweep", "Play an experiment on all cores."),
    "figure": ("sweep", "Draw a figure of the papers."),
    "data": ("data", "Make the tables that environments draw from."),
    "demo": ("run", "Find the best of ten arms of real ratings that no party sees."),
    "health": ("party", "Ask a service whether it is ready."),
    "prune": ("prune", "Delete what finished runs left at all three services, for good."),
    "migrate": ("migrate", "Bring the databases of stopped services to this version's schema."),
    "token": ("tokens", "Make the tokens of operator, inspector and participants."),
}
"""Name, the module of `lab/cli/` that has the command in its `app`, and summary, in the order of `--help`."""


HELP = {"help_option_names": ["-h", "--help"]}


class Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # for suggestions after a typo

    def get_command(self, _context: object, name: str) -> Any:
        """Return a command with its options; None for an unknown name."""
        if name not in COMMANDS:
            return None
        module, _ = COMMANDS[name]
        command: Any = typer.main.get_group(import_module(f"distrust.lab.cli.{module}").app).commands[name]
        for one in (command, *getattr(command, "commands", {}).values()):
            one.context_settings = {**HELP, **one.context_settings}
        return command

    def make_context(self, *words: Any, **options: Any) -> Any:
        """Parse the options before the command."""
        with usage_errors():
            return super().make_context(*words, **options)

    def invoke(self, context: Any) -> Any:
        """Parse the words of the command and run it."""
        with usage_errors():
            return super().invoke(context)

    def format_commands(self, _context: object, formatter: Any) -> None:
        """Write the summaries, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = typer.Typer(
    cls=Commands,
    name="distrust",
    context_settings=HELP,
    help="Private bandit learning as it would be deployed: randomizing clients, an intermediary, an analyzer.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the option's value
    if wanted:
        out.print(version("distrust"))
        raise typer.Exit


@app.callback()
def distrust(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Private bandit learning as it would be deployed: randomizing clients, an intermediary, an analyzer."""


def main() -> None:
    """Entry point of the console script."""
    sys.exit(exit_code_of(app))  # typer itself exits 2 on a bad option


if __name__ == "__main__":
    main()

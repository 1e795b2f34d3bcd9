"""Implements `distrust prune`: deletes what finished runs left at all three services."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from distrust.common.errors import BadParameter, ProtocolError, exit_status
from distrust.common.protocol.run.listing import Tombstone
from distrust.common.wire import utc
from distrust.lab.cli.console import JsonOption, err, examples, say
from distrust.lab.cli.stack import DataOption, NamedServices, OperatorFile, ServerOption
from distrust.lab.services.connection import Connection
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import Stack, running_stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _before(text: str | float) -> float:
    """Return a time, in seconds since the epoch: one that is given, or an age before now. Raises BadParameter."""
    if isinstance(text, float):
        return text
    age = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if age is not None:
        return time.time() - int(age[1]) * _SECONDS[age[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        why = "must be a time, such as 2027-01-31T12:00, or an age, such as 7d, 24h, 30m"
        raise BadParameter("before", text, why) from error


@app.command(
    "prune",
    epilog=examples(
        "distrust prune first",
        "distrust prune --before 30d --json -",
        "distrust prune --before 2027-01-31 --server https://learner.example --token-file operator.token",
    ),
)
def prune_command(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's name; else --before says which")] = None,
    *,
    before: Annotated[
        float | None,
        typer.Option(
            "--before", parser=_before, metavar="TIME|AGE", help="All runs that ended before; UTC without an offset"
        ),
    ] = None,
    json: JsonOption = None,
    data: DataOption = DEFAULT,
    server: ServerOption = None,
    token_file: OperatorFile = None,
) -> None:
    """Delete what finished runs left at all three services, for good.

    The name, the run's id, its guarantee and its times stay. A run that is running is refused: cancel it first. Where a
    service is away the command exits with 75, and the same command goes on. With --before, a run that cannot be pruned
    keeps no other one waiting: the exit code is the greatest of all. It asks the server at the address given;
    else that of the data folder, and starts the folder's services if they do not run.
    """
    if (run is None) == (before is None):
        raise BadParameter("RUN", run, "give the name of a run, or --before: one of both")
    with _connected(context, data, server, token_file) as connection:
        names = [run] if run is not None else _ended(connection, before or 0.0)
        done, refusals = _pruned(connection, names)
    if done or not refusals:
        facts = {"pruned": [one.model_dump(mode="json") for one in done]}
        say(facts, "\n".join(map(Tombstone.line, done)) or f"no run ended before {utc(before or 0.0)}", json)
    if run in refusals:
        raise refusals[run]
    for name, error in refusals.items():
        err.print(f"run {name} is not pruned: {error.code} {error.detail}", markup=False)
    if refusals:
        raise typer.Exit(max(map(exit_status, refusals.values())))


def _pruned(connection: Connection, names: list[str]) -> tuple[list[Tombstone], dict[str, ProtocolError]]:
    """Prune runs, also those after one that cannot be pruned. Return what is left of them, and the refusals by run."""
    done, refusals = list[Tombstone](), dict[str, ProtocolError]()
    for name in names:
        try:
            done.append(connection.prune(name))
        except ProtocolError as error:
            refusals[name] = error
    return done, refusals


def _ended(connection: Connection, before: float) -> list[str]:
    """Return the runs that ended before a time. One without an end is open in the database, whatever its state says."""
    over = [run for run in connection.runs() if run.state != "running"]
    return [one.run for one in over if one.ended is not None and one.ended < before]


@contextmanager
def _connected(context: typer.Context, data: Path, server: str | None, token_file: Path | None) -> Iterator[Connection]:
    named = getattr(context.get_parameter_source("data"), "name", "") == "COMMANDLINE"
    if server is not None and not named:
        yield Connection(NamedServices(server=server, token_file=token_file).urls())
        return
    folder = DataDir(data)
    if not folder.file("server").is_file():
        raise BadParameter("data", str(data), "no server's database is there: nothing has run on it")
    urls = running_stack(folder)
    if urls is not None:
        yield Connection(urls)
        return
    with Stack(folder, 0) as stack:
        yield Connection(stack.urls)

"""Implements `distrust migrate`: brings the databases of stopped services to this version's schema."""

from pathlib import Path
from typing import Annotated

import typer

from distrust.common.errors import BadParameter
from distrust.common.protocol.intermediary import tables as intermediary
from distrust.common.protocol.storage.migration import History, check_database, migrate
from distrust.lab.cli.console import JsonOption, examples, say
from distrust.lab.cli.stack import DataOption
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import NAMES
from distrust.server.storage import tables as server
from distrust.server.storage.keys import destroy_first_keys

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HISTORIES = (
    History(Path(server.__file__).with_name("migrations"), table="runs", number=2),
    History(Path(intermediary.__file__).with_name("migrations"), table="messages", number=4),
)
"""The server's schema, and the one of shuffler and aggregator."""

DESTROYED = "destroyed: it opened the records of every run of the version before"


@app.command(
    "migrate",
    epilog=examples(
        "distrust migrate",
        "distrust migrate --database sqlite:////data/server.sqlite3",
        "distrust migrate --database postgresql://distrust@db.example/server --backed-up",
    ),
)
def migrate_command(
    context: typer.Context,
    data: DataOption = DEFAULT,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="One database; else those of the data folder"),
    ] = None,
    *,
    backed_up: Annotated[
        bool, typer.Option("--backed-up", help="A copy of the PostgreSQL database has been made")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Bring the databases of stopped services to this version's schema.

    A SQLite file is copied first, to FILE.before-REVISION. Each database is migrated in one transaction: a kill leaves
    it as it was, or migrated. Databases that have the schema already are left alone. The key file that an earlier
    version kept beside a server's SQLite database is destroyed: its runs have ended, and each run has keys of its own.
    """
    if database is not None and getattr(context.get_parameter_source("data"), "name", "") == "COMMANDLINE":
        raise BadParameter("data", str(data), "leave it out, or --database: one of both names what is migrated")
    urls = _of_folder(data) if database is None else [database]
    for url in urls:
        check_database(url, HISTORIES, backed_up=backed_up)
    done = [migrate(url, HISTORIES, backed_up=backed_up) for url in urls]
    servers = [url for url, one in zip(urls, done, strict=True) if one.history is HISTORIES[0]]
    destroyed = [str(file) for url in servers if (file := destroy_first_keys(url)) is not None]
    lines = [*(one.line() for one in done), *(f"{file}: {DESTROYED}" for file in destroyed)]
    say({"databases": [one.facts() for one in done], "destroyed": destroyed}, "\n".join(lines), json)


def _of_folder(path: Path) -> list[str]:
    """Return the databases of a data folder. Raises BadParameter where none is."""
    folder = DataDir(path)
    urls = [folder.database(name) for name in NAMES if folder.file(name).is_file()]
    if not urls:
        raise BadParameter("data", str(path), "no service's database is there: nothing has run on it")
    return urls

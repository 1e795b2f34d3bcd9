"""Implements `distrust migrate`: brings the databases of stopped services to this version's schema."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from distrust.common.errors import BadParameter
from distrust.common.intermediary import migrations as intermediaries
from distrust.common.migration import check_database, migrate
from distrust.lab.cli.console import JsonOption, examples, say
from distrust.lab.cli.stack import DataOption
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import NAMES
from distrust.server import migrations as servers

app = typer.Typer(rich_markup_mode=None, add_completion=False)

HISTORIES = (servers.HISTORY, intermediaries.HISTORY)


@app.command(
    "migrate",
    epilog=examples(
        "distrust migrate",
        "distrust migrate --database sqlite:////data/server.sqlite3",
        "distrust migrate --database postgresql://distrust@db.example/server --backed-up",
    ),
)
def migrate_command(
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
    it as it was, or migrated. Databases that have the schema already are left alone.
    """
    urls = _of_folder(data) if database is None else [database]
    for url in urls:
        check_database(url, HISTORIES, backed_up=backed_up)
    done = [migrate(url, HISTORIES, backed_up=backed_up) for url in urls]
    say({"databases": [asdict(one) for one in done]}, "\n".join(one.line() for one in done), json)


def _of_folder(path: Path) -> list[str]:
    """Return the databases of a data folder. Raises BadParameter where none is."""
    folder = DataDir(path)
    urls = [folder.database(name) for name in NAMES if folder.file(name).is_file()]
    if not urls:
        raise BadParameter("data", str(path), "no service's database is there: nothing has run on it")
    return urls

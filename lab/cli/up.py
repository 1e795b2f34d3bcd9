"""`distrust up`: the three services on loopback until Ctrl-C."""

import time
from pathlib import Path
from typing import Annotated

import typer

from distrust.lab.cli.console import out
from distrust.lab.stack.data_dir import DEFAULT, DataDir
from distrust.lab.stack.stack import BASE_PORT, Stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

DataOption = Annotated[Path, typer.Option("--data", help="Folder for databases, logs and the operator's token")]
PortOption = Annotated[int, typer.Option("--port-base", min=0, max=65_000, help="First of three ports; 0: free ones")]

LOOK_SECONDS = 0.5


@app.command()
def up(data: DataOption = DEFAULT, port_base: PortOption = BASE_PORT) -> None:
    """Start the three services on loopback, until Ctrl-C."""
    with Stack(DataDir(data), port_base) as stack:
        urls = stack.urls
        out.print(f"server      {urls.server}/  (its API: /openapi.json)")
        out.print(f"shuffler    {urls.shuffler}/")
        out.print(f"aggregator  {urls.aggregator}/")
        out.print(f"operator's token in {stack.folder.token_file}, logs in {stack.folder.path / 'logs'}; Ctrl-C stops")
        while True:
            stack.check()
            time.sleep(LOOK_SECONDS)

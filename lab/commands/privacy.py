"""`distrust privacy MECHANISM`: what a mechanism promises and costs, before anybody runs it."""

import json as json_text
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lab import privacy as figures
from lab.commands.run import JsonOption
from lab.console import out
from lab.folder import writing

Clients = Annotated[int, typer.Option("--n", min=1, help="Clients of the cohort")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Budget of a client, in nats")]
Delta = Annotated[float | None, typer.Option("--delta", help="For mechanisms whose theorem has one")]
Dropout = Annotated[float, typer.Option("--dropout", help="Share of the clients that may vanish")]
Corrupt = Annotated[float, typer.Option("--corrupt", help="Share of the clients that may collude")]
Survivors = Annotated[int | None, typer.Option("--survivors", help="Clients that answered")]
Colluders = Annotated[int, typer.Option("--colluders", min=0, help="Survivors that tell their noise")]


def privacy(
    mechanism: Annotated[str, typer.Argument(metavar="MECHANISM", help="Its name, as in a run file")],
    *,
    clients: Clients,
    epsilon: Epsilon = None,
    delta: Delta = None,
    dropout: Dropout = 0.0,
    corrupt: Corrupt = 0.0,
    survivors: Survivors = None,
    colluders: Colluders = 0,
    json: JsonOption = None,
) -> None:
    """Show what a mechanism promises and costs, in both calibrations."""
    report = figures.report(
        mechanism,
        clients=clients,
        epsilon=epsilon,
        delta=delta,
        dropout=dropout,
        corrupt=corrupt,
        survivors=survivors,
        colluders=colluders,
    )
    if json != "-":
        out.print(figures.table(report))
    if json is not None:
        _write(report, json)


def _write(report: dict[str, Any], target: str) -> None:
    text = json_text.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    with writing(Path(target)):
        Path(target).write_text(text, "utf-8")

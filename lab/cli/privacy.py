"""`distrust privacy MECHANISM`: what a mechanism promises and costs, before anybody runs it."""

import json as json_text
from typing import Annotated, Any

import typer

from distrust.common.errors import BadParameter
from distrust.common.threads import one_thread
from distrust.lab.cli.console import err, out
from distrust.lab.cli.run import JsonOption
from distrust.lab.privacy import calculator as figures
from distrust.lab.privacy import compare as side_by_side
from distrust.lab.privacy.table import table
from distrust.lab.run.progress import working
from distrust.lab.stack.data_dir import write_result

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Clients = Annotated[int, typer.Option("--n", help="Clients of the cohort")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Budget of a client, in nats")]
Delta = Annotated[float | None, typer.Option("--delta", help="For mechanisms whose theorem has one")]
Dropout = Annotated[float, typer.Option("--dropout", help="Share of the clients that may vanish")]
Corrupt = Annotated[float, typer.Option("--corrupt", help="Share of the clients that may collude")]
Survivors = Annotated[int | None, typer.Option("--survivors", help="Clients that answered")]
Colluders = Annotated[int, typer.Option("--colluders", help="Survivors that tell their noise")]
Contributions = Annotated[int, typer.Option("--contributions", help="Such cohorts that one client takes part in")]
TargetDelta = Annotated[float | None, typer.Option("--target-delta", help="δ of all the contributions together")]
Batches = Annotated[int | None, typer.Option("--batches", help="Length of the stream, for tree")]
Dimension = Annotated[int, typer.Option("--dimension", help="D: coordinates of a client's vector")]
NormOf = Annotated[str, typer.Option("--norm", help="Ball that vectors lie in: l1, l2 or linf (the box)")]
Low = Annotated[float, typer.Option("--low", help="Least value of a coordinate")]
High = Annotated[float, typer.Option("--high", help="Largest value; the ball has radius (high - low)/2")]
NoiseOf = Annotated[str, typer.Option("--noise", help="grid, or continuous, which is unsafe")]
Scale = Annotated[float | None, typer.Option("--scale", help="s of MAB Theorems 2 and 4")]
Precision = Annotated[int | None, typer.Option("--precision", help="g: steps of the grid")]
Compare = Annotated[bool, typer.Option("--compare", help="All the mechanisms side by side")]


@app.command()
def privacy(
    mechanism: Annotated[str | None, typer.Argument(metavar="[MECHANISM]", help="Its name, as in a run file")] = None,
    *,
    clients: Clients,
    epsilon: Epsilon = None,
    delta: Delta = None,
    dropout: Dropout = 0.0,
    corrupt: Corrupt = 0.0,
    survivors: Survivors = None,
    colluders: Colluders = 0,
    contributions: Contributions = 1,
    target_delta: TargetDelta = None,
    batches: Batches = None,
    dimension: Dimension = 1,
    norm: NormOf = "linf",
    low: Low = 0.0,
    high: High = 1.0,
    noise: NoiseOf = "grid",
    scale: Scale = None,
    precision: Precision = None,
    compare: Compare = False,
    json: JsonOption = None,
) -> None:
    """Show what a mechanism promises and costs, in both calibrations; or all of them side by side."""
    rates: dict[str, Any] = {"clients": clients, "delta": delta, "dropout": dropout, "corrupt": corrupt}
    taken: dict[str, Any] = {"survivors": survivors, "colluders": colluders, "contributions": contributions}
    taken |= {"target_delta": target_delta, "batches": batches}
    data = {"dimension": dimension, "norm": norm, "low": low, "high": high}
    words = {**rates, **taken, **data, "noise": noise, "scale": scale, "precision": precision}
    with one_thread(), working(mechanism or "all mechanisms", err):
        found = _compared(mechanism, epsilon, words) if compare else _reported(mechanism, epsilon, words)
    shown = side_by_side.table(found) if compare else table(found)
    if json != "-":
        out.print(shown)
    if json is not None:
        write_result(_json(found), json)


def _reported(mechanism: str | None, epsilon: float | None, words: dict[str, Any]) -> dict[str, Any]:
    if mechanism is None:
        raise BadParameter("mechanism", None, "name one, or --compare all of them")
    return figures.report(mechanism, epsilon=epsilon, **words)


def _compared(mechanism: str | None, epsilon: float | None, words: dict[str, Any]) -> dict[str, Any]:
    if mechanism is not None:
        raise BadParameter("mechanism", mechanism, "--compare shows all of them: leave it out")
    if epsilon is None:
        raise BadParameter("epsilon", None, "--compare needs one")
    return side_by_side.compare(epsilon=epsilon, **words)


def _json(report: dict[str, Any]) -> str:
    return json_text.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

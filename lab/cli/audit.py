"""`distrust audit`: a lower bound on ε from outcomes, beside the ε that is claimed."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.table import Table

from distrust.common.errors import BadParameter
from distrust.common.mechanisms import Mechanism
from distrust.common.messages.explain import wanted
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.lab.audit import Finding, Setting, Transport, check_trials, judge, outcomes
from distrust.lab.audit.broken import BROKEN, broken
from distrust.lab.audit.over_http import USUAL_TRIALS, audit_over_http, usual_trials
from distrust.lab.cli.console import out
from distrust.lab.cli.privacy import (
    Batches,
    Clients,
    Colluders,
    Corrupt,
    Delta,
    Dimension,
    Dropout,
    Epsilon,
    High,
    Low,
    NoiseOf,
    NormOf,
    Precision,
    Scale,
    Survivors,
)
from distrust.lab.cli.run import JsonOption
from distrust.lab.privacy.query import PrivacyQuery
from distrust.lab.stack.data_dir import DataDir, write_result
from distrust.lab.stack.stack import Stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

VIOLATED = 1
DEFAULT_TRIALS = 100_000
MAJORITY = 2
LEAST_CONFIDENCE = 0.5  # below, the bound may be wrong more often than right


@app.command()
def audit(
    mechanism: Annotated[str | None, typer.Argument(metavar="[MECHANISM]", help="Its name, as in a run file")] = None,
    *,
    clients: Clients = 10,
    epsilon: Epsilon = None,
    delta: Delta = None,
    batches: Batches = None,
    calibration: Annotated[str, typer.Option("--calibration", help="exact or paper")] = "exact",
    via: Annotated[str | None, typer.Option("--via", help="shuffler or aggregator, where there is a choice")] = None,
    dimension: Dimension = 1,
    norm: NormOf = "linf",
    low: Low = 0.0,
    high: High = 1.0,
    noise: NoiseOf = "grid",
    scale: Scale = None,
    precision: Precision = None,
    dropout: Dropout = 0.0,
    corrupt: Corrupt = 0.0,
    survivors: Survivors = None,
    colluders: Colluders = 0,
    counter_example: Annotated[str | None, typer.Option("--broken", help=f"Instead: {', '.join(BROKEN)}")] = None,
    trials: Annotated[
        int | None,
        typer.Option("--trials", help=f"Runs of each world: {DEFAULT_TRIALS}; over HTTP up to {USUAL_TRIALS}"),
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="That the bound holds")] = 0.999,
    seed: Annotated[int | None, typer.Option("--seed", help="Repeat the same noise; not over HTTP")] = None,
    http: Annotated[bool, typer.Option("--http", help="Through the real services, on a stack of its own")] = False,
    json: JsonOption = None,
) -> None:
    """Try to break a mechanism's claim: neighbouring inputs, many trials, an exact test. Exits 1 if it is broken."""
    data: dict[str, Any] = {"dimension": dimension, "norm": norm, "low": low, "high": high, "batches": batches}
    data |= {"noise": noise, "scale": scale, "precision": precision, "dropout": dropout, "corrupt": corrupt}
    if counter_example is not None:
        data |= {"mechanism": mechanism, "delta": delta, "via": via, "calibration": calibration}
        made = _counter_example(counter_example, clients, epsilon, data)
    else:
        asked = PrivacyQuery(clients=clients, epsilon=epsilon, delta=delta, **data)
        made = _by(via, asked.planned(_named(mechanism), calibration))
    setting = _setting(made, survivors, colluders, "http" if http else "in-process")
    alarm = _alarm(confidence)
    if http:
        found = _over_http(setting, usual_trials(setting) if trials is None else trials, alarm, seed)
    else:
        found = _in_process(setting, DEFAULT_TRIALS if trials is None else trials, alarm, seed)
    if counter_example is not None:
        found = found.model_copy(update={"mechanism": f"{counter_example}, broken on purpose"})
    _deliver(found, json)
    if found.violated:
        raise typer.Exit(VIOLATED)


def _setting(made: Mechanism, survivors: int | None, colluders: int, transport: Transport) -> Setting:
    """The worst cohort that is opened: the floor, or, as secure aggregation wants it, the least majority."""
    least = made.clients // MAJORITY + 1 if transport == "http" else 1
    return Setting(made, max(made.floor, least) if survivors is None else survivors, colluders, transport)


def _named(mechanism: str | None) -> str:
    if mechanism is None:
        raise BadParameter("mechanism", None, "name one, or a counter-example with --broken")
    return mechanism


def _by(via: str | None, mechanism: Mechanism) -> Mechanism:
    """The mechanism by way of another S than its own choice. Raises BadParameter."""
    if via is None:
        return mechanism
    try:
        return type(mechanism).model_validate({**mechanism.model_dump(), "via": via})
    except ValidationError as error:
        raise BadParameter("via", via, wanted(error)) from error


def _counter_example(name: str, clients: int, epsilon: float | None, ignored: dict[str, Any]) -> Mechanism:
    """Raises BadParameter for whatever was asked for and would be ignored."""
    usual = {"dimension": 1, "norm": "linf", "low": 0.0, "high": 1.0, "noise": "grid", "calibration": "exact"}
    usual |= {"dropout": 0.0, "corrupt": 0.0}
    for word, value in ignored.items():
        if value != usual.get(word):
            raise BadParameter(word, value, "--broken brings its own: leave it out")
    return broken(name, clients, 1.0 if epsilon is None else epsilon)


def _alarm(confidence: float) -> float:
    if not LEAST_CONFIDENCE <= confidence < 1:
        raise BadParameter("confidence", confidence, f"must lie in [{LEAST_CONFIDENCE}, 1)")
    return 1 - confidence


def _in_process(setting: Setting, trials: int, alarm: float, seed: int | None) -> Finding:
    if seed is not None and seed < 0:
        raise BadParameter("seed", seed, "must be at least 0")
    stream: Stream = SystemStream() if seed is None else UnsafeSeededStream(seed, "audit")
    check_trials(setting, trials, alarm)
    worlds = [outcomes(setting, world, trials, stream) for world in (0, 1)]
    return judge(setting, worlds[0], worlds[1], alarm=alarm)


def _over_http(setting: Setting, trials: int, alarm: float, seed: int | None) -> Finding:
    """On a stack that lives for this audit only."""
    if seed is not None:
        raise BadParameter("seed", seed, "over HTTP every client's noise comes from the operating system")
    check_trials(setting, trials, alarm)
    with tempfile.TemporaryDirectory(prefix="distrust-audit-") as path, Stack(DataDir(Path(path)), 0) as stack:
        return asyncio.run(audit_over_http(setting, stack.urls, trials=trials, alarm=alarm))


def _deliver(found: Finding, json: str | None) -> None:
    if json != "-":
        out.print(_table(found))
    if json is not None:
        write_result(found.model_dump_json(indent=2) + "\n", json)


def _table(found: Finding) -> Table:
    """For people."""
    table = Table("", _verdict(found), title=f"{found.mechanism} ({found.calibration}), {found.transport}")
    claim = "none" if found.claim is None else f"{found.claim:.6g}"
    table.add_row("claimed ε", claim)
    table.add_row("δ", f"{found.delta:g}")
    table.add_row(f"ε is at least, at {1 - found.alarm:.9g} confidence", f"{found.lower:.6g}")
    table.add_row("so many trials show at most", f"{found.reach:.6g}")
    table.add_row("seen", f"the {found.view}, {found.survivors} of {found.clients} clients")
    if found.dimension > 1:
        table.add_row("vectors", f"{found.dimension} coordinates, bounded in {found.norm}")
    table.add_row("colluders", str(found.colluders))
    table.add_row("trials of each world", _trials(found))
    table.add_row("event", f"{found.evidence} {found.event}")
    table.add_row("hits in either world", f"{found.hits[0]} and {found.hits[1]}")
    return table


def _verdict(found: Finding) -> str:
    if found.violated:
        return "the claim is broken"
    far = found.claim is None or found.reach > found.claim
    return "nothing against the claim" if far else "too few trials to contradict the claim"


def _trials(found: Finding) -> str:
    cohorts = "" if found.cohorts is None else f" in {found.cohorts} cohorts"
    return f"{found.trials}{cohorts}, {found.counted} of them counted"

"""Implements `distrust audit`: shows a lower bound on ε from outcomes, beside the ε that is claimed."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table

from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.mechanisms.families.cohort import Noise
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.common.wire import Norm
from distrust.lab.audit.broken import BROKEN
from distrust.lab.audit.in_process import DEFAULT_TRIALS, USUAL_CLIENTS, audit_in_process
from distrust.lab.audit.over_http import USUAL_TRIALS, audit_over_http, usual_trials
from distrust.lab.audit.query import AuditQuery
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import Finding, check_trials
from distrust.lab.cli.console import JsonOption, examples, missing_options, out
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
from distrust.lab.stack.data_dir import DataDir, write_result
from distrust.lab.stack.stack import Stack

app = typer.Typer(rich_markup_mode=None, add_completion=False)

VIOLATED = 1


@app.command(
    "audit",
    epilog=examples(
        "distrust audit distributed-polya --epsilon 1 --n 20",
        "distrust audit local-gaussian --epsilon 1 --delta 0.1 --secret arm --features 2 --arms 3",
        "distrust audit --broken noise-for-everybody",
    ),
)
def audit_command(
    mechanism: Annotated[str | None, typer.Argument(metavar="[MECHANISM]", help="Its name, as in a run file")] = None,
    *,
    clients: Clients = USUAL_CLIENTS,
    epsilon: Epsilon = None,
    delta: Delta = None,
    batches: Batches = None,
    calibration: Annotated[str, typer.Option("--calibration", help="exact or paper")] = "exact",
    intermediary: Annotated[
        str | None, typer.Option("--via", help="shuffler or aggregator, where there is a choice")
    ] = None,
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
    secret: Annotated[
        str | None, typer.Option("--secret", help="What a contextual client hides: its arm, or its context")
    ] = None,
    features: Annotated[
        int | None, typer.Option("--features", help="With --secret, d: numbers of a context; 2 when absent")
    ] = None,
    arms: Annotated[
        int | None, typer.Option("--arms", help="With --secret, K: arms with parameters of their own; else 1 or 2")
    ] = None,
    residual: Annotated[
        str | None,
        typer.Option("--residual", help="With --secret: identity, logistic or poisson, of a gradient without moments"),
    ] = None,
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
    if mechanism is None and counter_example is None:
        raise BadParameter("mechanism", None, "name one, or a counter-example with --broken")
    allow_named(mechanism)
    cohort = PrivacyQuery(
        clients=clients,
        epsilon=epsilon,
        delta=delta,
        dropout=dropout,
        corrupt=corrupt,
        batches=batches,
        dimension=dimension,
        norm=cast(Norm, norm),
        low=low,
        high=high,
        noise=cast(Noise, noise),
        scale=scale,
        precision=precision,
    )
    query = AuditQuery(
        mechanism=mechanism,
        cohort=cohort,
        calibration=calibration,
        intermediary=intermediary,
        secret=secret,
        features=features,
        arms=arms,
        residual=residual,
        survivors=survivors,
        colluders=colluders,
        counter_example=counter_example,
        trials=trials,
        confidence=confidence,
        seed=seed,
        http=http,
    )
    with missing_options():
        setting = query.setting()
    finding = query.named(_over_http(query, setting) if http else audit_in_process(query, setting))
    _deliver(finding, json)
    if finding.violated:
        raise typer.Exit(VIOLATED)


def _over_http(query: AuditQuery, setting: Setting) -> Finding:
    """Run both worlds over a stack that lives for this audit only, and return the finding."""
    trials, alarm = usual_trials(setting) if query.trials is None else query.trials, query.alarm()
    if query.seed is not None:
        raise BadParameter("seed", query.seed, "over HTTP every client's noise comes from the operating system")
    check_trials(setting, trials, alarm)
    with tempfile.TemporaryDirectory(prefix="distrust-audit-") as path, Stack(DataDir(Path(path)), 0) as stack:
        return asyncio.run(audit_over_http(setting, stack.urls, trials=trials, alarm=alarm))


def _deliver(finding: Finding, json: str | None) -> None:
    if json != "-":
        out.print(_table(finding))
    if json is not None:
        write_result(finding.model_dump_json(indent=2) + "\n", json)


def _table(finding: Finding) -> Table:
    """Return the finding for people."""
    table = Table("", finding.verdict, title=finding.title)
    for name, fact in finding.lines():
        table.add_row(name, fact)
    return table

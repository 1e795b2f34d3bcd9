"""Implements `distrust audit`: shows a lower bound on ε from outcomes, beside the ε that is claimed."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table

from distrust.common.calculator.query import PrivacyQuery
from distrust.common.errors import BadParameter
from distrust.common.mechanisms.families.base import Noise
from distrust.common.wire import Norm
from distrust.lab.audit.broken import BROKEN
from distrust.lab.audit.in_process import DEFAULT_TRIALS, AuditQuery, audit_in_process
from distrust.lab.audit.over_http import USUAL_TRIALS, audit_over_http, usual_trials
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import Finding, check_trials
from distrust.lab.cli.console import examples, out
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
    clients: Clients = 10,
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
    setting = query.setting()
    finding = _over_http(query, setting) if http else audit_in_process(query, setting)
    if counter_example is not None:
        finding = finding.model_copy(update={"mechanism": f"{counter_example}, broken on purpose"})
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
    table = Table("", _verdict(finding), title=f"{finding.mechanism} ({finding.calibration}), {finding.transport}")
    claim = "none" if finding.claim is None else f"{finding.claim:.6g}"
    table.add_row("claimed ε", claim)
    table.add_row("δ", f"{finding.delta:g}")
    table.add_row(f"ε is at least, at {1 - finding.alarm:.9g} confidence", f"{finding.lower:.6g}")
    table.add_row("so many trials show at most", f"{finding.reach:.6g}")
    table.add_row("seen", f"the {finding.view}, {finding.survivors} of {finding.clients} clients")
    if finding.dimension > 1:
        table.add_row("vectors", f"{finding.dimension} coordinates, bounded in {finding.norm}")
    if finding.secret is not None:
        table.add_row("secret", f"the client's {finding.secret}")
    table.add_row("colluders", str(finding.colluders))
    table.add_row("trials of each world", _trials(finding))
    table.add_row("event", f"{finding.evidence} {finding.event}")
    table.add_row("hits in either world", f"{finding.hits[0]} and {finding.hits[1]}")
    return table


def _verdict(finding: Finding) -> str:
    if finding.violated:
        return "the claim is broken"
    far = finding.claim is None or finding.reach > finding.claim
    return "nothing against the claim" if far else "too few trials to contradict the claim"


def _trials(finding: Finding) -> str:
    cohorts = "" if finding.cohorts is None else f" in {finding.cohorts} cohorts"
    return f"{finding.trials}{cohorts}, {finding.counted} of them counted"

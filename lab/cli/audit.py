"""Implements `distrust audit`: shows a lower bound on ε from outcomes, beside the ε that is claimed."""

import asyncio
import tempfile
from pathlib import Path

import typer
from rich.table import Table

from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.lab.audit.in_process import audit_in_process
from distrust.lab.audit.over_http import audit_over_http, usual_trials
from distrust.lab.audit.query import USUAL_CLIENTS, AuditQuery
from distrust.lab.audit.setting import Setting
from distrust.lab.audit.verdict import Finding, check_trials
from distrust.lab.cli.console import JsonOption, examples, missing_options, present, with_options
from distrust.lab.stack.data_dir import DataDir
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
@with_options(AuditQuery, "contributions", "target_delta", clients=USUAL_CLIENTS)
def audit_command(
    *,
    query: AuditQuery,
    json: JsonOption = None,
) -> None:
    """Try to break a mechanism's claim: neighbouring inputs, many trials, an exact test. Exits 1 if it is broken."""
    if query.mechanism is None and query.counter_example is None:
        raise BadParameter("mechanism", None, "name one, or a counter-example with --broken")
    allow_named(query.mechanism)
    with missing_options():
        setting = query.setting()
    finding = query.named(_over_http(query, setting) if query.http else audit_in_process(query, setting))
    present(_table(finding), finding.model_dump_json(indent=2) + "\n", json)
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


def _table(finding: Finding) -> Table:
    """Return the finding for people."""
    table = Table("", finding.verdict, title=finding.title)
    for name, fact in finding.lines():
        table.add_row(name, fact)
    return table

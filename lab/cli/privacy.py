"""Implements `distrust privacy`, `advise` and `errata`: what mechanisms promise and cost, and the papers' errors."""

import json as json_text
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from distrust.common.dp.accounting.techniques.searches import one_thread
from distrust.common.dp.calculator.compare import HEAD, Comparison, compared
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import (
    Report,
    json_of,
    report_on,
)
from distrust.common.errors import BadParameter
from distrust.common.extensions import allow_named
from distrust.common.extras import late
from distrust.lab.cli.console import (
    JsonOption,
    NameArgument,
    err,
    examples,
    missing_options,
    out,
    present,
    with_options,
)
from distrust.lab.play.progress import working
from distrust.lab.stack.data_dir import write_result

if TYPE_CHECKING:
    from distrust.lab.audit import ring_cuts
    from distrust.lab.papers import errata
    from distrust.lab.play import advice
    from distrust.lab.play.advice import Advice
else:
    advice = late("distrust.lab.play.advice")
    errata = late("distrust.lab.papers.errata")
    ring_cuts = late("distrust.lab.audit.ring_cuts")

app = typer.Typer(rich_markup_mode=None, add_completion=False)

Compare = Annotated[bool, typer.Option("--compare", help="All the mechanisms side by side")]
PaperOption = Annotated[str | None, typer.Option("--paper", metavar="PAPER", help="MAB, DLB, CTX, FREE or GLB")]
Markdown = Annotated[bool, typer.Option("--markdown", help="As errata.md has them, with the reasons")]


@app.command(
    "privacy",
    epilog=examples(
        "distrust privacy distributed-polya --n 1000 --epsilon 1 --dropout 0.1",
        "distrust privacy --compare --n 1000 --epsilon 1 --delta 1e-6 --json -",
    ),
)
@with_options(PrivacyQuery)
def privacy_command(
    mechanism: NameArgument = None,
    *,
    query: PrivacyQuery,
    compare: Compare = False,
    json: JsonOption = None,
) -> None:
    """Show what a mechanism promises and costs, in both calibrations; or all of them side by side."""
    table, described = _compared(mechanism, query) if compare else _reported(mechanism, query)
    present(table, json_of(described), json)


def _reported(mechanism: str | None, query: PrivacyQuery) -> tuple[Table, dict[str, Any]]:
    """Return one mechanism's answer for people and for programs."""
    if mechanism is None:
        raise BadParameter("mechanism", None, "name one, or --compare all of them")
    allow_named(mechanism)
    with one_thread(), working(mechanism, err), missing_options():
        report = report_on(mechanism, query)
    return report_table(report), report.described()


def _compared(mechanism: str | None, query: PrivacyQuery) -> tuple[Table, dict[str, Any]]:
    """Return the answer of all of them for people and for programs."""
    if mechanism is not None:
        raise BadParameter("mechanism", mechanism, "--compare shows all of them: leave it out")
    if query.epsilon is None:
        raise BadParameter("epsilon", None, "--compare needs one")
    with one_thread(), working("all mechanisms", err):
        comparison = compared(query)
    return comparison_table(comparison), comparison.described()


@app.command(
    "ring",
    epilog=examples("distrust ring --n 200 --dropout 0.1 --corrupt 0.1", "distrust ring --n 1000 --share 0.3 --json -"),
)
def ring_command(
    *,
    clients: Annotated[int, typer.Option("--n", help="Clients of the cohort")],
    dropout: Annotated[float, typer.Option("--dropout", help="Share of the clients that may vanish")] = 0.1,
    corrupt: Annotated[float, typer.Option("--corrupt", help="Share of the clients that may collude")] = 0.1,
    share: Annotated[list[float] | None, typer.Option("--share", help="Share of n that colludes; may repeat")] = None,
    rings: Annotated[int, typer.Option("--rings", help="Random rings for each share")] = 100,
    seed: Annotated[int, typer.Option("--seed", help="Of the rings and of who colludes")] = 1,
    json: JsonOption = None,
) -> None:
    """Show how large a share of a cohort an aggregator's own clients must be to open others.

    The colluders are a random set. The aggregator chooses members and survivors within all that clients check.
    """
    rates = {"dropout": dropout, "corrupt": corrupt}
    attacks = ring_cuts.ring_attacks(
        clients, **rates, shares=share or ring_cuts.COLLUDING_SHARES, rings=rings, seed=seed
    )
    heads = ("share", "colluders", f"rings cut, of {rings}", "fewest in an opened sum", "rings with t around one")
    table = Table(*heads, title=f"n = {clients}, calibrated to {dropout:.0%} lost and {corrupt:.0%} colluders")
    for attack in attacks:
        smallest = "-" if attack.smallest is None else str(attack.smallest)
        table.add_row(f"{attack.share:g}", str(attack.colluders), str(attack.cut), smallest, str(attack.taken))
    question = {"n": clients, **rates, "rings": rings, "seed": seed}
    present(table, json_of({**question, "shares": [asdict(attack) for attack in attacks]}), json)


@app.command("errata", epilog=examples("distrust errata --paper CTX", "distrust errata --json errata.json"))
def errata_command(*, paper: PaperOption = None, markdown: Markdown = False, json: JsonOption = None) -> None:
    """Show the papers' errors, each with a counter-example."""
    checked = errata.checked_errata(paper)
    if markdown:
        sys.stdout.write(errata.errata_markdown(checked))
    elif json != "-":
        out.print(errata.errata_table(checked))
    if json is not None:
        write_result(json_text.dumps([asdict(one) for one in checked], indent=2, ensure_ascii=False) + "\n", json)


WIDE = 156
"""Columns of the comparison; a narrower terminal wraps its lines."""


def report_table(report: Report) -> Table:
    """Return parameters, guarantee, profile, bits and error; refusals and assumptions stand below."""
    table = Table("", *report.figures, title=report.title)
    for label, cells in report.lines():
        table.add_row(label, *cells)
    table.caption = "; ".join(report.notes)
    return table


@app.command(
    "advise",
    epilog=examples("distrust advise demo.toml", "distrust advise demo.toml --mechanism distributed-polya --json -"),
)
def advise_command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; its policy and ε hold for all")],
    *,
    mechanism: Annotated[list[str] | None, typer.Option("--mechanism", help="To compare; may repeat [all]")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="δ of those that need one [the run file's]")] = None,
    json: JsonOption = None,
) -> None:
    """Rank mechanisms and sizes of batches for a run by the width of its intervals. No client plays."""
    with working("all mechanisms", err):
        found = advice.advise(run_file, mechanism, delta)
    present(_wide(found.HEAD, found), json_of(found.described()), json)


def comparison_table(comparison: Comparison) -> Table:
    """Return a line for each mechanism and calibration; refused ones stand at the end, in a sentence each."""
    return _wide(HEAD, comparison)


def _wide(heads: Sequence[str], ranked: "Comparison | Advice") -> Table:
    table = Table(title=ranked.title, box=None, padding=(0, 2, 0, 0), width=WIDE)
    for head in heads:
        table.add_column(head, no_wrap=True)
    for line in ranked.lines():
        table.add_row(*line)
    table.caption = "\n".join(ranked.notes)
    return table

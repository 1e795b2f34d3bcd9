"""`distrust errata`: the papers' errors, each with a counter-example computed on the spot."""

import json as json_text
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from distrust.lab.cli.console import out
from distrust.lab.cli.run import JsonOption
from distrust.lab.papers import errata as compute
from distrust.lab.papers import table
from distrust.lab.stack.data_dir import write_result

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PaperOption = Annotated[str | None, typer.Option("--paper", metavar="PAPER", help="MAB, DLB, CTX, FREE or GLB")]
Markdown = Annotated[bool, typer.Option("--markdown", help="As docs/privacy/errata.md has them, with the reasons")]


@app.command()
def errata(*, paper: PaperOption = None, markdown: Markdown = False, json: JsonOption = None) -> None:
    """Show the papers' errors, each with a counter-example."""
    found = compute(paper)
    if markdown:
        sys.stdout.write(table.markdown(found))
    elif json != "-":
        out.print(table.terminal(found))
    if json is not None:
        write_result(json_text.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False) + "\n", json)

"""`distrust errata`: the papers' errors, each with a counter-example computed on the spot."""

import json as json_text
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lab.commands.run import JsonOption
from lab.console import out
from lab.errata import errata as compute
from lab.errata import table
from lab.folder import put

PaperOption = Annotated[str | None, typer.Option("--paper", metavar="PAPER", help="MAB, DLB, CTX, FREE or GLB")]
Markdown = Annotated[bool, typer.Option("--markdown", help="As docs/privacy.md has them, with the reasons")]


def errata(*, paper: PaperOption = None, markdown: Markdown = False, json: JsonOption = None) -> None:
    """Show the papers' errors, each with a counter-example."""
    found = compute(paper)
    if markdown:
        sys.stdout.write(table.markdown(found))
    elif json != "-":
        out.print(table.terminal(found))
    if json is not None:
        put(json_text.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False) + "\n", json)

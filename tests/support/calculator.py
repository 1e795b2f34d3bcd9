"""Answers of `distrust privacy` without the command line: as the JSON that programs read, and as printed text."""

import io
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from distrust.common.dp.calculator.compare import Comparison, compared
from distrust.common.dp.calculator.query import PrivacyQuery
from distrust.common.dp.calculator.report import Report, json_of, report_on


def answer(name: str, **fields: Any) -> Report:
    return report_on(name, PrivacyQuery(**fields))


def comparison(**fields: Any) -> Comparison:
    return compared(PrivacyQuery(**fields))


def read(answered: Report | Comparison) -> dict[str, Any]:
    """Return the object that a program parses."""
    result: dict[str, Any] = json.loads(json_of(answered.described()))
    return result


def text(shown: Table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()

"""Errors of the papers: the rows of errata.toml, their figures computed on demand, and lists of them for people."""

import re
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pkgutil import resolve_name
from typing import get_args

from rich.markup import escape
from rich.table import Table

from distrust.common.errors import BadParameter
from distrust.lab.papers.erratum import CheckedErratum, Paper

ROWS = tomllib.loads((resources.files("distrust.lab.papers") / "errata.toml").read_text("utf-8"))
"""The words of each erratum, by its key."""

WIDTH = 100  # of a line of docs/, tables excepted
HEADER = ("paper, place", "measure", "claimed", "computed", "ours", "verdict")


def checked_errata(paper: str | None = None) -> list[CheckedErratum]:
    """Return all errata, or one paper's, computed. Raises BadParameter for a paper that is not among ours."""
    papers = get_args(Paper)
    if paper is not None and paper not in papers:
        raise BadParameter("paper", paper, f"must be one of {', '.join(papers)}")
    return [_checked(key) for key, row in ROWS.items() if paper in (None, row["paper"])]


@cache
def _checked(key: str) -> CheckedErratum:
    """Return an erratum computed. All of them take most of a second, and are the same every time."""
    words = dict(ROWS[key])
    compute = resolve_name(f"distrust.lab.papers.{words.pop('figures')}")
    return CheckedErratum(key=key, **words, **asdict(compute()))


def errata_table(errata: Sequence[CheckedErratum]) -> Table:
    """Return a row an erratum, for a terminal of eighty columns."""
    table = Table("claim, measure, setting", title="what the papers print, and what an exact computation says")
    for name in HEADER[2:]:
        table.add_column(name, no_wrap=True)
    for erratum in errata:
        place, measure, *figures = _cells(erratum)
        table.add_row(escape(f"{place}\n{measure}"), *figures, end_section=True)
    return table


def errata_markdown(errata: Sequence[CheckedErratum]) -> str:
    """Return the table, then a paragraph for each: the part of errata.md between its two marks."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|---|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(_escaped(cell) for cell in _cells(erratum))} |" for erratum in errata]
    return "\n".join([*lines, "", *(_paragraph(one) for one in errata)]) + "\n"


def five_digits(value: float) -> str:
    """Return five digits; a value that differs from 1 in later ones shows its excess."""
    if value != 1 and abs(value - 1) < 1e-5:
        return "1" if abs(value - 1) < 1e-9 else f"1 {'+' if value > 1 else '-'} {abs(value - 1):.2g}"
    return f"{value:.5g}"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|")


def _cells(one: CheckedErratum) -> tuple[str, ...]:
    figures = (five_digits(one.claimed), five_digits(one.computed), five_digits(one.ours))
    return (f"{one.paper} {one.place}", f"{one.measure}; {one.setting}", *figures, one.verdict)


def _paragraph(one: CheckedErratum) -> str:
    figures = "; ".join(f"{label}: {five_digits(value)}" for label, value in one.facts)
    facts = f" Figures: {figures}." if figures else ""
    lines = (
        f"- **{one.paper} {one.place}** (`{one.key}`). Printed: {one.printed}.",
        f"  Wrong: {one.wrong}.",
        f"  Here: {one.instead} (`{one.code}`).{facts}",
    )
    return "\n".join(_wrapped(line) for line in lines)


def _wrapped(line: str) -> str:
    """Return a list item as lines of WIDTH, none of which begins with a sign that Markdown takes for a list."""
    kept = re.sub(r"(?<=\S) ([-+*>]) ", "\xa0\\1\xa0", line)
    wrapped = textwrap.fill(kept, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return wrapped.replace("\xa0", " ")

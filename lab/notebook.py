"""Shows values in a notebook: data frames, and small HTML that is readable on light and on dark ground.

HTML has no colours of its own, no scripts and no style sheet: the notebook's colours show through. All text is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_ROWS = 24
"""Rows that a table shows; a longer one says how many more there are, and `.frame()` has them all."""

LINE = "rgba(128,128,128,.4)"
"""Grey that is seen on white and on black."""

CELL = f"border:0;border-bottom:1px solid {LINE};padding:.15em 1em .15em 0;vertical-align:top;text-align:"
TABLE = "border-collapse:collapse;margin:.4em 0;background:transparent;color:inherit"
QUIET = "opacity:.75;font-size:.9em;max-width:60em"


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of text. Columns named in `words` are aligned to the left, others are numbers and aligned to the right.

    caption  stands above it; empty for none. most: rows that are shown.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    caption: str = ""
    most: int = MOST_ROWS


def card(title: str, facts: Iterable[tuple[str, str]], *tables: HtmlTable, notes: Sequence[str] = ()) -> str:
    """Return a value as HTML: a title, facts by name, tables, notes."""
    named = "".join(_fact(name, fact) for name, fact in facts)
    parts = [
        f'<div style="font-weight:600;margin:.3em 0">{escape(title)}</div>',
        f'<table style="{TABLE}"><tbody>{named}</tbody></table>' if named else "",
        *(_table(one) for one in tables),
        *(f'<div style="{QUIET}">{escape(note)}</div>' for note in notes if note),
    ]
    return f'<div style="color:inherit;background:transparent">{"".join(parts)}</div>'


def _fact(name: str, fact: str) -> str:
    head = f'<th scope="row" style="{CELL}left;font-weight:600">{escape(name)}</th>'
    return f'<tr>{head}<td style="{CELL}left">{escape(fact)}</td></tr>'


def _table(table: HtmlTable) -> str:
    """Return the table's first rows, and the number of the others."""
    sides = ["left" if name in table.words else "right" for name in table.head]
    heads = "".join(
        f'<th scope="col" style="{CELL}{side}">{escape(name)}</th>'
        for name, side in zip(table.head, sides, strict=True)
    )
    body = "".join(f"<tr>{_cells(row, sides)}</tr>" for row in table.rows[: table.most])
    more = len(table.rows) - table.most
    rest = f'<div style="{QUIET}">… {more:,} more rows: .frame() has all of them</div>' if more > 0 else ""
    caption = f'<caption style="text-align:left;{QUIET}">{escape(table.caption)}</caption>' if table.caption else ""
    return f'<table style="{TABLE}">{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{rest}'


def _cells(row: Sequence[str], sides: Sequence[str]) -> str:
    cells = zip(row, sides, strict=True)
    return "".join(f'<td style="{CELL}{side}">{escape(cell)}</td>' for cell, side in cells)


def data_frame(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """Return rows as a data frame with these columns, also if there are no rows.

    Raises ModuleNotFoundError, naming the extra, where pandas is not installed.
    """
    try:
        from pandas import DataFrame  # noqa: PLC0415 - a second of every start, and an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("data frames need pandas: pip install 'distrust[lab]'", name="pandas") from error
    return DataFrame(list(rows), columns=list(columns))

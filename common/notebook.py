"""Shows values in a notebook: data frames, and small HTML that is readable on light and on dark ground.

What the library returns is a `Shown`, which has `frame()`, one line as text, and a card at the end of a cell.

HTML has no colours, scripts and style sheets of its own: the notebook's look of a table holds. All text is escaped,
and has no control characters.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape as html_escape
from typing import TYPE_CHECKING, Any, ClassVar

from distrust.common.errors import BadParameter, without_controls
from distrust.common.extras import lacking, pandas

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_ROWS = 24
"""Rows that a table shows; a longer one says how many more there are, and `.frame()` has them all."""

TABLE = '<table style="color:inherit">'
LEFT = ' style="text-align:left"'
QUIET = ' style="opacity:.75;max-width:60em"'


@dataclass(frozen=True, slots=True)
class HtmlTable:
    """A table of text. Columns named in `words` are aligned to the left, others are numbers and aligned to the right.

    caption  stands above it; empty for none.
    most     rows that are shown.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    caption: str = ""
    most: int = MOST_ROWS


@dataclass(frozen=True, slots=True)
class Card:
    """A value for people: a title, facts by name, tables, notes."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[HtmlTable] = ()
    notes: Sequence[str] = ()

    def html(self) -> str:
        """Return the card as HTML."""
        named = "".join(
            f'<tr><th scope="row"{LEFT}>{escape(name)}</th><td{LEFT}>{escape(fact)}</td></tr>'
            for name, fact in self.facts
        )
        parts = [
            f"<p><strong>{escape(self.title)}</strong></p>",
            f"{TABLE}<tbody>{named}</tbody></table>" if named else "",
            *(_table(table) for table in self.tables),
            *(f"<p{QUIET}>{escape(note)}</p>" for note in self.notes if note),
        ]
        return f"<div>{''.join(parts)}</div>"


NamedRows = tuple[Sequence[str], Iterable[Mapping[str, Any]]]
"""A table: the names of its columns, and its rows, which may have more keys, or fewer."""


class Shown(ABC):
    """A value that shows itself in a notebook. A class states its tables, its line and its cards.

    TABLES  names of the tables that `frame` returns, the usual one first.
    """

    __slots__ = ()

    TABLES: ClassVar[tuple[str, ...]]

    @abstractmethod
    def _table(self, name: str) -> NamedRows:
        """Return one of `TABLES`."""

    @abstractmethod
    def _line(self) -> str:
        """Return the value in some words, which follow its type's name."""

    @abstractmethod
    def _cards(self) -> Iterable[Card]:
        """Return what stands at the end of a cell."""

    def frame(self, table: str | None = None) -> "DataFrame":
        """Return one of the value's tables, by default the first, as a data frame. The class lists them.

        Raises BadParameter for another name; ModuleNotFoundError, naming the extra, where pandas is not installed.
        """
        if table is not None and table not in self.TABLES:
            raise BadParameter("table", table, f"must be one of {', '.join(self.TABLES)}")
        columns, rows = self._table(table or self.TABLES[0])
        try:
            return pandas.DataFrame(list(rows), columns=list(columns))
        except ModuleNotFoundError as error:
            install = lacking(error, "data frames need")
            raise (error if install is None else ModuleNotFoundError(install, name=error.name)) from None

    def __repr__(self) -> str:
        """Return the value in one line."""
        return f"<{type(self).__name__} {self._line()}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the value's cards, for a notebook."""
        return "".join(card.html() for card in self._cards())


def escape(text: str) -> str:
    """Return a text for HTML, without control characters."""
    return html_escape(without_controls(text))


def _table(table: HtmlTable) -> str:
    """Return the table's first rows, and the number of the others."""
    sides = [LEFT if name in table.words else "" for name in table.head]
    heads = "".join(f'<th scope="col"{side}>{escape(name)}</th>' for name, side in zip(table.head, sides, strict=True))
    body = "".join(f"<tr>{_cells(row, sides)}</tr>" for row in table.rows[: table.most])
    more = len(table.rows) - table.most
    rest = f"<p{QUIET}>… {more:,} more rows: .frame() has all of them</p>" if more > 0 else ""
    caption = f"<caption{QUIET}>{escape(table.caption)}</caption>" if table.caption else ""
    return f"{TABLE}{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _cells(row: Sequence[str], sides: Sequence[str]) -> str:
    return "".join(f"<td{side}>{escape(cell)}</td>" for cell, side in zip(row, sides, strict=True))

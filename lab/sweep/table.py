"""Writes the rows of a sweep as one file, Parquet or CSV, and compares them with published rows."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from distrust.common.errors import BadParameter
from distrust.common.explain import first
from distrust.common.extras import parquet
from distrust.common.extras import pyarrow as pa
from distrust.common.inputs import MOST_TABLE, open_file
from distrust.lab.stack.data_dir import writing
from distrust.lab.sweep.result_store import write_whole
from distrust.lab.sweep.row import Cell, Row

Format = Literal["parquet", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)

FIELDS = tuple(Row.model_fields)

LATER_FIELDS = tuple(name for name, field in Row.model_fields.items() if not field.is_required())
"""Columns that a table may lack: none of its rows has a value of them."""

TOLERANCE = 1e-12
"""Relative, of floats: the linear algebra of another processor adds in another order, which moves their last bits."""


def check_format(form: str) -> Format:
    """Return the format of that name. Raises BadParameter."""
    for known in FORMATS:
        if form == known:
            return known
    raise BadParameter("format", form, f"must be {' or '.join(FORMATS)}")


def write_rows(rows: Sequence[Row], path: Path, form: Format) -> None:
    """Write rows in their order, a whole file or none. Floats keep every bit in both formats."""
    content = _parquet(rows) if form == "parquet" else _csv(rows)
    with writing(path, "out"):
        write_whole(path, content)


def read_rows(path: Path, field: str = "results") -> list[Row]:
    """Return rows of a file that `write_rows` wrote.

    Its ending tells the format. Raises BadParameter, naming `field`.
    """
    form = path.suffix.removeprefix(".")
    if form not in FORMATS:
        raise BadParameter(field, str(path), f"must end in {' or '.join(f'.{one}' for one in FORMATS)}")
    try:
        lines = _from_parquet(path) if form == "parquet" else _from_csv(path)
        return [Row.model_validate(line, strict=False) for line in lines]
    except OSError as error:
        raise BadParameter(field, str(path), error.strerror or str(error)) from error
    except ValidationError as error:
        raise BadParameter(field, str(path), f"is no table of a sweep: {first(error, Row)}") from error
    except (ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors, too
        raise BadParameter(field, str(path), f"is no table of a sweep: {error}") from error


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of a table of these rows, in the row's order."""
    return [name for name in FIELDS if name not in LATER_FIELDS or any(getattr(row, name) is not None for row in rows)]


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row.model_dump(), "curve": ";".join(map(repr, row.curve))} for row in rows)
    return text.getvalue()


def _from_csv(path: Path) -> list[dict[str, Any]]:
    with io.TextIOWrapper(open_file(path, MOST_TABLE), encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        names = lines.fieldnames or ()
        if [*names] != [name for name in FIELDS if name in names or name not in LATER_FIELDS]:
            raise ValueError("its columns are others")
        return [_cells(line) for line in lines]


def _cells(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line's words: an empty one is null, the curve is a list."""
    fields = {key: value or None for key, value in line.items()}
    return {**fields, "curve": (line.get("curve") or "").split(";")}


def _parquet(rows: Sequence[Row]) -> bytes:
    names = _columns(rows)
    table = pa.Table.from_pylist([row.model_dump() for row in rows], schema=_schema(names))
    sink = pa.BufferOutputStream()
    coded = [name for name in names if name != "curve"]
    split = {"curve.list.element": "BYTE_STREAM_SPLIT"}  # the same place of many floats together: a quarter smaller
    parquet.write_table(table, sink, compression="zstd", use_dictionary=coded, column_encoding=split)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_parquet(path: Path) -> list[dict[str, Any]]:
    with open_file(path, MOST_TABLE) as file:  # pyarrow's own error for a missing file does not say so
        # its threads gain nothing on so few rows, and may outlive the interpreter, which then aborts at its end
        rows: list[dict[str, Any]] = parquet.ParquetFile(file, pre_buffer=False).read(use_threads=False).to_pylist()
    return rows


def _schema(names: Sequence[str]) -> Any:
    """Return these columns; null only where a row's field may be None."""
    types: dict[Any, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    fields = []
    for name in names:
        field = Row.model_fields[name]
        plain, *more = get_args(field.annotation) or (field.annotation,)
        kind = pa.list_(types[plain]) if get_origin(field.annotation) is list else types[plain]
        fields.append(pa.field(name, kind, nullable=type(None) in more))
    return pa.schema(fields)


def differing_columns(published: Sequence[Row], played: Sequence[Row]) -> dict[Cell, list[str]]:
    """Return the columns in which played cells differ from the published rows, by cell; `row` for an unpublished cell.

    Whole numbers and words must be equal, floats up to TOLERANCE. Seconds are not compared, nor are columns that the
    published row lacks.
    """
    known = {row.cell: row.lasting() for row in published}
    differing = {row.cell: _differing(known.get(row.cell), row.lasting()) for row in played}
    return {cell: columns for cell, columns in differing.items() if columns}


def _differing(published: Mapping[str, Any] | None, played: Mapping[str, Any]) -> list[str]:
    if published is None:
        return ["row"]
    return [name for name, value in published.items() if not _same(value, played.get(name))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)

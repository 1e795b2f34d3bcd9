"""Stores a sweep's finished cells in its folder, one line each, in a file for each version of the code."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pydantic import ValidationError

from distrust.common.errors import Unavailable
from distrust.lab.stack.data_dir import writing
from distrust.lab.sweep import code
from distrust.lab.sweep.experiment import Experiment
from distrust.lab.sweep.row import Cell, Row


def result_folder(experiment: Experiment, out: Path) -> Path:
    """Return the folder of one experiment below `out`. A changed experiment has another, so that rows never mix."""
    quick = "-quick" if experiment.quick else ""
    return out / f"{experiment.name}{quick}-{experiment.digest[:12]}"


class OtherRows(NamedTuple):
    """Cells that other code has played: their file, their number, and the parts of the code that differ."""

    path: Path
    cells: int
    changed: list[str]


def rows_of_other_code(experiment: Experiment, out: Path) -> list[OtherRows]:
    """Return the rows that a new start does not continue, because other code played them; [] if this code has rows."""
    folder, mine = result_folder(experiment, out), _rows(code.code_digest())
    if _cells(folder / mine):
        return []
    others = []
    for path in sorted(folder.glob(_rows("*"))):
        if count := _cells(path):
            parts = folder / _code(path.stem.removeprefix("rows-"))
            older = json.loads(parts.read_text("utf-8")) if parts.exists() else {}
            others.append(OtherRows(path, count, code.changed(older)))
    return others


def _cells(path: Path) -> int:
    """Return the whole lines of a file of rows, which is made before it has any."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _rows(digest: str) -> str:
    return f"rows-{digest}.jsonl"


def _code(digest: str) -> str:
    return f"code-{digest}.json"


class ResultStore:
    """`rows-CODE.jsonl` in the experiment's folder, held by one sweep at a time.

    Code     CODE is the digest of what plays here, and `code-CODE.json` has its parts. Rows of other code stay in files
             of their own, where that code finds them again.
    Kill     A row is on disk when `keep` returns. A line that a kill left unfinished is cut off by the next sweep,
             and its cell is played again.
    Raises   Unavailable when the folder cannot be written, or another sweep holds it.
    """

    def __init__(self, experiment: Experiment, out: Path) -> None:
        self.folder = result_folder(experiment, out)
        self._experiment = experiment
        self._rows = self.folder / _rows(code.code_digest())

    def __enter__(self) -> Self:
        with writing(self.folder, "out"):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            busy = "is being written by another sweep; wait for it, or"
            raise Unavailable(f"{self.folder} {busy} choose another --out") from error
        with writing(self.folder, "out"):
            self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
        os.close(self._lock)

    def rows(self) -> dict[Cell, Row]:
        """Return every finished cell. Lines that are no rows are ignored."""
        rows: dict[Cell, Row] = {}
        for line in self._rows.read_text("utf-8", errors="replace").splitlines():
            try:
                row = Row.model_validate_json(line)
            except ValidationError:
                continue
            rows[row.cell] = row
        return rows

    def keep(self, row: Row) -> None:
        """Write one row, and wait until it is on the disk."""
        with writing(self.folder, "out"):
            line = (row.model_dump_json() + "\n").encode()
            if os.write(self._handle, line) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._handle)

    def _begin(self) -> None:
        self._handle = os.open(self._rows, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        # Without an unfinished last line the next row begins a line of its own.
        whole = self._rows.read_bytes()
        os.ftruncate(self._handle, whole.rfind(b"\n") + 1)
        write_whole(self.folder / "experiment.json", self._experiment.model_dump_json(indent=2) + "\n")
        write_whole(self.folder / _code(code.code_digest()), json.dumps(dict(code.parts()), indent=2) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a whole file or none: written beside its place, then moved there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as output:
        output.write(content.encode() if isinstance(content, str) else content)
        output.flush()
        os.fsync(output.fileno())
    part.replace(path)


def write_failures(folder: Path, failures: dict[Cell, str]) -> None:
    """Write the cells that failed at this start, with reasons; remove the file when none did."""
    path = folder / "failures.json"
    with writing(path, "out"):
        if failures:
            listed = [{**cell._asdict(), "reason": reason} for cell, reason in failures.items()]
            write_whole(path, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
        else:
            path.unlink(missing_ok=True)

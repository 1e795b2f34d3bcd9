"""A sweep's folder: finished cells, one line each, written once and never again."""

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from common.errors import Unavailable
from lab.folder import writing
from lab.sweep.cells import Cell
from lab.sweep.experiment import Experiment
from lab.sweep.row import Row

ELSEWHERE = "choose another --out"


def home(experiment: Experiment, out: Path) -> Path:
    """The folder of one experiment below `out`. A changed experiment has another one, so that rows never mix."""
    quick = "-quick" if experiment.quick else ""
    return out / f"{experiment.name}{quick}-{experiment.digest[:12]}"


class Shelf:
    """`rows.jsonl` in the experiment's folder, held by one sweep at a time.

    Kill     A row is on disk when `keep` returns. A line that a kill left unfinished is cut off by the next sweep,
             and its cell is played again.
    Raises   Unavailable when the folder cannot be written, or another sweep holds it.
    """

    def __init__(self, experiment: Experiment, out: Path) -> None:
        self.folder = home(experiment, out)
        self._experiment = experiment

    def __enter__(self) -> Self:
        path = self.folder / "rows.jsonl"
        with writing(self.folder, ELSEWHERE):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            raise Unavailable(f"{path} is being written by another sweep; wait for it, or {ELSEWHERE}") from error
        with writing(path, ELSEWHERE):
            self._mend()
            put(self.folder / "experiment.json", self._experiment.model_dump_json(indent=2) + "\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)

    def rows(self) -> dict[Cell, Row]:
        """Every finished cell. Lines that are no rows are passed over."""
        found: dict[Cell, Row] = {}
        for line in self._text().splitlines():
            try:
                row = Row.model_validate_json(line)
            except ValidationError:
                continue
            found[Cell(row.panel, row.series, row.repetition)] = row
        return found

    def keep(self, row: Row) -> None:
        """Write one row to the disk itself."""
        with writing(self.folder, ELSEWHERE):
            line = (row.model_dump_json() + "\n").encode()
            if os.write(self._handle, line) < len(line):
                raise OSError(28, "No space left on device")
            os.fsync(self._handle)

    def _mend(self) -> None:
        """Cut off an unfinished last line, so that the next row begins a line of its own."""
        whole = self._bytes()
        if not whole.endswith(b"\n"):
            os.ftruncate(self._handle, whole.rfind(b"\n") + 1)

    def _bytes(self) -> bytes:
        return (self.folder / "rows.jsonl").read_bytes()

    def _text(self) -> str:
        return self._bytes().decode("utf-8", errors="replace")


def put(path: Path, content: str | bytes) -> None:
    """A whole file or none: written beside its place, then moved there."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as output:
        output.write(content.encode() if isinstance(content, str) else content)
        output.flush()
        os.fsync(output.fileno())
    part.replace(path)


def put_failures(folder: Path, failures: dict[Cell, str]) -> None:
    """What failed the last time, by cell; no file when nothing did."""
    path = folder / "failures.json"
    with writing(path, ELSEWHERE):
        if failures:
            listed = [{**cell._asdict(), "reason": reason} for cell, reason in failures.items()]
            put(path, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
        else:
            path.unlink(missing_ok=True)

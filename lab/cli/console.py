"""Sets the command line's output and exit codes: results on stdout, errors by code on stderr."""

import errno
import json as json_text
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from distrust import EXTRAS
from distrust.common.errors import BUSY, LATER, BadParameter, ProtocolError, RunFailed, without_controls
from distrust.common.inputs import as_typed, option
from distrust.lab.stack.data_dir import check_target, write_result

FAILED = 1
BAD_INPUT = 2
TRY_LATER = 75
INTERRUPTED = 130
TERMINATED = 143


class PlainConsole(Console):
    """A console that prints no control characters but its own: text of another party could steer the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(without_controls(text), style)


class ResultConsole(PlainConsole):
    """Console of stdout. A reader that left is an error here, which `exit_code_of` turns into success."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader of stdout left")


out = ResultConsole(soft_wrap=True, highlight=False, emoji=False)
err = PlainConsole(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run the command line and return its exit code. No traceback is shown.

    0 for success, 1 for something that was found broken or failed, 2 for bad input, 75 for what may work later, such
    as a service that is not there or a full disk, 130 for Ctrl-C, 143 for SIGTERM. An error is one line on stderr.
    """
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        return _flushed(command)
    except BrokenPipeError:  # the reader of our output left: `distrust inspect | head`
        _discard(1)
        return 0
    except OSError as error:  # a named file's error is told where the file is written
        if error.errno not in LATER or error.filename is not None:
            raise
        _discard(1)
        try:
            err.print(f"the output cannot be written: {error.strerror}; mend that, and try again", markup=False)
        except OSError:  # stderr goes to the same full disk
            _discard(2)
        return TRY_LATER


@contextmanager
def missing_options() -> Iterator[None]:
    """Name the option of a value that is missing, in commands whose options are the keys of a mechanism."""
    try:
        yield
    except BadParameter as error:
        if error.value is not None:
            raise
        raise BadParameter(option(error.field.rpartition(".")[2]), None, error.allowed) from error


def _discard(descriptor: int) -> None:
    """Let stdout (1) or stderr (2) lead nowhere: what is buffered would fail once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _flushed(command: Callable[[], object]) -> int:
    """Run the command, write what is buffered, and return the exit code. Raises OSError."""
    try:
        command()
    except ProtocolError as error:
        err.print(f"[red]{error.code}[/red]", end=" ")
        line, field = error.detail, error.extra.get("field")
        if isinstance(error, BadParameter) and isinstance(field, str):  # a service's may lack it
            line = as_typed(line, field, sys.argv[1:])
        err.print(line, markup=False)
        if isinstance(error, RunFailed):
            return FAILED
        return TRY_LATER if error.status in BUSY else BAD_INPUT
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        err.print(f"this command needs {library}: pip install 'distrust[{EXTRAS[library]}]'", markup=False)
        return BAD_INPUT
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as end:  # typer turns Ctrl-C inside a command into this
        if end.code == INTERRUPTED:
            return _interrupted()
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # what typer puts there for a reader that left
            raise BrokenPipeError from end
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return 0


def examples(*commands: str) -> str:
    """Return the end of a command's help. The mark keeps the line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def _checked_json(target: str | None) -> str | None:
    """Return the target of --json. A file that cannot be written is refused before the work, not after it."""
    if target not in (None, "-"):
        check_target(Path(target), "json")
    return target


def checked_out(path: Path) -> Path:
    """Return the path of a file that a command will write, likewise."""
    check_target(path, "out")
    return path


JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the facts as one JSON object; - for stdout", callback=_checked_json
    ),
]


def say(fact: Any, text: str, target: str | None) -> None:
    """Print a fact for people, as text, and write it as JSON to a file; with `-` as JSON alone, on stdout."""
    if target != "-":
        out.print(text, markup=False)
    if target is not None:
        write_result(json_text.dumps(fact, ensure_ascii=False) + "\n", target)


def _interrupted() -> int:
    err.print("interrupted: everything that was started here has stopped")
    return INTERRUPTED


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind every `with` on the way out, so that the stack stops."""
    raise SystemExit(TERMINATED)

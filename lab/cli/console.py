"""Sets the command line's output and exit codes: results on stdout, errors by code on stderr."""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rich.console import Console

from distrust import EXTRAS
from distrust.common.errors import ProtocolError, RunFailed

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def exit_code_of(command: Callable[[], object]) -> int:
    """Run the command line and return its exit code. No traceback is shown.

    0 for success, 1 for a run that failed or was cancelled, 2 for bad input or a service that is not there,
    130 for Ctrl-C, 143 for SIGTERM. An error is one line on stderr.
    """
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        command()
    except ProtocolError as error:
        err.print(f"[red]{error.code}[/red]", end=" ")
        err.print(error.detail, markup=False)
        return FAILED if isinstance(error, RunFailed) else BAD_INPUT
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        err.print(f"this command needs {library}: pip install 'distrust[{EXTRAS[library]}]'", markup=False)
        return BAD_INPUT
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as end:  # typer turns Ctrl-C inside a command into this
        if end.code != INTERRUPTED:
            raise
        return _interrupted()
    except BrokenPipeError:  # the reader of our output left: `distrust inspect | head`
        sys.stderr.close()
        return 0
    return 0


def _interrupted() -> int:
    err.print("interrupted: everything that was started here has stopped")
    return INTERRUPTED


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind every `with` on the way out, so that the stack stops."""
    raise SystemExit(TERMINATED)

"""Where the command line speaks: results on stdout, errors by code on stderr, and the exit codes."""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from rich.console import Console

from common.errors import ProtocolError

BAD_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def guarded(command: Callable[[], object]) -> int:
    """Run the command line: a refusal is one line and exit 2, Ctrl-C exits 130, SIGTERM 143; never a traceback."""
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        command()
    except ProtocolError as error:
        err.print(f"[red]{error.code}[/red]", end=" ")
        err.print(error.detail, markup=False)
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

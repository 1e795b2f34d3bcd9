"""Runs a command that ends when its parent does: `python -m distrust.lab.stack.parent_death PARENT COMMAND…`.

If the stack is killed before it can clean up, the kernel sends SIGTERM to the processes that it started. On systems
without prctl (not Linux) the command runs without this, and only the stack's clean-up ends it. A file of its own,
because every process of the stack imports it as it starts.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>: a signal for this process when its parent ends


def tie(parent: int) -> None:
    """Ask for SIGTERM at the parent's death; leave at once if `parent` is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Become the command. The signal is kept over exec, so that no process stands in between."""
    tie(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - our own command, no shell


if __name__ == "__main__":
    main()

"""Run a command that ends when its parent does: `python -m distrust.lab.stack.parent_death PARENT COMMAND…`.

A safety net under the stack's own clean-up: should the stack be killed outright, the kernel sends SIGTERM to what it
started. On systems without prctl (not Linux) the command just runs, and only the stack's clean-up ends it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Ask for SIGTERM at the parent's death; leave at once if `parent` is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Become the command: the tie survives exec, so no process stands in between."""
    tie(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - our own command, no shell


if __name__ == "__main__":
    main()

"""Plays a fleet on each of some runs, in one process that does not end, so that a test can search its memory.

    python -m tests.support.kept_fleet SOURCE DONE RUN …

SOURCE is a FIFO that the test fills, and from which this process draws its seeds and keys instead of the operating
system's CSPRNG. So the test knows them, and no copy for its sake is in this process. DONE is a file that appears once
the last run is over. The process stands still then, with the fleet as its run has left it.
"""

import os
import signal
import sys
from pathlib import Path

from distrust.client.__main__ import main
from distrust.client.fleet.fleet import Fleet
from distrust.common import randomness
from distrust.common.protocol.crypto.share import SEED

serve = Fleet.serve


def play(source: str, done: Path, runs: list[str]) -> int:
    randomness._SYSTEM = source
    kept = bytes(randomness.fresh(SEED))  # the first secret is one that is never zeroed: a search must find it

    async def served(fleet: Fleet) -> str:
        state = await serve(fleet)
        fleet._worker.shutdown()  # it has done then what was submitted
        if os.environ["DISTRUST_RUN"] == runs[-1]:
            _stand(done)
        return state

    Fleet.serve = served  # type: ignore[method-assign]
    sys.argv = ["distrust.client"]
    for run in runs:
        os.environ["DISTRUST_RUN"] = run
        if code := main():
            return code
    return len(kept)


def _stand(done: Path) -> None:
    done.touch()
    signal.pause()


if __name__ == "__main__":
    sys.exit(play(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))

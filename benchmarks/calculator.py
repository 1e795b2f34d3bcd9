"""`distrust privacy` at the corners of its options: CPU of each call, its start included, against a limit of 5 s.

    python -m benchmarks.calculator [--quick] [--json FILE] [--patience SECONDS]

Every call is a fork of this process, so that no call finds the caches of another. Its CPU is that of all threads, plus
that of a process that starts and imports what this one has. A call that takes more CPU than the patience is stopped,
and reported as stopped.
The table has the slowest call first.
"""

import argparse
import os
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from benchmarks.meter import deliver, options, write
from distrust.lab.__main__ import main as cli

LIMIT = 5.0
ENDS = {0: "answered", 1: "refused", 2: "refused"}
PATIENCE = 60
WITH_DELTA = (
    "central-gaussian",
    "local-gaussian",
    "shuffled-binomial",
    "shuffled-gaussian",
    "shuffled-laplace",
    "shuffled-sphere",
    "distributed-skellam",
    "distributed-discrete-gaussian",
)
WITHOUT = (
    "central-laplace-discrete",
    "local-laplace-discrete",
    "distributed-polya",
    "distributed-skellam",
    "distributed-discrete-gaussian",
    "relaxed-secagg-shuffle",
)
STREAMS = ("tree --batches 20000", "prefix-factorization --batches 20000")
CLIENTS, EPSILONS, DELTAS = (1000, 1_000_000), (0.01, 1.0, 20.0), (0.1, 1e-6, 1e-18)
VECTORS = ("", "--dimension 20 --norm linf", "--dimension 20 --norm l2", "--dimension 20 --norm l1")


@dataclass(frozen=True, slots=True)
class Call:
    """`cpu` seconds of one call; `ended`: answered, refused, failed, or stopped at the patience."""

    words: str
    cpu: float
    ended: str


def corners() -> list[str]:
    """Return the words after `distrust privacy` of every call."""
    exact = product((*WITH_DELTA, *STREAMS), CLIENTS, EPSILONS, DELTAS, VECTORS)
    pure = product(WITHOUT, CLIENTS, EPSILONS, VECTORS)
    compared = product(CLIENTS, EPSILONS, VECTORS)
    return [
        *(f"{name} --n {n} --epsilon {e:g} --delta {d:g} {more}".strip() for name, n, e, d, more in exact),
        *(f"{name} --n {n} --epsilon {e:g} {more}".strip() for name, n, e, more in pure),
        *(f"--compare --n {n} --epsilon {e:g} --delta 1e-6 {more}".strip() for n, e, more in compared),
    ]


def started() -> float:
    """Return the CPU seconds of a process that imports what this one has imported, which are part of every call."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import distrust.lab.__main__"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(words: str, start: float, patience: int) -> Call:
    """Measure one call in a fork of this process, which the kernel stops at `patience` seconds of CPU."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (patience, patience))
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        sys.argv = ["distrust", "privacy", *words.split()]
        try:
            cli()
        except SystemExit as done:
            os._exit(int(done.code or 0))
        os._exit(70)
    _, status, used = os.wait4(child, 0)
    ended = "stopped" if os.WIFSIGNALED(status) else ENDS.get(os.waitstatus_to_exitcode(status), "failed")
    return Call(words, round(start + used.ru_utime + used.ru_stime, 2), ended)


def judged(call: Call) -> Call:
    """Return the call. Print it at once if it is above the limit."""
    if call.cpu > LIMIT:
        print(f"{call.cpu:7.2f} s  {call.words}  ({call.ended})", file=sys.stderr, flush=True)
    return call


def main() -> None:
    parser: argparse.ArgumentParser = options(__doc__)
    parser.add_argument("--patience", type=int, default=PATIENCE, help=f"CPU seconds, {PATIENCE} when not given")
    arguments = parser.parse_args()
    calls = corners()[:: 240 if arguments.quick else 1]
    start = started()
    found = sorted((judged(measured(words, start, arguments.patience)) for words in calls), key=lambda call: -call.cpu)
    above = sum(call.cpu > LIMIT for call in found)
    shown = [(call.words, call.cpu, call.cpu / LIMIT, call.ended) for call in found[: max(20, above)]]
    title = f"{above} of {len(found)} calls above {LIMIT:g} s, of which {start:.3g} s are the start"
    deliver(title, ("call", "CPU, s", "of the limit", "ended"), shown)
    write(arguments.json, {"limit": LIMIT, "start": start, "calls": [asdict(call) for call in found]})


if __name__ == "__main__":
    main()

"""Bytes that stay of a client at each service: before and after the grace time, and over runs that are pruned.

    python -m benchmarks.kept [--quick] [--json FILE] [--clients N] [--runs N]

Runs of each channel are played over services on loopback, twice: with a day of `keep_seconds`, and with 0. The figures
are the pages of a database that are in use, less those before the run, for each of the run's clients. Then runs with
`keep_seconds` 0 follow one another, each is pruned, and the table has the size of the files after each.
"""

import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.meter import deliver, options, write
from benchmarks.whole_run import play
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.connection import Connection
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack

CHANNELS = {
    "sealed": ('name = "local-laplace-discrete", epsilon = 1.0, via = "shuffler"', 'name = "successive-elimination"'),
    "bits": ('name = "shuffled-binomial", epsilon = 1.0, delta = 1e-6', 'name = "successive-elimination"'),
    "assigned": ('name = "shuffled-laplace", epsilon = 1.0, delta = 1e-6', 'name = "almost-free", model = "shuffled"'),
    "masked": ('name = "distributed-polya", epsilon = 1.0', 'name = "successive-elimination"'),
}
DAY = 86_400
LONGEST = 60.0  # seconds until what is due must be scrubbed
LOOK = 0.1


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one client, by service: `before` and `after` its messages are scrubbed."""

    channel: str
    service: str
    clients: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the databases' files, with their logs, after one run was pruned."""

    run: int
    server: int
    shuffler: int
    aggregator: int


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--channels", nargs="*", default=list(CHANNELS), choices=list(CHANNELS))
    arguments = parser.parse_args()
    clients, runs = (200, 2) if arguments.quick else (arguments.clients, arguments.runs)
    channels = ["sealed", "masked"] if arguments.quick else arguments.channels
    with (
        tempfile.TemporaryDirectory(prefix="distrust-benchmark-") as place,
        Stack(DataDir(Path(place) / "data"), 0) as stack,
    ):
        kept = [one for channel in channels for one in measure(stack, channel, clients)]
        sizes = [follow(stack, number, clients) for number in range(1, runs + 1)]
    rows = [(one.channel, one.service, one.clients, f"{one.before:.0f}", f"{one.after:.0f}") for one in kept]
    deliver("Bytes that stay of a client", ("channel", "service", "clients", "before", "after"), rows)
    columns = ("run", "server KiB", "shuffler KiB", "aggregator KiB")
    lines = [(size.run, size.server // 1024, size.shuffler // 1024, size.aggregator // 1024) for size in sizes]
    deliver("Files after each pruned run", columns, lines)
    write(arguments.json, {"kept": [asdict(one) for one in kept], "files": [asdict(one) for one in sizes]})


def measure(stack: Stack, channel: str, clients: int) -> list[Kept]:
    """Play a run twice, and return what stays of a client at the server and at its intermediary.

    The run of which nothing is kept comes first: rows are deleted once no older row has a message.
    """
    connection, used = Connection(stack.urls), [pages(stack)]
    for keep in (0, DAY):
        play(run_file(channel, f"{channel}-{keep}", clients, keep), stack)
        if keep == 0:
            until_scrubbed(stack, channel)
        used.append(pages(stack))
    counts = [connection.view(f"{channel}-{keep}").clients for keep in (0, DAY)]
    for keep in (0, DAY):
        connection.prune(f"{channel}-{keep}")
    none, scrubbed, whole = used
    via = "aggregator" if channel == "masked" else "shuffler"
    return [
        Kept(
            channel,
            name,
            counts[0],
            before=(whole[name] - scrubbed[name]) / counts[1],
            after=(scrubbed[name] - none[name]) / counts[0],
        )
        for name in ("server", via)
    ]


def follow(stack: Stack, number: int, clients: int) -> Sizes:
    """Play a run of which nothing is kept, prune it, and return the sizes of the files."""
    channel = ("sealed", "masked")[number % 2]
    file = run_file(channel, f"follow-{number}", clients, 0)
    play(file, stack)
    Connection(stack.urls).prune(file.config.run)
    whole = (
        sum(file.stat().st_size for file in stack.data_dir.path.glob(f"{name}.sqlite3*") if file.is_file())
        for name in NAMES
    )
    return Sizes(number, *whole)


def run_file(channel: str, name: str, clients: int, keep: float) -> RunFile:
    """Return a run of about so many clients."""
    mechanism, policy = CHANNELS[channel]
    linear = "almost-free" in policy
    world = 'name = "linear-sphere", arms = 6' if linear else 'name = "bernoulli", means = [0.2, 0.8]'
    batch = "" if linear else f", first_batch = {max(5, (clients // 2).bit_length() - 1)}"
    return parse(
        f"""
        run = "{name}"
        horizon = {clients}
        policy = {{{policy}{batch}}}
        mechanism = {{{mechanism}}}
        budget = {{epsilon = 2.0, delta = 1e-5, min_survivors = 2}}
        intermediary = {{keep_seconds = {keep}}}
        environment = {{{world}, seed = 1}}
        fleet = {{processes = 1}}
        """
    )


def pages(stack: Stack) -> dict[str, int]:
    """Return the bytes of each database's pages that are in use."""
    words = ("page_count", "freelist_count", "page_size")
    asked = {name: [_number(stack, name, f"PRAGMA {word}") for word in words] for name in NAMES}
    return {name: (count - free) * size for name, (count, free, size) in asked.items()}


def until_scrubbed(stack: Stack, channel: str) -> None:
    """Wait until the run's messages and batches are gone: only those of the run before are left."""
    via, end = "aggregator" if channel == "masked" else "shuffler", time.monotonic() + LONGEST
    looks = (
        ("server", f"SELECT count(*) FROM kept WHERE run = '{channel}-0'"),
        (via, "SELECT count(*) FROM messages"),  # all earlier runs were pruned
    )
    for service, query in looks:
        while _number(stack, service, query):
            assert time.monotonic() < end, f"the {service} keeps messages that are due"
            time.sleep(LOOK)


def _number(stack: Stack, name: str, query: str) -> int:
    with closing(sqlite3.connect(f"file:{stack.data_dir.file(name)}?mode=ro", uri=True)) as database:
        return int(database.execute(query).fetchone()[0])


if __name__ == "__main__":
    main()

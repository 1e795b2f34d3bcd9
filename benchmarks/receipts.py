"""Receipts of a crowd: CPU and bytes of a client and of the server, and how long a cohort waits for its receipts.

    python -m benchmarks.receipts [--quick] [--json FILE] [--clients 64 1024 16384]

A device alone takes the list for itself. The clients of a fleet take it once for `BLOCK` of them. The server lists the
records of a batch and commits the receipts to a database file, in uploads of `BLOCK`. All CPU is that of this process;
an HTTP call costs its two ends besides what `benchmarks.shuffle` measures.

The wait is that of cohorts over services on loopback, with one fleet, from the commit by which the shuffler releases a
batch to the commit of its outcome at the server. A round has one cohort, so that the fleet has nothing else to do
meanwhile. Beside it stands the same time of a cohort of the same size whose clients give no receipts: the batch's way
to the server, and its analysis.
"""

import os
import sqlite3
import statistics
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, process_time, sleep

from benchmarks.meter import deliver, options, write
from benchmarks.whole_run import play
from distrust.common.protocol.channels.sealed import REPORT_ID, Records, Sealed
from distrust.common.protocol.crypto.receipts import (
    PRESENT,
    RECEIPT_SECRET,
    list_digest,
    read_list,
    receipt_hash,
    record_hash,
)
from distrust.common.protocol.crypto.seal import seal
from distrust.common.protocol.messages.batch import Batch, BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.status import RecordList
from distrust.common.protocol.messages.upload import Receipts
from distrust.common.protocol.run.config import RunConfig
from distrust.lab.play.run_file import parse
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Stack
from distrust.server.learner.learner import Learner
from distrust.server.runs.active_run import ActiveRun
from distrust.server.runs.receipts import ReceiptBook
from distrust.server.storage.keys import KeyFolder, Keys, RunIdentity, folder_for, new_keys, new_run_id
from distrust.server.storage.rows import GrantRow
from distrust.server.storage.store import Store, open_database

BLOCK = 512
CLIENTS = (64, 1024, 16_384)
PAYLOAD, LONE = 8, 32
WITH = 'name = "shuffled-laplace", epsilon = 1.0, delta = 1e-6'
WITHOUT = 'name = "local-laplace-discrete", epsilon = 1.0, via = "shuffler"'
ROUNDS = 6  # of a run whose waits are measured
LOOK = 0.001  # seconds between two looks at the services' databases
LIMIT = 1.0
"""The limit of a fleet's CPU for one client's receipt, as a ratio to the sealing of its record."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One size of a cohort. Times are microseconds of CPU, bytes those of JSON.

    seal         of one record: the unit of the ratio.
    alone        a device that takes the whole list.
    received     the bytes of the list.
    sent         the bytes of one client's receipt.
    fleet        each of `BLOCK` clients that share a list.
    ratio        of `fleet` to `seal`.
    fleet_bytes  sent and received by each of these clients.
    server       a client's part of the list and of the commits, in uploads of `BLOCK`.
    lone         the server's time for one device that calls alone, of which `LONE` are measured.
    """

    clients: int
    seal: float
    alone: float
    received: int
    sent: int
    fleet: float
    ratio: float
    fleet_bytes: float
    server: float
    lone: float


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a cohort waits after its batch was released: seconds.

    receipts  with receipts.
    bare      without: the batch is collected and analyzed.
    ratio     of the two.
    """

    clients: int
    receipts: float
    bare: float
    ratio: float


def measure_wait(clients: int) -> Wait:
    """Play a run of cohorts of this size with receipts, and one without."""
    receipts, bare = (_waited(mechanism, clients) for mechanism in (WITH, WITHOUT))
    return Wait(clients, receipts, bare, receipts / bare)


def _waited(mechanism: str, clients: int) -> float:
    """Return the seconds from the release of a batch to its cohort's outcome: the median of a run's rounds but one.

    The first round is left out: services compute their tables in it.
    """
    file = parse(
        f"""
        run = "waits"
        horizon = {ROUNDS * clients}
        policy = {{name = "linucb", batch = {clients}}}
        mechanism = {{{mechanism}}}
        environment = {{name = "contextual-synthetic", arms = 2, dimension = 2, seed = 1}}
        fleet = {{processes = 1}}
        """
    )
    with (
        tempfile.TemporaryDirectory(prefix="distrust-benchmark-") as place,
        Stack(DataDir(Path(place) / "data"), 0) as stack,
    ):
        commits, over = _Commits(stack.data_dir), threading.Event()
        watching = threading.Thread(target=commits.watch, args=(over,))
        watching.start()
        try:
            play(file, stack)
        finally:
            over.set()
            watching.join()
    assert len(commits.settled) == ROUNDS
    _, *later = sorted(commits.settled, key=commits.settled.__getitem__)
    return statistics.median(commits.settled[cohort] - commits.released[cohort] for cohort in later)


class _Commits:
    """When the shuffler has released each batch, and when the server has settled its cohort, by the databases."""

    def __init__(self, folder: DataDir) -> None:
        self._looks = (
            (folder.file("shuffler"), "SELECT cohort FROM cohorts WHERE stage = 'done'"),
            (folder.file("server"), "SELECT cohort FROM outcomes"),
        )
        self.released: dict[str, float] = {}
        self.settled: dict[str, float] = {}

    def watch(self, over: threading.Event) -> None:
        shuffler, server = (sqlite3.connect(f"file:{path}?mode=ro", uri=True) for path, _ in self._looks)
        with closing(shuffler), closing(server):
            ended = False
            while not ended:
                ended = over.is_set()  # the last look comes after the end
                for database, (_, query), times in zip(
                    (shuffler, server), self._looks, (self.released, self.settled), strict=True
                ):
                    now = monotonic()
                    for (cohort,) in database.execute(query):
                        times.setdefault(cohort, now)
                sleep(LOOK)


def measure(clients: int, keys: Keys, store: Store, folder: KeyFolder) -> Measured:
    """Play the receipts of one cohort of this size."""
    config = RunConfig.model_validate(
        {"run": f"n{clients}", "arms": 2, "horizon": 10**5, "mechanism": {"name": "identity"}}
    )
    active = ActiveRun(config, RunIdentity(new_run_id(), keys.public), Learner(config), store, folder)
    planned = active.pending()[0]
    channel = Sealed(size=PAYLOAD, server_key=keys.public.seal, receipts=True)
    cohort = planned.model_copy(update={"channel": channel, "clients": clients, "minimum": clients})
    own = [os.urandom(RECEIPT_SECRET) for _ in range(clients)]
    report = os.urandom(REPORT_ID)
    sealing = best(lambda: seal(keys.public.seal, cohort, report, bytes(PAYLOAD)), 200)
    size = len(seal(keys.public.seal, cohort, report, bytes(PAYLOAD)))
    records = [os.urandom(size) for _ in range(clients)]  # hashed only, and never opened here
    answer = released(cohort, records)
    open_in(store, cohort, own)
    # The book asks the run for its pending cohorts: this one stands in place of the planned one.
    active.pending = lambda: [cohort]  # type: ignore[method-assign]
    book = ReceiptBook(store)
    begun = process_time()
    book.collect(active, cohort, answer)
    shown = book.listed(cohort, over=False)
    listing = process_time() - begun
    text = shown.model_dump_json()
    stated = list_digest(cohort, shown.hashes)

    def look(text: str) -> set[bytes]:
        return read_list(cohort, RecordList.model_validate_json(text).hashes, clients, stated)

    reading = best(lambda: look(text), 3)
    listed, each = look(text), best(lambda: record_hash(cohort, records[0]), 200)
    begun = process_time()
    for slot in range(LONE):
        assert book.take(active, cohort, answers(cohort, [slot], own)).accepted == 1
        book.complete(active, cohort, clients)
    lone = (process_time() - begun) / LONE
    taking, sent = 0.0, 0
    for start in range(LONE, clients, BLOCK):
        slots = list(range(start, min(clients, start + BLOCK)))
        assert all(record_hash(cohort, records[slot]) in listed for slot in slots)
        receipts = answers(cohort, slots, own)
        sent += len(receipts.model_dump_json())
        begun = process_time()
        taken = book.take(active, cohort, receipts)
        taking += process_time() - begun
        assert taken.accepted == len(slots)
    share = min(BLOCK, clients)
    fleet = each + reading / share
    return Measured(
        clients=clients,
        seal=1e6 * sealing,
        alone=1e6 * (each + reading),
        received=len(text),
        sent=len(answers(cohort, [0], own).model_dump_json()),
        fleet=1e6 * fleet,
        ratio=fleet / sealing,
        fleet_bytes=len(text) / share + sent / (clients - LONE),
        server=1e6 * (listing + taking) / clients,
        lone=1e6 * lone,
    )


def released(cohort: Cohort, records: list[bytes]) -> BatchAnswer:
    content = Records(count=len(records), body=b"".join(records), checksum=bytes(32))
    batch = Batch(cohort=cohort.cohort, survivors=len(records), content=content)
    return BatchAnswer(cohort=cohort.cohort, state="released", batch=batch, delivery=1)


def open_in(store: Store, cohort: Cohort, own: list[bytes]) -> None:
    """Store the cohort with all its slots granted to one request."""
    hashes = b"".join(map(receipt_hash, own))
    request = TicketRequest(request="0" * 32, round=1, want=len(own), keys=hashes)
    with store.writing() as writing:
        writing.cohort(cohort)
        writing.grant(cohort.run, request, GrantRow(1, len(own), cohort.cohort, 0, len(own), hashes))


def answers(cohort: Cohort, slots: list[int], own: list[bytes]) -> Receipts:
    secrets = b"".join(own[slot] for slot in slots)
    return Receipts(cohort=cohort.cohort, slots=slots, secrets=secrets, answers=PRESENT * len(slots))


def best(work: Callable[[], object], times: int) -> float:
    """Return the CPU seconds of one call, as the best of five batches."""
    spent = []
    for _ in range(5):
        begun = process_time()
        for _ in range(times):
            work()
        spent.append((process_time() - begun) / times)
    return min(spent)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=None)
    chosen = parser.parse_args()
    sizes = chosen.clients or (CLIENTS[:1] if chosen.quick else CLIENTS)
    keys: Keys = new_keys()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'server.sqlite3'}"
        database = open_database(url)
        measured = [measure(clients, keys, Store(database), KeyFolder(folder_for(url))) for clients in sizes]
        database.close()
    columns = (
        "n",
        "seal, µs",
        "alone, µs",
        "received",
        "sent",
        "in a fleet, µs",
        "ratio",
        "bytes",
        "server, µs",
        "lone, µs",
    )
    deliver("Receipts of one client", columns, [tuple(asdict(one).values()) for one in measured])
    above = [one.clients for one in measured if one.ratio > LIMIT]
    print(f"ratio above {LIMIT:g} at n = {above}" if above else f"ratio at most {LIMIT:g} everywhere")
    waits = [measure_wait(clients) for clients in sizes]
    heads = ("n", "with receipts, s", "without, s", "ratio")
    deliver("From the release of a batch to its outcome", heads, [tuple(asdict(wait).values()) for wait in waits])
    write(chosen.json, {"results": [asdict(one) for one in measured], "waits": [asdict(one) for one in waits]})


if __name__ == "__main__":
    main()

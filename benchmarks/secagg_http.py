"""Secure aggregation over HTTP: CPU of two fleet processes and the aggregator process, as ratios to the primitives.

    python -m benchmarks.secagg_http [--quick] [--json FILE] [--clients 50 100 400 1000] [--dimensions 1 1000]

The aggregator is the real service with its database; the fleets have the real session, uploader and protocols. The
benchmark plays the server: it opens cohorts and signs tickets. So it can measure dimensions that no policy has. Ratios
are to the cost of the primitives in the model of `benchmarks.secagg`, from the same run. The model has no tickets.
"""

import asyncio
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np

from benchmarks.masked_fleet import Part, Played, play, warm_up
from benchmarks.meter import deliver, options, process_seconds, write
from benchmarks.secagg import MODULUS, Primitives, aggregator_model, client_model, measure_primitives
from benchmarks.stage import TICKETS, Party, party
from distrust.common.modular import Vector, unpack
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.messages.cohort import Cohort
from distrust.lab.secagg_simulation import make_cohort

CLIENTS = (50, 100, 400, 1000)
FLEETS = 2
DROPOUT = CORRUPT = 0.1  # rates that the cohorts are built for


@dataclass(frozen=True, slots=True)
class Result:
    """Cohorts of one kind. CPU seconds for one client, of the fleets and the aggregator; `model`: of the primitives."""

    clients: int
    lost: int
    dimension: int
    cohorts: int
    k: int
    t: int
    fleet: float
    fleet_model: float
    aggregator: float
    aggregator_model: float
    wire_bytes: float

    @property
    def fleet_ratio(self) -> float:
        return self.fleet / self.fleet_model

    @property
    def ratio(self) -> float:
        """Return the CPU of fleets and aggregator, relative to all primitives."""
        return (self.fleet + self.aggregator) / (self.fleet_model + self.aggregator_model)


class Bench:
    """A running aggregator and two fleet processes."""

    def __init__(self, s: Party, fleets: Executor, clients: int) -> None:
        self._s, self._fleets, self._clients = s, fleets, clients
        self._opened = 0

    def measure(self, n: int, dimension: int, lost: int, p: Primitives) -> Result:
        """Measure cohorts of one kind, enough for all clients and at least one, after one that is not counted."""
        self._cohorts(n, dimension, lost, 1)
        count = max(1, self._clients // n)
        before = process_seconds(self._s.pid)
        played = self._cohorts(n, dimension, lost, count)
        aggregator = process_seconds(self._s.pid) - before
        channel = masking(make_cohort(n, MODULUS, dimension))
        k, t = channel.neighbours, channel.threshold
        everyone = n * count
        return Result(
            clients=n,
            lost=lost,
            dimension=dimension,
            cohorts=count,
            k=k,
            t=t,
            fleet=sum(one.seconds for one in played) / everyone,
            fleet_model=client_model(p, k, t, dimension),
            aggregator=aggregator / everyone,
            aggregator_model=aggregator_model(p, k, t, dimension, survivors=n - lost, dropouts=lost) / n,
            wire_bytes=sum(one.wire for one in played) / everyone,
        )

    def _cohorts(self, n: int, dimension: int, lost: int, count: int) -> list[Played]:
        cohorts = [self._open(n, dimension) for _ in range(count)]
        leaving = frozenset(np.random.default_rng(n).permutation(n)[:lost].tolist())
        tasks = [
            self._fleets.submit(play, self._s.url, self._s.token, parts, DROPOUT, CORRUPT)
            for parts in zip(*(_split(cohort, leaving) for cohort in cohorts), strict=True)
        ]
        played = [task.result() for task in tasks]
        for i, cohort in enumerate(cohorts):
            self._check(cohort, [one.sums[i] for one in played])
        return played

    def _open(self, n: int, dimension: int) -> Cohort:
        self._opened += 1
        made = make_cohort(n, MODULUS, dimension, dropout=DROPOUT, corrupt=CORRUPT, name=f"c{self._opened}")
        cohort = made.model_copy(update={"ticket_key": TICKETS.public_key().public_bytes_raw()})
        asyncio.run(self._s.open(cohort))
        return cohort

    def _check(self, cohort: Cohort, sums: list[Vector]) -> None:
        channel, batch = masking(cohort), asyncio.run(self._s.batch(cohort))
        found = unpack(batch.content.body, channel.modulus, channel.dimension)
        if (found != np.sum(sums, axis=0) % np.uint64(channel.modulus)).any():
            raise SystemExit("the sum is wrong: these figures mean nothing")


def _split(cohort: Cohort, leaving: frozenset[int]) -> list[Part]:
    """Return a part of the cohort's slots for each fleet."""
    ends, key = [cohort.clients * i // FLEETS for i in range(FLEETS + 1)], TICKETS.private_bytes_raw()
    return [Part(cohort, a, b - a, leaving & set(range(a, b)), key) for a, b in pairwise(ends)]


def run(
    clients: Sequence[int], dimensions: Sequence[int], rates: Sequence[float], p: Primitives, *, enough: int
) -> list[Result]:
    """Return the result of every combination, each measured on `enough` clients."""
    context = multiprocessing.get_context("forkserver")
    with party("aggregator") as s, ProcessPoolExecutor(FLEETS, context) as fleets:
        for warm in [fleets.submit(warm_up) for _ in range(FLEETS)]:
            warm.result()
        bench = Bench(s, fleets, enough)
        return [bench.measure(n, d, int(rate * n), p) for n in clients for d in dimensions for rate in rates]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--dimensions", type=int, nargs="+", default=(1, 1000))
    parser.add_argument("--dropouts", type=float, nargs="+", default=(0.0, 0.1))
    arguments = parser.parse_args()
    p = measure_primitives()
    if arguments.quick:
        results = run((50,), (1,), (0.1,), p, enough=50)
    else:
        results = run(arguments.clients, arguments.dimensions, arguments.dropouts, p, enough=2000)
    columns = (
        "n",
        "lost",
        "D",
        "k",
        "t",
        "fleet ms",
        "ratio",
        "aggregator ms",
        "aggregator model ms",
        "all, ratio",
        "wire bytes",
    )
    rows = [
        (
            *(r.clients, r.lost, r.dimension, r.k, r.t),
            *(r.fleet * 1e3, r.fleet_ratio, r.aggregator * 1e3, r.aggregator_model * 1e3, r.ratio, int(r.wire_bytes)),
        )
        for r in results
    ]
    deliver("CPU for one client, over HTTP", columns, rows)
    own = [asdict(r) | {"fleet_ratio": r.fleet_ratio, "ratio": r.ratio} for r in results]
    write(arguments.json, {"primitives": asdict(p), "results": own})


if __name__ == "__main__":
    main()

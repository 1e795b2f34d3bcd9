"""Time and CPU of contextual runs over HTTP, against limits: one client a round, and masked cohorts of 200.

    python -m benchmarks.contextual [--quick] [--json FILE] [--rounds 400] [--turns 3]

`rounds`   a run of `linucb` with one client a round, over the real services and one fleet process. The time from a
           report to the next round is read off the services' logs: from the shuffler's first look at the report to the
           server's answer with the next round and its ticket. The limit is a multiple of the time of one bare request,
           to the aggregator, which is idle, and one bare commit. Both are measured all through the run.
`cohorts`  CPU a client, and clients a second, of cohorts of 200 with secure aggregation, at D = 1 and at the D = 20 of
           d = 5 features, in turns. The limit is a multiple of the CPU at D = 1.
"""

import asyncio
import json
import math
import multiprocessing
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from rich.console import Console
from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table, insert

from benchmarks.masked_fleet import warm_up
from benchmarks.meter import deliver, options, process_seconds, write
from benchmarks.secagg import measure_primitives
from benchmarks.secagg_http import FLEETS, Bench
from benchmarks.stage import party
from distrust.common.protocol.run.listing import RunView
from distrust.common.protocol.run.progress import RoundReport
from distrust.common.protocol.storage.database import Database
from distrust.common.protocol.web.client import Http
from distrust.lab.play.progress import Progress, Standings
from distrust.lab.play.run_file import RunFile, parse
from distrust.lab.services.fleet_processes import Fleets
from distrust.lab.services.over_http import HttpRun
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import NAMES, Stack, Urls

COHORT, QUICK_COHORT, FEATURES = 200, 20, 5
DIMENSION = FEATURES + FEATURES * (FEATURES + 1) // 2  # of Σ sφ and Σ φφᵀ
MOST_NEXT, MOST_ROUND = 4.0, 9.0  # bare requests and commits that a next round, and a whole round, may take
MOST_MASKED = 1.3  # times the CPU of a client at D = 1
BARE_SECONDS = 0.1  # between two bare requests
FIRST = 10  # rounds that are not counted: the services and the fleet load what they need
ROUTES = {"report": "/v1/cohorts/{run}/{cohort}/reports", "next": "/v1/runs/{run}/tickets"}

_ROWS = Table("rows", MetaData(), Column("number", Integer, primary_key=True), Column("body", LargeBinary))


@dataclass(frozen=True, slots=True)
class Rounds:
    """A run of one client a round. Times in seconds; `cpu` a round, by process.

    bare    one request to a running service, and one commit of a row: the median of both, added.
    after   from a report to the next round: median and 95th percentile.
    """

    rounds: int
    bare: float
    after: float
    after_p95: float
    seconds: float
    cpu: dict[str, float]

    @property
    def figures(self) -> dict[str, object]:
        """Return the figures as JSON values, with both ratios."""
        ratios = {"next_ratio": self.after / self.bare, "ratio": self.seconds / self.bare}
        return {**asdict(self), "rate": 1 / self.seconds, **ratios, "next_limit": MOST_NEXT, "limit": MOST_ROUND}


class _Gauge(Progress):
    """Reads the CPU of all processes whenever the run reports its progress."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(Console(file=StringIO()))
        self.pids = pids
        self.looks: list[tuple[int, dict[str, float]]] = []

    def show(self, view: RunView, report: RoundReport, standings: Standings) -> None:
        super().show(view, report, standings)
        if view.state == "running" and view.snapshot.round > FIRST:
            self.looks.append((view.snapshot.round, {name: process_seconds(pid) for name, pid in self.pids.items()}))

    @property
    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds a round of each process, between the first reading and the last."""
        (first, before), (last, after) = self.looks[0], self.looks[-1]
        return {name: (after[name] - before[name]) / max(1, last - first) for name in self.pids}


def one_client_a_round(rounds: int) -> Rounds:
    """Play a run of this many rounds on a stack of its own, and return its times."""
    file = parse(
        f"""
        run = "benchmark"
        horizon = {rounds}
        environment = {{name = "contextual-synthetic", seed = 1}}
        policy = {{name = "linucb"}}
        mechanism = {{name = "local-gaussian", epsilon = 1.0, delta = 0.1}}
        intermediary = {{dropout = 0.0, corrupt = 0.0}}
        fleet = {{processes = 1}}
        """
    )
    with TemporaryDirectory(prefix="distrust-benchmark-") as place, Stack(DataDir(Path(place) / "data"), 0) as stack:
        logs = stack.data_dir.path / "logs"
        services = json.loads(stack.data_dir.stack_file.read_text("utf-8"))["services"]
        gauge = _Gauge({name: services[name]["pid"] for name in NAMES})
        fleets = _Watched(file, stack.urls, logs, gauge)
        with _Bare(stack.urls.aggregator, Path(place)) as bare:
            asyncio.run(HttpRun(file, stack.urls, fleets, gauge, stack.check).run())
        reports = _answers(stack.data_dir.log("shuffler"), ROUTES["report"])[FIRST:]
        opened = [end for _, end in _answers(stack.data_dir.log("server"), ROUTES["next"])]
    waits = sorted(min(end for end in opened if end > began) - began for began, _ in reports)
    seconds = (reports[-1][0] - reports[0][0]) / (len(reports) - 1)
    return Rounds(
        rounds=rounds,
        bare=bare.seconds,
        after=statistics.median(waits),
        after_p95=waits[int(0.95 * len(waits))],
        seconds=seconds,
        cpu=gauge.cpu,
    )


class _Watched(Fleets):
    """Fleets whose first process is measured with the services."""

    def __init__(self, file: RunFile, urls: Urls, logs: Path, gauge: _Gauge) -> None:
        super().__init__(file, urls, logs, logs.parent / "clients.sqlite3")
        self._gauge = gauge

    def __enter__(self) -> Self:
        super().__enter__()
        self._gauge.pids["fleet"] = self._fleets[0].pid
        return self


def _answers(log: Path, route: str) -> list[tuple[float, float]]:
    """Return begin and end of each answered request of a route, in seconds since the epoch, in the log's order."""
    lines = (json.loads(line) for line in log.read_text("utf-8").splitlines() if f'"{route}"' in line)
    ends = [(datetime.fromisoformat(line["timestamp"]).timestamp(), line["ms"] / 1000) for line in lines]
    return [(end - seconds, end) for end, seconds in ends]


class _Bare(threading.Thread):
    """Makes a request that a service answers at once, and commits a row as large as a report, ten times a second."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__()
        self._url, self._folder, self._over = url, folder, threading.Event()
        self.requests: list[float] = []
        self.commits: list[float] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        asyncio.run(self._measure())

    async def _measure(self) -> None:
        database = Database(f"sqlite:///{self._folder / 'bare.sqlite'}", _ROWS.metadata, "0001")
        async with Http() as http:
            while not self._over.is_set():
                began = time.perf_counter()
                await http.request("GET", f"{self._url}/healthz", {}, None, None)
                asked = time.perf_counter()
                with database.transaction() as connection:
                    connection.execute(insert(_ROWS), [{"body": bytes(1024)}])
                self.requests.append(asked - began)
                self.commits.append(time.perf_counter() - asked)
                await asyncio.sleep(BARE_SECONDS)
        database.close()

    @property
    def seconds(self) -> float:
        """Return the seconds of the median request and of the median commit, added."""
        return statistics.median(self.requests) + statistics.median(self.commits)


@dataclass(frozen=True, slots=True)
class Masked:
    """Cohorts with secure aggregation, of one dimension.

    cpu   CPU seconds of a client, fleets and aggregator together, in the turn with the least.
    rate  clients a second, in the fastest turn.
    """

    clients: int
    dimension: int
    cpu: float
    rate: float


def masked_cohorts(clients: int, turns: int, cohorts: int) -> list[Masked]:
    """Measure D = 1 and D = DIMENSION in turns, over one aggregator and the same fleets, and return both."""
    p = measure_primitives()
    best = {dimension: Masked(clients, dimension, math.inf, 0.0) for dimension in (1, DIMENSION)}
    with party("aggregator") as s, ProcessPoolExecutor(FLEETS, multiprocessing.get_context("forkserver")) as fleets:
        for warm in [fleets.submit(warm_up) for _ in range(FLEETS)]:
            warm.result()
        bench = Bench(s, fleets, clients * cohorts)
        for _ in range(turns):
            for dimension, before in best.items():
                began = time.perf_counter()
                one = bench.measure(clients, dimension, 0, p)
                rate = clients * (one.cohorts + 1) / (time.perf_counter() - began)  # one more is played to warm up
                cpu = one.fleet + one.aggregator
                best[dimension] = replace(before, cpu=min(cpu, before.cpu), rate=max(rate, before.rate))
    return list(best.values())


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="of one client each")
    parser.add_argument("--turns", type=int, default=3, help="of cohorts at D = 1 and D = 20")
    asked = parser.parse_args()
    rounds = one_client_a_round(40 if asked.quick else asked.rounds)
    own = rounds.figures
    columns = ("rounds", "a second", "report to next, ms", "p95, ms", "bare, ms", "next / bare", "round / bare")
    times = (1000 * rounds.after, 1000 * rounds.after_p95, 1000 * rounds.bare)
    cells = (rounds.rounds, 1 / rounds.seconds, *times, own["next_ratio"], own["ratio"])
    deliver(f"One client a round; limits {MOST_NEXT:g} and {MOST_ROUND:g} times bare", columns, [cells])
    deliver("CPU ms a round", [*rounds.cpu], [[1000 * seconds for seconds in rounds.cpu.values()]])
    masked = masked_cohorts(*((QUICK_COHORT, 1, 1) if asked.quick else (COHORT, asked.turns, 5)))
    ratio = masked[1].cpu / masked[0].cpu
    deliver(
        "Cohorts with secure aggregation",
        ("B", "D", "CPU ms a client", "clients a second"),
        [(one.clients, one.dimension, 1000 * one.cpu, one.rate) for one in masked],
    )
    print(f"CPU at D = {DIMENSION} to D = 1: {ratio:.2f}, limit {MOST_MASKED}")
    cohorts = [asdict(one) | {"ratio": one.cpu / masked[0].cpu, "limit": MOST_MASKED} for one in masked]
    write(asked.json, {"rounds": [own], "cohorts": cohorts})


if __name__ == "__main__":
    main()

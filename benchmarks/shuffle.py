"""Sealed reports per second through fleets, shuffler and server over HTTP, against seal + open alone.

    python -m benchmarks.shuffle [--quick] [--json FILE] [--clients N] [--batch B] [--runs R] [--mechanism NAME]

The limit is the number of reports that one core seals and opens in a second, measured in the same run. `CPU` is the
time of all processes for one report, the fleets' start included, as a multiple of seal + open.
"""

import os
import statistics
from dataclasses import asdict, dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.meter import deliver, options, write
from benchmarks.secagg import best
from benchmarks.whole_run import Gauge, gauge, run_file
from distrust.common.modular import packed_size
from distrust.common.protocol.channels.sealed import REPORT_ID, Sealed
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.messages.cohort import Cohort

MODULUS = 1_000_003


@dataclass(frozen=True, slots=True)
class Limit:
    """CPU seconds to seal one record, and to open it: the best of nine batches."""

    seal: float
    open: float

    @property
    def rate(self) -> float:
        """Return the reports that one core could seal and open in a second."""
        return 1 / (self.seal + self.open)


def measure_limit() -> Limit:
    key = X25519PrivateKey.generate()
    size = packed_size(MODULUS, 1)
    channel = Sealed(size=size, server_key=key.public_key().public_bytes_raw())
    names = {"run": "benchmark", "round": 1, "cohort": "c", "clients": 2, "minimum": 2, "stage_seconds": 1.0}
    cohort = Cohort(**names, run_digest=bytes(32), ticket_key=bytes(32), terms="{}", channel=channel)  # type: ignore[arg-type]
    payload = os.urandom(size)
    report_id = os.urandom(REPORT_ID)
    report = seal(channel.server_key, cohort, report_id, payload)
    return Limit(
        best(lambda: seal(channel.server_key, cohort, report_id, payload), size=200),
        best(lambda: open_record(key, cohort, report), size=200),
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=57_344)
    parser.add_argument("--batch", type=int, default=12, help="cohorts have 2^B clients")
    parser.add_argument("--runs", type=int, default=3, help="the median of so many is told")
    parser.add_argument(
        "--mechanism", default="local-laplace-discrete", help="shuffled-laplace: with receipts, and fewer --clients"
    )
    arguments = parser.parse_args()
    clients, batch, runs = (64, 5, 1) if arguments.quick else (arguments.clients, arguments.batch, arguments.runs)
    rows = [_one(arguments.mechanism, clients, batch) for _ in range(runs)]
    columns = ("reports", "seconds", "a second", "seal µs", "open µs", "limit", "share of limit", "CPU, ratio")
    deliver(
        f"Sealed reports of {arguments.mechanism} through shuffler and server", columns, [_cells(*row) for row in rows]
    )
    middle = {name: statistics.median(_figures(*row)[name] for row in rows) for name in ("share", "cpu_ratio")}
    print(", ".join(f"median {name} {value:.2f}" for name, value in middle.items()))
    write(arguments.json, {"median": middle, "runs": [_figures(*row) | asdict(row[1]) for row in rows]})


def _one(mechanism: str, clients: int, batch: int) -> tuple[Limit, Gauge]:
    """Return a run and its own limit, because the machine's clock rate may change between runs."""
    file = run_file(mechanism, batch=batch, clients=clients)
    return measure_limit(), gauge(file)


def _figures(limit: Limit, run: Gauge) -> dict[str, float]:
    rate = run.clients / run.seconds
    ratio = sum(run.cpu.values()) / run.clients * limit.rate
    return {"seal": limit.seal, "open": limit.open, "rate": rate, "share": rate / limit.rate, "cpu_ratio": ratio}


def _cells(limit: Limit, run: Gauge) -> tuple[object, ...]:
    own = _figures(limit, run)
    rate, seal, open_ = int(own["rate"]), limit.seal * 1e6, limit.open * 1e6
    return run.clients, run.seconds, rate, seal, open_, int(limit.rate), own["share"], own["cpu_ratio"]


if __name__ == "__main__":
    main()

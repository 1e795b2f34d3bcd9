"""Runs in one process on one core: T clients, K = 10 arms, every mechanism.

    python -m benchmarks.simulate [--quick] [--json FILE] [--horizon T] [--runs R]

Start Python with OPENBLAS_NUM_THREADS=1 to keep it on one core. The ratio is CPU to that of drawing the rewards alone,
in the same run.
"""

import statistics
from dataclasses import asdict, dataclass
from time import process_time

from benchmarks.meter import deliver, options, write
from lab import in_process
from lab.run_file import RunFile, parse

ARMS = 10
MECHANISMS = (
    "identity",
    "distributed-polya",
    "distributed-skellam",
    "shuffled-binomial",
    "central-laplace-discrete",
    "local-laplace-discrete",
)


@dataclass(frozen=True, slots=True)
class Result:
    """CPU seconds of a whole run, median; `rewards` of the same run without any privacy."""

    mechanism: str
    horizon: int
    seconds: float
    rewards: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.rewards


def run_file(mechanism: str, horizon: int) -> RunFile:
    """The easy Gaussian world, as the papers simulate it."""
    delta = ', delta = 1e-6, calibration = "paper"' if mechanism == "shuffled-binomial" else ""
    spec = "" if mechanism == "identity" else f", epsilon = 1.0{delta}"
    return parse(
        f"""
        run = "simulate"
        horizon = {horizon}
        mechanism = {{name = "{mechanism}"{spec}}}
        environment = {{name = "gaussian-easy", arms = {ARMS}, seed = 1}}
        """
    )


def measure(mechanism: str, horizon: int, runs: int) -> float:
    """Median CPU seconds of `runs` runs."""
    file = run_file(mechanism, horizon)
    return statistics.median(_seconds(file) for _ in range(runs))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--horizon", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    horizon, runs = (2000, 1) if asked.quick else (asked.horizon, asked.runs)
    _seconds(run_file("identity", 2000))  # imports and caches
    seconds = {name: measure(name, horizon, runs) for name in MECHANISMS}
    results = [Result(name, horizon, spent, seconds["identity"]) for name, spent in seconds.items()]
    rows = [(r.mechanism, r.horizon, r.seconds, r.ratio) for r in results]
    deliver(f"In process, K = {ARMS}", ("mechanism", "T", "CPU s", "to identity"), rows)
    write(asked.json, {"results": [asdict(r) | {"ratio": r.ratio} for r in results]})


def _seconds(file: RunFile) -> float:
    start = process_time()
    in_process.run(file)
    return process_time() - start


if __name__ == "__main__":
    main()

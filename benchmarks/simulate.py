"""CPU of runs in one process on one core: T clients, K = 10 arms, every mechanism, both Gaussian worlds of the papers.

    python -m benchmarks.simulate [--quick] [--json FILE] [--horizon T] [--runs R]

The figures are CPU of all threads. `first` calibrates its mechanisms. `again`, a median, finds their laws in a cache,
as the later runs of a sweep do. The ratio is `again` to a run of the same horizon without any privacy. The last batch
is not played when the horizon ends it, so `played` is less than T.
"""

import statistics
from dataclasses import asdict, dataclass
from time import process_time

from benchmarks.meter import deliver, options, write
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse

ARMS = 10
MECHANISMS = (
    "identity",
    "distributed-polya",
    "distributed-skellam",
    "shuffled-binomial",
    "central-laplace-discrete",
    "local-laplace-discrete",
)


WORLDS = ("gaussian-easy", "gaussian-hard")


@dataclass(frozen=True, slots=True)
class Result:
    """CPU seconds of a whole run; `identity`: those of `again` for the same world without any privacy."""

    world: str
    mechanism: str
    played: int
    first: float
    again: float
    identity: float

    @property
    def ratio(self) -> float:
        return self.again / self.identity


def run_file(world: str, mechanism: str, horizon: int) -> RunFile:
    """Return the run file of a mechanism in one of the Gaussian worlds, as the papers simulate them."""
    delta = ', delta = 1e-6, calibration = "paper"' if mechanism == "shuffled-binomial" else ""
    spec = "" if mechanism == "identity" else f", epsilon = 1.0{delta}"
    return parse(
        f"""
        run = "simulate"
        horizon = {horizon}
        mechanism = {{name = "{mechanism}"{spec}}}
        environment = {{name = "{world}", arms = {ARMS}, seed = 1}}
        """
    )


def measure(world: str, horizon: int, runs: int) -> list[Result]:
    """Measure every mechanism in one world."""
    results: list[Result] = []
    for name in MECHANISMS:
        file = run_file(world, name, horizon)
        first, played = _run(file)
        again = statistics.median(_run(file)[0] for _ in range(runs))
        results.append(Result(world, name, played, first, again, results[0].again if results else again))
    return results


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--horizon", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    horizon, runs = (2000, 1) if arguments.quick else (arguments.horizon, arguments.runs)
    results = [result for world in WORLDS for result in measure(world, horizon, runs)]
    rows = [(r.world, r.mechanism, r.played, r.first, r.again, r.ratio) for r in results]
    columns = ("world", "mechanism", "played", "first, CPU s", "again, CPU s", "again to identity")
    deliver(f"In process, T = {horizon}, K = {ARMS}", columns, rows)
    write(arguments.json, {"horizon": horizon, "results": [asdict(r) | {"ratio": r.ratio} for r in results]})


def _run(file: RunFile) -> tuple[float, int]:
    """Return the CPU seconds of a run, and the number of clients whose cohorts were played."""
    start = process_time()
    result = in_process.run(file)
    return process_time() - start, sum(result.pulls) - result.unfinished


if __name__ == "__main__":
    main()

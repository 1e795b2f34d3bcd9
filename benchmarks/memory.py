"""Peak memory of every process while it serves many clients: with sealed reports, and with masked inputs.

    python -m benchmarks.memory [--quick] [--json FILE] [--clients N] [--batch B ...] [--mechanisms NAME ...]

The table has `VmHWM` of the services before the run and after it, and their ratio. Cohorts of 2^B clients follow one
another as the learner's window admits them. Two fleets play, and the table has the peak of the larger one.
"""

from dataclasses import asdict

from benchmarks.meter import deliver, options, write
from benchmarks.whole_run import Gauge, gauge, run_file
from distrust.lab.stack.stack import NAMES

MIB = 2**20
MECHANISMS = {"local-laplace-discrete": "shuffler", "distributed-polya": "aggregator"}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[10])
    parser.add_argument("--mechanisms", nargs="+", default=list(MECHANISMS))
    arguments = parser.parse_args()
    clients, batches = (128, [6]) if arguments.quick else (arguments.clients, arguments.batch)
    names = arguments.mechanisms[-1:] if arguments.quick else arguments.mechanisms
    cases = [(name, batch) for name in names for batch in batches]
    runs = [(name, batch, gauge(run_file(name, batch=batch, clients=clients))) for name, batch in cases]
    columns = ("mechanism", "clients", "cohort", "process", "start MiB", "peak MiB", "ratio")
    deliver("Peak memory", columns, [row for run in runs for row in _rows(*run)])
    figures = [{"mechanism": name, "cohort": 2**batch, **asdict(run)} for name, batch, run in runs]
    write(arguments.json, {"runs": figures})


def _rows(mechanism: str, batch: int, run: Gauge) -> list[tuple[object, ...]]:
    case = (mechanism, run.clients, 2**batch)
    services = [name for name in NAMES if name not in MECHANISMS.values() or name == MECHANISMS.get(mechanism, name)]
    rows: list[tuple[object, ...]] = [
        (*case, name, run.start[name] // MIB, run.peak[name] // MIB, run.peak[name] / run.start[name])
        for name in services
    ]
    return [*rows, (*case, "fleet", "", run.fleet // MIB, "")]


if __name__ == "__main__":
    main()

"""CPU of every policy in one process on one core, at the papers' horizon: T = 10⁶, and 10⁷ for the almost free ones.

    python -m benchmarks.policies [--quick] [--json FILE] [--horizon T] [--runs R]

The figures are CPU of all threads. `first` calibrates its mechanisms. `again`, a median, finds their laws in a cache,
as the later runs of a sweep do. The limit is the CPU that numpy takes to draw T normal numbers, the rewards alone. It
is measured here, once for each horizon. The sizes are the papers': 10 arms (MAB), 1000 actions in 20 dimensions
(DLB), 10 or 1000 on the circle (FREE). AdaP-UCB and Thompson sampling have 100 arms, too.

Contextual policies follow, all repetitions of a figure in lock step: 50 of T = 20,000 (CTX), 10 of a tenth of T = 10⁵
(GLB). Their limit is the CPU that numpy takes here for scores and inverses alone: each round R products of contexts and
a matrix, their lengths, and R inverses. The aim is 20 s of CPU (CTX), 10 µs a round and repetition (GLB).
"""

import statistics
from dataclasses import asdict, dataclass
from functools import lru_cache
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.meter import deliver, options, write
from distrust.common.randomness import SystemStream, generator
from distrust.common.specs.contextual import ContextualPolicySpec
from distrust.lab.play import in_process
from distrust.lab.play.lock_step import play_together
from distrust.lab.play.run_file import RunFile, parse

MAB = '{name = "gaussian-easy", arms = 10, seed = 1}'
MANY = '{name = "gaussian-easy", arms = 100, seed = 1}'
DLB = '{name = "linear-distributed", arms = 1000, dimension = 20, seed = 1}'
FREE = '{name = "linear-sphere", arms = 10, dimension = 2, seed = 1}'
FREE_MANY = '{name = "linear-sphere", arms = 1000, dimension = 2, seed = 1}'
PURE, APPROXIMATE = ", epsilon = 1.0", ", epsilon = 1.0, delta = 1e-6"


@dataclass(frozen=True, slots=True)
class Case:
    """One run in a run file's words; `longer`: its horizon in units of the usual one."""

    label: str
    policy: str
    mechanism: str
    world: str
    longer: int = 1


ELIMINATION, SIDE_BY_SIDE, ONE_EACH = 'name = "successive-elimination"', 'name = "dp-dpe"', 'name = "dp-pe"'
CENTRAL, LOCAL = 'name = "almost-free", model = "central"', 'name = "almost-free", model = "local"'
SHUFFLED, ALL = 'name = "almost-free", model = "shuffled"', ", core_set = false"

CASES = (
    Case("successive elimination", ELIMINATION, '"identity"', MAB),
    Case("successive elimination", ELIMINATION, f'"distributed-polya"{PURE}', MAB),
    Case("successive elimination", ELIMINATION, f'"local-laplace-discrete"{PURE}', MAB),
    Case("DP-SE", 'name = "dp-se"', f'"central-laplace"{PURE}', MAB),
    Case("VB-SDP-AE", 'name = "vb-sdp-ae"', f'"shuffled-binomial"{APPROXIMATE}', MAB),
    Case("AdaP-UCB", 'name = "adap-ucb"', f'"distributed-polya"{PURE}', MAB),
    Case("AdaP-UCB", 'name = "adap-ucb"', f'"distributed-polya"{PURE}', MANY),
    Case("DP-UCB", 'name = "dp-ucb", batch = 100', f'"tree", batches = 10000{APPROXIMATE}', MAB),
    Case("Thompson sampling", 'name = "thompson"', f'"distributed-polya"{PURE}', MAB),
    Case("Thompson sampling", 'name = "thompson"', f'"distributed-polya"{PURE}', MANY),
    Case("UCB1", 'name = "ucb1"', '"identity", via = "shuffler"', MAB),
    Case("DPE", SIDE_BY_SIDE, '"identity"', DLB),
    Case("DPE-FixedU", f"{SIDE_BY_SIDE}, clients = 1400", '"identity"', DLB),
    Case("CDP-DPE", SIDE_BY_SIDE, f'"central-gaussian"{APPROXIMATE}', DLB),
    Case("LDP-DPE", SIDE_BY_SIDE, f'"local-gaussian"{APPROXIMATE}', DLB),
    Case("SDP-DPE", SIDE_BY_SIDE, f'"shuffled-binomial"{APPROXIMATE}', DLB),
    Case("DP-DPE", SIDE_BY_SIDE, f'"distributed-polya"{PURE}', DLB),
    Case("PE", 'name = "phased-elimination"', '"identity"', DLB),
    Case("CDP-PE", ONE_EACH, f'"central-gaussian"{APPROXIMATE}', DLB),
    Case("LDP-PE", ONE_EACH, f'"local-gaussian"{APPROXIMATE}', DLB),
    Case("SDP-PE", ONE_EACH, f'"shuffled-binomial"{APPROXIMATE}', DLB),
    Case("DP-PE", ONE_EACH, f'"distributed-polya"{PURE}', DLB),
    Case("almost free", CENTRAL, f'"central-laplace"{PURE}', FREE, 10),
    Case("almost free", LOCAL, f'"local-laplace"{PURE}', FREE, 10),
    Case("almost free", SHUFFLED, f'"shuffled-laplace"{APPROXIMATE}', FREE, 10),
    Case("almost free", CENTRAL, f'"central-laplace"{PURE}', FREE_MANY, 10),
    Case("almost free, all actions", CENTRAL + ALL, f'"central-laplace"{PURE}', FREE_MANY, 10),
    Case("almost free, all actions", LOCAL + ALL, f'"local-laplace"{PURE}', FREE_MANY, 10),
    Case("almost free, all actions", SHUFFLED + ALL, f'"shuffled-laplace"{APPROXIMATE}', FREE_MANY, 10),
)
LONG = 20.0  # CPU seconds; a longer run is repeated only once


@dataclass(frozen=True, slots=True)
class Result:
    """CPU seconds of a whole run, and of the `horizon` normal numbers that are its limit."""

    policy: str
    mechanism: str
    arms: int
    horizon: int
    rounds: int
    first: float
    again: float
    limit: float

    @property
    def ratio(self) -> float:
        return self.again / self.limit


def run_file(case: Case, horizon: int) -> RunFile:
    """Return the run file of a case. All clients answer."""
    return parse(
        f"""
        run = "policies"
        horizon = {horizon * case.longer}
        policy = {{{case.policy}}}
        mechanism = {{name = {case.mechanism}}}
        environment = {case.world}
        """
    )


@lru_cache
def limit(horizon: int) -> float:
    """Return the CPU seconds of drawing `horizon` normal numbers, a million at a time: the best of three."""
    rng = generator(SystemStream())
    pieces = [1_000_000] * (horizon // 1_000_000) + [horizon % 1_000_000]
    found = []
    for _ in range(3):
        start = process_time()
        for piece in pieces:
            rng.normal(size=piece)
        found.append(process_time() - start)
    return max(min(found), 1e-9)


def measure(case: Case, horizon: int, runs: int) -> Result:
    """Play one case a first time and `runs` times again (a long one once), and return its CPU seconds."""
    file = run_file(case, horizon)
    first, rounds = _run(file)
    again = statistics.median(_run(file)[0] for _ in range(1 if first > LONG else runs))
    config = file.config
    least = limit(config.horizon)
    return Result(case.label, config.mechanism.name, config.arms, config.horizon, rounds, first, again, least)


def _run(file: RunFile) -> tuple[float, int]:
    """Return CPU seconds and rounds of a run. Raises RuntimeError if it ends before its horizon."""
    start = process_time()
    result = in_process.run(file)
    if sum(result.pulls) != result.horizon:
        raise RuntimeError(f"{result.policy} with {result.mechanism} stopped at {sum(result.pulls)} pulls")
    return process_time() - start, len(result.rounds)


@dataclass(frozen=True, slots=True)
class Together:
    """A contextual series: its repetitions are played in lock step.

    aim    CPU seconds at the full horizon.
    sizes  arms and features.
    """

    label: str
    policy: str
    mechanism: str
    world: str
    sizes: tuple[int, int]
    horizon: int
    repetitions: int
    aim: float


CTX = ('name = "contextual-synthetic"', (100, 5), 20_000, 50, 20.0)
GLB = ('name = "glm-sphere"', (10, 2), 10_000, 10, 1.0)
MULTI = ('name = "glm-sphere", parameters = "multi"', (10, 2), 10_000, 10, 1.0)
HALF = ", epsilon = 1.0, delta = 0.1"
ONE, TWENTY = 'name = "linucb", batch = 1', 'name = "linucb", batch = 20'

TOGETHER = (
    Together("LinUCB", ONE, '"identity"', *CTX),
    Together("LinUCB-LDP", ONE, f'"local-gaussian"{HALF}', *CTX),
    Together("LinUCB-JDP", ONE, f'"tree", batches = 20000{HALF}', *CTX),
    Together("LinUCB-SDP-Amp", TWENTY, f'"shuffled-gaussian"{HALF}', *CTX),
    Together("LinUCB-SDP-Vec", TWENTY, f'"shuffled-binomial"{HALF}', *CTX),
    Together("LinUCB, aggregator", TWENTY, f'"distributed-discrete-gaussian"{HALF}', *CTX),
    Together("LinUCB, switching rarely", f"{TWENTY}, switch = 0.5", f'"shuffled-gaussian"{HALF}', *CTX),
    Together("SBLB", 'name = "sblb", batch = 20', f'"shuffled-gaussian"{HALF}', *CTX),
    Together("linear Thompson sampling", 'name = "linear-thompson", batch = 20', f'"shuffled-gaussian"{HALF}', *CTX),
    Together("LDP-OLS", 'name = "ldp-ols"', f'"local-gaussian"{HALF}', *GLB),
    Together("LDP-SGD", 'name = "ldp-sgd"', '"local-sphere", epsilon = 1.0', *GLB),
    Together("LDP-UCB", 'name = "ldp-ucb"', f'"local-gaussian"{HALF}', *GLB),
    Together("LDP-GLOC", 'name = "ldp-gloc"', f'"local-gaussian"{HALF}', *GLB),
    Together("GLOC with Thompson sampling", 'name = "gloc-thompson"', f'"local-gaussian"{HALF}', *GLB),
    Together("LDP-OLS, multi", 'name = "ldp-ols"', f'"local-gaussian"{HALF}', *MULTI),
    Together("LDP-SGD, multi", 'name = "ldp-sgd"', '"local-sphere", epsilon = 1.0', *MULTI),
    Together("LDP-UCB, multi", 'name = "ldp-ucb"', f'"local-gaussian"{HALF}', *MULTI),
    Together("LDP-GLOC, multi", 'name = "ldp-gloc"', f'"local-gaussian"{HALF}', *MULTI),
)


@dataclass(frozen=True, slots=True)
class TogetherResult:
    """CPU seconds of all repetitions, the limit that was measured, and the aim for this horizon."""

    policy: str
    mechanism: str
    batch: int
    horizon: int
    repetitions: int
    cpu: float
    limit: float
    aim: float

    @property
    def each(self) -> float:
        """Return the CPU microseconds of one client in one repetition."""
        return 1e6 * self.cpu / (self.horizon * self.repetitions)

    @property
    def ratio(self) -> float:
        return self.cpu / self.limit


def measure_together(case: Together, horizon: int, repetitions: int) -> TogetherResult:
    """Play the repetitions of one contextual case in lock step, and return their CPU seconds."""
    files = [
        parse(
            f"""
            run = "policies.{repetition}"
            horizon = {horizon}
            policy = {{{case.policy}}}
            mechanism = {{name = {case.mechanism}}}
            environment = {{{case.world}, seed = {repetition}}}
            """
        )
        for repetition in range(repetitions)
    ]
    config = files[0].config
    assert isinstance(config.policy, ContextualPolicySpec)
    batch = config.policy.batch
    start = process_time()
    play_together(files)
    cpu = process_time() - start
    limit = scores_and_inverses(repetitions, *case.sizes) * (horizon // batch)
    aim = case.aim * horizon * repetitions / (case.horizon * case.repetitions)
    return TogetherResult(case.label, config.mechanism.name, batch, horizon, repetitions, cpu, limit, aim)


@lru_cache
def scores_and_inverses(runs: int, arms: int, size: int, rounds: int = 500) -> float:
    """Return the CPU seconds of one round's linear algebra: the best of three."""
    rng = np.random.default_rng(1)
    contexts, matrices = rng.normal(size=(runs, arms, size)), rng.normal(size=(runs, size, size)) + 10 * np.eye(size)
    found = []
    for _ in range(3):
        start = process_time()
        for _ in range(rounds):
            inverses = np.linalg.inv(matrices)
            np.sqrt(np.maximum(np.vecdot(contexts @ inverses, contexts), 0)).argmax(axis=-1)
        found.append((process_time() - start) / rounds)
    return max(min(found), 1e-9)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--horizon", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    horizon, runs = (10_000, 1) if arguments.quick else (arguments.horizon, arguments.runs)
    with threadpool_limits(1):
        results = [measure(case, horizon, runs) for case in (CASES[::8] if arguments.quick else CASES)]
        together = [
            measure_together(case, *((400, 3) if arguments.quick else (case.horizon, case.repetitions)))
            for case in (TOGETHER[1::3] if arguments.quick else TOGETHER)
        ]
    rows = [(r.policy, r.mechanism, r.arms, r.horizon, r.rounds, r.first, r.again, r.ratio) for r in results]
    columns = ("policy", "mechanism", "actions", "T", "rounds", "first, CPU s", "again, CPU s", "again to T normals")
    deliver("Policies in process", columns, rows)
    series = [
        (r.policy, r.mechanism, r.batch, r.horizon, r.repetitions, r.cpu, r.each, r.ratio, r.aim) for r in together
    ]
    titles = ("policy", "mechanism", "B", "T", "runs", "CPU s", "µs a client", "to numpy's algebra", "aim, s")
    deliver("Contextual policies in lock step", titles, series)
    figures = {
        "results": [asdict(result) | {"ratio": result.ratio} for result in results],
        "together": [asdict(one) | {"each": one.each, "ratio": one.ratio} for one in together],
    }
    write(arguments.json, figures)


if __name__ == "__main__":
    main()

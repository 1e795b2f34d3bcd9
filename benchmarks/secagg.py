"""Secure aggregation in process: CPU of a client and of the aggregator, as ratios to the cost of their primitives.

    python -m benchmarks.secagg [--quick] [--json FILE] [--clients 50 100 ...] [--dimensions 1 1000] [--dropouts 0 0.1]

The primitives are measured in the same run, so the ratios compare across machines. A ratio below 1 is possible: the
model counts t² field products for each secret that is rebuilt, and t for each share, and the code needs fewer of both.
The model counts key pairs, agreements, boxes, shares of two secrets, masks and the rebuilding of secrets. It leaves out
the third polynomial, confirmation, key hashes, statements and checks of the graph, which raise the ratio.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from time import process_time

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from benchmarks.meter import deliver, options, write
from distrust.aggregator import protocol
from distrust.common.modular import Vector
from distrust.common.protocol.crypto.context import masking
from distrust.common.protocol.crypto.graph import Roster
from distrust.common.protocol.crypto.keys import key_hash
from distrust.common.protocol.crypto.share import PRIME
from distrust.common.protocol.messages.cohort import Cohort
from distrust.lab.secagg_simulation import Simulation, enrol, make_cohort

MODULUS = 1_000_003
CLIENTS = (50, 100, 400, 1000, 5000)
LEAST_RUNS = 5
LIMIT_AT, LIMIT = 1000, 1.05
"""The limit of the client's ratio at n = 1000: 5 % for what the model leaves out. The run says if it is above."""


@dataclass(frozen=True, slots=True)
class Primitives:
    """Seconds of CPU for one operation on this machine."""

    generate: float  # X25519 key pair
    exchange: float  # X25519 agreement
    hkdf: float  # 32 bytes, SHA-256
    close: float  # ChaCha20-Poly1305, key set-up and 34 bytes
    open: float
    stream: float  # AES-256-CTR, key set-up and 8 bytes
    coordinate: float  # 8 bytes more of a keystream
    product: float  # of two field elements, reduced
    load: float  # a public key from its bytes


def measure_primitives() -> Primitives:
    """Measure each operation, as the best of nine batches."""
    key, info, payload, nonce = os.urandom(32), os.urandom(120), os.urandom(34), bytes(12)
    own, peer = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key()
    box = ChaCha20Poly1305(key).encrypt(nonce, payload, info)
    a, b = (int.from_bytes(os.urandom(16), "big") for _ in range(2))
    cipher, block = Cipher(AES256(key), CTR(bytes(16))).encryptor(), bytes(80_000)
    return Primitives(
        generate=best(X25519PrivateKey.generate),
        exchange=best(lambda: own.exchange(peer)),
        hkdf=best(lambda: HKDF(SHA256(), 32, None, info).derive(key)),
        close=best(lambda: ChaCha20Poly1305(key).encrypt(nonce, payload, info)),
        open=best(lambda: ChaCha20Poly1305(key).decrypt(nonce, box, info)),
        stream=best(lambda: Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(8))),
        coordinate=best(lambda: cipher.update(block)) / 10_000,
        product=best(lambda: a * b % PRIME),
        load=best(lambda: X25519PublicKey.from_public_bytes(key)),
    )


def fastest(runs: list[Primitives]) -> Primitives:
    """Return the best time of each operation over measurements before, between and after the cohorts."""
    return Primitives(**{name: min(getattr(run, name) for run in runs) for name in asdict(runs[0])})


def client_model(p: Primitives, k: int, t: int, dimension: int) -> float:
    """Return the seconds of one client's primitives: 2 key pairs, k neighbours, k + 1 masks, shares of two secrets."""
    pairs = 2 * p.generate + k * (2 * p.exchange + 2 * p.hkdf + p.close + p.open)
    masks = (k + 1) * (p.stream + p.coordinate * dimension) + p.hkdf
    return pairs + masks + 2 * p.product * (k + 1) * t


def aggregator_model(p: Primitives, k: int, t: int, dimension: int, *, survivors: int, dropouts: int) -> float:
    """Return the seconds of the aggregator's primitives for a cohort.

    These are two keys and a secret of each client that shared, a mask a survivor, a key pair and k masks a lost client.
    """
    mask = p.stream + p.coordinate * dimension + p.hkdf
    rebuilt = (survivors + dropouts) * (2 * p.load + p.product * t * t)
    return rebuilt + survivors * mask + dropouts * (p.generate + p.hkdf + k * (p.exchange + mask))


@dataclass(frozen=True, slots=True)
class Result:
    """One cohort. Seconds of CPU; `client` for a client that answers every stage, `aggregator` for the whole cohort."""

    clients: int
    dropouts: int
    dimension: int
    k: int
    t: int
    client: float
    aggregator: float
    client_model: float = 0.0
    aggregator_model: float = 0.0

    def rated(self, p: Primitives) -> "Result":
        """Return the result with the cost of the primitives alone, from their measured prices."""
        survivors, size = self.clients - self.dropouts, (self.k, self.t, self.dimension)
        others = aggregator_model(p, *size, survivors=survivors, dropouts=self.dropouts)
        return replace(self, client_model=client_model(p, *size), aggregator_model=others)

    @property
    def client_ratio(self) -> float:
        return self.client / self.client_model

    @property
    def aggregator_ratio(self) -> float:
        return self.aggregator / self.aggregator_model


def measure(n: int, dimension: int, dropout: float) -> Result:
    """Play one cohort of n clients, of which ⌊dropout·n⌋ vanish between their shares and their vectors."""
    cohort = make_cohort(n, MODULUS, dimension)
    rng = np.random.default_rng(n)
    vectors = rng.integers(0, MODULUS, (n, dimension)).astype(np.uint64)
    stay = np.sort(rng.permutation(n)[int(dropout * n) :]).tolist()
    client, simulation = _clients_keys_and_shares(cohort)
    aggregator = _cpu(lambda: _route(simulation))
    client += _cpu(lambda: _confirm(simulation)) / n
    aggregator += _cpu(lambda: _judge(simulation))
    client += _cpu(lambda: _masked(simulation, stay, vectors)) / len(stay)
    aggregator += _cpu(lambda: _check_masked(simulation))
    client += _cpu(lambda: _unmask(simulation, stay)) / len(stay)
    total: list[np.uint64] = []
    aggregator += _cpu(lambda: total.extend(_recover(simulation)))
    if total != list(vectors[stay].sum(axis=0) % np.uint64(MODULUS)):
        raise SystemExit("the sum is wrong: these figures mean nothing")
    channel, lost = masking(cohort), n - len(stay)
    k, t = channel.neighbours, channel.threshold
    return Result(n, lost, dimension, k, t, client, aggregator)


def measure_best(n: int, dimension: int, dropout: float, primitives: list[Primitives]) -> Result:
    """Return the least CPU of several runs, for the client and for the aggregator.

    Append a measurement of the primitives after each of the first runs, because the machine's speed changes.
    """
    runs = []
    for number in range(max(LEAST_RUNS if n <= LIMIT_AT else 1, 1000 // n)):
        runs.append(measure(n, dimension, dropout))
        if number < LEAST_RUNS:
            primitives.append(measure_primitives())
    return replace(runs[0], client=min(r.client for r in runs), aggregator=min(r.aggregator for r in runs))


def _clients_keys_and_shares(cohort: Cohort) -> tuple[float, Simulation]:
    """Return the seconds a client, and the simulation after stage `shares`. A fleet reads the roster once for all."""
    n, made = cohort.clients, []
    seconds = _cpu(lambda: made.append(enrol(cohort))) / n
    simulation = made[0]
    seconds += _cpu(lambda: simulation.keys.update({s: c.keys() for s, c in simulation.clients.items()})) / n
    keys = b"".join(simulation.keys[s] for s in range(n))
    rosters: list[Roster] = []
    seconds += _cpu(lambda: rosters.append(Roster(cohort, simulation.bitmap(range(n)), keys))) / n
    roster = rosters[0]
    simulation.published = {s: key_hash(body) for s, body in simulation.keys.items()}
    seconds += _cpu(lambda: _share(simulation, roster)) / n
    return seconds, simulation


def _route(simulation: Simulation) -> None:
    for body in simulation.keys.values():
        protocol.check_keys(body)
    roster = protocol.build_roster(simulation.cohort, simulation.keys)
    for slot, body in simulation.shares.items():
        protocol.check_shares(roster, slot, body)
    simulation.settle(roster)


def _share(simulation: Simulation, roster: Roster) -> None:
    for slot, client in simulation.clients.items():
        simulation.shares[slot] = client.shares(roster, simulation.published)


def _confirm(simulation: Simulation) -> None:
    shared, statement = simulation.bitmap(simulation.shared), simulation.statements["confirm"]
    for slot, client in simulation.clients.items():
        shown = (shared, simulation.challenge, simulation.inboxes[slot], statement)
        simulation.confirmed[slot] = client.confirm(*shown)


def _judge(simulation: Simulation) -> None:
    for slot, body in simulation.confirmed.items():
        protocol.check_confirm(simulation.sharing, slot, body)
    simulation.judge()


def _masked(simulation: Simulation, slots: list[int], vectors: Vector) -> None:
    members, statement = simulation.bitmap(simulation.members), simulation.statements["masked"]
    for slot in slots:
        simulation.masked[slot] = simulation.clients[slot].masked(vectors[slot], members, statement)


def _check_masked(simulation: Simulation) -> None:
    for body in simulation.masked.values():
        protocol.check_masked(simulation.cohort, body)
    simulation.freeze()


def _unmask(simulation: Simulation, slots: list[int]) -> None:
    survivors, statement = simulation.bitmap(slots), simulation.statements["unmask"]
    for slot in slots:
        simulation.answers[slot] = simulation.clients[slot].unmask(survivors, statement)


def _recover(simulation: Simulation) -> Vector:
    for slot, body in simulation.answers.items():
        protocol.check_unmask(simulation.verdict.sharing, slot, body)
    return simulation.recover()


def _cpu(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


def best(work: Callable[[], object], batches: int = 9, size: int = 500) -> float:
    """Return the CPU seconds of one call: the mean of the best batch."""
    return min(_cpu(lambda: [work() for _ in range(size)]) for _ in range(batches)) / size


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--dimensions", type=int, nargs="+", default=(1, 1000))
    parser.add_argument("--dropouts", type=float, nargs="+", default=(0.0, 0.1))
    arguments = parser.parse_args()
    primitives = [measure_primitives()]
    if arguments.quick:
        found = [measure(50, 1, 0.1)]
    else:
        sizes = [(n, d, r) for n in arguments.clients for d in arguments.dimensions for r in arguments.dropouts]
        found = [measure_best(*size, primitives) for size in sizes]
    p = fastest(primitives)
    results = [result.rated(p) for result in found]
    print(", ".join(f"{name} {seconds * 1e6:.3g} µs" for name, seconds in asdict(p).items()))
    columns = ("n", "lost", "D", "k", "t", "client ms", "ratio", "aggregator ms", "ratio")
    rows = [
        (
            *(r.clients, r.dropouts, r.dimension, r.k, r.t),
            *(r.client * 1e3, r.client_ratio, r.aggregator * 1e3, r.aggregator_ratio),
        )
        for r in results
    ]
    deliver("CPU, in process: of one client, and of the aggregator for the whole cohort", columns, rows)
    for r in (r for r in results if r.clients == LIMIT_AT):
        verdict = "within" if r.client_ratio <= LIMIT else "ABOVE"
        print(
            f"client ratio at n = {LIMIT_AT}, D = {r.dimension}: {r.client_ratio:.3f}, {verdict} the limit of {LIMIT}"
        )
    own = [asdict(r) | {"client_ratio": r.client_ratio, "aggregator_ratio": r.aggregator_ratio} for r in results]
    write(arguments.json, {"primitives": asdict(p), "results": own})


if __name__ == "__main__":
    main()

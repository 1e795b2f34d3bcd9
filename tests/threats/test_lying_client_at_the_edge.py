"""Tests of a client that lies to bring a central mechanism's sum to the end of the window that sums are decoded into.

Both drivers are played: one process, and the three services. `tests/oracles/test_central_ring.py` bounds the ε of what
these releases tell. Here the published numbers are computed from the same noise, added modulo m before any decoding.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.client.checks.requirements import PrivacyRequirements
from distrust.common.dp.mechanisms.central.prefix_factorization import PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Tree
from distrust.common.dp.mechanisms.families.grid import GridMechanism
from distrust.common.modular import sum_rows
from distrust.common.randomness import Stream, UnsafeSeededStream
from distrust.lab.play import in_process
from distrust.lab.play.run_file import RunFile, parse
from distrust.server.learner.rounds import LostCohort, ReleasedCohort
from tests.support.recording import record_run

N, LIAR = 32, 3
SEED = 13
SHOWN = 1e-5
"""Relative rounding of the number that a refusal shows."""

MECHANISMS = {
    "central-laplace-discrete": "epsilon = 1.0",
    "central-laplace": "epsilon = 1.0",
    "central-laplace, continuous": 'epsilon = 1.0\nnoise = "continuous"\nvia = "shuffler"',
    "central-gaussian": "epsilon = 1.0\ndelta = 1e-5",
    "central-gaussian, continuous": 'epsilon = 1.0\ndelta = 1e-5\nnoise = "continuous"\nvia = "shuffler"',
    "tree": "epsilon = 1.0\ndelta = 1e-5\nbatches = 1",
    "prefix-factorization": "epsilon = 1.0\ndelta = 1e-5\nbatches = 1",
}

BANDIT = f"""
horizon = {2 * N}
[policy]
first_batch = 5
[environment]
name = "gaussian-easy"
arms = 2
seed = 1
"""
CONTEXTUAL = f"""
horizon = {4 * N}
[policy]
name = "linucb"
batch = {N}
[environment]
name = "contextual-synthetic"
arms = 2
dimension = 2
seed = 1
"""


def file(world: str, mechanism: str, more: str = "") -> RunFile:
    """Return a seeded run of cohorts of N clients, of which none leaves."""
    name, more = mechanism.partition(",")[0], more or MECHANISMS[mechanism]
    return parse(
        f'run = "run"\n{world}\n[mechanism]\nname = "{name}"\n{more}\n[intermediary]\ndropout = 0.0\nminimum = 20\n'
        f"[unsafe]\nnoise_seed = {SEED}"
    )


def bring(tap: pytest.MonkeyPatch, edge: Callable[[GridMechanism], int]) -> None:
    """Make one client of each cohort send the residue that brings every coordinate of the sum to `edge`."""
    honest = GridMechanism.randomize

    def randomize(self: GridMechanism, vectors: NDArray[np.float64], stream: Stream) -> NDArray[np.uint64]:
        rows = honest(self, vectors, stream)
        others = sum_rows(np.delete(rows, LIAR, axis=0), self.modulus)
        rows[LIAR] = np.mod(edge(self) - others.astype(np.int64), self.modulus).astype(np.uint64)
        return rows

    tap.setattr(GridMechanism, "randomize", randomize)


def published(driver: str, played: RunFile, folder: Path, tap: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Return the sums that the run publishes, by cohort, or the number that the refusal of an impossible sum shows."""
    if driver == "in-process":
        cohorts = (cohort for round_ in in_process.run(played).rounds for cohort in round_.cohorts)
        return {one.cohort: one.estimate for one in cohorts if one.estimate is not None}
    unsafe = PrivacyRequirements(allow_unsafe=True)
    config, world = played.config, played.world()
    recorded = record_run(folder, [config], 0.0, tap, requirements=unsafe, world=world, noise_seed=SEED)
    ends = recorded.outcomes()
    return {end.cohort: end.sum if isinstance(end, ReleasedCohort) else _refused(end) for end in ends}


def _refused(lost: LostCohort) -> list[float]:
    named = re.search(r"refused: impossible sum: coordinate 0 is (\S+), and", lost.reason)
    assert named is not None, lost.reason
    return [float(named[1])]


def analyzer(cohort: str) -> Stream:
    return UnsafeSeededStream(SEED, "run", cohort, "analyzer")


def near(values: NDArray[Any], middle: Any, modulus: int) -> NDArray[Any]:
    """Return the numbers next to `middle` that equal `values` modulo m: at most m/2 from it."""
    return values - modulus * np.rint((values - middle) / modulus)


def top(mechanism: GridMechanism) -> int:
    return mechanism.window_start(N) + mechanism.modulus - 1


def bottom(mechanism: GridMechanism) -> int:
    return int(mechanism.window_start(N))


def mechanism_of(played: RunFile) -> GridMechanism:
    (first, *_) = in_process.play_learner(played).rounds
    assert isinstance(first.mechanism, GridMechanism)
    return first.mechanism


@pytest.mark.parametrize(("driver", "edge"), [("in-process", top), ("in-process", bottom), ("services", top)])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.few(8)
def test_the_noise_is_in_the_sum_before_it_is_decoded(
    driver: str, mechanism: str, edge: Callable[[GridMechanism], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cohorts. Whether a sum comes out at one end of the window or at the other is decided by the noise.

    A stream has more room than one draw of noise needs, so that the server refuses sums at the ends of its window. What
    the refusal shows is the noisy sum.
    """
    played = file(BANDIT, mechanism)
    own = mechanism_of(played)
    bring(monkeypatch, edge)
    sums = published(driver, played, tmp_path, monkeypatch)
    assert len(sums) == 2
    wrapped = 0
    for cohort, (shown,) in sums.items():
        drawn = own.server_randomness(analyzer(cohort), 1)
        assert drawn is not None
        middle = N * own.precision / 2
        (noisy,) = near(edge(own) + drawn[0], middle, own.modulus)
        assert shown == pytest.approx(noisy * own.step, rel=SHOWN)
        assert abs(noisy - middle) <= own.modulus / 2
        wrapped += abs(noisy - edge(own)) > own.modulus / 2
    assert wrapped == 1  # the two noises have different signs


def nodes_of(tree: Tree, cohorts: list[str], edge: int) -> Iterator[NDArray[np.float64]]:
    """Yield each prefix in grid steps, from the definition: dyadic nodes with the streams' own noise, estimated.

    A node of 2ˡ batches is its own number to the share 2ˡ/(2ˡ⁺¹ - 1), and the sum of its children's estimates else.
    """
    noisy: dict[tuple[int, int], NDArray[Any]] = {}
    best: dict[tuple[int, int], NDArray[Any]] = {}
    for number, cohort in enumerate(cohorts, 1):
        stream, level = analyzer(cohort), 0
        while number % (1 << level) == 0:
            drawn = tree.server_law().sample(stream, tree.dimension)
            first, half = number - (1 << level), (1 << level) // 2
            middle: Any = N * tree.precision / 2 if not level else noisy[first, half] + noisy[first + half, half]
            noisy[first, 1 << level] = near(edge * (1 << level) + drawn, middle, tree.modulus)
            share, below = (1 << level) / ((2 << level) - 1), 0.0
            if level:
                below = best[first, half] + best[first + half, half]
            best[first, 1 << level] = share * noisy[first, 1 << level] + (1 - share) * below
            level += 1
        digits = [level for level in range(number.bit_length()) if number >> level & 1]
        ends = [(number >> level << level, 1 << level) for level in digits]
        yield np.sum([best[end - size, size] for end, size in ends], axis=0)


def largest(mechanism: GridMechanism) -> int:
    """Return the largest sum of honest clients, which the server does not refuse."""
    return N * mechanism.precision


def prefixes_of(mechanism: PrefixFactorization, cohorts: list[str], edge: int) -> Iterator[NDArray[np.float64]]:
    """Yield each prefix in grid steps, from the definition: noise Σ b_i z_(t-i), rounded to steps, in each prefix."""
    own, law = mechanism.factors, mechanism.server_law()
    b = [sum(share * theta**i for share, theta in zip(own.shares, own.factors, strict=True)) for i in range(4)]
    draws: list[NDArray[np.int64]] = []
    before, prefix = np.zeros(mechanism.dimension), np.zeros(mechanism.dimension)
    for cohort in cohorts:
        draws.insert(0, law.draw(analyzer(cohort), mechanism.dimension))
        noise = np.rint(sum(share * one for share, one in zip(b, draws, strict=False)) / law.per_step)
        prefix = prefix + near(edge + noise - before, N * mechanism.precision / 2, mechanism.modulus)
        before = noise
        yield prefix


STREAMS = [
    *((name, "in-process", edge) for name in ("tree", "prefix-factorization") for edge in (top, bottom)),
    ("tree", "services", largest),
    ("prefix-factorization", "services", top),
]


@pytest.mark.parametrize(("name", "driver", "edge"), STREAMS)
def test_each_part_of_a_stream_has_its_noise_before_it_is_decoded(
    name: str, driver: str, edge: Callable[[GridMechanism], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches. A liar brings each of their sums to `edge` in every coordinate; two such sums are beyond m.

    The server refuses sums of a tree's node that are at the end of its window. It refuses none of a factorization, and
    the ring bounds the lie.
    """
    played = file(CONTEXTUAL, name, "epsilon = 1.0\ndelta = 1e-5\nbatches = 4")
    mechanism: Any = mechanism_of(played)
    bring(monkeypatch, edge)
    sums = published(driver, played, tmp_path, monkeypatch)
    prefixes = (nodes_of if isinstance(mechanism, Tree) else prefixes_of)(mechanism, list(sums), edge(mechanism))
    for number, (shown, steps) in enumerate(zip(sums.values(), prefixes, strict=True), 1):
        assert shown == pytest.approx(steps * mechanism.step + number * N * mechanism.low)
    assert len(sums) == 4

"""Tests that sums beyond what honest clients can give are refused and named, and extremes are not."""

import secrets
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.statistics import BoundedReward, Reward
from distrust.common.dp.mechanisms import AnyMechanism, MechanismSpec, plan
from distrust.common.dp.mechanisms.central.prefix_factorization import Prefixes, PrefixFactorization
from distrust.common.dp.mechanisms.central.tree import Counter, Tree
from distrust.common.errors import BadMessage
from distrust.common.modular import pack, packed_size, sum_rows
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.messages.batch import Batch
from distrust.common.randomness import UnsafeSeededStream
from distrust.server.learner.analyzer import IMPOSSIBLE, analyze
from distrust.server.storage.keys import new_keys
from tests.support.cohorts import demo_cohort
from tests.support.in_memory_intermediaries import checksum
from tests.support.planned import planned

N, TIMES, KEYS = 20, [9, 6, 5], new_keys()


def polya(overflow_probability: float) -> AnyMechanism:
    spec = MechanismSpec(name="distributed-polya", epsilon=1.0)
    return plan(
        spec, clients=N, min_survivors=18, min_honest=16, overflow_probability=overflow_probability, statistic=Reward()
    )


ROOMY, USUAL = polya(1e-17), polya(1e-4)
BY_ACTION = plan(
    MechanismSpec(name="shuffled-laplace", epsilon=1.0, delta=1e-3),
    clients=N,
    min_survivors=18,
    min_honest=16,
    overflow_probability=1e-17,
    statistic=BoundedReward(bound=1.0),
    assigned=True,
)


def opened(mechanism: AnyMechanism, summed: NDArray[np.uint64]) -> float:
    """Return the estimate of a masked sum, in data units."""
    of = demo_cohort(
        Masking(modulus=mechanism.modulus, dimension=1, neighbours=N - 1, threshold=10), KEYS.public.ticket
    )
    content = ModularSum(body=pack(summed, mechanism.modulus))
    batch = Batch(cohort=of.cohort, survivors=N, content=content)
    opener = partial(open_record, KEYS.seal, of)
    return analyze(mechanism, of, batch, lambda *_: UnsafeSeededStream(1, "analyzer"), opener).sums.item()


def residue(mechanism: AnyMechanism, steps: int) -> NDArray[np.uint64]:
    return np.array([steps % mechanism.modulus], dtype=np.uint64)


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
def test_one_client_with_half_the_modulus_is_refused_and_the_coordinate_named(reward: float) -> None:
    rows = ROOMY.randomize(np.full((N, 1), reward), UnsafeSeededStream(1, "rows"))
    assert opened(ROOMY, sum_rows(rows, ROOMY.modulus)) == pytest.approx(N * reward, abs=10)
    rows[3] = ROOMY.modulus // 2
    with pytest.raises(BadMessage, match=r"impossible sum: coordinate 0 is .* and 20 clients and the noise give"):
        opened(ROOMY, sum_rows(rows, ROOMY.modulus))


def test_all_0_and_all_1_with_noise_at_its_quantile_pass_and_one_step_more_does_not() -> None:
    step = 1 / ROOMY.precision
    noise = int(ROOMY.error(N).quantile(IMPOSSIBLE) / step + 1e-6)
    for honest, sign in ((0, -1), (N * ROOMY.precision, 1)):
        extreme = honest + sign * noise
        assert opened(ROOMY, residue(ROOMY, extreme)) == pytest.approx(extreme * step)
        with pytest.raises(BadMessage, match="impossible sum"):
            opened(ROOMY, residue(ROOMY, extreme + sign))


def test_a_modulus_for_a_likelier_wrap_leaves_no_masked_sum_that_is_impossible() -> None:
    """Only the window that sums are decoded into bounds the error that one client can cause there."""
    estimates = [opened(USUAL, residue(USUAL, steps)) for steps in range(USUAL.modulus)]
    room = USUAL.error(N).quantile(IMPOSSIBLE)
    assert -room < min(estimates) < 0 < N < max(estimates) < N + room


@pytest.mark.parametrize("place", [0, 1, 2])
def test_dealt_actions_are_checked_action_by_action(place: int) -> None:
    modulus = BY_ACTION.modulus
    assigned = AssignedAction(actions=[4, 0, 2], times=TIMES)
    of = demo_cohort(
        AssignedRecords(size=packed_size(modulus, 1), server_key=KEYS.public.seal, deal=assigned), KEYS.public.ticket
    )
    places = np.repeat(np.arange(3), TIMES)

    def sums(rows: NDArray[np.uint64]) -> list[float]:
        reports = [secrets.token_bytes(16) for _ in rows]
        sealed = [
            seal(KEYS.public.seal, of, report, pack(row, modulus), int(at))
            for report, row, at in zip(reports, rows, places, strict=True)
        ]
        content = GroupedRecords(counts=TIMES, body=b"".join(sealed), checksum=checksum(sealed))
        batch = Batch(cohort=of.cohort, survivors=N, content=content)
        opener = partial(open_record, KEYS.seal, of)
        return analyze(BY_ACTION, of, batch, lambda *_: UnsafeSeededStream(1, "analyzer"), opener).sums.tolist()

    rewards = np.where(places == place, 1.0, -1.0)[:, np.newaxis]
    rows = BY_ACTION.randomize(rewards, UnsafeSeededStream(1, "rows"))
    assert len(sums(rows)) == 3
    rows[int(np.flatnonzero(places == place)[0])] = modulus // 2
    with pytest.raises(BadMessage, match=f"impossible sum: coordinate {place} is .* and {TIMES[place]} clients"):
        sums(rows)


def stream_of(batches: int) -> Tree:
    spec = MechanismSpec(name="tree", epsilon=20.0, delta=1e-6, batches=batches)
    tree = planned(spec, 100, 80)
    assert isinstance(tree, Tree)
    return tree


def after_one_batch(tree: Tree, total: int) -> Counter:
    first = np.array([total * tree.precision], dtype=np.uint64)
    return Counter(tree).add(first, 100, UnsafeSeededStream(1, "first"))[0]


def second_batch(before: Counter | Prefixes, rewards: int) -> None:
    """Analyze a batch of 80 survivors of 100 whose sum is `rewards`; clients that left make room for 10 more."""
    tree = before.mechanism
    of = demo_cohort(Masking(modulus=tree.modulus, dimension=1, neighbours=99, threshold=50), KEYS.public.ticket)
    of = of.model_copy(update={"clients": 100, "minimum": 80})
    summed = pack(np.array([rewards * tree.precision], dtype=np.uint64), tree.modulus)
    batch = Batch(cohort=of.cohort, survivors=80, content=ModularSum(body=summed))
    opener = partial(open_record, KEYS.seal, of)
    analyze(tree, of, batch, lambda *_: UnsafeSeededStream(1, "second"), opener, before)


def test_a_refused_batch_of_a_stream_tells_nothing_of_earlier_batches() -> None:
    """A client that lies has batches refused, and each refusal would have fresh noise on the sums of earlier clients.

    So the batch's own leaf decides, and its number is shown: the same whatever came before.
    """
    tree, refusals = stream_of(4), set[str]()
    for total in (0, 50, 99, 100):
        before = after_one_batch(tree, total)
        second_batch(before, 80)
        with pytest.raises(BadMessage, match=r"impossible sum: coordinate 0 is .* and 80 clients") as refused:
            second_batch(before, 90)
        refusals.add(str(refused.value))
    assert len(refusals) == 1


def test_no_batch_is_refused_whose_noise_is_that_of_earlier_batches() -> None:
    """Behind a factorization each refusal would be one more release about earlier clients, which nothing counts."""
    spec = MechanismSpec(name="prefix-factorization", epsilon=20.0, delta=1e-6, batches=4)
    mechanism = planned(spec, 100, 80)
    assert isinstance(mechanism, PrefixFactorization)
    total = np.array([50 * mechanism.precision], dtype=np.uint64)
    before, _ = Prefixes(mechanism).add(total, 100, UnsafeSeededStream(1, "first"))
    for rewards in (0, 80, 90, 100):
        second_batch(before, rewards)

"""Tests that groups of assigned actions are analyzed separately, and that a wrong batch is refused whole."""

import secrets
from functools import partial

import numpy as np
import pytest

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.bandit.statistics import BoundedReward
from distrust.common.dp.mechanisms import MechanismSpec, plan
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.modular import pack, packed_size, sum_rows
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.base import Content
from distrust.common.protocol.channels.sealed import Records, Sealed, sealed_size
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import UnsafeSeededStream
from distrust.server.learner.analyzer import analyze
from distrust.server.storage.keys import new_keys
from tests.support.cohorts import demo_cohort
from tests.support.in_memory_intermediaries import checksum

KEYS, N, TIMES = new_keys(), 20, [9, 6, 5]
SPEC = MechanismSpec(name="shuffled-laplace", epsilon=1.0, delta=1e-3)
MECHANISM = plan(
    SPEC,
    clients=N,
    min_survivors=18,
    min_honest=16,
    overflow_probability=1e-6,
    statistic=BoundedReward(bound=1.0),
    assigned=True,
)
ROWS = MECHANISM.randomize(np.linspace(-1, 1, N)[:, np.newaxis], UnsafeSeededStream(1, "rows"))
SIZE = packed_size(MECHANISM.modulus, 1)
STREAM = UnsafeSeededStream(1, "analyzer")
CHANNEL = AssignedRecords(size=SIZE, server_key=KEYS.public.seal, deal=AssignedAction(actions=[4, 0, 2], times=TIMES))
COHORT = demo_cohort(CHANNEL, KEYS.public.ticket)


def grouped(
    counts: list[int],
    places: list[int] | None = None,
    reports: list[bytes] | None = None,
    cohort: Cohort = COHORT,
) -> GroupedRecords:
    """Return rows in their order, `counts` a group. places: what they were sealed to, if not to their group's."""
    result = sum(counts)
    reports = reports or [secrets.token_bytes(16) for _ in range(result)]
    at = places or np.repeat(np.arange(len(counts)), counts).tolist()
    sealed = [
        seal(KEYS.public.seal, cohort, report, pack(row, MECHANISM.modulus), place)
        for report, row, place in zip(reports, ROWS[:result], at, strict=True)
    ]
    return GroupedRecords(counts=counts, body=b"".join(sealed), checksum=checksum(sealed))


def analyzed(content: Content, survivors: int, cohort: Cohort = COHORT) -> tuple[list[float], list[int]]:
    batch = Batch(cohort=cohort.cohort, survivors=survivors, content=content)
    found = analyze(MECHANISM, cohort, batch, lambda *_: STREAM, partial(open_record, KEYS.seal, cohort))
    return found.sums.tolist(), found.counts.tolist()


@pytest.mark.parametrize("counts", [TIMES, [9, 6, 3], [9, 4, 5]])
def test_every_group_is_added_for_itself(counts: list[int]) -> None:
    ends = np.cumsum(counts)
    totals = np.stack([sum_rows(rows, MECHANISM.modulus) for rows in np.split(ROWS[: ends[-1]], ends[:-1])])
    expected = MECHANISM.estimate_parts(totals, np.array(counts), STREAM)[:, 0].tolist()
    assert analyzed(grouped(counts), sum(counts)) == (expected, counts)


def test_an_action_without_reports_has_a_sum_of_nothing() -> None:
    """18 of 20 answer, and the two of the last action are those that are lost."""
    cohort = COHORT.model_copy(
        update={"channel": COHORT.channel.model_copy(update={"deal": AssignedAction(actions=[4, 0], times=[18, 2])})}
    )
    sums, counts = analyzed(grouped([18, 0], cohort=cohort), 18, cohort)
    assert (sums[1], counts) == (0.0, [18, 0])


BAD: dict[str, tuple[Content, int]] = {
    "another number of groups": (grouped([15, 5], np.repeat([0, 1, 2], TIMES).tolist()), N),
    "more records than were dealt": (grouped([9, 5, 6]), N),
    "fewer records than survivors": (grouped([9, 6, 4]), N),
    "a group that was counted short": (grouped(TIMES).model_copy(update={"counts": [9, 6, 4]}), N),
    "records moved over a border": (grouped(TIMES).model_copy(update={"counts": [8, 6, 5]}), 19),
    "a truncated body": (grouped(TIMES).model_copy(update={"body": bytes(sealed_size(SIZE) * N - 1)}), N),
    "another checksum": (grouped(TIMES).model_copy(update={"checksum": bytes(32)}), N),
    "records without groups": (Records(count=N, body=grouped(TIMES).body, checksum=bytes(32)), N),
}


@pytest.mark.parametrize(("content", "survivors"), BAD.values(), ids=BAD)
def test_a_bad_batch_is_refused(content: Content, survivors: int) -> None:
    with pytest.raises(BadMessage):
        analyzed(content, survivors)


def test_records_in_the_group_of_another_action_count_as_lost() -> None:
    """The first of the first group and of the second were sealed to each other's action."""
    kept = np.delete(np.arange(N), [0, 9])
    counts = np.array([8, 5, 5])
    totals = [sum_rows(rows, MECHANISM.modulus) for rows in np.split(ROWS[kept], np.cumsum(counts)[:-1])]
    expected = MECHANISM.estimate_parts(np.stack(totals), counts, STREAM)[:, 0].tolist()
    swapped = [1, *[0] * 8, 0, *[1] * 5, *[2] * 5]
    assert analyzed(grouped(TIMES, swapped), N) == (expected, counts.tolist())


def test_below_the_minimum_of_records_that_open_nothing_is_released() -> None:
    with pytest.raises(TooSmall, match="17 records that open, at least 18 needed"):
        analyzed(grouped(TIMES, [99] * 3 + np.repeat([0, 1, 2], TIMES).tolist()[3:]), N)


def test_groups_come_out_of_dealt_cohorts_only() -> None:
    plain = COHORT.model_copy(update={"channel": Sealed(size=SIZE, server_key=KEYS.public.seal)})
    with pytest.raises(BadMessage, match="kind grouped in a sealed channel"):
        analyzed(grouped(TIMES), N, plain)

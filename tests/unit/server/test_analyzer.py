"""Tests that the analyzer refuses a whole batch whose numbers do not add up."""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.statistics import Reward
from distrust.common.dp.mechanisms import AnyMechanism, MechanismSpec, plan
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.modular import pack, packed_size, sum_rows
from distrust.common.protocol.channels.base import BatchReader, Content
from distrust.common.protocol.channels.bits import LabelledBits, PermutedBits
from distrust.common.protocol.channels.masked import Masking, ModularSum
from distrust.common.protocol.channels.sealed import Records, Sealed
from distrust.common.protocol.crypto.seal import open_record, seal
from distrust.common.protocol.messages.batch import Batch
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import UnsafeSeededStream
from distrust.server.learner.analyzer import analyze
from distrust.server.storage.keys import new_keys
from tests.support.cohorts import demo_cohort
from tests.support.in_memory_intermediaries import checksum

KEYS = new_keys()
N = 20
STREAM = UnsafeSeededStream(1, "analyzer")


def mechanism(**spec: Any) -> AnyMechanism:
    return plan(
        MechanismSpec.model_validate(spec),
        clients=N,
        min_survivors=18,
        min_honest=16,
        overflow_probability=1e-6,
        statistic=Reward(),
    )


POLYA = mechanism(name="distributed-polya", epsilon=1.0)
LOCAL = mechanism(name="local-laplace-discrete", epsilon=1.0, via="shuffler")
BITS = mechanism(name="shuffled-binomial", epsilon=2.0, delta=1e-2, precision=2)
ROWS = {m.name: m.randomize(np.full((N, 1), 0.5), UnsafeSeededStream(1, m.name)) for m in (POLYA, LOCAL, BITS)}


MASKED = demo_cohort(Masking(modulus=POLYA.modulus, dimension=1, neighbours=N - 1, threshold=10), KEYS.public.ticket)
SEALED = demo_cohort(Sealed(size=packed_size(LOCAL.modulus, 1), server_key=KEYS.public.seal), KEYS.public.ticket)
LABELLED = demo_cohort(LabelledBits(labels=1, width=BITS.width or 0), KEYS.public.ticket)


def record(payload: bytes, report: bytes | None = None, of: Cohort | None = None) -> bytes:
    return seal(KEYS.public.seal, of or SEALED, report or secrets.token_bytes(16), payload)


def records(rows: NDArray[np.uint64], others: Sequence[bytes] = ()) -> Records:
    """Return the rows as records, and others behind them."""
    sealed = [*(record(pack(row, LOCAL.modulus)) for row in rows), *others]
    return Records(count=len(sealed), body=b"".join(sealed), checksum=checksum(sealed))


def analyzed(kind: AnyMechanism, of: Cohort, content: Content, survivors: int = N) -> tuple[float, int]:
    batch = Batch(cohort=of.cohort, survivors=survivors, content=content)
    found = analyze(kind, of, batch, lambda *_: STREAM, partial(open_record, KEYS.seal, of))
    return found.sums.item(), found.counts.item()


def expected(kind: AnyMechanism, rows: NDArray[np.uint64]) -> tuple[float, int]:
    return float(kind.estimate(sum_rows(rows, kind.modulus), len(rows), STREAM)[0]), len(rows)


def the_sum(rows: NDArray[np.uint64]) -> ModularSum:
    return ModularSum(body=pack(sum_rows(rows, POLYA.modulus), POLYA.modulus))


def packed_bits(count: int, bits: int) -> bytes:
    return np.packbits(np.arange(bits) < count, bitorder="little").tobytes()


@pytest.mark.parametrize("survivors", [18, 20])
def test_a_sum_is_decoded(survivors: int) -> None:
    rows = ROWS[POLYA.name][:survivors]
    assert expected(POLYA, rows) == analyzed(POLYA, MASKED, the_sum(rows), survivors)


@pytest.mark.parametrize("survivors", [18, 20])
def test_records_are_opened_and_added(survivors: int) -> None:
    rows = ROWS[LOCAL.name][:survivors]
    assert expected(LOCAL, rows) == analyzed(LOCAL, SEALED, records(rows), survivors)


@pytest.mark.parametrize("survivors", [18, 19, 20])
def test_bits_are_counted(survivors: int) -> None:
    rows = ROWS[BITS.name][:survivors]
    content = PermutedBits(body=packed_bits(int(rows.sum()), survivors * (BITS.width or 0)))
    assert expected(BITS, rows) == analyzed(BITS, LABELLED, content, survivors)


def test_labels_are_counted_apart() -> None:
    channel = LabelledBits(labels=2, width=3)
    body = bytes([0b10110101, 0b0000_0001]) + bytes([0, 0])
    ((rows, clients),) = channel.open(PermutedBits(body=body), 3, BatchReader(2, 2, None))
    assert (rows.tolist(), clients) == ([[6, 0]], 3)


def test_below_the_minimum_nothing_is_released() -> None:
    rows = ROWS[POLYA.name][:17]
    with pytest.raises(TooSmall, match="17 survivors, at least 18 needed"):  # told before any record is opened
        analyzed(POLYA, MASKED, the_sum(rows), 17)


BAD: list[tuple[str, AnyMechanism, Cohort, Content, int]] = [
    ("more survivors than clients", POLYA, MASKED, the_sum(ROWS[POLYA.name]), 21),
    ("a sum of the wrong size", POLYA, MASKED, ModularSum(body=bytes(40)), N),
    ("a sum of m or more", POLYA, MASKED, ModularSum(body=b"\xff" * packed_size(POLYA.modulus, 1)), N),
    ("a kind that the channel does not carry", POLYA, MASKED, records(ROWS[LOCAL.name]), N),
    ("fewer records than survivors", LOCAL, SEALED, records(ROWS[LOCAL.name][:19]), N),
    ("another count", LOCAL, SEALED, records(ROWS[LOCAL.name]).model_copy(update={"count": 19}), N),
    ("another checksum", LOCAL, SEALED, records(ROWS[LOCAL.name]).model_copy(update={"checksum": bytes(32)}), N),
    (
        "a truncated body",
        LOCAL,
        SEALED,
        Records(count=N, body=records(ROWS[LOCAL.name]).body[:-1], checksum=bytes(32)),
        N,
    ),
    ("bits of the wrong size", BITS, LABELLED, PermutedBits(body=bytes(1)), N),
    ("dirty padding", BITS, LABELLED, PermutedBits(body=b"\xff" * ((19 * (BITS.width or 0) + 7) // 8)), 19),
]


@pytest.mark.parametrize(("kind", "of", "content", "survivors"), [pytest.param(*one[1:], id=one[0]) for one in BAD])
def test_a_bad_batch_is_refused(kind: AnyMechanism, of: Cohort, content: Content, survivors: int) -> None:
    with pytest.raises(BadMessage):
        analyzed(kind, of, content, survivors)


def test_another_cohorts_batch_is_refused() -> None:
    batch = Batch(cohort="demo.1.1.1", survivors=N, content=the_sum(ROWS[POLYA.name]))
    with pytest.raises(BadMessage, match=r"not of demo\.1\.0\.1"):
        analyze(POLYA, MASKED, batch, lambda *_: STREAM, partial(open_record, KEYS.seal, MASKED))


SIZE = packed_size(LOCAL.modulus, 1)
LIES = {
    "no record": bytes(len(record(bytes(SIZE)))),
    "a record of another cohort": record(bytes(SIZE), of=SEALED.model_copy(update={"cohort": "demo.1.1.1"})),
    "a value of the modulus or more": record(b"\xff" * SIZE),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("liars", [1, 2])
def test_a_record_that_does_not_open_or_holds_no_vector_counts_as_lost_and_costs_no_other(
    lie: bytes, liars: int
) -> None:
    rows = ROWS[LOCAL.name][: N - liars]
    bad = [lie[:-number] + bytes(number) if number else lie for number in range(liars)]
    assert analyzed(LOCAL, SEALED, records(rows, bad)) == expected(LOCAL, rows)


def test_a_copy_of_a_record_counts_as_lost() -> None:
    rows = ROWS[LOCAL.name][: N - 2]
    once = record(pack(ROWS[LOCAL.name][-1], LOCAL.modulus))
    kept = np.concatenate([rows, ROWS[LOCAL.name][-1:]])
    assert analyzed(LOCAL, SEALED, records(rows, [once, once])) == expected(LOCAL, kept)


def test_two_records_with_one_report_id_both_count() -> None:
    """Else a shuffler could leave a client's record out by one of its own with the same id."""
    rows = ROWS[LOCAL.name]
    both = [record(pack(row, LOCAL.modulus), b"r" * 16) for row in rows[-2:]]
    assert analyzed(LOCAL, SEALED, records(rows[:-2], both)) == expected(LOCAL, rows)


def test_fewer_records_that_count_than_the_minimum_release_nothing() -> None:
    liars = [bytes([number]) + LIES["no record"][1:] for number in range(3)]
    with pytest.raises(TooSmall, match="17 records that open, at least 18 needed"):
        analyzed(LOCAL, SEALED, records(ROWS[LOCAL.name][: N - 3], liars))

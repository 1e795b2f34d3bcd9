"""Tests that the analyzer refuses a whole batch whose numbers do not add up."""

import secrets
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distrust.common.bandit.statistics import Reward
from distrust.common.crypto.seal import open_record, seal
from distrust.common.errors import BadMessage, TooSmall
from distrust.common.mechanisms import AnyMechanism, MechanismSpec, plan
from distrust.common.messages.batch import Batch, Content, ModularSum, PermutedBits, Records
from distrust.common.messages.cohort import Cohort, LabelledBits, Masking, Sealed
from distrust.common.modular import pack, packed_size, sum_rows
from distrust.common.randomness import UnsafeSeededStream
from distrust.server.analyzer import analyze, ones_by_label
from distrust.server.keys import new_keys
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


def records(rows: NDArray[np.uint64], reports: list[bytes] | None = None) -> Records:
    reports = reports or [secrets.token_bytes(16) for _ in rows]
    sealed = [
        seal(KEYS.public.seal, SEALED, report, pack(row, LOCAL.modulus))
        for report, row in zip(reports, rows, strict=True)
    ]
    return Records(count=len(rows), body=b"".join(sealed), checksum=checksum(reports))


def analyzed(kind: AnyMechanism, of: Cohort, content: Content, survivors: int = N) -> tuple[float, int]:
    batch = Batch(cohort=of.cohort, survivors=survivors, content=content)
    estimate, count = analyze(kind, of, batch, lambda *_: STREAM, partial(open_record, KEYS.seal, of))
    assert estimate.shape == (1,)
    return float(estimate[0]), count


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
    assert ones_by_label(body, channel, 3).tolist() == [6, 0]


def test_below_the_minimum_nothing_is_released() -> None:
    rows = ROWS[POLYA.name][:17]
    with pytest.raises(TooSmall):
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
    (
        "a record that does not open",
        LOCAL,
        SEALED,
        Records(count=N, body=bytes(len(records(ROWS[LOCAL.name]).body)), checksum=bytes(32)),
        N,
    ),
    (
        "a report id twice",
        LOCAL,
        SEALED,
        records(ROWS[LOCAL.name], [b"r" * 16] * 2 + [bytes([i] * 16) for i in range(18)]),
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


def test_a_record_of_another_cohort_does_not_open() -> None:
    moved = SEALED.model_copy(update={"cohort": "demo.1.1.1"})
    with pytest.raises(BadMessage, match="does not open"):
        analyzed(LOCAL, moved, records(ROWS[LOCAL.name]))

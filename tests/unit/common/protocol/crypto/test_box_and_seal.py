"""Tests that boxes between clients and seals to the server open for one receiver, in one cohort."""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.sealed import Sealed, sealed_size
from distrust.common.protocol.crypto.seal import BOX, PAYLOAD, close_box, open_box, open_record, seal
from distrust.common.protocol.messages.cohort import Cohort

SERVER = X25519PrivateKey.generate()
PUBLIC = SERVER.public_key().public_bytes_raw()
COHORT = Cohort(
    run="r",
    round=1,
    cohort="c",
    clients=10,
    minimum=2,
    stage_seconds=1.0,
    run_digest=bytes(32),
    ticket_key=bytes(32),
    terms="{}",
    channel=Sealed(size=5, server_key=PUBLIC),
)
ID = bytes(range(16))


def test_a_box_opens_for_its_receiver_only_in_its_cohort_and_direction() -> None:
    key, payload = bytes(32), os.urandom(PAYLOAD)
    box = close_box(key, 3, 7, b"cohort", payload)
    assert len(box) == BOX
    assert open_box(key, 3, 7, b"cohort", box) == payload
    for sender, receiver, context in ((7, 3, b"cohort"), (3, 8, b"cohort"), (2, 7, b"cohort"), (3, 7, b"other")):
        with pytest.raises(BadMessage, match=f"from slot {sender} to slot {receiver}"):
            open_box(key, sender, receiver, context, box)


def test_the_two_directions_of_a_pair_never_use_one_nonce() -> None:
    """Under one nonce, the same payload would have the same ciphertext before the tag."""
    key, payload = bytes(32), bytes(PAYLOAD)
    up, down = close_box(key, 3, 7, b"c", payload), close_box(key, 7, 3, b"c", payload)
    assert up[:PAYLOAD] != down[:PAYLOAD]


def test_a_sealed_record_opens_for_the_server() -> None:
    record = seal(PUBLIC, COHORT, ID, b"hello")
    assert len(record) == sealed_size(5) == 69
    assert open_record(SERVER, COHORT, record) == (ID, b"hello")


def test_two_seals_of_one_report_have_nothing_in_common() -> None:
    first, second = (seal(PUBLIC, COHORT, ID, b"hello") for _ in range(2))
    assert first[:32] != second[:32]
    assert first[32:] != second[32:]


@pytest.mark.parametrize(
    "change", [{"run": "s"}, {"round": 2}, {"cohort": "d"}, {"run_digest": b"\1" * 32}], ids=lambda c: next(iter(c))
)
def test_a_record_moved_elsewhere_does_not_open(change: dict[str, object]) -> None:
    with pytest.raises(BadMessage, match="does not open"):
        open_record(SERVER, COHORT.model_copy(update=change), seal(PUBLIC, COHORT, ID, b"hello"))


@pytest.mark.parametrize(("made", "opened"), [(1, 2), (1, None), (None, 0), (0, None)])
def test_a_record_of_one_dealt_action_does_not_open_at_another(made: int | None, opened: int | None) -> None:
    record = seal(PUBLIC, COHORT, ID, b"hello", made)
    assert len(record) == sealed_size(5)
    assert open_record(SERVER, COHORT, record, made) == (ID, b"hello")
    with pytest.raises(BadMessage, match="does not open"):
        open_record(SERVER, COHORT, record, opened)


def test_a_record_for_another_server_or_changed_on_its_way_does_not_open() -> None:
    record = seal(PUBLIC, COHORT, ID, b"hello")
    with pytest.raises(BadMessage, match="does not open"):
        open_record(X25519PrivateKey.generate(), COHORT, record)
    for i in (0, 31, 32, len(record) - 1):
        changed = bytearray(record)
        changed[i] ^= 1
        with pytest.raises(BadMessage, match="does not open"):
            open_record(SERVER, COHORT, bytes(changed))
    with pytest.raises(BadMessage, match="does not open"):
        open_record(SERVER, COHORT, bytes(len(record)))


@pytest.mark.parametrize("size", [0, 68, 70])
def test_a_record_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadMessage, match="69"):
        open_record(SERVER, COHORT, bytes(size))


@pytest.mark.parametrize(
    ("report", "payload", "field"),
    [(b"x", b"hello", "report_id"), (ID, b"hell", "payload"), (ID, b"hello!", "payload")],
)
def test_records_have_one_size(report: bytes, payload: bytes, field: str) -> None:
    with pytest.raises(BadParameter) as caught:
        seal(PUBLIC, COHORT, report, payload)
    assert caught.value.field == field

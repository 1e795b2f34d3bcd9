"""Tests that two clients agree on keys, and refuse points of small order."""

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from distrust.common.errors import BadMessage
from distrust.common.protocol.crypto.context import encode
from distrust.common.protocol.crypto.keys import agree, key_hash, load_public, new_pair, pair_fields, pair_from_seed

P = 2**255 - 19
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
WEAK = (0, 1, *ORDER_8, P - 1, P, P + 1)


def raw(pair: X25519PrivateKey) -> bytes:
    return pair.public_key().public_bytes_raw()


def test_both_sides_have_the_same_key_and_another_info_another_key() -> None:
    a, b = new_pair(), new_pair()
    assert agree(a, raw(b), b"x") == agree(b, raw(a), b"x")
    assert agree(a, raw(b), b"x") != agree(b, raw(a), b"y")


def test_a_seed_determines_the_pair() -> None:
    assert raw(pair_from_seed(bytes(16))) == raw(pair_from_seed(bytes(16)))
    assert raw(pair_from_seed(bytes(16))) != raw(pair_from_seed(bytes(15) + b"1"))


def test_the_hash_of_keys_changes_with_every_byte() -> None:
    keys = bytes(range(64))
    others = {key_hash(keys[:i] + bytes([keys[i] ^ 1]) + keys[i + 1 :]) for i in range(64)}
    assert len(others | {key_hash(keys)}) == 65
    assert len(key_hash(keys)) == 32


def test_a_pair_of_slots_is_sorted() -> None:
    assert pair_fields(7, 300) == pair_fields(300, 7) != pair_fields(7, 301)


@pytest.mark.parametrize("high_bit", [0, 1])
@pytest.mark.parametrize("u", WEAK)
def test_points_of_small_order_are_refused_as_the_library_would(u: int, high_bit: int) -> None:
    key = (u | high_bit << 255).to_bytes(32, "little")
    with pytest.raises(BadMessage, match="small order"):
        load_public(key)
    with pytest.raises(ValueError, match="shared key"):
        new_pair().exchange(X25519PublicKey.from_public_bytes(key))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(BadMessage, match="32 bytes"):
        load_public(bytes([9]) * size)


def test_no_two_lists_of_fields_have_the_same_bytes() -> None:
    lists = [("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", ""), (b"", "abc"), (1,), (256,), ("a", 1), ("a", "1")]
    assert len({encode(*fields) for fields in lists}) == len(lists)

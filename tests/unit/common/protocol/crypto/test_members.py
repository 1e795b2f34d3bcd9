"""Tests that a bitmap of members keeps them, and that a bad one is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrust.common.errors import BadMessage
from distrust.common.protocol.crypto.graph import (
    bitmap_flags,
    bitmap_integer,
    bitmap_size,
    bitmap_to_members,
    members_to_bitmap,
)


@given(st.integers(1, 100), st.data())
def test_slot_i_is_bit_i_low_bit_first(clients: int, data: st.DataObject) -> None:
    members = data.draw(st.permutations(range(clients)))[: data.draw(st.integers(0, clients))]
    bitmap = members_to_bitmap(members, clients)
    assert len(bitmap) == bitmap_size(clients)
    assert {i for i in range(clients) if bitmap[i // 8] >> (i % 8) & 1} == set(members)
    assert bitmap_to_members(bitmap, clients) == tuple(sorted(members))
    assert bitmap_integer(bitmap, clients) == sum(1 << slot for slot in members)
    assert bitmap_flags(bitmap, clients).sum() == len(members)


@pytest.mark.parametrize("bitmap", [b"", b"\x01\x00\x00", b"\x00\x04"], ids=["empty", "long", "slot-10-of-10"])
def test_a_bitmap_of_another_cohort_is_refused(bitmap: bytes) -> None:
    for read in (bitmap_to_members, bitmap_flags, bitmap_integer):
        with pytest.raises(BadMessage, match="bitmap"):
            read(bitmap, 10)


@pytest.mark.parametrize("members", [[10], [-1], [3, 3]], ids=["above", "negative", "twice"])
def test_members_outside_the_cohort_or_repeated_are_refused(members: list[int]) -> None:
    with pytest.raises(BadMessage, match=r"slots below 10|twice"):
        members_to_bitmap(members, 10)

"""Tests that the neighbour graph is regular and symmetric, and that no party chooses it."""

import hashlib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from distrust.common.errors import BadMessage, BadParameter
from distrust.common.protocol.channels.masked import Masking
from distrust.common.protocol.crypto.graph import KEYS_SIZE, Roster, harary, keyed_permutation, members_to_bitmap
from distrust.common.protocol.messages.cohort import Cohort
from distrust.lab.secagg_simulation import make_cohort


def fake_keys(slot: int) -> bytes:
    return hashlib.sha512(str(slot).encode()).digest()


def roster(cohort: Cohort, members: list[int]) -> Roster:
    keys = b"".join(fake_keys(slot) for slot in sorted(members))
    return Roster(cohort, members_to_bitmap(members, cohort.clients), keys)


def degree(cohort: Cohort, k: int) -> Cohort:
    channel = Masking(modulus=2, dimension=1, neighbours=k, threshold=1)
    return cohort.model_copy(update={"channel": channel})


@given(st.integers(2, 60), st.integers(1, 20), st.data())
def test_every_member_has_k_neighbours_who_have_it_too(n: int, half: int, data: st.DataObject) -> None:
    cohort = degree(make_cohort(n, 2, 1), 2 * half)
    members = data.draw(st.permutations(range(n)))[: data.draw(st.integers(2, n))]
    graph = roster(cohort, members)
    for slot in graph.members:
        near = graph.neighbours(slot)
        assert len(near) == min(2 * half, len(members) - 1) == graph.degree
        assert all(a < b for a, b in pairwise(near))
        assert slot not in near
        assert all(slot in graph.neighbours(v) for v in near)


def test_an_edge_knows_its_number_from_the_other_end() -> None:
    graph = roster(degree(make_cohort(40, 2, 1), 6), list(range(3, 40)))
    sources = np.repeat(np.arange(37), 6)
    assert np.array_equal(sources[graph.reverse], graph.table.ravel())
    assert np.array_equal(graph.table.ravel()[graph.reverse], sources)
    assert np.array_equal(graph.reverse[graph.reverse], np.arange(37 * 6))


def test_the_ring_joins_each_to_the_nearest_on_both_sides() -> None:
    order = np.array([3, 0, 4, 1, 5, 2, 6])
    assert harary(order, 2)[4].tolist() == [0, 1]
    assert harary(order, 4)[3].tolist() == [0, 2, 4, 6]


def test_any_change_of_cohort_members_or_keys_gives_another_graph() -> None:
    cohort = degree(make_cohort(60, 2, 1), 6)
    base = roster(cohort, list(range(50)))
    other_keys = Roster(cohort, base.bitmap, base.keys[:-1] + bytes([base.keys[-1] ^ 1]))
    other_run = roster(cohort.model_copy(update={"run_digest": b"\1" * 32}), list(range(50)))
    other_name = roster(cohort.model_copy(update={"cohort": "d"}), list(range(50)))
    other_members = roster(cohort, list(range(1, 51)))
    tables = [g.table.tobytes() for g in (base, other_keys, other_run, other_name, other_members)]
    assert len(set(tables)) == 5
    assert roster(cohort, list(range(50))).table.tobytes() == tables[0]


def test_permutations_are_uniform() -> None:
    """Chi-square over the 24 permutations of four, 24,000 keys; false alarm 1e-7."""
    counts = Counter(tuple(keyed_permutation(hashlib.sha256(b"%d" % i).digest(), 4).tolist()) for i in range(24_000))
    assert len(counts) == 24
    assert sum((c - 1000) ** 2 / 1000 for c in counts.values()) < chi2.isf(1e-7, 23)


def test_a_permutation_has_everyone_once() -> None:
    assert sorted(keyed_permutation(bytes(32), 5000).tolist()) == list(range(5000))


def test_an_odd_degree_that_no_ring_has_is_refused() -> None:
    with pytest.raises(BadParameter, match="even"):
        roster(degree(make_cohort(10, 2, 1), 3), list(range(10))).neighbours(0)


@pytest.mark.parametrize("size", [0, KEYS_SIZE * 3 - 1, KEYS_SIZE * 4])
def test_a_roster_has_64_bytes_for_each_member(size: int) -> None:
    cohort = make_cohort(5, 2, 1)
    with pytest.raises(BadMessage, match="roster of 3 members"):
        Roster(cohort, members_to_bitmap([0, 2, 4], 5), bytes(size))

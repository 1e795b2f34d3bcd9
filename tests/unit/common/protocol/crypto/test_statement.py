"""Tests that a statement's digest changes with each of its inputs."""

import pytest

from distrust.common.protocol.crypto.context import confirm_statement, masked_statement, unmask_statement
from distrust.common.protocol.crypto.graph import Roster, members_to_bitmap
from distrust.common.protocol.crypto.keys import KEY, Binding
from distrust.common.protocol.crypto.share import PRIME
from distrust.common.protocol.messages.status import STATEMENT
from distrust.lab.secagg_simulation import make_cohort

COHORT = make_cohort(9, 97, 1)
EVERYONE = members_to_bitmap(range(9), 9)


def roster(first: int = 1, name: str = "c") -> Roster:
    keys = b"".join(bytes([first + slot]) * (2 * KEY) for slot in range(9))
    return Roster(COHORT.model_copy(update={"cohort": name}), EVERYONE, keys)


def chain(roster_: Roster, shared: bytes, challenge: bytes, members: bytes, survivors: bytes) -> tuple[bytes, ...]:
    first = confirm_statement(roster_.digest, roster_.cohort, shared, challenge)
    second = masked_statement(first, roster_.cohort, members)
    return first, second, unmask_statement(second, roster_.cohort, survivors)


@pytest.mark.parametrize("changed", range(6))
def test_a_change_of_anything_changes_its_statement_and_all_that_follow(changed: int) -> None:
    honest = [roster(), EVERYONE, bytes(32), EVERYONE, EVERYONE]
    fewer = members_to_bitmap(range(8), 9)
    lies = [roster(2), fewer, bytes(31) + b"\1", fewer, fewer, roster(name="d")]
    stated = list(honest)
    stated[changed % 5] = lies[changed]
    first_changed = {0: 0, 1: 0, 2: 0, 3: 1, 4: 2, 5: 0}[changed]
    before, after = chain(*honest), chain(*stated)  # type: ignore[arg-type]
    assert [a == b for a, b in zip(before, after, strict=True)] == [i < first_changed for i in range(3)]
    assert {len(digest) for digest in before} == {STATEMENT}


def test_no_stage_has_the_statement_of_another() -> None:
    previous = bytes(32)
    assert masked_statement(previous, COHORT, EVERYONE) != unmask_statement(previous, COHORT, EVERYONE)


def test_the_factors_of_a_challenge_are_two_nonzero_field_elements_bound_to_cohort_and_challenge() -> None:
    result = [
        *Binding(COHORT).challenge(bytes(32)),
        *Binding(COHORT).challenge(bytes(31) + b"\1"),
        *Binding(COHORT.model_copy(update={"cohort": "d"})).challenge(bytes(32)),
    ]
    assert len(set(result)) == 6
    assert all(0 < factor < PRIME for factor in result)

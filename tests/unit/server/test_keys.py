"""Tests that keys outlive the process, are readable by their owner only, and are never logged."""

from pathlib import Path

import pytest

from distrust.common.errors import Unavailable
from distrust.common.messages.cohort import Cohort, Masking
from distrust.server.keys import Keys, load_or_make, new_keys
from distrust.server.ticket_issuer import sign
from tests.support.in_memory_intermediaries import BadTicket, check_ticket


def test_keys_are_made_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "server.keys"
    assert load_or_make(path).public == load_or_make(path).public
    assert path.stat().st_mode & 0o777 == 0o600
    assert [result.name for result in path.parent.iterdir()] == ["server.keys"]


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.keys"
    load_or_make(path)
    path.chmod(0o640)
    with pytest.raises(Unavailable, match="chmod 600"):
        load_or_make(path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"ticket": "AAAA", "seal": "AAAA"}', '{"ticket": 1, "seal": 2}'])
def test_a_spoilt_key_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(Unavailable, match="no keys of ours"):
        load_or_make(path)
    assert text == path.read_text()


def test_private_keys_are_masked() -> None:
    keys = new_keys()
    assert repr(keys) == "Keys()"


def _cohort(keys: Keys, name: str = "demo.1.0.1") -> Cohort:
    return Cohort(
        run="demo",
        round=1,
        cohort=name,
        clients=4,
        minimum=2,
        stage_seconds=1.0,
        run_digest=bytes(32),
        ticket_key=keys.public.ticket,
        terms="{}",
        channel=Masking(modulus=11, dimension=1, neighbours=3, threshold=2),
    )


def test_a_ticket_is_good_for_its_slot_of_its_cohort_only() -> None:
    keys = new_keys()
    cohort = _cohort(keys)
    grant = sign(keys.ticket, cohort, 1, 2, bytes(64))
    assert grant == sign(keys.ticket, cohort, 1, 2, bytes(64))
    first, second = grant.signatures[:64], grant.signatures[64:]
    check_ticket(cohort, 1, first)
    check_ticket(cohort, 2, second)
    for other, slot, ticket in (
        (cohort, 2, first),
        (_cohort(keys, "demo.1.1.1"), 1, first),
        (_cohort(new_keys()), 1, first),
    ):
        with pytest.raises(BadTicket):
            check_ticket(other, slot, ticket)

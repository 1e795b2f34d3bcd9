"""Tests of the room that an intermediary's SQLite file keeps: no copies of what was scrubbed, and no growth."""

import hashlib
import random
from pathlib import Path

import pytest
from sqlalchemy import select

from distrust.common.protocol.intermediary.tables import COHORTS, DIGESTS, MESSAGES
from distrust.common.protocol.messages.cohort import Cohort
from tests.contracts.test_keeping import found, prune, scrub, settle
from tests.support.parties import ShufflerParty, server

CLIENTS = 128
OTHER = bytes([200]) * 32  # R of another run


def play(party: ShufflerParty, number: int) -> Cohort:
    """Play a cohort of a run of its own to its end, and scrub it."""
    cohort = server.sealed(clients=CLIENTS, minimum=1, run_digest=bytes([number]) * 32, keep_seconds=0.0)
    party.open(cohort)
    party.send(cohort, {slot: random.Random(slot).randbytes(cohort.channel.report_size) for slot in range(CLIENTS)})
    settle(party, cohort)
    scrub(party)
    return cohort


def size(party: ShufflerParty) -> int:
    """Return the bytes of the file; its log is empty."""
    assert (party.folder / "x.sqlite3-wal").stat().st_size == 0
    return (party.folder / "x.sqlite3").stat().st_size


def test_cohorts_whose_messages_lie_between_each_other_leave_no_copies(tmp_path: Path) -> None:
    """SQLite moves rows as others on their page are deleted: a copy would stay when its own row is scrubbed later."""
    party, runs = ShufflerParty(tmp_path), [bytes([number]) * 32 for number in range(3)]
    clients, block = 120, 4
    cohorts = [
        server.sealed(clients=clients, minimum=1, run_digest=run, keep_seconds=10.0 * (number + 1))
        for number, run in enumerate(runs)
    ]
    for cohort in cohorts:
        party.open(cohort)
    sealed = {
        cohort.run_digest: {
            slot: hashlib.shake_256(cohort.run_digest + bytes([slot])).digest(cohort.channel.report_size)
            for slot in range(clients)
        }
        for cohort in cohorts
    }
    for first in range(0, clients, block):
        for cohort in cohorts:
            party.send(cohort, {slot: sealed[cohort.run_digest][slot] for slot in range(first, first + block)})
    for number, cohort in enumerate(cohorts):
        settle(party, cohort)
        scrub(party, 10)
        left = [found(party.folder, sealed[run].values()) for run in runs]
        assert left == [0] * (number + 1) + [clients] * (2 - number)
    party.stop()


def test_a_file_stops_growing_when_runs_are_pruned_or_keep_digests_alone(tmp_path: Path) -> None:
    """Later runs fill the pages that earlier ones left, but for some digests of runs that are not pruned."""
    party, sizes = ShufflerParty(tmp_path), list[int]()
    for number in range(6):
        cohort = play(party, number)
        if number < 4:
            prune(party, cohort)
        sizes.append(size(party))
    assert sizes[3] <= sizes[1] + 4 * 4096
    assert sizes[5] - sizes[3] < CLIENTS * 200
    party.stop()


@pytest.mark.parametrize("scrubbed", [True, False])
def test_a_pruned_run_leaves_no_digest_beside_another_runs_open_cohort(tmp_path: Path, *, scrubbed: bool) -> None:
    """The open cohort's message is older: so the rows of the pruned run's messages stay for now, with nothing."""
    party = ShufflerParty(tmp_path)
    waiting = server.sealed(clients=2, run_digest=OTHER, minimum=1, stage_seconds=10**6)
    party.open(waiting)
    party.send(waiting, {0: bytes(waiting.channel.report_size)})
    cohort = play(party, 1) if scrubbed else server.sealed(keep_seconds=60.0)
    if not scrubbed:
        party.open(cohort)
        party.send(cohort, party.bodies(cohort))
    assert prune(party, cohort).status_code == 200
    with party.app.state.database.reading() as tx:
        columns = MESSAGES.c.digest, MESSAGES.c.ticket, MESSAGES.c.mark, MESSAGES.c.body
        left = tx.execute(select(*columns).where(MESSAGES.c.cohort.not_in(select(COHORTS.c.number))))
        assert {tuple(row) for row in left} == {(b"", None, None, None)}
        assert tx.execute(select(DIGESTS)).all() == []
    party.stop()


def test_a_file_stops_growing_once_another_runs_older_cohort_is_over(tmp_path: Path) -> None:
    """While it is open its message keeps the rows of later runs, also of those that are pruned."""
    party, sizes = ShufflerParty(tmp_path), list[int]()
    waiting = server.sealed(clients=2, run_digest=OTHER, minimum=1, keep_seconds=0.0)
    party.open(waiting)
    party.send(waiting, {0: bytes(waiting.channel.report_size)})
    for number in range(8):
        prune(party, play(party, number))
        if number == 3:
            with party.app.state.database.reading() as tx:
                assert len(tx.execute(select(MESSAGES.c.number)).all()) > 4 * CLIENTS
            for _ in range(2):  # the second one comes after the end
                assert party.leave(waiting, [1]).json()["accepted"] == 1
            settle(party, waiting)
            scrub(party)
            with party.app.state.database.reading() as tx:
                assert tx.execute(select(MESSAGES.c.number)).all() == []
        sizes.append(size(party))
    assert sizes[1] < sizes[2] < sizes[3]
    assert sizes[7] <= sizes[3]
    party.stop()

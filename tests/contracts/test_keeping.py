"""Tests that an intermediary deletes what it need not keep, when it may, and that its files do not have it any more."""

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from distrust.common.protocol.intermediary import keeping
from distrust.common.protocol.intermediary.tables import COHORTS, DIGESTS, MESSAGES
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import DeliveryList, Settled, Transcript
from distrust.common.protocol.messages.upload import UploadAnswer
from tests.support.cohorts import address
from tests.support.parties import INSPECTOR, OPERATOR, Party, ShufflerParty, server

KEEP = 60.0
LEAST = 16  # bytes of a body that are searched for; a short body may be anywhere by chance


@pytest.fixture
def sent() -> dict[int, bytes]:
    """Return what the clients of `kept` send first, by slot, once they have."""
    return {}


@pytest.fixture
def kept(party: Party, sent: dict[int, bytes]) -> Cohort:
    """Return a cohort that is played to its end, with its batch."""
    cohort = party.cohort(keep_seconds=KEEP)
    assert party.open(cohort).status_code == 200
    sent.update(party.bodies(cohort))
    party.release(cohort)
    return cohort


def stored(party: Party, *, own: bool | None = None) -> list[bytes]:
    """Return the bodies in the database; own: those that the intermediary stored itself, or the others."""
    which = () if own is None else ((MESSAGES.c.slot < 0) if own else (MESSAGES.c.slot >= 0),)
    with party.app.state.database.reading() as tx:
        rows = tx.execute(select(MESSAGES.c.body).where(MESSAGES.c.body.is_not(None), *which)).scalars()
        return [body for body in rows if len(body) >= 2 * LEAST]


def found(folder: Path, bodies: Iterable[bytes]) -> int:
    """Return how many of the bodies are in the files of the database, by the bytes in their middle."""
    files = b"".join(file.read_bytes() for file in folder.glob("x.sqlite3*"))
    return sum(body[len(body) // 2 - LEAST // 2 :][:LEAST] in files for body in bodies)


def scrub(party: Party, after: float = 0.0) -> None:
    party.clock.advance(after)
    party.app.state.service.scrub()


def settle(party: Party, cohort: Cohort) -> None:
    body = Settled(cohorts=[cohort.cohort]).model_dump(mode="json")
    path = f"/v1/runs/{cohort.run_digest.hex()}/settled"
    assert party.client.post(path, json=body).status_code == 401
    assert party.client.post(path, json=body, headers=OPERATOR).status_code == 200


def prune(party: Party, cohort: Cohort) -> Any:
    path = f"/v1/runs/{cohort.run_digest.hex()}"
    assert party.client.request("DELETE", path, headers=INSPECTOR).status_code == 401
    return party.client.request("DELETE", path, headers=OPERATOR)


def shown(party: Party) -> Transcript:
    return Transcript.model_validate_json(party.get("/c1/messages").content)


def test_clients_messages_leave_the_files_keep_seconds_after_the_outcome_and_the_batch_waits_for_the_server(
    party: Party, kept: Cohort
) -> None:
    bodies, own, batch = stored(party, own=False), stored(party, own=True), party.get("/c1/batch").content
    scrub(party, KEEP - 1)
    assert found(party.folder, bodies) == len(bodies) > 0
    assert (shown(party).scrubbed, shown(party).total > 0) == (None, True)
    scrub(party, 1)
    assert (found(party.folder, bodies), stored(party, own=False)) == (0, [])
    party.restart()
    assert party.get("/c1/batch").content == batch
    assert found(party.folder, own) == len(own) > 0
    settle(party, kept)
    scrub(party)
    assert (found(party.folder, own), stored(party)) == (0, [])
    answer = party.get("/c1/batch")
    assert (answer.status_code, "was settled by the server, and scrubbed here at" in answer.json()["detail"]) == (
        410,
        True,
    )
    assert (shown(party).scrubbed, shown(party).messages) == (party.clock.now(), [])


@pytest.mark.few(1)
def test_a_settled_cohort_is_kept_for_the_whole_time_and_then_nothing_of_it_is_left_but_digests(
    party: Party, kept: Cohort
) -> None:
    settle(party, kept)
    bodies, batch = stored(party), party.get("/c1/batch").content
    scrub(party, KEEP - 1)
    assert (found(party.folder, bodies), party.get("/c1/batch").content) == (len(bodies), batch)
    scrub(party, 1)
    assert found(party.folder, bodies) == 0
    with party.app.state.database.reading() as tx:
        assert tx.execute(select(MESSAGES)).all() == []
        digests = tx.execute(select(DIGESTS.c.slot, DIGESTS.c.digest)).all()
    assert {slot for slot, _ in digests} == set(range(kept.clients))
    assert all(len(digest) == 32 for _, digest in digests)


def test_a_repeat_is_accepted_after_the_messages_are_gone_and_no_stranger_learns_which_slots_have_sent(
    party: Party,
) -> None:
    cohort, silent = party.cohort(keep_seconds=KEEP), 4
    party.open(cohort)
    bodies = party.bodies(cohort)
    sent = {slot: body for slot, body in bodies.items() if slot != silent}
    party.send(cohort, sent)
    party.clock.advance(cohort.stage_seconds)
    party.rest(cohort)
    assert party.batch().json()["state"] == "released"
    changed = {slot: bytes([body[0] ^ 1]) + body[1:] for slot, body in bodies.items()}

    def told(wanted: dict[int, bytes]) -> tuple[int, dict[int, str]]:
        answer = party.send(cohort, wanted)
        if answer.status_code != 200:
            return 0, dict.fromkeys(wanted, answer.json()["type"].rpartition(":")[2])
        read = UploadAnswer.model_validate_json(answer.content)
        return read.accepted, {item.slot: item.type.rpartition(":")[2] for item in read.refused}

    settle(party, cohort)
    assert told(sent) == (4, {})
    assert told(changed | {0: sent[0]})[1][1] == "conflict"  # for its ticket
    scrub(party, KEEP)
    assert told(sent) == (4, {})
    assert told(changed) == (0, dict.fromkeys(range(5), "wrong-stage"))
    assert told(changed | {0: sent[0]}) == (1, dict.fromkeys(range(1, 5), "wrong-stage"))
    assert stored(party) == []


@pytest.mark.parametrize("aborts", [True, False])
def test_a_client_that_leaves_a_cohort_that_is_over_leaves_no_row_which_would_keep_the_files_room(
    party: Party, *, aborts: bool
) -> None:
    cohort = party.cohort(keep_seconds=KEEP)
    party.open(cohort)
    party.send(cohort, dict(list(party.bodies(cohort).items())[: 1 if aborts else None]))
    if aborts:
        party.clock.advance(2 * cohort.stage_seconds)
    else:
        party.rest(cohort)
    assert party.batch().json()["state"] == ("aborted" if aborts else "released")
    settle(party, cohort)
    for slot, after in enumerate((0.0, KEEP)):
        scrub(party, after)
        answer = party.leave(cohort, [slot])
        assert (answer.status_code, answer.json()["accepted"]) == (200, 1)
    with party.app.state.database.reading() as tx:
        assert tx.execute(select(MESSAGES)).all() == []


@pytest.mark.few(1)
def test_with_keep_seconds_of_0_the_next_sweep_scrubs(party: Party) -> None:
    cohort = party.cohort(keep_seconds=0.0)
    party.open(cohort)
    party.release(cohort)
    bodies = stored(party, own=False)
    scrub(party)
    assert (found(party.folder, bodies), party.batch_now().state) == (0, "released")


@pytest.mark.few(2)
def test_an_aborted_cohort_has_no_batch_to_wait_for(party: Party) -> None:
    cohort = party.cohort(keep_seconds=KEEP)
    party.open(cohort)
    party.send(cohort, {0: party.bodies(cohort)[0]})
    party.clock.advance(2 * cohort.stage_seconds)
    assert party.batch_now().state == "aborted"
    bodies = stored(party)
    assert found(party.folder, bodies) == len(bodies) > 0
    scrub(party, KEEP)
    assert (found(party.folder, bodies), stored(party), party.batch_now().state) == (0, [], "aborted")


@pytest.mark.few(1)
def test_an_open_cohort_is_never_scrubbed(party: Party) -> None:
    cohort = party.cohort(keep_seconds=0.0, stage_seconds=10**6)
    party.open(cohort)
    party.send(cohort, {0: party.bodies(cohort)[0]})
    before = stored(party)
    settle(party, cohort)
    scrub(party, 10**5)
    assert stored(party) == before


@pytest.mark.parametrize("jump", [-(10**8), 10**8])
@pytest.mark.few(2)
def test_after_a_start_nothing_is_kept_longer_than_keep_seconds_whatever_the_wall_clock_says(
    party: Party, kept: Cohort, jump: float
) -> None:
    settle(party, kept)
    party.clock.advance(jump)
    party.restart()
    scrub(party, KEEP)
    assert stored(party) == []


@pytest.mark.few(1)
def test_a_sweep_that_ends_half_way_goes_on_and_the_next_process_too(
    party: Party, kept: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(party, kept)
    bodies, before = stored(party), shown(party).total
    monkeypatch.setattr(keeping, "MOST_BYTES", 1)  # a message at a time
    steps, whole = [], keeping.Keeper._scrub_step

    def failing(self: keeping.Keeper, values: dict[str, Any]) -> int:
        steps.append(values)
        if len(steps) == 3:
            raise OSError("killed")
        return whole(self, values)

    monkeypatch.setattr(keeping.Keeper, "_scrub_step", failing)
    with pytest.raises(OSError, match="killed"):
        scrub(party, KEEP)
    assert shown(party).total == before - 2
    party.restart()
    scrub(party)
    assert (found(party.folder, bodies), stored(party)) == (0, [])


@pytest.mark.few(1)
def test_what_the_server_settles_while_its_messages_are_scrubbed_is_not_forgotten(
    party: Party, kept: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = keeping.Keeper._note_scrubbed

    def later(self: keeping.Keeper, cohort: int, *, own: bool) -> None:
        monkeypatch.setattr(keeping.Keeper, "_note_scrubbed", whole)
        settle(party, kept)
        whole(self, cohort, own=own)

    monkeypatch.setattr(keeping.Keeper, "_note_scrubbed", later)
    scrub(party, KEEP)
    assert stored(party) == []


def test_a_pruned_run_leaves_neither_messages_nor_deliveries_and_is_never_opened_again(
    party: Party, kept: Cohort, sent: dict[int, bytes]
) -> None:
    bodies, digest = stored(party), kept.run_digest.hex()
    path = f"/v1/runs/{digest}/delivered"
    assert DeliveryList.model_validate_json(party.client.get(path, headers=OPERATOR).content).count == 1
    first = prune(party, kept)
    assert (first.status_code, first.json()["pruned"]) == (200, party.clock.now())
    assert found(party.folder, bodies) == 0
    assert found(party.folder, [kept.run_digest]) == 1  # its tombstone
    with party.app.state.database.reading() as tx:
        assert [tx.execute(select(table)).all() for table in (COHORTS, MESSAGES, DIGESTS)] == [[], [], []]
    for answer in (
        party.client.get(path, headers=OPERATOR),
        party.get("/c1/batch"),
        party.open(kept),
        party.send(kept, sent),
        party.client.get(f"/v1/cohorts/{address('c1')}/terms"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (410, "urn:distrust:problem:gone")
    party.clock.advance(5)
    assert prune(party, kept).json() == first.json()


@pytest.mark.few(1)
def test_a_prune_that_ends_half_way_releases_nothing_more_and_the_same_call_goes_on(
    party: Party, kept: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = keeping.Keeper._forget
    monkeypatch.setattr(keeping.Keeper, "_forget", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    assert prune(party, kept).status_code == 500
    assert BatchAnswer.model_validate_json(party.get("/c1/batch").content).state == "aborted"
    assert party.open(kept).status_code == 410
    monkeypatch.setattr(keeping.Keeper, "_forget", whole)
    assert prune(party, kept).status_code == 200
    assert party.get("/c1/batch").status_code == 410


def test_a_pruned_cohort_that_is_being_mixed_ends_without_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    party = ShufflerParty(tmp_path)
    cohort, mixing, pruned = server.bits(), threading.Event(), threading.Event()
    service = party.app.state.service
    whole = type(service)._mix

    def slow(self: Any, state: Any) -> Any:
        mixing.set()
        assert pruned.wait(60)
        return whole(self, state)

    monkeypatch.setattr(type(service), "_mix", slow)
    party.open(cohort)
    party.send(cohort, {slot: bytes([slot, 0]) for slot in range(cohort.clients)})
    assert mixing.wait(60)
    assert prune(party, cohort).status_code == 200
    pruned.set()
    party.stop()  # waits for the mixer
    party.start()
    assert party.get("/c1/batch").status_code == 410
    party.stop()


def test_labelled_bits_cannot_be_found_from_what_is_left_of_them(tmp_path: Path) -> None:
    party = ShufflerParty(tmp_path)
    cohort = server.bits(labels=1, width=5, keep_seconds=0.0)
    party.open(cohort)
    party.send(cohort, {slot: bytes([slot]) for slot in range(cohort.clients)})
    assert party.batch().json()["state"] == "released"
    settle(party, cohort)
    scrub(party)
    with party.app.state.database.reading() as tx:
        digests = set(tx.execute(select(DIGESTS.c.digest)).scalars())
    assert len(digests) == cohort.clients
    assert digests.isdisjoint(hashlib.sha256(bytes([byte])).digest() for byte in range(256))
    party.stop()

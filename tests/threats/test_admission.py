"""Tests that strangers get no tickets, and that participants get their share: over HTTP, intermediaries in memory."""

import asyncio
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distrust.client.transport.http import device_proof
from distrust.common.protocol.crypto.context import run_digest
from distrust.common.protocol.messages.admission import Participant
from distrust.common.protocol.messages.cohort import TicketRequest
from distrust.lab.stack.participants import Participants
from distrust.server.runs.settlement import Serving
from distrust.server.runs.waiting_places import WaitingPlace
from tests.support.admitting_server import LOCAL, OPEN, N, World, play, refusal, slots
from tests.support.server_harness import config, until


@pytest.mark.parametrize(
    ("share", "corrupt", "most"),
    [(0.25, 0.4, 8), (0.1, 0.4, 3), (0.001, 0.4, 1), (1.0, 0.25, 8), (1.0, 0.1, 3), (0.25, 0.1, 3), (1.0, 0.0, 1)],
)
def test_a_token_gets_its_share_of_a_cohort_and_no_more_than_may_collude_over_all_its_requests(
    tmp_path: Path, share: float, corrupt: float, most: int
) -> None:
    async def body(world: World) -> None:
        await world.create(intermediary={"corrupt": corrupt})
        header = world.token("some", share=share)
        got = [slots(await world.ask(header, want)) for want in (1, 2, 100, 100)]
        first = world.cells("SELECT sum(count) FROM grants WHERE cohort = 'demo.1.0.1'")
        assert first == [(most,)]
        assert sum(got) == most  # cohorts fill one after another: the next one is begun once others have the rest
        assert slots(await world.ask(world.operator, N - most)) == N - most
        assert slots(await world.ask(header)) == most

    play(tmp_path, body)


def test_the_operators_own_fleets_get_whole_cohorts_though_no_client_may_collude(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(intermediary={"corrupt": 0.0})
        assert slots(await world.ask(f"Bearer {world.folder.fleet_token()}", N)) == N
        assert slots(await world.ask(world.operator, N)) == N
        assert world.cells("SELECT DISTINCT participant FROM grants") == [(None,)]

    play(tmp_path, body)


def test_a_mechanism_whose_promise_counts_on_no_other_client_has_no_share(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        assert slots(await world.ask(world.token("some", share=0.1), N)) == N
        assert world.cells("SELECT DISTINCT participant FROM grants") == [(None,)]  # nothing to count

    play(tmp_path, body)


def test_a_quota_is_of_all_slots_and_its_end_leaves_the_tickets_of_before_good(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header, request = world.token("some", share=1.0, quota=5), secrets.token_hex(16)
        first = await world.ask(header, 3, request)
        assert (slots(first), slots(await world.ask(header, 3))) == (3, 2)
        assert refusal(await world.ask(header, 1)) == (403, "exhausted-token")
        assert (await world.ask(header, 3, request)).content == first.content
        await world.client.delete("/runs/demo", headers={"Authorization": world.operator})
        assert world.cells("SELECT slots FROM quotas") == [(5,)]

    play(tmp_path, body)


def test_expired_revoked_and_foreign_tokens_are_told_apart_and_change_nothing_for_others(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        late = world.token("late", expires=datetime.now(UTC) - timedelta(seconds=1))
        gone, good = world.token("gone"), world.token("good", share=0.5)
        assert slots(await world.ask(gone, 1)) == 1
        Participants(world.folder).revoke("gone")  # and no restart
        assert refusal(await world.ask(gone, 1)) == (403, "revoked-token")
        assert refusal(await world.ask(late, 1)) == (403, "expired-token")
        assert slots(await world.ask(good)) == N // 4
        world.folder.participants_file.unlink()
        assert refusal(await world.ask(good)) == (503, "unavailable")  # fails closed
        assert slots(await world.ask(world.operator, 1)) == 1

    play(tmp_path, body)


def test_a_device_gets_one_slot_of_a_cohort_whatever_it_says(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        key, stranger = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        own = key.public_key().public_bytes_raw().hex()
        Participants(world.folder).enroll(Participant(name="phone", kind="device", id=own))
        view = await world.view()
        run = run_digest(view.config, view.run_id)
        first = await world.wish(100)
        answer = await world.post(device_proof(key)(run, first), first)
        assert slots(answer) == 1
        for want in (1, 100):
            again = await world.wish(want)
            assert slots(await world.post(device_proof(key)(run, again), again)) == 0
        replayed = await world.post(device_proof(key)(run, first), first)
        assert replayed.content == answer.content  # it gains nothing
        other = await world.wish(1)
        assert refusal(await world.post(device_proof(stranger)(run, other), other)) == (401, "foreign-token")
        for proof in (device_proof(key)(run, first), device_proof(key)(bytes(32), other)):
            assert refusal(await world.post(proof, other)) == (401, "unauthorized")
        assert refusal(await world.post(f"Bearer {own}", other)) == (401, "foreign-token")
        assert world.cells("SELECT participant, sum(count) FROM grants") == [(own, 1)]

    play(tmp_path, body)


def test_who_had_which_slot_is_forgotten_with_the_cohorts_outcome_and_with_the_end_of_a_run(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header = world.token("some", share=0.25)
        mine, others = await world.ask(header), await world.ask(world.operator, N - 8)
        second = await world.ask(header)
        noted = "SELECT cohort, sum(count) FROM grants WHERE participant IS NOT NULL GROUP BY cohort"
        assert world.cells(noted) == [("demo.1.0.1", 8), ("demo.1.1.1", 8)]
        await world.finish_round(mine, others)
        await until(lambda: world.cells("SELECT count(*) FROM outcomes") == [(1,)])
        assert world.cells(noted) == [("demo.1.1.1", 8)]
        assert slots(second) == 8
        await world.client.delete("/runs/demo", headers={"Authorization": world.operator})
        assert world.cells(noted) == []

    play(tmp_path, body)


def test_who_has_its_share_and_waits_may_begin_the_next_cohort_as_soon_as_others_fill_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notification alone wakes it before its wait is over."""
    monkeypatch.setattr("distrust.common.protocol.web.waiting.LOOK_SECONDS", 600.0)

    async def body(world: World) -> None:
        await world.create()
        told, service = list[str](), world.app.state.service
        notify = service._notify
        monkeypatch.setattr(service, "_notify", lambda run: (told.append(run), notify(run)))
        headers = [world.token(name, share=0.25) for name in ("one", "two", "three", "four")]
        assert slots(await world.ask(headers[0])) == N // 4
        waiting = asyncio.create_task(world.ask(headers[0], number=0, wait=60))
        await until(lambda: bool(world.app.state.notifier._waits))
        for header in headers[1:]:
            told.clear()
            assert slots(await world.ask(header, N // 4), "demo.1.0.1") == N // 4  # it needs no other cohort
        assert told, "the request that filled the cohort woke no other"
        assert slots(await waiting) == N // 4

    play(tmp_path, body)


def test_requests_that_wait_share_the_next_cohorts_slots(tmp_path: Path) -> None:
    """One held request took all of them."""

    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        headers = [world.token(name) for name in ("one", "two", "three")]
        await world.finish_round(*[await world.ask(world.operator, 2 * N)])
        last = await world.ask(world.operator, N)
        waiting = [asyncio.create_task(world.ask(one, 1000, number=0, wait=60)) for one in headers]
        places = world.app.state.coordinator.places
        await until(lambda: len(places.unserved("demo")) == 3)
        await world.finish_round(last)
        got = [slots(await one, "demo.2.0.1") for one in waiting]  # the last one may have others besides
        size = world.cells("SELECT clients FROM cohorts WHERE cohort = 'demo.2.0.1'")[0][0]
        assert sum(got) <= size
        assert min(got) >= size // 6  # a third, unless one of them asks while the others are served
        assert max(got) <= size // 2

    play(tmp_path, body)


def test_requests_of_one_token_that_wait_get_no_more_than_its_quota_together(tmp_path: Path) -> None:
    """One transaction grants the slots of all: what the first one gets is not in the database before."""

    async def body(world: World) -> None:
        await world.create(mechanism=LOCAL)
        header = world.token("some", share=1.0, quota=5)
        await world.finish_round(await world.ask(world.operator, 2 * N))
        last = await world.ask(world.operator, N)
        waiting = [asyncio.create_task(world.ask(header, 4, number=0, wait=60)) for _ in range(3)]
        await until(lambda: len(world.app.state.coordinator.places.unserved("demo")) == 3)
        await world.finish_round(last)
        answers = sorted([await one for one in waiting], key=lambda one: one.status_code)  # they came in any order
        assert sorted(map(slots, answers[:2])) == [1, 4]
        assert refusal(answers[2]) == (403, "exhausted-token")
        assert world.cells("SELECT slots FROM quotas") == [(5,)]

    play(tmp_path, body)


def test_a_request_whose_token_is_revoked_while_it_waits_gets_no_slot(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        header = world.token("some", share=1.0)
        await world.finish_round(await world.ask(world.operator, 2 * N))
        last = await world.ask(world.operator, N)
        waiting = asyncio.create_task(world.ask(header, 5, number=0, wait=60))
        await until(lambda: len(world.app.state.coordinator.places.unserved("demo")) == 1)
        Participants(world.folder).revoke("some")
        await world.finish_round(last)
        assert refusal(await waiting) == (403, "revoked-token")

    play(tmp_path, body)


def test_a_settlement_plans_no_slot_for_a_token_that_was_revoked_while_its_request_waited(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        service, admission = world.app.state.service, world.app.state.admission
        places = [
            WaitingPlace(await world.wish(1, number=0), admission.caller(world.token(name), lambda: ""))
            for name in ("some", "other")
        ]
        Participants(world.folder).revoke("some")
        active = service.active_run("demo")
        serving = Serving(service.issuer, active, places)
        with active.lock, serving.planned(active.rows()):
            pass
        serving.answer()
        assert [place.served for place in places] == [True, True]
        assert [place.answer is None for place in places] == [True, False]

    play(tmp_path, body)


def test_another_token_does_not_get_the_slots_of_a_requests_id(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        request = secrets.token_hex(16)
        assert slots(await world.ask(world.token("one", share=0.25), 4, request)) == 4
        assert refusal(await world.ask(world.token("two", share=0.25), 4, request)) == (409, "conflict")

    play(tmp_path, body)


def test_a_new_operators_token_is_used_without_a_restart_and_a_missing_one_opens_nothing(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.create()
        before = {"Authorization": world.operator}
        fresh = tmp_path / "fresh"
        fresh.write_text("another secret")
        fresh.replace(world.folder.token_file)
        after = {"Authorization": "Bearer another secret"}
        assert (await world.client.delete("/runs/demo", headers=before)).status_code == 401
        world.folder.token_file.unlink()
        for headers in (before, after, {}):
            answer = await world.client.delete("/runs/demo", headers=headers)
            assert refusal(answer) == (503, "unavailable")
        world.folder.token_file.write_text("a third secret\n")
        third = {"Authorization": "Bearer a third secret"}
        assert (await world.client.delete("/runs/demo", headers=third)).status_code == 200

    play(tmp_path, body)


def test_a_server_without_an_operators_token_stays_open_on_loopback(tmp_path: Path) -> None:
    async def body(world: World) -> None:
        await world.client.post("/runs", json=json.loads(config().canonical()))
        assert slots(await world.ask(None, N)) == N

    play(tmp_path, body, **OPEN)


def test_a_devices_header_is_its_key_and_a_signature_of_the_documented_bytes() -> None:
    """The documented form of a device's header."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    request = TicketRequest(request="ab" * 16, round=1, want=1)
    header = device_proof(key)(bytes(32), request)
    public, signature = header.removeprefix("Device ").split(":")
    text = b"\x1f".join([b"distrust ticket request v3", bytes(32), b"ab" * 16, b"1", b"1", b""])
    key.public_key().verify(bytes.fromhex(signature), text)
    assert public == key.public_key().public_bytes_raw().hex()

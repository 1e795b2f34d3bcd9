"""Tests that the aggregator ends a cohort with its sum after departures, repeated messages and a restart."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from distrust.aggregator.service import Aggregator
from distrust.common.errors import Aborted, BadMessage, BadParameter, BadTicket, ProtocolError, WrongStage
from distrust.common.protocol.crypto.graph import bitmap_to_members
from distrust.common.protocol.messages.upload import InboxRequest
from tests.support.aggregator_harness import STAGES, AggregatorHarness, server
from tests.support.cohorts import SECONDS, address


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AggregatorHarness]:
    harness = AggregatorHarness(tmp_path, server.masked())
    yield harness
    harness.stop()


@pytest.mark.parametrize("clients", [5, 40])
@pytest.mark.parametrize("dimension", [1, 33])
def test_all_clients_answer_and_the_sum_is_right(tmp_path: Path, clients: int, dimension: int) -> None:
    harness = AggregatorHarness(tmp_path, server.masked(dimension, clients))
    for stage in STAGES:
        harness.answer(stage, range(clients))
    assert harness.sum() == harness.clients.total(range(clients))
    assert (harness.released().lost, harness.view().stage) == (0, "done")
    harness.stop()


@pytest.mark.parametrize("silent", STAGES)
@pytest.mark.parametrize("how", ["leaves", "is late"])
def test_a_client_lost_at_any_stage_is_survived(harness: AggregatorHarness, silent: str, how: str) -> None:
    present = set(range(5))
    for stage in STAGES:
        if stage == silent:
            present.remove(2)
        harness.answer(stage, present)
        if stage == silent and how == "leaves":
            harness.leave({2})
        elif stage == silent:
            assert harness.view().stage == stage
            harness.clock.advance(SECONDS)
    counted = present | ({2} if silent == "unmask" else set())
    assert harness.sum() == harness.clients.total(counted)
    assert harness.released().lost == 5 - len(counted)


def test_a_client_that_left_in_a_stage_is_not_awaited_in_the_next(harness: AggregatorHarness) -> None:
    harness.answer("keys", range(5))
    harness.leave({0})
    harness.answer("shares", {1, 2, 3, 4})
    assert harness.view().stage == "confirm"
    assert bitmap_to_members(harness.view().members, 5) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("stage", "few", "needed"), [*((stage, {0, 1, 2}, 4) for stage in STAGES[:4]), ("unmask", {0}, 3)]
)
def test_too_few_at_any_stage_end_the_cohort_and_release_nothing(
    harness: AggregatorHarness, stage: str, few: set[int], needed: int
) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        harness.answer(earlier, range(5))
    harness.answer(stage, few)
    harness.clock.advance(SECONDS)
    answer = harness.released()
    assert (answer.state, answer.batch) == ("aborted", None)
    assert answer.reason == f"{len(few)} clients in stage {stage}, at least {needed} needed: nothing is released"
    with pytest.raises(Aborted, match=f"{len(few)} clients in stage {stage}"):
        harness.send(stage, {3: b""})


def test_a_restart_between_and_inside_stages_changes_nothing(harness: AggregatorHarness) -> None:
    for stage in STAGES:
        harness.answer(stage, {0, 1})
        harness.restart()
        harness.answer(stage, {2, 3, 4})
        harness.restart()
    assert harness.sum() == harness.clients.total(range(5))


def test_a_crash_while_unmasking_only_repeats_it(harness: AggregatorHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in STAGES[:4]:
        harness.answer(stage, range(5))
    monkeypatch.setattr(Aggregator, "_release", lambda *_: None)  # killed before the batch was committed
    harness.answer("unmask", range(5))
    assert harness.released().state == "waiting"
    assert harness.view().stage == "unmask"
    monkeypatch.undo()
    harness.restart()
    assert harness.sum() == harness.clients.total(range(5))


def test_a_batch_that_cannot_be_written_is_released_later(harness: AggregatorHarness) -> None:
    for stage in STAGES[:4]:
        harness.answer(stage, range(5))

    def full(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT" in statement and "batch" in str(_[0]):
            raise harness.database._engine.dialect.dbapi.OperationalError("database or disk is full")

    event.listen(harness.database._engine, "before_cursor_execute", full)
    harness.answer("unmask", range(5))
    harness.service._mixer.submit(lambda: None).result(timeout=240)
    with harness.database.reading() as tx:
        assert tx.exec_driver_sql("SELECT stage FROM cohorts").scalar_one() == "mixing"
    event.remove(harness.database._engine, "before_cursor_execute", full)
    harness.service.settled(address("c1"))
    assert harness.sum() == harness.clients.total(range(5))


def test_a_late_deadline_after_a_restart_gives_the_next_stage_its_full_time(harness: AggregatorHarness) -> None:
    harness.answer("keys", {0, 1, 2, 3})
    harness.stop()
    harness.clock.advance(10 * SECONDS)
    harness.start()
    assert harness.view().stage == "shares"
    harness.clock.advance(SECONDS - 1)
    harness.answer("shares", {0, 1, 2, 3})
    assert harness.view().stage == "confirm"


def test_a_masked_input_after_the_survivors_are_frozen_is_refused(harness: AggregatorHarness) -> None:
    for stage in STAGES[:3]:
        harness.answer(stage, range(5))
    bodies = harness.clients.answer(harness.view(), range(5))
    late = {4: bodies.pop(4)}
    harness.send("masked", bodies)
    harness.clock.advance(SECONDS)
    with pytest.raises(WrongStage, match="in stage unmask: masked is not open"):
        harness.send("masked", late)
    assert harness.send("masked", bodies).accepted == 4


def test_a_stage_before_its_time_is_refused(harness: AggregatorHarness) -> None:
    with pytest.raises(WrongStage, match="in stage keys: masked is not open"):
        harness.send("masked", {0: bytes(3)})


@pytest.mark.parametrize(
    ("stage", "body", "why"),
    [
        ("keys", bytes(63), "64 bytes"),
        ("shares", bytes(33), "bytes"),
        ("confirm", b"\xff" * 17 * 7, "a coefficient"),
        ("masked", bytes(4), "bytes"),
        ("unmask", bytes(16), "bytes"),
    ],
)
def test_one_bad_body_never_spoils_the_others(harness: AggregatorHarness, stage: str, body: bytes, why: str) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        harness.answer(earlier, range(5))
    bodies = harness.clients.answer(harness.view(), range(5))
    answer = harness.send(stage, bodies | {2: body})
    assert [(item.slot, item.type, item.status) for item in answer.refused] == [(2, BadMessage("").urn, 422)]
    assert answer.accepted == 4
    assert why in answer.refused[0].detail
    assert harness.view().stage == stage
    assert harness.send(stage, bodies).accepted == (4 if stage == "keys" else 5)  # a ticket is for one pair of keys


def test_a_slot_that_sent_no_keys_takes_no_part_later(harness: AggregatorHarness) -> None:
    harness.answer("keys", range(4))
    harness.clock.advance(SECONDS)
    assert harness.view().stage == "shares"
    answer = harness.send("shares", {4: bytes(200)})
    assert (answer.accepted, [item.slot for item in answer.refused]) == (0, [4])


@pytest.fixture
def shared(harness: AggregatorHarness) -> AggregatorHarness:
    """Return the harness in stage `confirm`."""
    for stage in STAGES[:2]:
        harness.answer(stage, range(5))
    return harness


def test_inboxes_come_for_the_slots_that_were_asked_for_with_their_tickets_and_for_no_others(
    shared: AggregatorHarness,
) -> None:
    slots = shared.service.asking(shared.cohort.address, server.collecting(shared.cohort, [3, 1]))
    view = shared.service.view(shared.cohort.address, slots)
    assert [box.slot for box in view.inboxes or []] == [3, 1]
    assert shared.service.view(shared.cohort.address).inboxes == []


@pytest.mark.parametrize(
    ("slots", "tickets", "why"),
    [
        ([3, 1], [3, 2], "slot 1: not the ticket that came with its keys"),
        ([99], [3], "slot = 99: cohort c1 has slots 0 to 4"),
        ([3, 3], [3, 3], "slot = 3: twice in one upload"),
        ([3, 1], [3], "tickets: 64 bytes, expected 64 for each of the slots"),
    ],
)
def test_a_request_without_each_slots_own_ticket_gets_no_inbox(
    shared: AggregatorHarness, slots: list[int], tickets: list[int], why: str
) -> None:
    signed = b"".join(server.ticket(shared.cohort, slot) for slot in tickets)
    asked = InboxRequest(cohort="c1", slots=slots, tickets=signed)
    with pytest.raises(ProtocolError, match=f"^{re.escape(why)}$"):
        shared.service.asking(shared.cohort.address, asked)


def test_a_client_that_sent_no_keys_gets_no_inbox_for_a_good_ticket(harness: AggregatorHarness) -> None:
    harness.answer("keys", range(4))
    harness.clock.advance(SECONDS)
    harness.answer("shares", range(4))
    with pytest.raises(BadTicket, match="slot 4: not the ticket that came with its keys"):
        harness.service.asking(harness.cohort.address, server.collecting(harness.cohort, [4]))


def test_one_answer_has_as_many_inboxes_as_fit_and_one_at_least(
    shared: AggregatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = shared.service.view(shared.cohort.address, range(5)).inboxes or []
    for most, expected in ((len(boxes[0].body) + len(boxes[1].body), 2), (1, 1)):
        monkeypatch.setattr("distrust.aggregator.service.MOST_INBOXES", most)
        assert shared.service.view(shared.cohort.address, range(5)).inboxes == boxes[:expected]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"neighbours": 5}, "neighbours"),
        ({"neighbours": 3}, "neighbours"),
        ({"threshold": 5}, "neighbours"),
    ],
)
def test_a_graph_that_cannot_be_built_is_refused_when_it_is_opened(
    harness: AggregatorHarness, change: dict[str, int], field: str
) -> None:
    cohort = server.masked(name="c2")
    broken = cohort.model_copy(update={"channel": cohort.channel.model_copy(update=change)})
    with pytest.raises(BadParameter, match=field):
        harness.service.open(broken)


def test_the_transcript_holds_every_message_as_the_aggregator_saw_it(harness: AggregatorHarness) -> None:
    for stage in STAGES:
        harness.answer(stage, range(5))
    harness.released()
    first = harness.service.transcript(address("c1"), 0, 20)
    rest = harness.service.transcript(address("c1"), first.next or 0, 100)
    seen = first.messages + rest.messages
    assert (first.total, rest.next) == (30, None)
    assert [item.number for item in seen] == list(range(30))
    outward = ["shares", "confirm", "masked", "unmask", "batch"]
    assert [item.stage for item in seen if item.direction == "out"] == outward
    assert seen[-1].view["sum"] == harness.clients.total(range(5))
    masked = [item.view["masked"] for item in seen if item.stage == "masked" and item.direction == "in"]
    assert len(masked) == 5
    assert all(value != harness.clients.vector(slot).tolist() for slot, value in enumerate(masked))

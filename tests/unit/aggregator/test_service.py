"""The aggregator leads a cohort to its sum, whoever leaves, whatever comes twice, whenever it is restarted."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from distrust.aggregator.service import Aggregator
from distrust.common.crypto.graph import bitmap_to_members
from distrust.common.errors import Aborted, BadMessage, BadParameter, WrongStage
from tests.support.aggregator_harness import STAGES, House, server
from tests.support.cohorts import SECONDS


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, server.masked())
    yield house
    house.stop()


@pytest.mark.parametrize("clients", [5, 40])
@pytest.mark.parametrize("dimension", [1, 33])
def test_everybody_answers_and_the_sum_is_right(tmp_path: Path, clients: int, dimension: int) -> None:
    house = House(tmp_path, server.masked(dimension, clients))
    for stage in STAGES:
        house.say(stage, range(clients))
    assert house.sum() == house.crowd.total(range(clients))
    assert (house.released().lost, house.view().stage) == (0, "done")
    house.stop()


@pytest.mark.parametrize("silent", STAGES)
@pytest.mark.parametrize("how", ["leaves", "is late"])
def test_a_client_lost_at_any_stage_is_survived(house: House, silent: str, how: str) -> None:
    present = set(range(5))
    for stage in STAGES:
        if stage == silent:
            present.remove(2)
        house.say(stage, present)
        if stage == silent and how == "leaves":
            house.leave({2})
        elif stage == silent:
            assert house.view().stage == stage
            house.clock.advance(SECONDS)
    counted = present | ({2} if silent == "unmask" else set())
    assert house.sum() == house.crowd.total(counted)
    assert house.released().lost == 5 - len(counted)


def test_a_client_that_left_in_a_stage_is_not_awaited_in_the_next(house: House) -> None:
    house.say("keys", range(5))
    house.leave({0})
    house.say("shares", {1, 2, 3, 4})
    assert house.view().stage == "confirm"
    assert bitmap_to_members(house.view().members, 5) == (1, 2, 3, 4)


@pytest.mark.parametrize("stage", STAGES[:4])
def test_too_few_at_any_stage_end_the_cohort_and_release_nothing(house: House, stage: str) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        house.say(earlier, range(5))
    house.say(stage, {0, 1})
    house.clock.advance(SECONDS)
    answer = house.released()
    assert (answer.state, answer.batch) == ("aborted", None)
    assert answer.reason == f"2 clients in stage {stage}, at least 4 needed: nothing is released"
    with pytest.raises(Aborted, match=f"2 clients in stage {stage}"):
        house.send(stage, {3: b""})


def test_too_few_shares_to_unmask_end_the_cohort(house: House) -> None:
    for stage in STAGES[:4]:
        house.say(stage, range(5))
    house.say("unmask", {0})
    house.clock.advance(SECONDS)
    assert house.released().state == "aborted"


def test_a_restart_between_and_inside_stages_changes_nothing(house: House) -> None:
    for stage in STAGES:
        house.say(stage, {0, 1})
        house.restart()
        house.say(stage, {2, 3, 4})
        house.restart()
    assert house.sum() == house.crowd.total(range(5))


def test_a_crash_while_unmasking_only_repeats_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in STAGES[:4]:
        house.say(stage, range(5))
    monkeypatch.setattr(Aggregator, "_release", lambda *_: None)  # killed before the batch was committed
    house.say("unmask", range(5))
    assert house.released().state == "waiting"
    assert house.view().stage == "unmask"
    monkeypatch.undo()
    house.restart()
    assert house.sum() == house.crowd.total(range(5))


def test_a_batch_that_cannot_be_written_is_released_later(house: House) -> None:
    for stage in STAGES[:4]:
        house.say(stage, range(5))

    def full(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT" in statement and "batch" in str(_[0]):
            raise house.database._engine.dialect.dbapi.OperationalError("database or disk is full")

    event.listen(house.database._engine, "before_cursor_execute", full)
    house.say("unmask", range(5))
    house.service._mixer.submit(lambda: None).result(timeout=20)
    with house.database.reading() as tx:
        assert tx.exec_driver_sql("SELECT stage FROM cohorts").scalar_one() == "mixing"
    event.remove(house.database._engine, "before_cursor_execute", full)
    house.service.settled("c1")
    assert house.sum() == house.crowd.total(range(5))


def test_a_late_deadline_after_a_restart_gives_the_next_stage_its_full_time(house: House) -> None:
    house.say("keys", {0, 1, 2, 3})
    house.stop()
    house.clock.advance(10 * SECONDS)
    house.start()
    assert house.view().stage == "shares"
    house.clock.advance(SECONDS - 1)
    house.say("shares", {0, 1, 2, 3})
    assert house.view().stage == "confirm"


def test_a_masked_input_after_the_survivors_are_frozen_is_refused(house: House) -> None:
    for stage in STAGES[:3]:
        house.say(stage, range(5))
    bodies = house.crowd.answer(house.view(), range(5))
    late = {4: bodies.pop(4)}
    house.send("masked", bodies)
    house.clock.advance(SECONDS)
    with pytest.raises(WrongStage, match="in stage unmask: masked is not open"):
        house.send("masked", late)
    assert house.send("masked", bodies).accepted == 4


def test_a_stage_before_its_time_is_refused(house: House) -> None:
    with pytest.raises(WrongStage, match="in stage keys: masked is not open"):
        house.send("masked", {0: bytes(3)})


@pytest.mark.parametrize(
    ("stage", "body", "why"),
    [
        pytest.param("keys", bytes(63), "64 bytes", id="keys-too-short"),
        pytest.param("keys", bytes(64), "", id="keys-of-small-order"),
        pytest.param("shares", bytes(33), "bytes", id="shares-of-another-size"),
        pytest.param("confirm", bytes(33), "bytes", id="confirm-of-another-size"),
        pytest.param("confirm", b"\xff" * 17 * 7, "a coefficient", id="a-coefficient-outside-the-field"),
        pytest.param("masked", b"\xff\xff\xf0", "", id="a-value-above-the-modulus"),
        pytest.param("masked", bytes(4), "bytes", id="masked-of-another-size"),
        pytest.param("unmask", bytes(16), "bytes", id="unmask-of-another-size"),
    ],
)
def test_one_bad_body_never_spoils_the_others(house: House, stage: str, body: bytes, why: str) -> None:
    for earlier in STAGES[: STAGES.index(stage)]:
        house.say(earlier, range(5))
    bodies = house.crowd.answer(house.view(), range(5))
    answer = house.send(stage, bodies | {2: body})
    assert [(item.slot, item.type, item.status) for item in answer.refused] == [(2, BadMessage("").urn, 422)]
    assert answer.accepted == 4
    assert why in answer.refused[0].detail
    assert house.view().stage == stage
    assert house.send(stage, bodies).accepted == (4 if stage == "keys" else 5)  # a ticket is for one pair of keys


def test_a_slot_that_sent_no_keys_takes_no_part_later(house: House) -> None:
    house.say("keys", range(4))
    house.clock.advance(SECONDS)
    assert house.view().stage == "shares"
    answer = house.send("shares", {4: bytes(200)})
    assert (answer.accepted, [item.slot for item in answer.refused]) == (0, [4])


def test_inboxes_come_only_for_the_slots_that_were_asked_for(house: House) -> None:
    for stage in STAGES[:2]:
        house.say(stage, range(5))
    view = house.service.view("c1", [3, 1, 99])
    assert [box.slot for box in view.inboxes or []] == [3, 1]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"neighbours": 5}, "neighbours"),
        ({"neighbours": 3}, "neighbours"),
        ({"threshold": 5}, "neighbours"),
    ],
)
def test_a_graph_that_cannot_be_built_is_refused_when_it_is_opened(
    house: House, change: dict[str, int], field: str
) -> None:
    cohort = server.masked(name="c2")
    broken = cohort.model_copy(update={"channel": cohort.channel.model_copy(update=change)})
    with pytest.raises(BadParameter, match=field):
        house.service.open(broken)


def test_the_transcript_holds_every_message_as_the_aggregator_saw_it(house: House) -> None:
    for stage in STAGES:
        house.say(stage, range(5))
    house.released()
    first = house.service.transcript("c1", 0, 20)
    rest = house.service.transcript("c1", first.next or 0, 100)
    seen = first.messages + rest.messages
    assert (first.total, rest.next) == (30, None)
    assert [item.number for item in seen] == list(range(30))
    outward = ["shares", "confirm", "masked", "unmask", "batch"]
    assert [item.stage for item in seen if item.direction == "out"] == outward
    assert seen[-1].view["sum"] == house.crowd.total(range(5))
    masked = [item.view["masked"] for item in seen if item.stage == "masked" and item.direction == "in"]
    assert len(masked) == 5
    assert all(value != house.crowd.vector(slot).tolist() for slot, value in enumerate(masked))

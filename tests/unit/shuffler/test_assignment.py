"""Tests that the shuffler assigns one constant action a slot, to its first asker, and groups records by action."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from distrust.common.bandit.decisions import AssignedAction
from distrust.common.errors import Aborted, BadMessage, BadTicket, Conflict, WrongStage
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.permutation import random_order
from distrust.common.protocol.channels.sealed import sealed_size
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.randomness import SystemStream, UnsafeSeededStream
from distrust.shuffler.assignment import draw_order, pack_order, unpack_order
from tests.support.assigning_shuffler import SIZE, AssigningShuffler, assignment_of, server
from tests.support.cohorts import SECONDS, address, report


@pytest.fixture
def shuffler(tmp_path: Path) -> Iterator[AssigningShuffler]:
    shuffler = AssigningShuffler(tmp_path)
    yield shuffler
    shuffler.service.close()
    shuffler.database.close()


def opened(cohort: Cohort, content: GroupedRecords) -> list[list[int]]:
    """Return the slots that sent the records of each group, in their order. Each record opens at its own action."""
    at, groups = 0, []
    for place, count in enumerate(content.counts):
        records = [content.body[start : start + SIZE] for start in range(at, at + count * SIZE, SIZE)]
        groups.append([int.from_bytes(open_record(server.seals, cohort, record, place)[1]) for record in records])
        at += count * SIZE
    assert at == len(content.body)
    return groups


def test_every_play_is_assigned_once_and_a_repeat_gets_the_same(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[30, 20]))
    first = shuffler.ask(cohort, *range(50))
    assert sorted(first.values()) == list(range(50))
    assert shuffler.ask(cohort, *reversed(range(50))) == first
    assert shuffler.service.actions(address("c1"), server.asking(cohort, [3])).digest == cohort.digest()


def test_the_order_outlives_a_kill_before_and_after_a_client_asked(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[30, 20]))
    shuffler.kill()
    first = shuffler.ask(cohort, *range(50))
    shuffler.kill()
    assert shuffler.service.open(cohort) == cohort  # as a server does that was told nothing
    assert shuffler.ask(cohort, *range(50)) == first


def test_reports_go_back_by_action_and_by_nothing_else(shuffler: AssigningShuffler) -> None:
    """Sent in the order of the slots; 40 of a group in that order again has a chance of 1 in 40!."""
    cohort = shuffler.service.open(server.assigned(actions=[9, 0, 4], times=[40, 25, 35]))
    shuffler.ask(cohort, *range(100))
    shuffler.send(cohort, *range(100))
    content = shuffler.released(cohort)
    groups = opened(cohort, content)
    expected = [
        [s for s in range(100) if assignment_of(cohort).place(shuffler.plays[s]) == place] for place in range(3)
    ]
    assert [sorted(group) for group in groups] == expected
    assert all(group != sorted(group) for group in groups)
    assert content.counts == [40, 25, 35]


def test_a_group_may_lose_members_and_may_be_empty(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[3, 2]))
    shuffler.ask(cohort, *range(5))
    gone = [slot for slot in range(5) if shuffler.plays[slot] >= 3]
    shuffler.send(cohort, *(slot for slot in range(5) if slot not in gone))
    shuffler.service.leave(address("c1"), server.leaving(cohort, gone))
    content = shuffler.released(cohort)
    assert (content.counts, len(opened(cohort, content)[1])) == ([3, 0], 0)


def test_below_the_minimum_no_group_is_released(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[3, 2], minimum=4))
    shuffler.ask(cohort, *range(5))
    shuffler.send(cohort, 0, 1, 2)
    shuffler.clock.advance(SECONDS)
    answer = shuffler.service.batch(address("c1"))
    assert isinstance(answer, BatchAnswer)
    assert (answer.state, answer.batch) == ("aborted", None)
    with pytest.raises(Aborted):
        shuffler.service.actions(address("c1"), server.asking(cohort, [4]))


def test_a_kill_between_the_play_and_the_report_loses_nothing(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[3, 2]))
    shuffler.ask(cohort, *range(5))
    shuffler.send(cohort, 0, 1)
    shuffler.kill()
    shuffler.send(cohort, 2, 3, 4)
    assert [len(group) for group in opened(cohort, shuffler.released(cohort))] == [3, 2]


def test_no_client_is_told_anothers_play(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned())
    request = server.asking(cohort, [0, 1])
    stolen = request.model_copy(update={"slots": [0, 2]})  # slot 1's ticket
    answer = shuffler.service.actions(address("c1"), stolen)
    assert (answer.slots, [one.slot for one in answer.refused]) == ([0], [2])
    assert answer.refused[0].type == BadTicket("").urn
    other = server.asking(cohort.model_copy(update={"run": "r2"}), [0])
    assert shuffler.service.actions(address("c1"), other).slots == []
    for broken in (request.model_copy(update={"tickets": b""}), request.model_copy(update={"cohort": "c9"})):
        with pytest.raises(BadMessage):
            shuffler.service.actions(address("c1"), broken)


@pytest.mark.parametrize("slots", [[5], [0, 0]])
def test_a_slot_that_is_none_or_twice_is_told_nothing(shuffler: AssigningShuffler, slots: list[int]) -> None:
    cohort = shuffler.service.open(server.assigned())
    answer = shuffler.service.actions(address("c1"), server.asking(cohort, slots))
    assert [one.slot for one in answer.refused] == slots[-1:]


def test_who_left_or_is_too_late_is_told_nothing(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned())
    shuffler.service.leave(address("c1"), server.leaving(cohort, [0]))
    answer = shuffler.service.actions(address("c1"), server.asking(cohort, [0, 1]))
    assert (answer.slots, answer.refused[0].type) == ([1], WrongStage("").urn)
    shuffler.ask(cohort, 1, 2, 3, 4)
    shuffler.send(cohort, 1, 2, 3, 4)
    shuffler.released(cohort)
    with pytest.raises(WrongStage):
        shuffler.service.actions(address("c1"), server.asking(cohort, [1]))


def test_a_ticket_is_not_used_up_by_asking_and_is_by_reporting(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned())
    shuffler.ask(cohort, 0)
    shuffler.ask(cohort, 0)
    shuffler.send(cohort, 0)
    again = server.upload(cohort, "report", {0: report(cohort, 0, mark=9, place=0)})
    assert [one.type for one in shuffler.service.receive(address("c1"), "report", again).refused] == [Conflict("").urn]


def test_without_a_seed_two_cohorts_have_orders_of_their_own(shuffler: AssigningShuffler) -> None:
    first = shuffler.service.open(server.assigned(times=[30, 20]))
    second = shuffler.service.open(server.assigned(times=[30, 20], name="c2"))
    assert shuffler.ask(first, *range(50)) != shuffler.ask(second, *range(50))


def test_a_seed_gives_the_order_that_any_party_can_compute(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[30, 20], noise_seed=7))
    order = random_order(50, UnsafeSeededStream(7, "r1", "c1", "order"))  # whose law test_permutation has
    assert shuffler.ask(cohort, *range(50)) == dict(enumerate(order.tolist()))


def test_the_transcript_shows_each_clients_action_and_never_the_whole_order(shuffler: AssigningShuffler) -> None:
    cohort = shuffler.service.open(server.assigned(times=[3, 2]))
    shuffler.ask(cohort, *range(5))
    shuffler.send(cohort, *range(5))
    content = shuffler.released(cohort)
    first, *heard, last = shuffler.service.transcript(address("c1"), 0, 12).messages
    request, reports = heard[:5], heard[5:]
    assert (first.stage, first.direction, first.view, first.hex) == (
        "order",
        "out",
        {"actions": [4, 1], "times": [3, 2]},
        "",
    )
    actions = [assignment_of(cohort).actions[assignment_of(cohort).place(shuffler.plays[slot])] for slot in range(5)]
    assert [one.view for one in request] == [{"action": action} for action in actions]
    assert [one.view["action"] for one in reports] == actions
    assert all(one.view.keys() == {"action", "report_id", "sealed_bytes"} for one in reports)
    assert last.view["by_action"] == content.counts == [3, 2]


def test_within_a_group_every_order_is_as_likely() -> None:
    """Three records of one action, two of another: 6 · 2 ways, 2400 times; false alarm 1e-6."""
    assigned, order = AssignedAction(actions=[0, 1], times=[3, 2]), np.array([4, 0, 2, 3, 1])
    channel = AssignedRecords(size=1, server_key=bytes(32), deal=assigned)
    reports = [(slot, bytes([slot]) * channel.report_size) for slot in range(5)]
    batches = (channel.mix(reports, SystemStream(), order)[1].body for _ in range(2400))
    result = [body[:: sealed_size(1)] for body in batches]
    assert all({*body[:3]} == {1, 2, 4} for body in result)
    counts = np.unique(result, return_counts=True)[1]
    assert counts.size == 12
    assert stats.chisquare(counts).pvalue > 1e-6


def test_an_order_is_stored_as_it_is() -> None:
    order = draw_order(AssignedAction(actions=[0], times=[1000]), SystemStream())
    assert (unpack_order(pack_order(order)) == order).all()
    assert len(pack_order(order)) == 4000

"""What the aggregator tells beside the sum: statements to the server, liars and disputes in the batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distrust.common.crypto.context import confirm_statement, masked_statement, unmask_statement
from distrust.common.crypto.graph import Roster
from distrust.common.messages.status import StageView
from tests.support.aggregator_harness import STAGES, House, server


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path, server.masked())
    yield house
    house.stop()


def test_false_shares_spoil_no_sum_and_the_report_names_the_liar(house: House) -> None:
    """Rule 16. Slot 0 returns false shares of everybody; the server reads its slot in the batch."""
    for stage in STAGES[:4]:
        house.say(stage, range(5))
    bodies = house.crowd.answer(house.view(), range(5))
    bodies[0] = bytes(len(bodies[0]))
    house.send("unmask", bodies)
    assert house.sum() == house.crowd.total(range(5))
    batch = house.released().batch
    assert batch is not None
    assert (batch.liars, batch.disputes) == ([0], 0)
    assert house.service.transcript("c1", 0, 100).messages[-1].view["liars"] == [0]


def test_secrets_that_cannot_be_rebuilt_end_the_cohort_with_a_reason_that_blames_no_victim(house: House) -> None:
    for stage in STAGES[:4]:
        house.say(stage, range(5))
    bodies = house.crowd.answer(house.view(), range(5))
    house.send("unmask", bodies | {slot: bytes(len(bodies[slot])) for slot in (0, 1)})
    answer = house.released()
    assert answer.state == "aborted"
    assert "cannot be rebuilt" in (answer.reason or "")


def test_statements_are_served_as_stages_open_and_chain_what_clients_were_told(house: House) -> None:
    """Rule 15: the server publishes these digests; a client computes them from the view that it got."""
    cohort = house.cohort
    assert house.service.statements("c1", 0).statements == []
    told: list[StageView] = []
    for stage in STAGES:
        house.say(stage, range(5))
        told.append(house.view())
        known = house.service.statements("c1", 0)
        assert [item.stage for item in known.statements] == list(STAGES[2 : STAGES.index(stage) + 2])
        assert house.service.statements("c1", 2).statements == known.statements[2:]
    assert house.released().state == "released"
    found = house.service.statements("c1", 0)
    roster = Roster(cohort, told[0].members, told[0].roster or b"")
    first = confirm_statement(roster.digest, roster.cohort, told[1].members, told[1].challenge or b"")
    second = masked_statement(first, cohort, told[2].members)
    third = unmask_statement(second, cohort, told[3].members)
    assert [item.digest for item in found.statements] == [first, second, third]
    assert found.over


def test_two_cohorts_never_have_one_challenge_and_a_restart_keeps_it(tmp_path: Path) -> None:
    challenges = set()
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        house = House(tmp_path / str(number), server.masked())
        house.say("keys", range(5))
        house.say("shares", range(5))
        challenge = house.view().challenge
        house.restart()
        assert house.view().challenge == challenge
        challenges.add(challenge)
        house.stop()
    assert len(challenges) == 4

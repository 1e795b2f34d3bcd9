"""Tests that fleets at a shuffler that assigns actions play the assigned ones, and refuse all others."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from distrust.client.cohort.departures import departures
from distrust.client.cohort.randomizer import CohortRandomizer, World, true_vectors
from distrust.client.cohort.uploader import Limits
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.common.errors import BadMessage, Refused, WrongCohort
from distrust.common.modular import unpack
from distrust.common.protocol.channels.assigned import AssignedRecords, GroupedRecords
from distrust.common.protocol.channels.sealed import sealed_size
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import ActionAnswer, ActionRequest, InboxRequest
from distrust.common.protocol.run.round import Round
from distrust.common.randomness import UnsafeSeededStream
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import SEAL_KEY, TICKET_KEY, FleetHarness, LyingFleetHarness, serve
from tests.support.limits import lenient

MakeRound = Callable[..., Round]
UNSAFE = lenient(allow_unsafe=True)


def _groups(shuffler: Shuffler, round_: Round) -> list[list[int]]:
    """Return the values of each action's records, as the server decodes them."""
    cohort = round_.assignments[0].cohort
    answer = shuffler.batch(cohort.address)
    assert isinstance(answer, bytes)
    batch = BatchAnswer.model_validate_json(answer).batch
    assert batch is not None
    assert isinstance(batch.content, GroupedRecords)
    assert isinstance(cohort.channel, AssignedRecords)
    size, body = sealed_size(cohort.channel.size), batch.content.body
    groups: list[list[int]] = []
    for place, count in enumerate(batch.content.counts):
        cut, body = [body[at : at + size] for at in range(0, count * size, size)], body[count * size :]
        payloads = [open_record(SEAL_KEY, cohort, one, place)[1] for one in cut]
        groups.append([int(unpack(payload, round_.mechanism.modulus, 1)[0]) for payload in payloads])
    return groups


@pytest.mark.parametrize("fleets", [1, 2])
def test_every_client_plays_its_own_action_and_reports_under_it(
    make_assigned: MakeRound, world: World, shuffler: Shuffler, fleets: int
) -> None:
    """Without noise: arm 0 always pays, arm 1 never; blocks cut across fleets, and requests across blocks."""
    round_ = make_assigned("identity")
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    all_fleets = [Fleet(harness, world, UNSAFE, FleetOptions(block=7, limits=Limits(items=4))) for _ in range(fleets)]
    assert serve(*all_fleets) == ["finished"] * fleets
    always, never, sometimes = _groups(shuffler, round_)
    steps = round_.mechanism.precision
    assert (always, never, len(sometimes)) == ([steps] * 8, [steps // 2] * 6, 6)  # rewards in [-1, 1]
    assert max(len(request.slots) for request in harness.action_requests) == 4
    assert sum(fleet.stats.clients["served"] for fleet in all_fleets) == 20


def test_the_same_seed_gives_the_same_rows_by_slot_as_in_process(
    make_assigned: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_assigned(seed=9)
    serve(
        Fleet(FleetHarness([round_], shuffler, TICKET_KEY), replace(world, noise_seed=9), UNSAFE, FleetOptions(block=6))
    )
    cohort = round_.assignments[0].cohort
    order = shuffler._order(shuffler.settled(cohort.address).number)
    stream = UnsafeSeededStream(world.seed, cohort.run, cohort.cohort, "rewards")
    by_play = true_vectors(world.environment, round_.decision, round_.statistic, arm=None, clients=20, stream=stream)
    noise = UnsafeSeededStream(9, cohort.run, cohort.cohort)
    rows = round_.mechanism.randomize(by_play[order], noise)[:, 0]
    assert round_.decision.kind == "assigned-action"
    places = round_.decision.places()[order]
    for place, group in enumerate(_groups(shuffler, round_)):
        assert sorted(group) == sorted(rows[places == place].tolist())


def test_who_leaves_before_it_asks_is_told_nothing_and_who_leaves_later_sends_nothing(
    make_assigned: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_assigned(times=(20, 10, 10), dropout=0.4)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    serve(Fleet(harness, world, lenient(), FleetOptions(block=16, dropout=0.4)))
    stream = UnsafeSeededStream(world.seed, "demo", round_.assignments[0].cohort.cohort, "departures")
    leaves = departures(40, 0.4, stream)
    shown = {slot for request in harness.action_requests for slot in request.slots}
    reported = {item.slot for upload in harness.uploads for item in upload.items}
    assert shown == set(np.flatnonzero(leaves > 0).tolist())
    assert reported == set(np.flatnonzero(leaves >= 3).tolist())
    assert shown - reported
    assert sum(map(len, _groups(shuffler, round_))) == len(reported)


class _Slow(FleetHarness):
    """Tells plays after a while, and has no stages, as the shuffler over HTTP has none."""

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        await asyncio.sleep(0.05 * len(self.action_requests))
        return await super().actions(cohort, request)

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        raise WrongCohort("not found")


def test_a_block_that_has_reported_does_not_give_up_those_that_still_ask(
    make_assigned: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """Found over HTTP: the first block's end made a client follow the others' stages, and these were dropped."""
    round_ = make_assigned("identity")
    fleet = Fleet(_Slow([round_], shuffler, TICKET_KEY), world, UNSAFE, FleetOptions(block=4))
    assert serve(fleet) == ["finished"]
    assert sum(map(len, _groups(shuffler, round_))) == fleet.stats.clients["served"] == 20
    assert fleet.stats.clients["refused"] == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"minimum": 1}, "minimum", id="minimum"),
        pytest.param({"stage_seconds": 1.0}, "stage_seconds", id="deadline"),
        pytest.param({"channel": {"noise_seed": 9}}, r"channel\.noise_seed", id="an-order-that-it-can-compute"),
        pytest.param({"channel": {"times": [18, 1, 1]}}, r"channel\.deal\.times", id="another-list"),
    ],
)
def test_a_shuffler_that_was_told_another_cohort_is_found_out_before_any_client_plays(
    make_assigned: MakeRound, world: World, shuffler: Shuffler, changes: dict[str, object], field: str
) -> None:
    round_ = make_assigned()
    cohort = round_.assignments[0].cohort
    channel = cohort.channel.model_dump()
    inner = changes.pop("channel", {})
    assert isinstance(inner, dict)
    channel["deal"]["times"] = inner.pop("times", channel["deal"]["times"])
    shown = Cohort.model_validate(cohort.model_dump() | changes | {"channel": channel | inner})
    harness = LyingFleetHarness(round_, shown, shuffler, TICKET_KEY)
    with pytest.raises(Refused, match=rf"the shuffler was told cohort\.{field}"):
        serve(Fleet(harness, world, lenient()))
    assert harness.uploads == []


class _Thief(FleetHarness):
    """A server that signs the tickets of some slots once more, and asks with them before their clients do."""

    stolen: tuple[int, ...] = (3, 4, 11)

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        if not self.action_requests:
            grants = [self._sign(cohort, slot, 1) for slot in self.stolen]
            tickets, claims = b"".join(grant.signatures for grant in grants), bytes(32 * len(grants))
            early = ActionRequest(cohort=cohort.cohort, slots=list(self.stolen), tickets=tickets, claims=claims)
            assert len((await super().actions(cohort, early)).plays) == len(grants)
        return await super().actions(cohort, request)


def test_a_client_whose_slot_was_asked_for_already_sends_nothing_and_leaves(
    make_assigned: MakeRound, world: World, shuffler: Shuffler, capsys: pytest.CaptureFixture[str]
) -> None:
    round_ = make_assigned(dropout=0.3, corrupt=0.2)
    harness = _Thief([round_], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, UNSAFE, FleetOptions(block=7))
    assert serve(fleet) == ["finished"]
    reported = {item.slot for upload in harness.uploads for item in upload.items}
    assert reported == set(range(20)) - set(harness.stolen)
    assert {slot for leaving in harness.departures for slot in leaving.slots} == set(harness.stolen)
    assert (fleet.stats.clients["robbed"], fleet.stats.clients["served"]) == (3, 17)
    assert capsys.readouterr().out.count("another client has asked what it plays") == 3
    assert sum(map(len, _groups(shuffler, round_))) == 17


def test_a_cohort_with_too_many_stolen_slots_releases_nothing(
    make_assigned: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_assigned(dropout=0.1)
    harness = _Thief([round_], shuffler, TICKET_KEY)
    serve(Fleet(harness, world, UNSAFE))
    answer = shuffler.batch(round_.assignments[0].cohort.address)
    assert isinstance(answer, BatchAnswer)
    assert answer.state == "aborted"


class _Careless(FleetHarness):
    """A shuffler whose answer is changed on its way."""

    change: Callable[[ActionAnswer], ActionAnswer]

    async def actions(self, cohort: Cohort, request: ActionRequest) -> ActionAnswer:
        return type(self).change(await super().actions(cohort, request))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda answer: answer.model_copy(update={"plays": answer.plays[1:]}), id="too-few"),
        pytest.param(lambda answer: answer.model_copy(update={"slots": [99, *answer.slots[1:]]}), id="anothers"),
        pytest.param(
            lambda answer: answer.model_copy(update={"plays": answer.plays[1:], "slots": answer.slots[1:]}),
            id="one-left-out-without-a-word",
        ),
        pytest.param(lambda answer: answer.model_copy(update={"plays": [20, *answer.plays[1:]]}), id="not-in-the-list"),
    ],
)
def test_an_answer_that_does_not_add_up_is_played_by_no_client(
    make_assigned: MakeRound, world: World, shuffler: Shuffler, change: Callable[[ActionAnswer], ActionAnswer]
) -> None:
    kind = type("_Changing", (_Careless,), {"change": staticmethod(change)})
    harness = kind([make_assigned()], shuffler, TICKET_KEY)
    harness.cancelled = False
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=20))

    async def a_while() -> None:
        playing = asyncio.create_task(fleet.serve())
        async with asyncio.timeout(60):
            while fleet.stats.clients["refused"] < 20:  # noqa: ASYNC110 - no event tells that a client refuses
                await asyncio.sleep(0.01)
        assert not playing.done()
        playing.cancel()
        await asyncio.wait({playing})

    asyncio.run(a_while())
    assert (harness.uploads, fleet.stats.clients["refused"]) == ([], 20)


def test_a_client_that_was_told_nothing_makes_no_report(make_assigned: MakeRound, world: World) -> None:
    round_ = make_assigned()
    randomizer = CohortRandomizer(round_, round_.assignments[0], world)
    randomizer.assign({3: 7})
    assert randomizer.rows([3]).shape == (1, 1)
    assert (randomizer.place(3), [randomizer.place(3)]) == (0, [0])
    with pytest.raises(BadMessage, match="does not know what to play"):
        randomizer.rows([3, 4])


def test_nothing_can_be_dealt_to_clients_that_know_what_to_play(make_round: MakeRound, world: World) -> None:
    round_ = make_round()
    randomizer = CohortRandomizer(round_, round_.assignments[0], world)
    assert randomizer.place(0) is None
    with pytest.raises(BadMessage, match="know what to play"):
        randomizer.assign({0: 0})

"""Tests that each client of a fleet reports once or leaves, and that the shuffler releases what they sent."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from distrust.client.cohort.departures import departures, survives
from distrust.client.cohort.randomizer import World
from distrust.client.cohort.uploader import Limits
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.common.errors import Refused, Unavailable
from distrust.common.modular import unpack
from distrust.common.protocol.channels.bits import PermutedBits
from distrust.common.protocol.channels.sealed import Records, Sealed, sealed_size
from distrust.common.protocol.crypto.seal import open_record
from distrust.common.protocol.messages.batch import BatchAnswer
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.upload import RefusedItem, Upload, UploadAnswer
from distrust.common.protocol.run.round import Round, TicketAnswer
from distrust.common.randomness import Stream, SystemStream, UnsafeSeededStream
from distrust.common.wire import LONGEST_REASON
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import SEAL_KEY, TICKET_KEY, FleetHarness, serve
from tests.support.limits import lenient
from tests.support.manual_clock import ManualClock

MakeRound = Callable[..., Round]
UNSAFE = lenient(allow_unsafe=True)


def _batch(shuffler: Shuffler, cohort: Cohort) -> BatchAnswer:
    answer = shuffler.batch(cohort.address)
    return BatchAnswer.model_validate_json(answer) if isinstance(answer, bytes) else answer


def _opened(shuffler: Shuffler, cohort: Cohort, modulus: int) -> list[int]:
    """Return the values of all sealed records, as the server decodes them."""
    batch = _batch(shuffler, cohort).batch
    assert batch is not None
    assert isinstance(batch.content, Records)
    assert isinstance(cohort.channel, Sealed)
    size = sealed_size(cohort.channel.size)
    body = batch.content.body
    records = [body[i : i + size] for i in range(0, len(body), size)]
    return [int(unpack(open_record(SEAL_KEY, cohort, record)[1], modulus, 1)[0]) for record in records]


def _rewards(world: World, round_: Round, arm: int) -> np.ndarray:
    cohort = round_.assignments[arm].cohort
    stream = UnsafeSeededStream(world.seed, cohort.run, cohort.cohort, "rewards")
    return world.environment.rewards(arm, cohort.clients, stream)


@pytest.mark.parametrize("fleets", [1, 2])
def test_sealed_records_carry_every_clients_own_reward_once(
    make_round: MakeRound, world: World, shuffler: Shuffler, fleets: int
) -> None:
    """Without noise, and so in an unsafe round, the records are the rewards; blocks cut across cohorts and fleets."""
    rounds = [make_round("identity", via="shuffler", clients=20, cohorts=3, number=number) for number in (1, 2)]
    harness = FleetHarness(rounds, shuffler, TICKET_KEY)
    all_fleets = [Fleet(harness, world, UNSAFE, FleetOptions(block=7)) for _ in range(fleets)]
    assert serve(*all_fleets) == ["finished"] * fleets
    for round_ in rounds:
        for arm, assignment in enumerate(round_.assignments):
            steps = round_.mechanism.precision
            expected = sorted((_rewards(world, round_, arm) * steps).astype(int).tolist())
            assert sorted(_opened(shuffler, assignment.cohort, round_.mechanism.modulus)) == expected
    assert sum(fleet.stats.clients["joined"] for fleet in all_fleets) == 120
    assert sum(fleet.stats.clients["served"] for fleet in all_fleets) == 120


def test_labelled_bits_add_up_to_what_the_same_seed_gives_in_process(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_round("shuffled-binomial", clients=30, delta=1e-6)
    unsafe = replace(world, noise_seed=9)
    serve(Fleet(FleetHarness([round_], shuffler, TICKET_KEY), unsafe, UNSAFE, FleetOptions(block=11)))
    cohort = round_.assignments[0].cohort
    noise = UnsafeSeededStream(9, cohort.run, cohort.cohort)
    rows = round_.mechanism.randomize(round_.statistic.vectors(_rewards(world, round_, 0)), noise)
    batch = _batch(shuffler, cohort).batch
    assert batch is not None
    assert isinstance(batch.content, PermutedBits)
    assert batch.survivors == 30
    assert int(np.unpackbits(np.frombuffer(batch.content.body, np.uint8)).sum()) == int(rows.sum())


def test_departing_clients_say_so_and_the_others_do_not_wait_for_a_deadline(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The clock stands still, so only announced departures can end the cohort."""
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=40, dropout=0.2)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=16, dropout=0.2))
    serve(fleet)
    leaves = departures(
        40, 0.2, UnsafeSeededStream(world.seed, "demo", round_.assignments[0].cohort.cohort, "departures")
    )
    staying = int(survives(leaves).sum())
    batch = _batch(shuffler, round_.assignments[0].cohort).batch
    assert batch is not None
    assert 32 <= staying < 40
    assert batch.survivors == staying
    assert (
        sorted(slot for leaving in harness.departures for slot in leaving.slots) == np.flatnonzero(leaves < 3).tolist()
    )
    assert fleet.stats.clients["departed"] == 40 - staying


def test_silent_clients_vanish_and_the_shuffler_waits_for_its_deadline(
    make_round: MakeRound, world: World, shuffler: Shuffler, clock: ManualClock
) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=40, dropout=0.2)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(dropout=0.2, silent=True))

    async def play() -> str:
        task = asyncio.create_task(fleet.serve())
        async with asyncio.timeout(60):
            while sum(len(upload.items) for upload in harness.uploads) < staying:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)
        await asyncio.to_thread(harness._pool.submit(lambda: None).result)  # behind the last upload: it is stored
        assert not task.done()
        clock.advance(61)
        return await asyncio.wait_for(task, 60)

    cohort = round_.assignments[0].cohort.cohort
    leaves = departures(40, 0.2, UnsafeSeededStream(world.seed, "demo", cohort, "departures"))
    staying = int(survives(leaves).sum())
    assert asyncio.run(play()) == "finished"
    assert harness.departures == []
    assert _batch(shuffler, round_.assignments[0].cohort).state == "released"


def test_uploads_are_cut_to_size(make_round: MakeRound, world: World, shuffler: Shuffler) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=40)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    serve(Fleet(harness, world, lenient(), FleetOptions(block=30, limits=Limits(items=8))))
    assert sorted(len(upload.items) for upload in harness.uploads) == [2, 6, 8, 8, 8, 8]


def test_messages_are_not_made_on_the_event_loop(make_round: MakeRound, world: World, shuffler: Shuffler) -> None:
    """The loop keeps answering while noise is drawn and records are sealed: that is another thread's work."""
    threads: set[int] = set()

    def fresh() -> Stream:
        threads.add(threading.get_ident())
        return SystemStream()

    round_ = make_round("local-laplace-discrete", via="shuffler", clients=40)
    serve(Fleet(FleetHarness([round_], shuffler, TICKET_KEY), replace(world, fresh=fresh), lenient()))
    assert threads
    assert threading.get_ident() not in threads


def test_a_round_that_breaks_the_terms_is_refused_before_any_ticket_is_taken(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    harness = FleetHarness([make_round("identity", via="shuffler")], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient())
    with pytest.raises(Refused, match="no privacy"):
        serve(fleet)
    assert harness.uploads == []
    assert fleet.stats.clients["joined"] == 0


def test_a_fleet_looks_at_each_cohort_once_however_many_blocks_it_sends(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=40, cohorts=2)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=7))
    serve(fleet)
    assert harness.looks == [assignment.cohort.cohort for assignment in round_.assignments]
    assert len(harness.uploads) > 10
    assert fleet.stats.clients["served"] == 80


class _TwoFaced(FleetHarness):
    """Shows one round until the users have agreed to it, and then another one under the same names."""

    def __init__(self, first: Round, then: Round, shuffler: Shuffler) -> None:
        super().__init__([first], shuffler, TICKET_KEY)
        self._then = then

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        if self.rounds[0] is self._then:
            return await super().tickets(request, wait)
        view = await self.round(0, wait)
        self.rounds[0] = self._then
        return TicketAnswer(grants=[], view=view)


def test_a_round_that_changes_after_users_agreed_to_it_is_refused(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The cohort keeps its name, and its noise is left out later. Users agree to the whole round, not to its name."""
    first = make_round("local-laplace-discrete", via="shuffler", precision=4)
    bare = make_round("identity", via="shuffler", precision=first.mechanism.precision)
    same = {"modulus": first.mechanism.modulus}
    then = first.model_copy(update={"mechanism": bare.mechanism.model_copy(update=same)})
    harness = _TwoFaced(first, then, shuffler)
    with pytest.raises(Refused):
        serve(Fleet(harness, world, lenient()))
    assert harness.uploads == []


class _Refusing(FleetHarness):
    """An intermediary that refuses some items: the first of each upload as a conflict, the second for its ticket."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        conflict, ticket = upload.items[0].slot, upload.items[1].slot
        await super().upload(cohort, upload)
        return UploadAnswer(
            accepted=len(upload.items) - 2,
            refused=[
                RefusedItem(slot=conflict, type="urn:distrust:problem:conflict", status=409, detail="differs"),
                RefusedItem(slot=ticket, type="urn:distrust:problem:bad-ticket", status=403, detail="forged"),
            ],
        )


def test_a_refused_client_is_dropped_and_one_whose_slot_was_used_already_is_told_apart(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    harness = _Refusing([make_round("local-laplace-discrete", via="shuffler", clients=20)], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=20))
    serve(fleet)
    clients = fleet.stats.clients
    assert (clients["served"], clients["refused"], clients["robbed"]) == (18, 1, 1)


class _Slandering(FleetHarness):
    """An intermediary that takes everything, and refuses what it was not sent, or the same twice."""

    def __init__(self, round_: Round, refused: list[int], shuffler: Shuffler) -> None:
        super().__init__([round_], shuffler, TICKET_KEY)
        self._refused = refused

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        await super().upload(cohort, upload)
        self.cancelled = True
        what = {"type": "urn:distrust:problem:conflict", "status": 409, "detail": "differs"}
        items = [RefusedItem(slot=slot, **what) for slot in self._refused]
        return UploadAnswer(accepted=0, refused=items)


@pytest.mark.parametrize("refused", [[19], [20], [0, 0]], ids=["another-part's", "unknown", "twice"])
def test_refusals_that_do_not_belong_to_an_upload_are_believed_of_no_client(
    make_round: MakeRound, world: World, shuffler: Shuffler, refused: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first upload holds slots 0 to 6: its users give up, and no slot counts as used by another."""
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    harness = _Slandering(round_, refused, shuffler)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=20, limits=Limits(items=7)))
    assert serve(fleet) == ["cancelled"]
    assert [len(upload.items) for upload in harness.uploads] == [7]
    assert (fleet.stats.clients["robbed"], fleet.stats.clients["refused"]) == (0, 20)
    assert "the refusals do not belong to the messages of stage report" in capsys.readouterr().out


def test_what_an_intermediary_writes_of_a_refusal_is_kept_as_one_short_text_without_control_characters() -> None:
    long = {"slot": 0, "type": "urn:\x1b" + "t" * 10**6, "status": 409, "detail": "\x9b" + "d" * 10**6}
    answer = {"version": 3, "accepted": 0, "refused": [long], "reasons": {"r" * 10**6: 1}}
    read = UploadAnswer.model_validate_json(json.dumps(answer))
    (item,) = read.refused
    assert [item.type[:5], item.detail[:2]] == ["urn:\ufffd", "\ufffdd"]
    assert [len(item.type), len(item.detail), *map(len, read.reasons or ())] == [LONGEST_REASON] * 3


class _Away(FleetHarness):
    """A service that stays away longer than the transport's patience."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        raise Unavailable("the shuffler is away")


def test_a_service_that_stays_away_ends_the_fleet_with_its_name(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    harness = _Away([make_round("local-laplace-discrete", via="shuffler")], shuffler, TICKET_KEY)
    with pytest.raises(Unavailable, match="the shuffler is away"):
        serve(Fleet(harness, world, lenient()))


def test_a_cancelled_run_ends_the_fleet(make_round: MakeRound, world: World, shuffler: Shuffler) -> None:
    harness = FleetHarness([make_round("local-laplace-discrete", via="shuffler")], shuffler, TICKET_KEY)
    harness.cancelled = True
    assert serve(Fleet(harness, world, lenient())) == ["cancelled"]


class _Listing(FleetHarness):
    """Lists the rounds that requests for tickets name."""

    def __init__(self, first: Round, shuffler: Shuffler) -> None:
        super().__init__([first], shuffler, TICKET_KEY)
        self.numbers: list[int] = []

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        self.numbers.append(request.round)
        return await super().tickets(request, wait)


def test_a_fleet_that_got_fewer_tickets_than_it_asked_for_waits_for_the_next_round(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """It got all that was free, so its next call is the one that waits for more."""
    first = make_round("identity", via="shuffler")
    harness = _Listing(first, shuffler)
    clients = sum(assignment.cohort.clients for assignment in first.assignments)
    fleet = Fleet(harness, world, UNSAFE, FleetOptions(block=clients + 1))
    serve(fleet)
    assert fleet.stats.clients["served"] == clients
    assert set(harness.numbers) == {0}

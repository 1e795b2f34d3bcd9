"""Tests that a fleet whose users refuse a round ends with the reason in its report."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from distrust.aggregator.service import Aggregator
from distrust.client.checks.requirements import PrivacyRequirements
from distrust.client.cohort.randomizer import World
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.common.errors import (
    BAD_INPUT,
    BudgetExceeded,
    Conflict,
    ExhaustedToken,
    ProtocolError,
    Refused,
    exit_status,
)
from distrust.common.protocol.intermediary.service import Intermediary
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.upload import Upload, UploadAnswer
from distrust.common.protocol.run.round import Round, TicketAnswer
from distrust.shuffler.service import Shuffler
from tests.support.fleet_harness import PATIENCE, TICKET_KEY, FleetHarness, LyingFleetHarness, config_of, serve
from tests.support.limits import lenient

MakeRound = Callable[..., Round]
Parties = dict[str, Intermediary]


@pytest.fixture
def parties(shuffler: Shuffler, aggregator: Aggregator) -> Parties:
    return {"shuffler": shuffler, "aggregator": aggregator}


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        pytest.param(lenient(max_epsilon=0.5), Refused, id="one-round"),
        pytest.param(lenient(max_epsilon=1.5, max_delta=1e-9, contributions=2), BudgetExceeded, id="several"),
    ],
)
def test_terms_that_a_round_breaks_before_tickets_are_taken_count_for_one_user(
    make_round: MakeRound, world: World, shuffler: Shuffler, terms: PrivacyRequirements, error: type[ProtocolError]
) -> None:
    harness = FleetHarness([make_round("local-laplace-discrete", via="shuffler")], shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, terms)
    with pytest.raises(error) as raised:
        serve(fleet)
    report = fleet.stats.report()
    why = f"{error.code}: {raised.value.detail}"
    assert (report["clients"]["refused"], report["clients"]["joined"], report["reasons"]) == (1, 0, {why: 1})


def test_a_fleet_with_a_pin_refuses_any_other_configuration_before_it_takes_tickets(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The configuration and its digest agree with each other, and c is 0: the server had no need to lie further."""
    round_ = make_round("local-laplace-discrete", via="shuffler", corrupt=0.0)
    harness = FleetHarness([round_], shuffler, TICKET_KEY)
    served, meant = config_of(round_).digest(), config_of(make_round()).digest()
    fleet = Fleet(harness, world, lenient(config_digest=meant))
    with pytest.raises(Refused) as raised:
        serve(fleet)
    own = f"the digest of run demo is {served.hex()}, and this user takes part in {meant.hex()} only"
    assert raised.value.detail == f"config: {own}"
    assert (fleet.stats.report()["clients"]["joined"], harness.uploads, harness.looks) == (0, [], [])


def test_a_fleet_with_a_pin_plays_the_configuration_that_it_names(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    round_ = make_round("local-laplace-discrete", via="shuffler")
    pinned = lenient(config_digest=config_of(round_).digest())
    fleet = Fleet(FleetHarness([round_], shuffler, TICKET_KEY), world, pinned)
    assert serve(fleet) == ["finished"]
    assert fleet.stats.report()["clients"]["served"] == 20


def test_users_that_hold_tickets_when_their_fleet_refuses_are_all_counted(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """The shuffler was told another minimum than the 7 users of the first block, who find out before they send."""
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    shown = round_.assignments[0].cohort.model_copy(update={"minimum": 1})
    fleet = Fleet(LyingFleetHarness(round_, shown, shuffler, TICKET_KEY), world, lenient(), FleetOptions(block=7))
    with pytest.raises(Refused, match=r"the shuffler was told cohort\.minimum = 1") as raised:
        serve(fleet)
    report = fleet.stats.report()
    assert (report["clients"]["refused"], report["clients"]["joined"]) == (7, 7)
    assert report["reasons"] == {f"refused: {raised.value.detail}": 7}


def test_users_whose_sealed_reports_are_refused_by_their_digest_are_all_counted_and_give_their_tickets_back(
    make_round: MakeRound, world: World, shuffler: Shuffler
) -> None:
    """Less than a block compares by its upload. The shuffler, which was told another minimum, stores nothing of it."""
    round_ = make_round("local-laplace-discrete", via="shuffler", clients=20)
    shown = round_.assignments[0].cohort.model_copy(update={"minimum": 1})
    harness = LyingFleetHarness(round_, shown, shuffler, TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=40))
    with pytest.raises(Refused, match=r"the shuffler was told cohort\.minimum = 1, and its clients 18") as raised:
        serve(fleet)
    assert (len(harness.uploads), harness.looks) == (1, [shown.cohort])
    stored = shuffler.transcript(shown.address, 0, 100).messages
    assert {row.stage for row in stored} == {"departed"}
    assert sorted(slot for leaving in harness.departures for slot in leaving.slots) == list(range(20))
    report = fleet.stats.report()
    assert [report["clients"][name] for name in ("joined", "refused", "robbed", "served")] == [20, 20, 0, 0]
    assert report["reasons"] == {f"refused: {raised.value.detail}": 20}


LIES = [
    ({"minimum": 17}, r"minimum = 17, and its clients 18"),
    ({"minimum": 1}, r"minimum = 1, and its clients 18"),
    ({"stage_seconds": 1.0}, r"stage_seconds = 1\.0, and its clients 60"),
]
BLOCKS = {"shuffled-laplace": [7], "shuffled-binomial": [7, 40], "distributed-polya": [7, 40]}
"""By mechanism, the blocks of clients that compare their cohort first: of sealed records only those that fill one."""


@pytest.mark.parametrize(("changes", "why"), LIES)
@pytest.mark.parametrize(("name", "block"), [(name, block) for name, blocks in BLOCKS.items() for block in blocks])
def test_an_intermediary_that_was_told_another_cohort_is_found_out_before_anything_is_sent(
    make_round: MakeRound, world: World, parties: Parties, *, name: str, block: int, changes: dict[str, Any], why: str
) -> None:
    round_ = make_round(name, clients=20, delta=1e-2 if name.startswith("shuffled") else None)
    cohort = round_.assignments[0].cohort
    harness = LyingFleetHarness(round_, cohort.model_copy(update=changes), parties[cohort.via], TICKET_KEY)
    with pytest.raises(Refused, match=rf"the {cohort.via} was told cohort\.{why}"):
        serve(Fleet(harness, world, lenient(), FleetOptions(block=block)))
    assert (harness.uploads, harness.looks) == ([], [cohort.cohort])
    assert [leaving.cohort for leaving in harness.departures] == [cohort.cohort]  # the others need not wait for them


class _Stubborn(FleetHarness):
    """An intermediary that refuses uploads as those of another cohort, and shows the cohort of its clients."""

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        if upload.stage in {"report", "masked"}:
            raise Conflict("another cohort")
        return await super().upload(cohort, upload)


@pytest.mark.parametrize("name", ["local-laplace-discrete", "distributed-polya"])
def test_an_intermediary_that_refuses_messages_of_the_cohort_that_it_shows_ends_the_fleet_in_any_stage(
    make_round: MakeRound, world: World, parties: Parties, name: str
) -> None:
    round_ = make_round(name, clients=20, **({"via": "shuffler"} if name.startswith("local") else {}))
    cohort = round_.assignments[0].cohort
    harness = _Stubborn([round_], parties[cohort.via], TICKET_KEY)
    fleet = Fleet(harness, world, lenient(), FleetOptions(block=40))
    refuses = f"the {cohort.via} refuses the messages of its clients as those of another cohort"
    with pytest.raises(Refused, match=f"{refuses}, and shows the one that they agreed to"):
        serve(fleet)
    assert (fleet.stats.clients["refused"], fleet.stats.clients["served"]) == (20, 0)
    assert sorted(slot for leaving in harness.departures for slot in leaving.slots) == list(range(20))


class Exhausted:
    """A harness as a fleet sees it whose token has a quota of `left` slots."""

    def __init__(self, harness: FleetHarness, left: int) -> None:
        self._harness, self.left = harness, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness, name)

    async def tickets(self, request: TicketRequest, wait: float) -> TicketAnswer:
        if not self.left:
            raise ExhaustedToken("some has had all 7 slots of its quota")
        answer = await self._harness.tickets(request, wait)
        self.left -= sum(grant.count for grant in answer.grants)
        return answer


def test_a_fleet_that_gets_no_more_tickets_plays_its_cohorts_to_their_end_and_says_why(
    make_round: MakeRound, world: World, aggregator: Aggregator
) -> None:
    """Its users share secrets with those of the other fleet. If they left, the cohort would be aborted."""
    harness = FleetHarness([make_round(clients=20)], aggregator, TICKET_KEY)
    exhausted: Any = Exhausted(harness, 7)
    one = Fleet(exhausted, world, lenient(), FleetOptions(block=7))
    other = Fleet(harness, world, lenient(), FleetOptions(block=13))

    async def both() -> list[object]:
        first = asyncio.create_task(one.serve())
        while exhausted.left:  # noqa: ASYNC110  the harness has no event for it
            await asyncio.sleep(0.001)
        return [*await asyncio.gather(first, other.serve(), return_exceptions=True)]

    refused, end = asyncio.run(asyncio.wait_for(both(), PATIENCE))
    assert isinstance(refused, ExhaustedToken)
    assert (exit_status(refused), end) == (BAD_INPUT, "finished")
    assert [fleet.stats.report()["clients"]["served"] for fleet in (one, other)] == [7, 13]

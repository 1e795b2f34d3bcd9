"""Tests that the transport over HTTP uses the paths that the services have."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import httpx
import pytest

from distrust.aggregator.app import AggregatorSettings, aggregator_app
from distrust.aggregator.service import Aggregator
from distrust.client.cohort.randomizer import World
from distrust.client.fleet.fleet import Fleet, FleetOptions
from distrust.client.transport.http import Addresses, HttpTransport, newest_running, patience
from distrust.common.errors import Aborted, BadMessage, Unavailable, WrongCohort
from distrust.common.protocol.messages.cohort import Cohort, TicketRequest
from distrust.common.protocol.messages.status import StageView
from distrust.common.protocol.messages.upload import InboxRequest, Leaving, Upload, UploadAnswer
from distrust.common.protocol.run.round import Round, RoundView
from distrust.common.protocol.web.client import Http, Patience, Problem
from distrust.common.protocol.web.intermediary import close
from distrust.common.wire import Version
from tests.support.asgi import OverHttpx
from tests.support.fleet_harness import TICKET_KEY, FleetHarness
from tests.support.limits import lenient

MakeRound = Callable[..., Round]
PLACES = Addresses("http://server", "http://shuffler", "http://aggregator")
QUICK = Patience(first=0.001, longest=0.001, total=60.0)


class _Wired(FleetHarness):
    """Tickets from the harness; everything for the intermediary goes through the transport."""

    transport: HttpTransport

    async def upload(self, cohort: Cohort, upload: Upload) -> UploadAnswer:
        return await self.transport.upload(cohort, upload)

    async def stage(self, cohort: Cohort, after: str, asked: InboxRequest | None, wait: float) -> StageView:
        return await self.transport.stage(cohort, after, asked, wait)

    async def leave(self, cohort: Cohort, leaving: Leaving) -> UploadAnswer:
        return await self.transport.leave(cohort, leaving)


def test_a_fleet_plays_a_masked_cohort_over_the_aggregators_own_routes(
    make_round: MakeRound, world: World, tmp_path: Path
) -> None:
    round_ = make_round(clients=40, dropout=0.2)
    app = aggregator_app(AggregatorSettings(database=f"sqlite:///{tmp_path}/a.sqlite3", host_names="aggregator"))
    service: Aggregator = app.state.service
    harness = _Wired([round_], service, TICKET_KEY)

    async def play() -> tuple[str, Http]:
        async with Http(QUICK, sender=OverHttpx(httpx.ASGITransport(app))) as http:
            harness.transport = HttpTransport(http, PLACES, "demo")
            return await Fleet(harness, world, lenient(), FleetOptions(block=11, dropout=0.2)).serve(), http

    state, http = asyncio.run(play())
    assert state == "finished"
    assert isinstance(service.batch(round_.assignments[0].cohort.address), bytes)
    assert http.sent > 40 * 64
    assert http.received > 40 * 64
    close(app)


def _answering(*answers: tuple[int, str]) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """Return a transport that gives the answers one by one and repeats the last, and the requests that it got."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        status, body = answers[min(len(seen), len(answers) - 1)]
        seen.append(request)
        return httpx.Response(status, text=body)

    return httpx.MockTransport(answer), seen


def test_rounds_and_tickets_come_from_the_server_of_the_run() -> None:
    view = '{"run":"demo","state":"finished","config":"","run_id":""}'
    transport, seen = _answering((200, view), (200, f'{{"grants":[],"view":{view}}}'))

    async def ask() -> None:
        async with Http(QUICK, sender=OverHttpx(transport)) as http:
            own = HttpTransport(http, PLACES, "demo")
            assert (await own.round(3, 25.0)).state == "finished"
            answer = await own.tickets(TicketRequest(request="0" * 32, round=0, want=9), 25.0)
            assert (answer.grants, answer.view) == ([], RoundView(run="demo", state="finished", config=b"", run_id=b""))

    asyncio.run(ask())
    assert [str(request.url) for request in seen] == [
        "http://server/v1/runs/demo/round?after=3&wait=25.0",
        "http://server/v1/runs/demo/tickets?wait=25.0",
    ]
    assert all("authorization" not in request.headers for request in seen)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_fleet_of_another_version_stops_before_it_asks_for_tickets(step: int, world: World) -> None:
    """What else the other version's round has or lacks is not told: the version explains it."""
    (own,) = get_args(Version)
    transport, seen = _answering((200, json.dumps({"version": own + step, "run": "demo", "news": True})))

    async def serve() -> None:
        async with Http(QUICK, sender=OverHttpx(transport)) as http:
            await Fleet(HttpTransport(http, PLACES, "demo"), world, lenient()).serve()

    sentence = f"version = {own + step}: this program speaks version {own} of the wire, and all parties of a run"
    with pytest.raises(BadMessage, match=f"^http://server answered something that is no RoundView: {sentence}"):
        asyncio.run(serve())
    assert [request.url.path for request in seen] == ["/v1/runs/demo/round"]


UNKNOWN = WrongCohort("cohort demo.1.0.1 is not known here")
NOT_OPEN = 404, Problem(type=UNKNOWN.urn, title="x", status=404, detail=UNKNOWN.detail).model_dump_json()


@pytest.fixture
def cohort(make_round: MakeRound) -> Cohort:
    return make_round("local-laplace-discrete", via="shuffler").assignments[0].cohort


def _sent(transport: httpx.MockTransport, cohort: Cohort, patience: Patience = QUICK) -> UploadAnswer:
    """Upload a report, and return the answer."""

    async def send() -> UploadAnswer:
        async with Http(patience, sender=OverHttpx(transport)) as http:
            upload = Upload(cohort=cohort.cohort, digest=bytes(32), stage="report", items=[])
            return await HttpTransport(http, PLACES, "demo").upload(cohort, upload)

    return asyncio.run(send())


def test_reports_go_to_the_shuffler_and_are_sent_again_unchanged_until_it_is_back(cohort: Cohort) -> None:
    transport, seen = _answering((503, ""), (502, ""), (200, '{"accepted":0,"refused":[]}'))
    assert _sent(transport, cohort).accepted == 0
    assert {str(request.url) for request in seen} == {f"http://shuffler/v1/cohorts/{cohort.address}/reports"}
    assert len({request.content for request in seen}) == 1
    assert len(seen) == 3


def test_a_departure_that_is_faster_than_the_call_that_opens_its_cohort_is_sent_again(cohort: Cohort) -> None:
    """The cohort would wait for these clients until its deadline."""
    transport, seen = _answering(NOT_OPEN, (200, '{"accepted":1,"refused":[]}'))

    async def leave() -> UploadAnswer:
        async with Http(QUICK, sender=OverHttpx(transport)) as http:
            leaving = Leaving(cohort=cohort.cohort, slots=[0], tickets=bytes(64))
            return await HttpTransport(http, PLACES, "demo").leave(cohort, leaving)

    assert asyncio.run(leave()).accepted == 1
    assert len(seen) == 2


@pytest.mark.parametrize("answers", [0, 1])
def test_an_intermediary_that_was_away_has_as_long_to_open_a_cohort_as_one_that_was_not(
    cohort: Cohort, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """It is away before its first answer, or after it."""
    monkeypatch.setattr("distrust.client.transport.http.OPENING_SECONDS", 0.5)
    away = [(503, "")] * 8
    transport, seen = _answering(*[NOT_OPEN] * answers, *away, NOT_OPEN, (200, '{"accepted":1,"refused":[]}'))
    began = time.monotonic()
    assert _sent(transport, cohort, Patience(first=0.05, longest=0.15, total=60.0)).accepted == 1
    assert time.monotonic() - began > 0.5
    assert len(seen) == 10 + answers


def test_a_message_that_is_faster_than_the_call_that_opens_its_cohort_is_sent_again(cohort: Cohort) -> None:
    transport, seen = _answering(NOT_OPEN, NOT_OPEN, (200, '{"accepted":1,"refused":[]}'))
    assert _sent(transport, cohort).accepted == 1
    assert (len(seen), len({request.content for request in seen})) == (3, 1)


def test_a_message_of_a_cohort_that_stays_unknown_is_given_up(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distrust.client.transport.http.OPENING_SECONDS", 0.05)
    transport, seen = _answering(NOT_OPEN)
    with pytest.raises(WrongCohort, match="not known here"):
        _sent(transport, cohort)
    assert 1 < len(seen) < 9  # pauses double


def test_a_refusal_is_not_repeated(cohort: Cohort) -> None:
    aborted = Problem(type=Aborted("").urn, title="aborted", status=410, detail="too few").model_dump_json()
    transport, seen = _answering((410, aborted))
    with pytest.raises(Aborted, match="too few"):
        _sent(transport, cohort)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("states", "found"),
    [
        (["running", "running"], "run-1"),
        (["running", "finished"], "run-0"),
        (["cancelled", "failed"], None),
        ([], None),
    ],
)
def test_auto_is_the_newest_run_that_is_not_over(states: list[str], found: str | None) -> None:
    facts = {"arms": 2, "horizon": 9, "mechanism": "identity"}
    lines = [{"run": f"run-{number}", "state": state, **facts} for number, state in enumerate(states)]
    transport, _ = _answering((200, json.dumps({"runs": lines})))

    async def ask() -> str:
        async with Http(Patience(total=-1), sender=OverHttpx(transport)) as http:
            return await newest_running(http, "http://server")

    if found is None:
        with pytest.raises(Unavailable, match="no run is open"):
            asyncio.run(ask())
    else:
        assert asyncio.run(ask()) == found


def test_patience_is_bounded() -> None:
    assert patience(60.0).total == 60.0
    assert patience(60.0).longest < 60.0

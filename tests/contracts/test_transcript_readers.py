"""Tests which pages may read an intermediary's transcripts and its list, and what parts of a transcript are read."""

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from distrust.aggregator.app import AggregatorSettings
from distrust.common.protocol.messages.cohort import Cohort
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.problems import bad_fields
from distrust.lab.services.outline import Pages, Wanted
from distrust.lab.services.parties import Services
from distrust.lab.stack.stack import Urls
from tests.support.asgi import OverHttpx
from tests.support.cohorts import address
from tests.support.parties import INSPECTOR, OPERATOR, Party, ShufflerParty

PAGES = "http://127.0.0.1:8701"
PATH = f"/v1/cohorts/{address('c1')}/messages"
OPENING = {"access-control-allow-origin", "access-control-allow-methods", "access-control-allow-headers"}
PREFLIGHT = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture
def opened(party: Party, cohort: Cohort) -> Party:
    assert cohort.cohort == "c1"
    party.restart(dashboard_origin=f"{PAGES},https://pages.example")
    return party


def test_the_named_pages_read_a_transcript_with_the_inspectors_token(opened: Party) -> None:
    for origin in (PAGES, "https://pages.example"):
        asked = opened.client.request("OPTIONS", PATH, headers={"Origin": origin, **PREFLIGHT})
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == origin
        assert asked.headers["access-control-allow-methods"] == "GET"
        assert asked.headers["access-control-allow-headers"] == "Authorization"
        assert asked.headers["x-content-type-options"] == "nosniff"
        answer = opened.client.get(PATH, headers={"Origin": origin, **INSPECTOR})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
        assert answer.headers["vary"] == asked.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers


def test_the_named_pages_can_tell_a_reader_that_the_token_is_wrong(opened: Party) -> None:
    answer = opened.client.get(PATH, headers={"Origin": PAGES, **OPERATOR})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, PAGES)
    assert "inspector's token" in answer.json()["detail"]


def test_pages_of_any_other_origin_get_nothing(opened: Party) -> None:
    others = ["http://127.0.0.1:8702", "https://127.0.0.1:8701", "http://127.0.0.1:8701.evil.example", "null", "*", ""]
    for origin in others:
        for method, status in (("GET", 200), ("OPTIONS", 405)):  # without the header a browser hides the answer
            answer = opened.client.request(method, PATH, headers={"Origin": origin, **PREFLIGHT, **INSPECTOR})
            assert (answer.status_code, OPENING & set(answer.headers)) == (status, set())


def test_the_named_pages_read_how_cohorts_stand_with_the_operators_token(opened: Party) -> None:
    path = "/v1/cohorts?open=true&run=r1&limit=40"
    asked = opened.client.request("OPTIONS", path, headers={"Origin": PAGES, **PREFLIGHT})
    assert (asked.status_code, asked.headers["access-control-allow-methods"]) == (204, "GET")
    for token, status in ((OPERATOR, 200), (INSPECTOR, 401), ({}, 401)):
        answer = opened.client.get(path, headers={"Origin": PAGES, **token})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGES)
    for origin in ("http://127.0.0.1:8702", "null"):
        answer = opened.client.get(path, headers={"Origin": origin, **OPERATOR})
        assert not OPENING & set(answer.headers)


def test_the_named_pages_read_nothing_but_transcripts_and_the_list(opened: Party) -> None:
    paths = [
        f"/v1/cohorts/{address('c1')}",
        f"/v1/cohorts/{address('c1')}/batch",
        f"/v1/cohorts/{address('c1')}/terms",
        "/v1/cohorts/",
        "/healthz",
    ]
    for path in paths:
        for method in ("GET", "OPTIONS"):
            answer = opened.client.request(method, path, headers={"Origin": PAGES, **PREFLIGHT, **OPERATOR})
            assert not OPENING & set(answer.headers)


def test_the_named_pages_change_nothing(opened: Party) -> None:
    for method in ("PUT", "POST", "DELETE"):
        wanted = {"Access-Control-Request-Method": method}
        answer = opened.client.request("OPTIONS", PATH, headers={"Origin": PAGES, **wanted})
        assert (answer.status_code, OPENING & set(answer.headers)) == (405, {"access-control-allow-origin"})


def test_without_the_setting_no_page_reads_a_transcript(party: Party, cohort: Cohort) -> None:
    answer = party.client.get(PATH, headers={"Origin": PAGES, **INSPECTOR})
    assert answer.status_code == 200
    assert not OPENING & set(answer.headers)
    assert party.client.request("OPTIONS", PATH, headers={"Origin": PAGES, **PREFLIGHT}).status_code == 405
    assert cohort.cohort == "c1"


def test_what_is_no_origin_is_refused_at_the_start() -> None:
    for origin in ("*", "http://*", "http://pages.example/", "pages.example", "http://a,", "http://a b"):
        with pytest.raises(ValidationError) as caught:
            AggregatorSettings(dashboard_origin=origin)
        assert "dashboard_origin" in bad_fields(caught.value, AggregatorSettings).detail


def played(party: Party, cohort: Cohort) -> dict[str, Any]:
    """Return the whole transcript of a cohort that has ended."""
    party.release(cohort)
    whole: dict[str, Any] = party.get("/c1/messages?limit=1000").json()
    return whole


def picked(messages: list[dict[str, Any]], each: int, client: int | None) -> list[dict[str, Any]]:
    """Return the first of each stage and direction, and all of one client."""
    counts = Counter[tuple[str, str]]()
    chosen = []
    for message in messages:
        kind = message["stage"], message["direction"]
        counts[kind] += 1
        chosen += [message] if counts[kind] <= each or message["peer"] == f"client {client}" else []
    return chosen


def test_a_reader_gets_the_first_messages_of_each_stage_and_those_of_one_client(party: Party, cohort: Cohort) -> None:
    whole = played(party, cohort)
    for each in (1, 2, 1000):
        for client in (None, 3):
            path = f"/c1/messages?limit=1000&each={each}" + ("" if client is None else f"&client={client}")
            expected = picked(whole["messages"], each, client)
            assert party.get(path).json() == {**whole, "messages": expected}
    expected, after = picked(whole["messages"], 1, 3), 0
    for one in expected:
        page = party.get(f"/c1/messages?limit=1&each=1&client=3&after={after}").json()
        assert (page["messages"], page["total"]) == ([one], whole["total"])
        after = page["next"]
    assert after is None


@pytest.mark.parametrize(
    "query", ["each=0", "each=1001", "each=x", "client=3", "each=1&client=-1", "each=1&limit=1001"]
)
@pytest.mark.few(8)
def test_a_part_of_a_transcript_is_bounded(party: Party, cohort: Cohort, query: str) -> None:
    assert cohort.cohort == "c1"
    assert party.get(f"/c1/messages?{query}").status_code == 422


class Calls(httpx.ASGITransport):
    """Counts the calls to a party. knows: the parameters of a service that is asked."""

    def __init__(self, party: Party, knows: Collection[str]) -> None:
        super().__init__(party.app)
        self.paths: list[str] = []
        self._knows = knows

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        params = {name: value for name, value in request.url.params.items() if name in self._knows}
        request.url = request.url.copy_with(params=params)
        return await super().handle_async_request(request)


def test_a_large_cohort_is_inspected_in_one_call_a_party(tmp_path: Path) -> None:
    """Before `each` was known, it took a call for 500 messages; a service of that version is still read."""
    clients = 1100
    party = ShufflerParty(tmp_path)
    cohort = party.cohort(clients=clients)
    assert party.open(cohort).status_code == 200
    whole = played(party, cohort)
    assert whole["total"] == clients + 1
    urls = Urls("", "http://party", "", token="sesame", inspector="look, but do not touch")
    wanted = Wanted(cohort.run, cohort.round, None, 3)
    for knows, calls in ((("after", "limit", "each"), 1), (("after", "limit"), 3)):
        counted = Calls(party, knows)

        async def read(transport: httpx.ASGITransport = counted) -> Pages | None:
            async with Services(urls) as services:
                services._http = Http(Patience(total=0.0), sender=OverHttpx(transport))
                assert [cohort.cohort for cohort in (await services.outline(wanted)).cohorts] == ["c1"]
                return await services.pages("shuffler", wanted, address("c1"))

        pages = asyncio.run(read())
        assert pages is not None
        assert (pages.total, len(pages.messages)) == (clients + 1, 4)
        assert counted.paths == ["/v1/cohorts", *[f"/v1/cohorts/{address('c1')}/messages"] * calls]
    party.stop()

"""Tests that only pages of the origins in `dashboard_origin` may read an intermediary's transcripts and its list."""

import pytest
from pydantic import ValidationError

from distrust.aggregator.app import AggregatorSettings
from distrust.common.messages.cohort import Cohort
from distrust.common.web.problems import bad_fields
from tests.support.parties import INSPECTOR, OPERATOR, Party

PAGES = "http://127.0.0.1:8701"
PATH = "/v1/cohorts/c1/messages"
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
    paths = ["/v1/cohorts/c1", "/v1/cohorts/c1/batch", "/v1/cohorts/c1/terms", "/v1/cohorts/", "/healthz"]
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

"""`distrust inspect` and a connection, over services that lie, and with names and options that cannot be."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from distrust.common.errors import BadMessage, BadParameter, ProtocolError, Unauthorized
from distrust.common.protocol.web.client import Http, Patience
from distrust.common.protocol.web.problems import document, render
from distrust.lab.__main__ import app
from distrust.lab.cli import stack
from distrust.lab.services.connection import Connection
from distrust.lab.services.outline import Wanted, wanted_of
from distrust.lab.services.parties import Services
from distrust.lab.services.replay import all_rounds
from distrust.lab.stack.data_dir import DataDir
from distrust.lab.stack.stack import Urls
from tests.support.asgi import OverHttpx
from tests.support.cohorts import address

WANTED = Wanted("readme", 1, None, 3)
AGGREGATOR = Urls("", "", "http://a")
ENTRY = {"number": 0, "direction": "in", "peer": "client 1", "stage": "keys", "bytes": 1, "view": {}, "hex": ""}
TRANSCRIPT = {"version": 3, "party": "aggregator", "cohort": "readme.1.0.1", "total": 9, "next": None}


def lying(answer: Callable[[httpx.Request], httpx.Response], urls: Urls) -> Services:
    """Services whose every answer is this one; after ten the reader counts as one that never ends."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        assert len(asked) < 10
        return answer(request)

    services = Services(urls)
    services._http = Http(Patience(total=0.0), sender=OverHttpx(httpx.MockTransport(handle)))
    return services


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"next": 0}, "page 0 to 1 of 9 leads to 0"),
        ({"next": -1}, "page 0 to 1 of 9 leads to -1"),
        ({"next": 9}, "page 0 to 1 of 9 leads to 9"),
        ({"next": 1, "total": 0}, "page 0 to 1 of 0 leads to 1"),
        ({"next": 1, "total": 1}, "page 0 to 1 of 1 leads to 1"),
        ({"next": 0, "messages": []}, "page 0 to 0 of 9 leads to 0"),
        ({"next": 1}, "page 0 to 1 of 9 leads to 1"),  # one message a page would be read for ever
        ({"next": 1, "total": 2**60}, r"it has 1,152,921,504,606,846,976 messages"),
        ({"messages": [ENTRY | {"stage": "new-1"}]}, "it has the stage 'new-1'"),
    ],
)
def test_a_transcript_that_leads_nowhere_ends(lie: dict[str, Any], why: str) -> None:
    body = TRANSCRIPT | {"messages": [ENTRY]} | lie
    services = lying(lambda _: httpx.Response(200, json=body), AGGREGATOR)
    with pytest.raises(BadMessage, match=f"that cannot be: .*{why}$"):
        asyncio.run(services.pages("aggregator", WANTED, address("readme.1.0.1")))


def test_a_list_of_rounds_that_leads_nowhere_ends() -> None:
    body = {"version": 3, "run": "readme", "total": 9, "next": 0, "rounds": []}
    services = lying(lambda _: httpx.Response(200, json=body), Urls("http://s", "", ""))
    with pytest.raises(BadMessage, match="page 0 to 0 of 9 leads to 0"):
        asyncio.run(all_rounds(services._peer("server", None), "readme"))


def test_rounds_of_long_decisions_are_asked_for_a_few_at_a_time() -> None:
    """An answer with more bytes than a reader takes is refused; the same rounds come in several."""
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        after, limit = (int(request.url.params[name]) for name in ("after", "limit"))
        asked.append((after, limit))
        body = {"version": 3, "run": "readme", "total": 0, "next": None, "rounds": []}
        return httpx.Response(200, json=body | ({} if limit < 50 else {"run": "x" * 5000}))

    http = Http(Patience(total=0.0), sender=OverHttpx(httpx.MockTransport(answer)), most=1000)
    assert asyncio.run(all_rounds(http.peer("http://s"), "readme")) == []
    assert asked == [(0, 50), (0, 6)]


def test_an_address_of_another_service_is_told_with_the_call() -> None:
    absent = document("urn:distrust:problem:not-found", "not-found", 404, "Not Found")
    services = lying(lambda _: httpx.Response(404, content=bytes(absent.body)), Urls("http://a", "", ""))
    why = r"^GET http://a/v1/runs/readme/rounds/1: HTTP 404: Not Found; is this another service's address\?$"
    with pytest.raises(ProtocolError, match=why):
        asyncio.run(services.outline(WANTED))


def test_without_a_token_a_list_of_cohorts_names_the_option() -> None:
    refusal = render(Unauthorized("needs the operator's token"))
    services = lying(lambda _: httpx.Response(401, content=bytes(refusal.body)), AGGREGATOR)
    with pytest.raises(Unauthorized, match=r"the aggregator lists its cohorts for the operator's token .*--token-file"):
        asyncio.run(services.outline(WANTED))


@pytest.mark.parametrize("name", ["", "../x", "readme?x", "a/../b", "readme#x", "A", "x\n", "r" * 81, "é", 5])
def test_what_cannot_be_a_runs_name_reaches_no_address(name: Any) -> None:
    """The address is none, so that a call would raise another error."""
    nowhere = Connection(Urls("no address", "", ""))
    reads = (nowhere.view, nowhere.rounds, nowhere.ledger, nowhere.cancel, lambda run: wanted_of(run, None, None, 3))
    for read in reads:
        with pytest.raises(BadParameter, match=r"^run = .*: must be a name of 1 to 80 signs"):
            read(name)


@pytest.mark.parametrize(
    ("number", "cohort", "field"),
    [
        (None, f"readme.{'9' * 5000}.0.1", "cohort"),
        (None, "../x", "cohort"),
        (None, f"readme.{'9' * 60}.0.1", "round"),
        (None, "readme.0.0.1", "round"),
        (10**30, None, "round"),
        (0, None, "round"),
    ],
)
def test_a_round_that_cannot_be_is_refused(number: int | None, cohort: str | None, field: str) -> None:
    with pytest.raises(BadParameter) as refused:
        wanted_of("readme", number, cohort, 3)
    assert refused.value.field == field
    assert len(refused.value.detail) < 250


def test_an_option_that_was_typed_wins_over_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        "distrust.lab.services.transcripts.gather", lambda where, _wanted: asked.append(where) or _none()
    )
    monkeypatch.setenv("DISTRUST_SERVER_URL", "http://127.0.0.1:1")
    for words in (["--data", str(tmp_path)], [], ["--server", "http://s"]):
        assert CliRunner().invoke(stack.app, ["inspect", "readme", *words]).exit_code == 0
    of_variable, typed = (Urls(server, "", "") for server in ("http://127.0.0.1:1", "http://s"))
    assert asked == [DataDir(tmp_path), of_variable, typed]
    for words, line in (
        (["--server", ""], "server = '': must be an address such as"),
        (["--data", "x", "--server", "http://s"], "data = 'x': leave it out, or --server"),
    ):
        refused = CliRunner().invoke(app, ["inspect", "readme", *words]).exception
        assert isinstance(refused, BadParameter)
        assert refused.detail.startswith(line)


async def _none() -> list[Any]:
    return []


@pytest.mark.parametrize("file", ["/dev/zero", "TWO"])
def test_a_token_file_holds_one_token(file: str, tmp_path: Path) -> None:
    (tmp_path / "two").write_text("one\ntwo\n")
    path = file.replace("TWO", str(tmp_path / "two"))
    refused = CliRunner().invoke(app, ["inspect", "readme", "--server", "http://s", "--token-file", path]).exception
    assert isinstance(refused, BadParameter)
    assert refused.detail.startswith(f"token-file = '{path}': must hold one token of at most 4096 signs")

"""Tests that what a caller gave is shown without the passwords of its addresses."""

import asyncio

import httpx
import pytest

import distrust
from distrust.common.errors import BadMessage, BadParameter, Unavailable
from distrust.common.inputs import without_passwords
from distrust.common.messages.explain import explain_all
from distrust.common.run.progress import RunList
from distrust.common.web.client import Http, Patience
from distrust.lab.__main__ import app
from distrust.lab.stack.stack import Urls


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@h/db", "postgresql://me:***@h/db"),
        ("postgresql://me@corp:s3cret@h/db", "postgresql://me@corp:***@h/db"),
        ("postgresql://me:12/s3@c:r@h/db", "postgresql://me:***@h/db"),
        ("postgresql://h/db?user=me&sslpassword=s3cret&x=1", "postgresql://h/db?user=me&sslpassword=***&x=1"),
        ("postgresql://h/db?pass%77ord=s3cret", "postgresql://h/db?pass%77ord=***"),
        ("postgresql://h/db?%50ASSWORD=s3 cret&x=1", "postgresql://h/db?%50ASSWORD=***&x=1"),
        ("http://me:s3cret@h:8701/v1", "http://me:***@h:8701/v1"),
        ("http://h:8701/v1/runs/a@b", "http://h:8701/v1/runs/a@b"),
        ("sqlite:////srv/server.sqlite3", "sqlite:////srv/server.sqlite3"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


def test_a_password_that_is_cut_with_its_value_is_not_shown() -> None:
    entry = {"type": "float_parsing", "loc": ("database",), "input": f"postgresql://me:{'s3' * 5000}@h/db"}
    assert explain_all([entry]) == ["database = 'postgresql://me:***@': must be a number"]


def test_a_refused_call_names_the_address_without_its_password() -> None:
    async def call(answer: httpx.Response | Exception) -> None:
        def handle(_: httpx.Request) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with Http(Patience(total=0.0), transport=httpx.MockTransport(handle)) as http:
            peer = http.peer("http://me:s3cret@h:8701", "token")
            assert repr(peer) == "Peer('http://me:***@h:8701')"
            await peer.get("/v1/runs", RunList)

    with pytest.raises(Unavailable, match=r"http://me:\*\*\*@h:8701/v1/runs: ConnectError http://me:\*\*\*@h") as away:
        asyncio.run(call(httpx.ConnectError("http://me:s3cret@h")))
    with pytest.raises(BadMessage, match=r"^http://me:\*\*\*@h:8701 answered") as unreadable:
        asyncio.run(call(httpx.Response(200, content=b"{}")))
    assert "s3cret" not in f"{away.value}{unreadable.value}"


def test_commands_and_the_library_refuse_an_address_without_showing_its_password() -> None:
    for bad in ("ftp://me:s3cret@h", "http://me:s3cret@h:port"):
        with pytest.raises(BadParameter, match=r"^url = '[a-z]+://me:\*\*\*@h") as refused:
            app(["health", bad], standalone_mode=False)
        assert "s3cret" not in str(refused.value)
        with pytest.raises(BadParameter, match=r"^server = '[a-z]+://me:\*\*\*@h"):
            distrust.connect(bad)
    with pytest.raises(Unavailable, match=r"^http://me:\*\*\*@127\.0\.0\.1:9"):
        app(["health", "http://me:s3cret@127.0.0.1:9"], standalone_mode=False)
    urls = Urls("http://me:s3cret@h", "", "", "token")
    assert repr(urls) == "Urls(server='http://me:***@h', shuffler='', aggregator='')"


def test_a_text_that_is_no_address_is_shown_as_it_was_given() -> None:
    with pytest.raises(BadParameter, match=r"^server = 'ftp://x': must be an address"):
        distrust.connect("ftp://x")
